//! Lines to paste, for Envoy's own configuration or for Istio's objects.

use crate::model::{Bootstrap, Kind, Node, StatsMatcher};

const MODULE: &str = "dynamic_module_config: { name: stale_guard, do_not_close: true }";
/// Istio's proxy has dynamic modules since 1.31; an older one would refuse its listener.
const VERSIONS: &str = r"^1\.(3[1-9]|[4-9][0-9]).*";

/// The fence and what puts its generation into the pool key, before `tcp_proxy`.
pub(crate) fn fence(node: &Node) -> String {
    let (fence, generation) = (fence_filter(), generation_filter());
    match node.managed_as() {
        Kind::Waypoint => {
            let patch = |filter: &str| {
                patch(
                    "NETWORK_FILTER",
                    "SIDECAR_INBOUND",
                    "name: connect_originate\n    filterChain:\n      filter: { name: envoy.filters.network.tcp_proxy }",
                    filter,
                )
            };
            envoy_filter(node, "stale-guard-fence", &[patch(&fence), patch(&generation)])
        }
        // No EnvoyFilter reaches a gateway's connect_originate.
        Kind::Gateway | Kind::Sidecar | Kind::Plain => format!("{}\n{}", item(&fence), item(&generation)),
    }
}

/// What puts the generation into the pool key.
pub(crate) fn generation() -> String {
    item(&generation_filter())
}

/// `retry`, before the router.
pub(crate) fn retry(node: &Node) -> String {
    let filter = format!(
        "name: stale_guard.retry\ntyped_config:\n  \"@type\": type.googleapis.com/envoy.extensions.filters.http.\
         dynamic_modules.v3.DynamicModuleFilter\n  {MODULE}\n  filter_name: retry\n  filter_config:\n    \"@type\": \
         type.googleapis.com/google.protobuf.Struct\n    value: {{ methods: idempotent }}"
    );
    let chain = "filterChain:\n      filter:\n        name: envoy.filters.network.http_connection_manager\n        \
                 subFilter: { name: envoy.filters.http.router }";
    match node.managed_as() {
        Kind::Waypoint => {
            let listener = format!("name: main_internal\n    {chain}");
            envoy_filter(node, "stale-guard-retry", &[patch("HTTP_FILTER", "SIDECAR_INBOUND", &listener, &filter)])
        }
        Kind::Gateway => envoy_filter(node, "stale-guard-retry", &[patch("HTTP_FILTER", "GATEWAY", chain, &filter)]),
        Kind::Sidecar | Kind::Plain => item(&filter),
    }
}

/// The `status` extension; for Istio the file of `ISTIO_BOOTSTRAP_OVERRIDE` has the same form.
pub(crate) fn status() -> String {
    format!(
        "bootstrap_extensions:\n- name: stale_guard.status\n  typed_config:\n    \"@type\": type.googleapis.com/envoy.\
         extensions.bootstrap.dynamic_modules.v3.DynamicModuleBootstrapExtension\n    {MODULE}\n    extension_name: \
         status\n    extension_config:\n      \"@type\": type.googleapis.com/google.protobuf.Struct\n      value:\n        \
         watch: {{ source: admin, cluster: prometheus_stats }}"
    )
}

/// The validators of the ADS source.
pub(crate) fn validators() -> String {
    let entry = |name: &str, resource: &str| {
        format!(
            "- name: stale_guard.watch.{name}\n  typed_config:\n    \"@type\": type.googleapis.com/envoy.extensions.\
             config.validators.dynamic_modules.v3.DynamicModuleConfigValidator\n    {MODULE}\n    extension_name: \
             watch\n    type_urls: [type.googleapis.com/{resource}]\n"
        )
    };
    let endpoints = entry("endpoints", "envoy.config.endpoint.v3.ClusterLoadAssignment");
    format!("config_validators:\n{endpoints}{}", entry("clusters", "envoy.config.cluster.v3.Cluster"))
}

/// How much a poll may answer.
pub(crate) fn poll_limit() -> String {
    "layered_runtime:\n  layers:\n  - name: stale_guard\n    static_layer: { http.async_response_buffer_limit: 134217728 }"
        .to_owned()
}

/// The cluster that leads to the admin endpoint.
pub(crate) fn poll_cluster(name: &str, host: &str, port: u64) -> String {
    // Both come from the proxy's configuration. A JSON string is one of YAML, too.
    let (name, host) = (serde_json::Value::from(name), serde_json::Value::from(host));
    format!(
        "- name: {name}\n  type: STATIC\n  connect_timeout: 0.25s\n  load_assignment:\n    cluster_name: {name}\n    \
         endpoints:\n    - lb_endpoints:\n      - endpoint:\n          address:\n            socket_address: {{ address: \
         {host}, port_value: {port} }}"
    )
}

