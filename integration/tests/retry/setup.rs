//! Configurations that several tests use.

use lab::{
    bootstrap::{Bootstrap, ExtensionPoint, Variant},
    envoy::Binary,
    mesh::Setup,
};
use serde_json::{Value, json};

/// A waypoint whose filter has this policy; the budget is ample unless the policy has one.
pub fn guarded(policy: Value) -> Setup {
    let mut policy = policy;
    let fields = policy.as_object_mut().expect("a policy is an object");
    fields.entry("budget").or_insert_with(|| json!({ "ratio": 1.0, "min_per_second": 10000 }));
    Setup::new(Variant::StaleGuard).bootstrap(move |bootstrap| bootstrap.with_config(ExtensionPoint::Retry, &policy))
}

/// Sets the `retry_policy` of every route.
pub fn route_policy(setup: Setup, policy: Value) -> Setup {
    setup.bootstrap(move |bootstrap| bootstrap.with_route_field("retry_policy", &policy))
}

/// Takes the `retry_policy` of every route away.
pub fn no_route_policy(setup: Setup) -> Setup {
    setup.bootstrap(|bootstrap| bootstrap.with_route_field("retry_policy", &Value::Null))
}

/// What Istio gives to every outbound route of a sidecar or gateway without a VirtualService's own
/// (`retry.DefaultPolicy`).
pub fn istio_outbound() -> Value {
    json!({
        "retry_on": "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes",
        "num_retries": 2,
        "retriable_status_codes": [503],
        "retry_host_predicate": [previous_hosts()],
        "host_selection_retry_max_attempts": "5",
    })
}

/// A retry goes to an endpoint that was not tried yet.
pub fn previous_hosts() -> Value {
    json!({
        "name": "envoy.retry_host_predicates.previous_hosts",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
        },
    })
}

/// `typed_per_filter_config` with this policy.
pub fn per_route(policy: &Value) -> Value {
    json!({
        "stale_guard.retry": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3.DynamicModuleFilterPerRoute",
            "dynamic_module_config": { "name": "stale_guard", "do_not_close": true },
            "per_route_config_name": "retry",
            "filter_config": { "@type": "type.googleapis.com/google.protobuf.Struct", "value": policy },
        },
    })
}

/// JSON pointer of the virtual host.
pub fn virtual_host(bootstrap: &Bootstrap) -> anyhow::Result<String> {
    Ok(format!("{}/typed_config/route_config/virtual_hosts/0", bootstrap.hcm()?))
}

/// An edge: Envoy takes a client for internal by its address. The lab's come from 127.0.0.1.
pub fn edge(setup: Setup, internal: Value) -> Setup {
    setup.bootstrap(move |bootstrap| {
        let at = format!("{}/typed_config", bootstrap.hcm()?);
        bootstrap
            .patch(&format!("{at}/use_remote_address"), json!(true))?
            // Tests know requests by their ids.
            .patch(&format!("{at}/preserve_external_request_id"), json!(true))?
            .patch(&format!("{at}/internal_address_config"), internal)
    })
}

/// An `internal_address_config` with one range.
pub fn range(prefix: &str) -> Value {
    json!({ "cidr_ranges": [{ "address_prefix": prefix, "prefix_len": 8 }] })
}

/// The same on another Envoy; before 1.40 there is no config validator.
pub fn on(version: &str, setup: Setup, variant: Variant) -> Setup {
    let binary = Binary::version(version).unwrap();
    let setup = setup.envoy(|options| options.binary = Some(binary));
    if variant.has_module() && !version.starts_with("1.40") {
        return setup.bootstrap(Bootstrap::without_config_validators);
    }
    setup
}
