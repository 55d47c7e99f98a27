//! Envoy's side of one stream, as a trait: glue is written against it, and tests may fake it.

use std::sync::Arc;

use super::per_route::HttpPerRouteConfig;
use crate::abi::{
    envoy_dynamic_module_type_attribute_id as AttributeId,
    envoy_dynamic_module_type_http_filter_stream_reset_reason as StreamResetReason,
    envoy_dynamic_module_type_metadata_source as MetadataSource,
    envoy_dynamic_module_type_metrics_result as MetricsResult,
};
use crate::buffer::EnvoyBuffer;
use crate::metrics::{EnvoyCounterId, MetricResult};
use crate::scheduler::{Detached, EnvoyHttpFilterScheduler};

/// What a filter may ask of its stream, on the stream's worker, inside a hook.
///
/// Every method has a default, the answer of a stream that knows nothing; a test's fake implements
/// the few it needs. Getters borrow: what they return ends with the next setter.
#[allow(unused_variables, reason = "the names document what an implementation receives")]
pub trait EnvoyHttpFilter {
    // --- headers ---

    /// First value of a request header.
    fn get_request_header_value(&self, key: &str) -> Option<EnvoyBuffer<'_>> {
        None
    }
    /// All values of a request header; one call for each value.
    fn get_request_header_values(&self, key: &str) -> Vec<EnvoyBuffer<'_>> {
        Vec::new()
    }
    /// All request headers, in two calls: cheaper than asking for more than a few by name.
    fn get_request_headers(&self) -> Vec<(EnvoyBuffer<'_>, EnvoyBuffer<'_>)> {
        Vec::new()
    }
    /// Sets a request header, replacing its values. An empty value removes it, up to Envoy 1.40.
    fn set_request_header(&mut self, key: &str, value: &[u8]) -> bool {
        false
    }
    /// Removes a request header.
    fn remove_request_header(&mut self, key: &str) -> bool {
        false
    }
    /// First value of a response header.
    fn get_response_header_value(&self, key: &str) -> Option<EnvoyBuffer<'_>> {
        None
    }
    /// Sets a response header, replacing its values. An empty value removes it, up to Envoy 1.40.
    fn set_response_header(&mut self, key: &str, value: &[u8]) -> bool {
        false
    }
    /// Removes a response header.
    fn remove_response_header(&mut self, key: &str) -> bool {
        false
    }

    // --- body ---

    /// Bytes of the body piece that this hook received.
    fn get_received_request_body_size(&mut self) -> usize {
        0
    }
    /// Bytes that Envoy buffers for this stream at most; 0 means no limit.
    fn get_buffer_limit(&self) -> u64 {
        0
    }

    // --- stream control ---

    /// Answers the request here. Runs the `on_local_reply` of the other filters before it returns.
    fn send_response(&mut self, status: u32, headers: &[(&str, &[u8])], body: Option<&[u8]>, details: Option<&str>) {}
    /// Goes on with a request that a hook had stopped.
    fn continue_decoding(&mut self) {}
    /// Goes on with a response that a hook had stopped.
    fn continue_encoding(&mut self) {}
    /// Resets the stream. Return from the hook at once: Envoy up to 1.39 destroys the filter here.
    fn reset_stream(&mut self, reason: StreamResetReason, details: &str) {}

    // --- route, attributes, upstream ---

    /// The most specific per-route configuration of this module's filter; never in an upstream filter.
    fn get_most_specific_route_config(&self) -> Option<Arc<HttpPerRouteConfig>> {
        None
    }
    /// This worker's index, from 0.
    fn get_worker_index(&self) -> u32 {
        0
    }
    /// Adds a response flag of the module's own to the access log; no white space in it.
    fn add_custom_flag(&mut self, flag: &str) {}
    /// A text attribute.
    fn get_attribute_string(&self, attribute_id: AttributeId) -> Option<EnvoyBuffer<'_>> {
        None
    }
    /// A whole-number attribute (`u64` in the ABI, as `i64` like the official crate).
    fn get_attribute_int(&self, attribute_id: AttributeId) -> Option<i64> {
        None
    }
    /// A yes-or-no attribute.
    fn get_attribute_bool(&self, attribute_id: AttributeId) -> Option<bool> {
        None
    }
    /// Id of the upstream connection, once the pool gave one, else 0. Envoy 1.39 and later.
    fn get_upstream_connection_id(&self) -> u64 {
        0
    }

    // --- metadata ---

    /// A text in the metadata of `source`.
    fn get_metadata_string(&self, source: MetadataSource, namespace: &str, key: &str) -> Option<EnvoyBuffer<'_>> {
        None
    }
    /// A number in the metadata of `source`.
    fn get_metadata_number(&self, source: MetadataSource, namespace: &str, key: &str) -> Option<f64> {
        None
    }
    /// Sets a text in the dynamic metadata.
    fn set_dynamic_metadata_string(&mut self, namespace: &str, key: &str, value: &str) {}
    /// Sets a number in the dynamic metadata.
    fn set_dynamic_metadata_number(&mut self, namespace: &str, key: &str, value: f64) {}
    /// Sets a yes-or-no in the dynamic metadata.
    fn set_dynamic_metadata_bool(&mut self, namespace: &str, key: &str, value: bool) {}

    // --- metrics, scheduler ---

    /// Adds to a counter.
    fn increment_counter(&self, id: EnvoyCounterId, value: u64) -> MetricResult {
        Err(MetricsResult::MetricNotFound)
    }
    /// A scheduler whose events arrive at this filter.
    fn new_scheduler(&self) -> impl EnvoyHttpFilterScheduler + 'static {
        Detached
    }
}
