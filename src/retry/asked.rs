//! What the filter asks Envoy for: a request's headers, its route, its endpoint.

use std::{net::IpAddr, sync::Arc};

use envoy_proxy_dynamic_modules_rust_sdk::{
    EnvoyHttpFilter,
    abi::{envoy_dynamic_module_type_attribute_id as Attribute, envoy_dynamic_module_type_metadata_source as Source},
};

use super::{budgets::Loaded, request::Headers, steer};
use crate::{
    address::{LOCAL, ORIGINAL_DST, ip_of_bytes},
    metadata,
};

/// Envoy's request headers.
pub(super) struct RequestHeaders<'a, E>(pub(super) &'a E);

// === impl RequestHeaders ===

impl<E: EnvoyHttpFilter> Headers for RequestHeaders<'_, E> {
    fn joined(&self, name: &str) -> Option<Vec<u8>> {
        let values = self.0.get_request_header_values(name);
        let values: Vec<&[u8]> = values.iter().map(|value| value.as_slice()).collect();
        (!values.is_empty()).then(|| values.join(&b','))
    }

    fn contains(&self, name: &str) -> bool {
        self.0.get_request_header_value(name).is_some()
    }
}

/// The policy of the most specific route that has one.
pub(super) fn route_policy(envoy: &impl EnvoyHttpFilter) -> Option<Arc<Loaded>> {
    let config = envoy.get_most_specific_route_config()?;
    config.downcast_ref::<Arc<Loaded>>().map(Arc::clone)
}

/// The route's own number of retries, where its metadata repeats it.
pub(super) fn route_retries(envoy: &impl EnvoyHttpFilter) -> Option<u32> {
    let number = envoy.get_metadata_number(Source::Route, metadata::NAMESPACE, steer::ROUTE_RETRIES)?;
    // Beyond the range `as` saturates, and what is no number becomes 0.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "any number is harmless")]
    Some(number as u32)
}

/// The endpoint of the last attempt. Behind a waypoint the host is an internal listener, whose endpoint
/// metadata names the pod; elsewhere it is the host's own address.
pub(super) fn upstream(envoy: &impl EnvoyHttpFilter) -> Option<IpAddr> {
    let tunnelled = envoy.get_metadata_string(Source::Host, ORIGINAL_DST, LOCAL);
    tunnelled.and_then(|address| ip_of_bytes(address.as_slice())).or_else(|| {
        envoy.get_attribute_string(Attribute::UpstreamAddress).and_then(|address| ip_of_bytes(address.as_slice()))
    })
}
