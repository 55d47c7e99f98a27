//! The connection of a real Envoy.

use std::ffi::c_void;

use super::envoy_filter::EnvoyNetworkFilter;
use crate::abi::{
    ask, envoy_dynamic_module_type_attribute_id as AttributeId, envoy_dynamic_module_type_envoy_buffer as RawBuffer,
    envoy_dynamic_module_type_network_connection_close_type as CloseType,
    envoy_dynamic_module_type_network_connection_state as ConnectionState,
    envoy_dynamic_module_type_socket_option_state as SocketOptionState,
};
use crate::buffer::EnvoyBuffer;
use crate::metrics::{ABSENT, EnvoyCounterId, EnvoyGaugeId, EnvoyHistogramId, MetricResult, outcome};
use crate::scheduler::{EnvoyNetworkFilterScheduler, EnvoyNetworkFilterSchedulerImpl};
use crate::slot::Handle;

/// The real thing. It lives as long as a hook runs; once Envoy has destroyed the connection under
/// that hook, every method gives its default answer.
pub struct EnvoyNetworkFilterImpl {
    handle: *const Handle,
}

impl EnvoyNetworkFilterImpl {
    /// # Safety
    /// The handle outlives this object: its slot is freed only after the hook has returned.
    pub(crate) unsafe fn new(handle: &Handle) -> Self {
        Self { handle }
    }

    fn raw(&self) -> *mut c_void {
        // SAFETY: `new`'s promise.
        unsafe { (*self.handle).get() }
    }

    /// The buffer that a getter filled; the borrow on `self` ends it before the next setter.
    fn buffer(&self, get: impl FnOnce(&mut RawBuffer) -> bool) -> Option<EnvoyBuffer<'_>> {
        let mut raw = RawBuffer::EMPTY;
        // SAFETY: Envoy keeps what it returned until the hook ends or the next setter runs.
        get(&mut raw).then(|| unsafe { EnvoyBuffer::from_raw(raw) })
    }

    fn address(&self, get: impl FnOnce(&mut RawBuffer, &mut u32) -> bool) -> (String, u32) {
        let mut port = 0;
        self.buffer(|raw| get(raw, &mut port))
            .map(|address| (address.to_str_lossy().into_owned(), port))
            .unwrap_or_default()
    }
}

impl EnvoyNetworkFilter for EnvoyNetworkFilterImpl {
    fn continue_reading(&mut self) {
        ask!(self, network_filter_continue_reading() or ());
    }
    fn close(&mut self, close_type: CloseType) {
        ask!(self, network_filter_close(close_type.as_raw()) or ());
    }
    fn close_with_details(&mut self, close_type: CloseType, details: &str) {
        ask!(self, network_filter_close_with_details(close_type.as_raw(), details.into()) or ());
    }
    fn get_connection_id(&self) -> u64 {
        ask!(self, network_filter_get_connection_id() or 0)
    }
    fn get_remote_address(&self) -> (String, u32) {
        self.address(|raw, port| ask!(self, network_filter_get_remote_address(raw, port) or false))
    }
    fn get_local_address(&self) -> (String, u32) {
        self.address(|raw, port| ask!(self, network_filter_get_local_address(raw, port) or false))
    }
    fn has_upstream_host(&self) -> bool {
        ask!(self, network_filter_has_upstream_host() or false)
    }
    fn get_upstream_connection_id(&self) -> u64 {
        ask!(self, network_filter_get_upstream_connection_id() or 0)
    }
    fn get_connection_state(&self) -> ConnectionState {
        let raw = ask!(self, network_filter_get_connection_state() or ConnectionState::Closed.as_raw());
        ConnectionState::from_raw(raw).unwrap_or(ConnectionState::Closed)
    }
    fn get_attribute_string(&self, attribute_id: AttributeId) -> Option<EnvoyBuffer<'_>> {
        self.buffer(|raw| ask!(self, network_filter_get_attribute_string(attribute_id.as_raw(), raw) or false))
    }
    fn get_attribute_int(&self, attribute_id: AttributeId) -> Option<i64> {
        let mut value = 0_u64;
        let known = ask!(self, network_filter_get_attribute_int(attribute_id.as_raw(), &raw mut value) or false);
        known.then(|| i64::try_from(value).unwrap_or(i64::MAX))
    }
    fn set_dynamic_metadata_string(&mut self, namespace: &str, key: &str, value: &str) {
        ask!(self, network_set_dynamic_metadata_string(namespace.into(), key.into(), value.into()) or ());
    }
    fn get_dynamic_metadata_string(&self, namespace: &str, key: &str) -> Option<EnvoyBuffer<'_>> {
        self.buffer(|raw| ask!(self, network_get_dynamic_metadata_string(namespace.into(), key.into(), raw) or false))
    }
    fn set_dynamic_metadata_number(&mut self, namespace: &str, key: &str, value: f64) {
        ask!(self, network_set_dynamic_metadata_number(namespace.into(), key.into(), value) or ());
    }
    fn set_dynamic_metadata_bool(&mut self, namespace: &str, key: &str, value: bool) {
        ask!(self, network_set_dynamic_metadata_bool(namespace.into(), key.into(), value) or ());
    }
    fn set_socket_option_int(&mut self, level: i64, name: i64, state: SocketOptionState, value: i64) {
        ask!(self, network_set_socket_option_int(level, name, state.as_raw(), value) or ());
    }
    fn set_socket_option_bytes(&mut self, level: i64, name: i64, state: SocketOptionState, value: &[u8]) {
        ask!(self, network_set_socket_option_bytes(level, name, state.as_raw(), value.into()) or ());
    }
    fn increment_counter(&self, id: EnvoyCounterId, value: u64) -> MetricResult {
        outcome(ask!(self, network_filter_increment_counter(id.0, value) or ABSENT))
    }
    fn increase_gauge(&self, id: EnvoyGaugeId, value: u64) -> MetricResult {
        outcome(ask!(self, network_filter_increment_gauge(id.0, value) or ABSENT))
    }
    fn decrease_gauge(&self, id: EnvoyGaugeId, value: u64) -> MetricResult {
        outcome(ask!(self, network_filter_decrement_gauge(id.0, value) or ABSENT))
    }
    fn record_histogram_value(&self, id: EnvoyHistogramId, value: u64) -> MetricResult {
        outcome(ask!(self, network_filter_record_histogram_value(id.0, value) or ABSENT))
    }
    fn new_scheduler(&self) -> impl EnvoyNetworkFilterScheduler + 'static {
        EnvoyNetworkFilterSchedulerImpl::new(self.raw())
    }
    fn get_worker_index(&self) -> u32 {
        ask!(self, network_filter_get_worker_index() or 0)
    }
}
