//! The connection of a real Envoy.

use std::ffi::c_void;

use super::EnvoyNetworkFilter;
use crate::ClusterHostCount;
use crate::abi::{
    ask, envoy_dynamic_module_type_attribute_id as AttributeId,
    envoy_dynamic_module_type_envoy_buffer as RawBuffer,
    envoy_dynamic_module_type_http_callout_init_result as CalloutInitResult,
    envoy_dynamic_module_type_network_connection_close_type as CloseType,
    envoy_dynamic_module_type_network_connection_state as ConnectionState,
    envoy_dynamic_module_type_network_read_disable_status as ReadDisableStatus,
    envoy_dynamic_module_type_socket_option_state as SocketOptionState,
};
use crate::buffer::{self, EnvoyBuffer, module_headers};
use crate::metrics::{
    ABSENT, EnvoyCounterId, EnvoyGaugeId, EnvoyHistogramId, MetricResult, metric_updates, outcome,
};
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

    fn address(
        &self,
        get: impl FnOnce(&mut RawBuffer, &mut u32) -> bool,
    ) -> Option<(EnvoyBuffer<'_>, u32)> {
        let mut port = 0;
        self.buffer(|raw| get(raw, &mut port))
            .map(|address| (address, port))
    }

    fn chunks(
        &self,
        size: usize,
        total: usize,
        get: impl FnOnce(*mut RawBuffer) -> bool,
    ) -> (Vec<EnvoyBuffer<'_>>, usize) {
        let mut raw = vec![RawBuffer::EMPTY; size];
        if size == 0 || !get(raw.as_mut_ptr()) {
            return (Vec::new(), 0);
        }
        // SAFETY: as in `buffer`.
        (unsafe { buffer::buffers(raw.as_ptr(), raw.len()) }, total)
    }
}

