//! Envoy's side of one connection, as a trait: glue is written against it, and tests may fake it.

use crate::ClusterHostCount;
use crate::abi::{
    envoy_dynamic_module_type_attribute_id as AttributeId,
    envoy_dynamic_module_type_http_callout_init_result as CalloutInitResult,
    envoy_dynamic_module_type_metrics_result as MetricsResult,
    envoy_dynamic_module_type_network_connection_close_type as CloseType,
    envoy_dynamic_module_type_network_connection_state as ConnectionState,
    envoy_dynamic_module_type_network_read_disable_status as ReadDisableStatus,
    envoy_dynamic_module_type_socket_option_state as SocketOptionState,
};
use crate::buffer::EnvoyBuffer;
use crate::metrics::{
    EnvoyCounterId, EnvoyGaugeId, EnvoyHistogramId, MetricResult, metric_updates,
};
use crate::scheduler::{Detached, EnvoyNetworkFilterScheduler};

/// What a filter may ask of its connection, on the connection's worker, inside a hook.
///
/// Every method has a default, the answer of a connection that knows nothing; a test's fake
/// implements the few it needs. Getters borrow: what they return ends with the next setter.
#[allow(
    unused_variables,
    reason = "the names document what an implementation receives"
)]
pub trait EnvoyNetworkFilter {
    /// Chunks of the read buffer, and their total length in bytes.
    fn get_read_buffer_chunks(&mut self) -> (Vec<EnvoyBuffer<'_>>, usize) {
        (Vec::new(), 0)
    }
    /// Chunks of the write buffer, and their total length in bytes.
    fn get_write_buffer_chunks(&mut self) -> (Vec<EnvoyBuffer<'_>>, usize) {
        (Vec::new(), 0)
    }
    /// Goes on with a connection that a hook had stopped.
    fn continue_reading(&mut self) {}
    /// Closes the connection.
    fn close(&mut self, close_type: CloseType) {}
    /// Closes the connection, with details for access logs.
    fn close_with_details(&mut self, close_type: CloseType, details: &str) {}
    /// Keeps Envoy from closing the connection while `true`.
    fn disable_close(&mut self, disabled: bool) {}
    /// The connection's id, unique in this process.
    fn get_connection_id(&self) -> u64 {
        0
    }
    /// The peer's address, without port, and its port; empty and 0 if it is no IP address.
    fn get_remote_address(&self) -> (String, u32) {
        (String::new(), 0)
    }
    /// The local address and port, restored ones included.
    fn get_local_address(&self) -> (String, u32) {
        (String::new(), 0)
    }
    /// The peer's address as the socket knows it.
    fn get_direct_remote_address(&self) -> Option<(EnvoyBuffer<'_>, u32)> {
        None
    }
    /// Address and port of the upstream host, once one is selected.
    fn get_upstream_host_address(&self) -> Option<(String, u32)> {
        None
    }
    /// Hostname of the upstream host.
    fn get_upstream_host_hostname(&self) -> Option<String> {
        None
    }
    /// Cluster of the upstream host.
    fn get_upstream_host_cluster(&self) -> Option<String> {
        None
    }
    /// Whether an upstream host is selected.
    fn has_upstream_host(&self) -> bool {
        false
    }
    /// Id of the upstream connection, once the pool gave one. Envoy 1.39 and later.
    fn get_upstream_connection_id(&self) -> Option<u64> {
        None
    }
    /// State of the connection.
    fn get_connection_state(&self) -> ConnectionState {
        ConnectionState::Closed
    }
    /// Stops or resumes reading; calls are counted.
    fn read_disable(&mut self, disable: bool) -> ReadDisableStatus {
        ReadDisableStatus::NoTransition
    }
    /// Bytes that the connection buffers at most.
    fn get_buffer_limit(&self) -> u32 {
        0
    }
    /// Changes that limit.
    fn set_buffer_limits(&mut self, limit: u32) {}
    /// Hosts of a cluster.
    fn get_cluster_host_count(
        &self,
        cluster_name: &str,
        priority: u32,
    ) -> Option<ClusterHostCount> {
        None
    }
    /// A text attribute. Envoy 1.39 and later.
    fn get_attribute_string(&self, attribute_id: AttributeId) -> Option<EnvoyBuffer<'_>> {
        None
    }
    /// A whole-number attribute. Envoy 1.39 and later.
    fn get_attribute_int(&self, attribute_id: AttributeId) -> Option<i64> {
        None
    }
    /// A filter-state object that is a string.
    fn get_filter_state_bytes(&self, key: &[u8]) -> Option<EnvoyBuffer<'_>> {
        None
    }
    /// Sets a string as filter state of the connection; not shared with the upstream.
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
    /// Sets a text in the dynamic metadata.
    fn set_dynamic_metadata_string(&mut self, namespace: &str, key: &str, value: &str) {}
    /// A text in the dynamic metadata; what is not UTF-8 becomes U+FFFD.
    fn get_dynamic_metadata_string(&self, namespace: &str, key: &str) -> Option<String> {
        None
    }
    /// Sets a number in the dynamic metadata.
    fn set_dynamic_metadata_number(&mut self, namespace: &str, key: &str, value: f64) {}
    /// A number in the dynamic metadata.
    fn get_dynamic_metadata_number(&self, namespace: &str, key: &str) -> Option<f64> {
        None
    }
    /// Sets a yes-or-no in the dynamic metadata.
    fn set_dynamic_metadata_bool(&mut self, namespace: &str, key: &str, value: bool) {}
    /// A yes-or-no in the dynamic metadata.
    fn get_dynamic_metadata_bool(&self, namespace: &str, key: &str) -> Option<bool> {
        None
    }
    /// Adds a socket option for the upstream connection of this connection's tunnel.
    fn set_socket_option_int(
        &mut self,
        level: i64,
        name: i64,
        state: SocketOptionState,
        value: i64,
    ) {
    }
    /// As above, with raw bytes.
    fn set_socket_option_bytes(
        &mut self,
        level: i64,
        name: i64,
        state: SocketOptionState,
        value: &[u8],
    ) {
    }
    /// Reads back an option that was set here; this is no `getsockopt`.
    fn get_socket_option_int(
        &self,
        level: i64,
        name: i64,
        state: SocketOptionState,
    ) -> Option<i64> {
        None
    }
    /// As above, with raw bytes.
    fn get_socket_option_bytes(
        &self,
        level: i64,
        name: i64,
        state: SocketOptionState,
    ) -> Option<Vec<u8>> {
        None
    }

    metric_updates!(trait plain);

    /// A scheduler whose events arrive at this filter.
    fn new_scheduler(&self) -> impl EnvoyNetworkFilterScheduler + 'static {
        Detached
    }
    /// This worker's index, from 0.
    fn get_worker_index(&self) -> u32 {
        0
    }
    /// Sends a request to a cluster; needs `:method`, `:path` and `host`. Gives the call-out's id.
    fn send_http_callout(
        &mut self,
        cluster_name: &str,
        headers: Vec<(&str, &[u8])>,
        body: Option<&[u8]>,
        timeout_milliseconds: u64,
    ) -> (CalloutInitResult, u64) {
        (CalloutInitResult::ClusterNotFound, 0)
    }
}