/// The module's statistics, and the control plane's gauge, which should be kept; `None` where the matcher is no
/// list to add to.
pub(crate) fn stats(bootstrap: &Bootstrap, namespace: &str) -> Option<String> {
    match bootstrap.node.managed_as() {
        Kind::Waypoint | Kind::Gateway => {
            let prefixes = serde_json::Value::from(format!("{namespace},control_plane"));
            Some(format!(
                "# Gateway, spec.infrastructure:\nannotations:\n  sidecar.istio.io/statsInclusionPrefixes: {prefixes}"
            ))
        }
        Kind::Sidecar | Kind::Plain => match &bootstrap.stats {
            StatsMatcher::Only(_) => {
                let namespace = serde_json::Value::from(namespace);
                Some(format!(
                    "stats_config:\n  stats_matcher:\n    inclusion_list:\n      patterns:\n      - {{ prefix: \
                     {namespace} }}\n      - {{ prefix: control_plane }}"
                ))
            }
            StatsMatcher::All | StatsMatcher::None | StatsMatcher::Except(_) => None,
        },
    }
}

/// The idle timeout of outer connections.
pub(crate) fn idle_timeout(node: &Node) -> String {
    match node.managed_as() {
        Kind::Waypoint | Kind::Gateway | Kind::Sidecar => "meshConfig:\n  hboneIdleTimeout: 300s".to_owned(),
        Kind::Plain => "common_http_protocol_options: { idle_timeout: 300s }".to_owned(),
    }
}

/// Conditions that prove that nothing was executed.
pub(crate) fn retry_on(node: &Node) -> String {
    let words = "connect-failure,refused-stream,reset-before-request";
    match node.managed_as() {
        Kind::Waypoint | Kind::Gateway | Kind::Sidecar => format!(
            "# meshConfig, for all routes; a VirtualService has the same under retries\nmeshConfig:\n  \
             defaultHttpRetryPolicy: {{ attempts: 2, retryOn: \"{words}\" }}"
        ),
        Kind::Plain => format!("retry_policy: {{ retry_on: \"{words}\", num_retries: 2 }}"),
    }
}

fn fence_filter() -> String {
    format!(
        "name: stale_guard.fence\ntyped_config:\n  \"@type\": type.googleapis.com/envoy.extensions.filters.network.\
         dynamic_modules.v3.DynamicModuleNetworkFilter\n  {MODULE}\n  filter_name: fence\n  filter_config:\n    \
         \"@type\": type.googleapis.com/google.protobuf.Struct\n    value: {{ mode: enforce }}"
    )
}

fn generation_filter() -> String {
    "name: stale_guard.generation\ntyped_config:\n  \"@type\": type.googleapis.com/envoy.extensions.filters.network.\
     set_filter_state.v3.Config\n  on_new_connection:\n  - object_key: stale_guard.generation\n    factory_key: \
     envoy.hashable_string\n    format_string:\n      text_format_source: { inline_string: \
     \"%DYNAMIC_METADATA(stale_guard:generation)%\" }\n      omit_empty_values: true\n    shared_with_upstream: ONCE\n    \
     skip_if_empty: true"
        .to_owned()
}

/// One patch of an EnvoyFilter. `listener` is indented by four.
fn patch(kind: &str, context: &str, listener: &str, filter: &str) -> String {
    let listener = listener.replace('\n', "\n  ");
    let filter = filter.replace('\n', "\n      ");
    format!(
        "- applyTo: {kind}\n  match:\n    context: {context}\n    proxy: {{ proxyVersion: '{VERSIONS}' }}\n    \
         listener:\n      {listener}\n  patch:\n    operation: INSERT_BEFORE\n    value:\n      {filter}"
    )
}

fn envoy_filter(node: &Node, name: &str, patches: &[String]) -> String {
    let namespace = label(node.namespace.as_deref(), "default");
    let gateway = label(node.gateway.as_deref(), "waypoint");
    let patches = patches.join("\n").replace('\n', "\n  ");
    format!(
        "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {{ name: {name}, namespace: \
         {namespace} }}\nspec:\n  targetRefs:\n  - {{ group: gateway.networking.k8s.io, kind: Gateway, name: {gateway} \
         }}\n  priority: 10\n  configPatches:\n  {patches}"
    )
}

/// A name of Kubernetes (RFC 1123), as it is pasted into YAML; else the placeholder.
fn label<'a>(name: Option<&'a str>, placeholder: &'a str) -> &'a str {
    let allowed =
        |name: &&str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    name.filter(allowed).unwrap_or(placeholder)
}

/// As an element of a list.
fn item(text: &str) -> String {
    format!("- {}", text.replace('\n', "\n  "))
}