fn owned((address, port): (EnvoyBuffer<'_>, u32)) -> (String, u32) {
    (address.to_str_lossy().into_owned(), port)
}

impl EnvoyNetworkFilter for EnvoyNetworkFilterImpl {
    fn get_read_buffer_chunks(&mut self) -> (Vec<EnvoyBuffer<'_>>, usize) {
        let size = ask!(self, network_filter_get_read_buffer_chunks_size() or 0);
        let total = ask!(self, network_filter_get_read_buffer_size() or 0);
        self.chunks(
            size,
            total,
            |raw| ask!(self, network_filter_get_read_buffer_chunks(raw) or false),
        )
    }
    fn get_write_buffer_chunks(&mut self) -> (Vec<EnvoyBuffer<'_>>, usize) {
        let size = ask!(self, network_filter_get_write_buffer_chunks_size() or 0);
        let total = ask!(self, network_filter_get_write_buffer_size() or 0);
        self.chunks(
            size,
            total,
            |raw| ask!(self, network_filter_get_write_buffer_chunks(raw) or false),
        )
    }
    fn continue_reading(&mut self) {
        ask!(self, network_filter_continue_reading() or ());
    }
    fn close(&mut self, close_type: CloseType) {
        ask!(self, network_filter_close(close_type.as_raw()) or ());
    }
    fn close_with_details(&mut self, close_type: CloseType, details: &str) {
        ask!(self, network_filter_close_with_details(close_type.as_raw(), details.into()) or ());
    }
    fn disable_close(&mut self, disabled: bool) {
        ask!(self, network_filter_disable_close(disabled) or ());
    }
    fn get_connection_id(&self) -> u64 {
        ask!(self, network_filter_get_connection_id() or 0)
    }
    fn get_remote_address(&self) -> (String, u32) {
        self.address(|raw, port| ask!(self, network_filter_get_remote_address(raw, port) or false))
            .map(owned)
            .unwrap_or_default()
    }
    fn get_local_address(&self) -> (String, u32) {
        self.address(|raw, port| ask!(self, network_filter_get_local_address(raw, port) or false))
            .map(owned)
            .unwrap_or_default()
    }
    fn get_direct_remote_address(&self) -> Option<(EnvoyBuffer<'_>, u32)> {
        self.address(
            |raw, port| ask!(self, network_filter_get_direct_remote_address(raw, port) or false),
        )
    }
    fn get_upstream_host_address(&self) -> Option<(String, u32)> {
        self.address(
            |raw, port| ask!(self, network_filter_get_upstream_host_address(raw, port) or false),
        )
        .map(owned)
    }
    fn get_upstream_host_hostname(&self) -> Option<String> {
        self.buffer(|raw| ask!(self, network_filter_get_upstream_host_hostname(raw) or false))
            .map(|b| b.to_str_lossy().into_owned())
    }
    fn get_upstream_host_cluster(&self) -> Option<String> {
        self.buffer(|raw| ask!(self, network_filter_get_upstream_host_cluster(raw) or false))
            .map(|b| b.to_str_lossy().into_owned())
    }
    fn has_upstream_host(&self) -> bool {
        ask!(self, network_filter_has_upstream_host() or false)
    }
    fn get_upstream_connection_id(&self) -> Option<u64> {
        Some(ask!(self, network_filter_get_upstream_connection_id() or 0)).filter(|id| *id != 0)
    }
    fn get_connection_state(&self) -> ConnectionState {
        // 2 is Closed: without Envoy there is no connection.
        ask!(self, network_filter_get_connection_state() or 2).into()
    }
    fn read_disable(&mut self, disable: bool) -> ReadDisableStatus {
        ask!(self, network_filter_read_disable(disable) or 0).into()
    }
    fn get_buffer_limit(&self) -> u32 {
        ask!(self, network_filter_get_buffer_limit() or 0)
    }
    fn set_buffer_limits(&mut self, limit: u32) {
        ask!(self, network_filter_set_buffer_limits(limit) or ());
    }
    fn get_cluster_host_count(
        &self,
        cluster_name: &str,
        priority: u32,
    ) -> Option<ClusterHostCount> {
        let mut count = ClusterHostCount::default();
        let ClusterHostCount {
            total,
            healthy,
            degraded,
        } = &mut count;
        ask!(self, network_filter_get_cluster_host_count(cluster_name.into(), priority, total, healthy, degraded) or false).then_some(count)
    }
    fn get_attribute_string(&self, attribute_id: AttributeId) -> Option<EnvoyBuffer<'_>> {
        self.buffer(|raw| ask!(self, network_filter_get_attribute_string(attribute_id.as_raw(), raw) or false))
    }
    fn get_attribute_int(&self, attribute_id: AttributeId) -> Option<i64> {
        let mut value = 0_u64;
        let known = ask!(self, network_filter_get_attribute_int(attribute_id.as_raw(), &raw mut value) or false);
        known.then(|| i64::try_from(value).unwrap_or(i64::MAX))
    }
    fn get_filter_state_bytes(&self, key: &[u8]) -> Option<EnvoyBuffer<'_>> {
        self.buffer(|raw| ask!(self, network_get_filter_state_bytes(key.into(), raw) or false))
    }
    fn set_filter_state_bytes(&mut self, key: &[u8], value: &[u8]) -> bool {
        ask!(self, network_set_filter_state_bytes(key.into(), value.into()) or false)
    }
    fn get_filter_state_typed(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.buffer(|raw| ask!(self, network_get_filter_state_typed(key.into(), raw) or false))
            .map(|b| b.as_slice().to_vec())
    }
    fn set_filter_state_typed(&mut self, key: &[u8], value: &[u8]) -> bool {
        ask!(self, network_set_filter_state_typed(key.into(), value.into()) or false)
    }
    fn set_dynamic_metadata_string(&mut self, namespace: &str, key: &str, value: &str) {
        ask!(self, network_set_dynamic_metadata_string(namespace.into(), key.into(), value.into()) or ());
    }
    fn get_dynamic_metadata_string(&self, namespace: &str, key: &str) -> Option<String> {
        self.buffer(|raw| ask!(self, network_get_dynamic_metadata_string(namespace.into(), key.into(), raw) or false)).map(|b| b.to_str_lossy().into_owned())
    }
    fn set_dynamic_metadata_number(&mut self, namespace: &str, key: &str, value: f64) {
        ask!(self, network_set_dynamic_metadata_number(namespace.into(), key.into(), value) or ());
    }
    fn get_dynamic_metadata_number(&self, namespace: &str, key: &str) -> Option<f64> {
        let mut value = 0.0;
        ask!(self, network_get_dynamic_metadata_number(namespace.into(), key.into(), &raw mut value) or false).then_some(value)
    }
    fn set_dynamic_metadata_bool(&mut self, namespace: &str, key: &str, value: bool) {
        ask!(self, network_set_dynamic_metadata_bool(namespace.into(), key.into(), value) or ());
    }
    fn get_dynamic_metadata_bool(&self, namespace: &str, key: &str) -> Option<bool> {
        let mut value = false;
        ask!(self, network_get_dynamic_metadata_bool(namespace.into(), key.into(), &raw mut value) or false).then_some(value)
    }
    fn set_socket_option_int(
        &mut self,
        level: i64,
        name: i64,
        state: SocketOptionState,
        value: i64,
    ) {
        ask!(self, network_set_socket_option_int(level, name, state.as_raw(), value) or ());
    }
    fn set_socket_option_bytes(
        &mut self,
        level: i64,
        name: i64,
        state: SocketOptionState,
        value: &[u8],
    ) {
        ask!(self, network_set_socket_option_bytes(level, name, state.as_raw(), value.into()) or ());
    }
    fn get_socket_option_int(
        &self,
        level: i64,
        name: i64,
        state: SocketOptionState,
    ) -> Option<i64> {
        let mut value = 0;
        ask!(self, network_get_socket_option_int(level, name, state.as_raw(), &raw mut value) or false).then_some(value)
    }
    fn get_socket_option_bytes(
        &self,
        level: i64,
        name: i64,
        state: SocketOptionState,
    ) -> Option<Vec<u8>> {
        self.buffer(|raw| ask!(self, network_get_socket_option_bytes(level, name, state.as_raw(), raw) or false)).map(|b| b.as_slice().to_vec())
    }

    metric_updates!(impl plain
        network_filter_increment_counter
        network_filter_increment_gauge
        network_filter_decrement_gauge
        network_filter_set_gauge
        network_filter_record_histogram_value);

    fn new_scheduler(&self) -> impl EnvoyNetworkFilterScheduler + 'static {
        EnvoyNetworkFilterSchedulerImpl::new(self.raw())
    }
    fn get_worker_index(&self) -> u32 {
        ask!(self, network_filter_get_worker_index() or 0)
    }
    fn send_http_callout(
        &mut self,
        cluster_name: &str,
        headers: Vec<(&str, &[u8])>,
        body: Option<&[u8]>,
        timeout_milliseconds: u64,
    ) -> (CalloutInitResult, u64) {
        let raw_headers = module_headers(&headers);
        let body = body.unwrap_or_default();
        let mut id = 0;
        // 2 is ClusterNotFound: without Envoy there is none.
        let result = ask!(self, network_filter_http_callout(
            &raw mut id, cluster_name.into(), raw_headers.as_ptr(), raw_headers.len(), body.into(), timeout_milliseconds
        ) or 2);
        (result.into(), id)
    }
}
