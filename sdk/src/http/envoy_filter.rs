//! Envoy's side of one stream, as a trait: glue is written against it, and tests may fake it.

use std::sync::Arc;

use super::HttpPerRouteConfig;
use crate::abi::{
    envoy_dynamic_module_type_attribute_id as AttributeId,
    envoy_dynamic_module_type_http_callout_init_result as CalloutInitResult,
    envoy_dynamic_module_type_http_filter_stream_reset_reason as StreamResetReason,
    envoy_dynamic_module_type_metadata_source as MetadataSource,
    envoy_dynamic_module_type_metrics_result as MetricsResult,
    envoy_dynamic_module_type_socket_direction as SocketDirection,
    envoy_dynamic_module_type_socket_option_state as SocketOptionState,
};
use crate::buffer::{EnvoyBuffer, EnvoyMutBuffer};
use crate::metrics::{
    EnvoyCounterId, EnvoyCounterVecId, EnvoyGaugeId, EnvoyGaugeVecId, EnvoyHistogramId,
    EnvoyHistogramVecId, MetricResult, metric_updates,
};
use crate::scheduler::{Detached, EnvoyHttpFilterScheduler};

/// Hosts of a cluster, at one priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterHostCount {
    /// All hosts.
    pub total: usize,
    /// Healthy ones.
    pub healthy: usize,
    /// Degraded ones.
    pub degraded: usize,
}

/// All headers of one kind.
pub type Headers<'a> = Vec<(EnvoyBuffer<'a>, EnvoyBuffer<'a>)>;

/// What a filter may ask of its stream, on the stream's worker, inside a hook.
///
/// Every method has a default, the answer of a stream that knows nothing; a test's fake implements
/// the few it needs. Getters borrow: what they return ends with the next setter.
#[allow(
    unused_variables,
    reason = "the names document what an implementation receives"
)]
pub trait EnvoyHttpFilter {
    // --- headers ---

