//! The age of the connection that a request went over, for its access log.

use std::{net::IpAddr, time::Instant};

use envoy_proxy_dynamic_modules_rust_sdk::{
    EnvoyHttpFilter,
    abi::{envoy_dynamic_module_type_attribute_id as Attribute, envoy_dynamic_module_type_metadata_source as Source},
};

use crate::{
    address::{self, LOCAL, ORIGINAL_DST},
    endpoints::ConnectionAge,
    metadata,
    shared::shared,
};

/// Notes the connection of a stream that ends, and says in its dynamic metadata how old it is. `reset`:
/// the stream ended by one; its tunnel, if it had one, is gone by now and explained elsewhere.
///
/// Without a tunnel the connection is known by its id (Envoy 1.39 and later). With one, the HTTP filter
/// sees only the inner connection; the outer one is the endpoint's on this worker, if it has only one.
pub(super) fn annotate(envoy: &mut impl EnvoyHttpFilter, reset: bool) {
    let id = envoy.get_upstream_connection_id();
    if id == 0 {
        return;
    }
    let now = Instant::now();
    let endpoints = &shared().endpoints;
    let connection = match tunnelled_to(envoy) {
        Some(_) if reset => None,
        Some(ip) => endpoints.serving(ip, now),
        None => direct_to(envoy).and_then(|ip| endpoints.used_directly(ip, id, now)),
    };
    if let Some(ConnectionAge { id, age, .. }) = connection {
        #[expect(clippy::cast_precision_loss, reason = "ids count from 1")]
        envoy.set_dynamic_metadata_number(metadata::NAMESPACE, metadata::UPSTREAM_CONNECTION_ID, id as f64);
        let age = age.as_secs_f64() * 1_000.0;
        envoy.set_dynamic_metadata_number(metadata::NAMESPACE, metadata::UPSTREAM_CONNECTION_AGE, age);
    }
}

fn tunnelled_to(envoy: &impl EnvoyHttpFilter) -> Option<IpAddr> {
    let local = envoy.get_metadata_string(Source::Host, ORIGINAL_DST, LOCAL)?;
    address::ip_of_bytes(local.as_slice())
}

fn direct_to(envoy: &impl EnvoyHttpFilter) -> Option<IpAddr> {
    address::ip_of_bytes(envoy.get_attribute_string(Attribute::UpstreamAddress)?.as_slice())
}
