//! Envoy's side of one connection, as a trait: glue is written against it, and tests may fake it.

use crate::abi::{
    envoy_dynamic_module_type_attribute_id as AttributeId, envoy_dynamic_module_type_metrics_result as MetricsResult,
    envoy_dynamic_module_type_network_connection_close_type as CloseType,
    envoy_dynamic_module_type_network_connection_state as ConnectionState,
    envoy_dynamic_module_type_socket_option_state as SocketOptionState,
};
use crate::buffer::EnvoyBuffer;
use crate::metrics::{EnvoyCounterId, EnvoyGaugeId, EnvoyHistogramId, MetricResult};
use crate::scheduler::{Detached, EnvoyNetworkFilterScheduler};

/// What a filter may ask of its connection, on the connection's worker, inside a hook.
///
/// Every method has a default, the answer of a connection that knows nothing; a test's fake
/// implements the few it needs. Getters borrow: what they return ends with the next setter.
#[allow(unused_variables, reason = "the names document what an implementation receives")]
pub trait EnvoyNetworkFilter {
    /// Goes on with a connection that a hook had stopped.
    fn continue_reading(&mut self) {}
    /// Closes the connection.
    fn close(&mut self, close_type: CloseType) {}
    /// Closes the connection, with details for access logs.
    fn close_with_details(&mut self, close_type: CloseType, details: &str) {}
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
    /// Whether an upstream host is selected.
    fn has_upstream_host(&self) -> bool {
        false
    }
    /// Id of the upstream connection, once the pool gave one, else 0. Envoy 1.39 and later.
    fn get_upstream_connection_id(&self) -> u64 {
        0
    }
    /// State of the connection.
    fn get_connection_state(&self) -> ConnectionState {
        ConnectionState::Closed
    }
    /// A text attribute. Envoy 1.39 and later.
    fn get_attribute_string(&self, attribute_id: AttributeId) -> Option<EnvoyBuffer<'_>> {
        None
    }
    /// A whole-number attribute. Envoy 1.39 and later.
    fn get_attribute_int(&self, attribute_id: AttributeId) -> Option<i64> {
        None
    }
    /// Sets a text in the dynamic metadata.
    fn set_dynamic_metadata_string(&mut self, namespace: &str, key: &str, value: &str) {}
    /// A text in the dynamic metadata.
    fn get_dynamic_metadata_string(&self, namespace: &str, key: &str) -> Option<EnvoyBuffer<'_>> {
        None
    }
    /// Sets a number in the dynamic metadata.
    fn set_dynamic_metadata_number(&mut self, namespace: &str, key: &str, value: f64) {}
    /// Sets a yes-or-no in the dynamic metadata.
    fn set_dynamic_metadata_bool(&mut self, namespace: &str, key: &str, value: bool) {}
    /// Adds a socket option for the upstream connection of this connection's tunnel.
    fn set_socket_option_int(&mut self, level: i64, name: i64, state: SocketOptionState, value: i64) {}
    /// The same with a value in bytes, as the kernel takes it.
    fn set_socket_option_bytes(&mut self, level: i64, name: i64, state: SocketOptionState, value: &[u8]) {}
    /// Adds to a counter.
    fn increment_counter(&self, id: EnvoyCounterId, value: u64) -> MetricResult {
        Err(MetricsResult::MetricNotFound)
    }
    /// Adds to a gauge.
    fn increase_gauge(&self, id: EnvoyGaugeId, value: u64) -> MetricResult {
        Err(MetricsResult::MetricNotFound)
    }
    /// Takes from a gauge.
    fn decrease_gauge(&self, id: EnvoyGaugeId, value: u64) -> MetricResult {
        Err(MetricsResult::MetricNotFound)
    }
    /// Records one value in a histogram.
    fn record_histogram_value(&self, id: EnvoyHistogramId, value: u64) -> MetricResult {
        Err(MetricsResult::MetricNotFound)
    }
    /// A scheduler whose events arrive at this filter.
    fn new_scheduler(&self) -> impl EnvoyNetworkFilterScheduler + 'static {
        Detached
    }
    /// This worker's index, from 0.
    fn get_worker_index(&self) -> u32 {
        0
    }
}