    /// First value of a request header.
    fn get_request_header_value(&self, key: &str) -> Option<EnvoyBuffer<'_>> {
        None
    }
    /// All values of a request header.
    fn get_request_header_values(&self, key: &str) -> Vec<EnvoyBuffer<'_>> {
        Vec::new()
    }
    /// All request headers.
    fn get_request_headers(&self) -> Headers<'_> {
        Vec::new()
    }
    /// Sets a request header, replacing its values; an empty value removes it.
    fn set_request_header(&mut self, key: &str, value: &[u8]) -> bool {
        false
    }
    /// Adds a value to a request header; an empty value is refused.
    fn add_request_header(&mut self, key: &str, value: &[u8]) -> bool {
        false
    }
    /// Removes a request header.
    fn remove_request_header(&mut self, key: &str) -> bool {
        false
    }
    /// First value of a request trailer.
    fn get_request_trailer_value(&self, key: &str) -> Option<EnvoyBuffer<'_>> {
        None
    }
    /// First value of a response header.
    fn get_response_header_value(&self, key: &str) -> Option<EnvoyBuffer<'_>> {
        None
    }
    /// All values of a response header.
    fn get_response_header_values(&self, key: &str) -> Vec<EnvoyBuffer<'_>> {
        Vec::new()
    }
    /// All response headers.
    fn get_response_headers(&self) -> Headers<'_> {
        Vec::new()
    }
    /// Sets a response header, replacing its values; an empty value removes it.
    fn set_response_header(&mut self, key: &str, value: &[u8]) -> bool {
        false
    }
    /// Adds a value to a response header; an empty value is refused.
    fn add_response_header(&mut self, key: &str, value: &[u8]) -> bool {
        false
    }
    /// Removes a response header.
    fn remove_response_header(&mut self, key: &str) -> bool {
        false
    }
    /// First value of a response trailer, such as `grpc-status`.
    fn get_response_trailer_value(&self, key: &str) -> Option<EnvoyBuffer<'_>> {
        None
    }

    // --- body ---

    /// Chunks of the body piece that this hook received.
    fn get_received_request_body(&mut self) -> Option<Vec<EnvoyMutBuffer<'_>>> {
        None
    }
    /// Chunks of the request body that Envoy has buffered.
    fn get_buffered_request_body(&mut self) -> Option<Vec<EnvoyMutBuffer<'_>>> {
        None
    }
    /// Bytes of the body piece that this hook received.
    fn get_received_request_body_size(&mut self) -> usize {
        0
    }
    /// Bytes of the request body that Envoy has buffered.
    fn get_buffered_request_body_size(&mut self) -> usize {
        0
    }
    /// Chunks of the response body piece that this hook received.
    fn get_received_response_body(&mut self) -> Option<Vec<EnvoyMutBuffer<'_>>> {
        None
    }
    /// Bytes of the response body piece that this hook received.
    fn get_received_response_body_size(&mut self) -> usize {
        0
    }
    /// Bytes of the response body that Envoy has buffered.
    fn get_buffered_response_body_size(&mut self) -> usize {
        0
    }
    /// Removes bytes from the front of the buffered request body.
    fn drain_buffered_request_body(&mut self, bytes: usize) -> bool {
        false
    }
    /// Appends to the buffered request body.
    fn append_buffered_request_body(&mut self, data: &[u8]) -> bool {
        false
    }
    /// Whether the body hook in progress received what Envoy had buffered.
    fn received_buffered_request_body(&mut self) -> bool {
        false
    }
    /// As above, for the response.
    fn received_buffered_response_body(&mut self) -> bool {
        false
    }
    /// Bytes that Envoy buffers for this stream at most; 0 means no limit.
    fn get_buffer_limit(&self) -> u64 {
        0
    }
    /// Changes that limit.
    fn set_buffer_limit(&mut self, limit: u64) {}

    // --- stream control ---

    /// Answers the request here. Runs the `on_local_reply` of the other filters before it returns.
    fn send_response(
        &mut self,
        status: u32,
        headers: &[(&str, &[u8])],
        body: Option<&[u8]>,
        details: Option<&str>,
    ) {
    }
    /// Goes on with a request that a hook had stopped.
    fn continue_decoding(&mut self) {}
    /// Goes on with a response that a hook had stopped.
    fn continue_encoding(&mut self) {}
    /// Has the route chosen anew. Nothing in an upstream filter.
    fn clear_route_cache(&mut self) {}
    /// Has the route's cluster chosen anew.
    fn clear_route_cluster_cache(&mut self) {}
    /// Resets the stream. Return from the hook at once: Envoy up to 1.39 destroys the filter here.
    fn reset_stream(&mut self, reason: StreamResetReason, details: &str) {}
    /// Starts the request anew from its headers. The argument becomes the response headers that the
    /// access log records for the abandoned stream. Return at once, as above.
    fn recreate_stream(&mut self, headers: Option<&[(&str, &[u8])]>) -> bool {
        false
    }
    /// Asks the load balancer for one host, `"ip:port"`; for all tries of this request.
    fn set_upstream_override_host(&mut self, host: &str, strict: bool) -> bool {
        false
    }

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
    /// Name of the cluster that the route chose.
    fn get_cluster_name(&self) -> Option<EnvoyBuffer<'_>> {
        None
    }
    /// Hosts of that cluster.
    fn get_cluster_host_count(&self, priority: u32) -> Option<ClusterHostCount> {
        None
    }
    /// Id of the upstream connection, once the pool gave one. Envoy 1.39 and later.
    fn get_upstream_connection_id(&self) -> Option<u64> {
        None
    }

    // --- metadata, filter state, socket options ---

    /// A text in the metadata of `source`.
    fn get_metadata_string(
        &self,
        source: MetadataSource,
        namespace: &str,
        key: &str,
    ) -> Option<EnvoyBuffer<'_>> {
        None
    }
    /// A number in the metadata of `source`.
    fn get_metadata_number(
        &self,
        source: MetadataSource,
        namespace: &str,
        key: &str,
    ) -> Option<f64> {
        None
    }
    /// A yes-or-no in the metadata of `source`.
    fn get_metadata_bool(
        &self,
        source: MetadataSource,
        namespace: &str,
        key: &str,
    ) -> Option<bool> {
        None
    }
    /// Sets a text in the dynamic metadata.
    fn set_dynamic_metadata_string(&mut self, namespace: &str, key: &str, value: &str) {}
    /// Sets a number in the dynamic metadata.
    fn set_dynamic_metadata_number(&mut self, namespace: &str, key: &str, value: f64) {}
    /// Sets a yes-or-no in the dynamic metadata.
    fn set_dynamic_metadata_bool(&mut self, namespace: &str, key: &str, value: bool) {}
    /// A filter-state object that is a string.
    fn get_filter_state_bytes(&self, key: &[u8]) -> Option<EnvoyBuffer<'_>> {
        None
    }
    /// Sets a string as filter state, for this filter chain; write-once per key on Envoy 1.38.
    fn set_filter_state_bytes(&mut self, key: &[u8], value: &[u8]) -> bool {
        false
    }
    /// A filter-state object in its serialized form; copied, since Envoy reuses its buffer.
    fn get_filter_state_typed(&self, key: &[u8]) -> Option<Vec<u8>> {
        None
    }
    /// Sets filter state through the object factory that is named like the key.
    fn set_filter_state_typed(&mut self, key: &[u8], value: &[u8]) -> bool {
        false
    }
    /// Sets a socket option.
    fn set_socket_option_int(
        &mut self,
        level: i64,
        name: i64,
        state: SocketOptionState,
        direction: SocketDirection,
        value: i64,
    ) -> bool {
        false
    }
    /// Reads back a socket option that was set here.
    fn get_socket_option_int(
        &self,
        level: i64,
        name: i64,
        state: SocketOptionState,
        direction: SocketDirection,
    ) -> Option<i64> {
        None
    }

    // --- metrics, scheduler, call-outs ---

    metric_updates!(trait plain);
    metric_updates!(trait labelled);

    /// A scheduler whose events arrive at this filter.
    fn new_scheduler(&self) -> impl EnvoyHttpFilterScheduler + 'static {
        Detached
    }
    /// Sends a request to a cluster; needs `:method`, `:path` and `host`. Gives the call-out's id.
    fn send_http_callout(
        &mut self,
        cluster_name: &str,
        headers: &[(&str, &[u8])],
        body: Option<&[u8]>,
        timeout_milliseconds: u64,
    ) -> (CalloutInitResult, u64) {
        (CalloutInitResult::ClusterNotFound, 0)
    }
}
