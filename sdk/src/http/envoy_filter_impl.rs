//! The stream of a real Envoy.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use super::envoy_filter::{ClusterHostCount, EnvoyHttpFilter, Headers};
use super::{HttpPerRouteConfig, per_route};
use crate::abi::{
    ask, envoy_dynamic_module_type_attribute_id as AttributeId, envoy_dynamic_module_type_envoy_buffer as RawBuffer,
    envoy_dynamic_module_type_envoy_http_header as RawHeader, envoy_dynamic_module_type_http_body_type as BodyType,
    envoy_dynamic_module_type_http_callout_init_result as CalloutInitResult,
    envoy_dynamic_module_type_http_filter_stream_reset_reason as StreamResetReason,
    envoy_dynamic_module_type_http_header_type as HeaderType,
    envoy_dynamic_module_type_metadata_source as MetadataSource,
    envoy_dynamic_module_type_socket_direction as SocketDirection,
    envoy_dynamic_module_type_socket_option_state as SocketOptionState,
};
use crate::buffer::{self, EnvoyBuffer, EnvoyMutBuffer, module_buffers, module_headers};
use crate::metrics::{
    ABSENT, EnvoyCounterId, EnvoyCounterVecId, EnvoyGaugeId, EnvoyGaugeVecId, EnvoyHistogramId, EnvoyHistogramVecId,
    MetricResult, metric_updates, outcome,
};
use crate::scheduler::{EnvoyHttpFilterScheduler, EnvoyHttpFilterSchedulerImpl};
use crate::slot::Handle;

/// The real thing. It lives as long as a hook runs; once Envoy has destroyed the stream under that
/// hook, every method gives its default answer.
pub struct EnvoyHttpFilterImpl {
    handle: *const Handle,
}

impl EnvoyHttpFilterImpl {
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

    fn header(&self, kind: HeaderType, key: &str, index: usize, count: *mut usize) -> Option<EnvoyBuffer<'_>> {
        self.buffer(|raw| ask!(self, http_get_header(kind.as_raw(), key.into(), raw, index, count) or false))
    }

    fn header_values(&self, kind: HeaderType, key: &str) -> Vec<EnvoyBuffer<'_>> {
        let mut count = 0;
        let Some(first) = self.header(kind, key, 0, &raw mut count) else {
            return Vec::new();
        };
        let rest = (1..count).filter_map(|index| self.header(kind, key, index, ptr::null_mut()));
        std::iter::once(first).chain(rest).collect()
    }

    fn headers(&self, kind: HeaderType) -> Headers<'_> {
        let size = ask!(self, http_get_headers_size(kind.as_raw()) or 0);
        let mut raw = vec![RawHeader::EMPTY; size];
        if !ask!(self, http_get_headers(kind.as_raw(), raw.as_mut_ptr()) or false) {
            return Vec::new();
        }
        // SAFETY: as in `buffer`.
        unsafe { buffer::headers(raw.as_ptr(), raw.len()) }
    }

    fn set_header(&mut self, kind: HeaderType, key: &str, value: &[u8]) -> bool {
        ask!(self, http_set_header(kind.as_raw(), key.into(), value.into()) or false)
    }

    fn add_header(&mut self, kind: HeaderType, key: &str, value: &[u8]) -> bool {
        ask!(self, http_add_header(kind.as_raw(), key.into(), value.into()) or false)
    }

    fn body_size(&self, kind: BodyType) -> usize {
        ask!(self, http_get_body_size(kind.as_raw()) or 0)
    }

    fn body(&mut self, kind: BodyType) -> Option<Vec<EnvoyMutBuffer<'_>>> {
        let size = ask!(self, http_get_body_chunks_size(kind.as_raw()) or 0);
        let mut raw = vec![RawBuffer::EMPTY; size];
        if !ask!(self, http_get_body_chunks(kind.as_raw(), raw.as_mut_ptr()) or false) {
            return None;
        }
        // SAFETY: as in `buffer`; the chunks are distinct and `&mut self` keeps everyone else out.
        Some(raw.into_iter().map(|chunk| unsafe { buffer::mut_chunk(chunk) }).collect())
    }
}

impl EnvoyHttpFilter for EnvoyHttpFilterImpl {
    fn get_request_header_value(&self, key: &str) -> Option<EnvoyBuffer<'_>> {
        self.header(HeaderType::RequestHeader, key, 0, ptr::null_mut())
    }
    fn get_request_header_values(&self, key: &str) -> Vec<EnvoyBuffer<'_>> {
        self.header_values(HeaderType::RequestHeader, key)
    }
    fn get_request_headers(&self) -> Headers<'_> {
        self.headers(HeaderType::RequestHeader)
    }
    fn set_request_header(&mut self, key: &str, value: &[u8]) -> bool {
        self.set_header(HeaderType::RequestHeader, key, value)
    }
    fn add_request_header(&mut self, key: &str, value: &[u8]) -> bool {
        self.add_header(HeaderType::RequestHeader, key, value)
    }
    fn remove_request_header(&mut self, key: &str) -> bool {
        self.set_header(HeaderType::RequestHeader, key, &[])
    }
    fn get_request_trailer_value(&self, key: &str) -> Option<EnvoyBuffer<'_>> {
        self.header(HeaderType::RequestTrailer, key, 0, ptr::null_mut())
    }
    fn get_response_header_value(&self, key: &str) -> Option<EnvoyBuffer<'_>> {
        self.header(HeaderType::ResponseHeader, key, 0, ptr::null_mut())
    }
    fn get_response_header_values(&self, key: &str) -> Vec<EnvoyBuffer<'_>> {
        self.header_values(HeaderType::ResponseHeader, key)
    }
    fn get_response_headers(&self) -> Headers<'_> {
        self.headers(HeaderType::ResponseHeader)
    }
    fn set_response_header(&mut self, key: &str, value: &[u8]) -> bool {
        self.set_header(HeaderType::ResponseHeader, key, value)
    }
    fn add_response_header(&mut self, key: &str, value: &[u8]) -> bool {
        self.add_header(HeaderType::ResponseHeader, key, value)
    }
    fn remove_response_header(&mut self, key: &str) -> bool {
        self.set_header(HeaderType::ResponseHeader, key, &[])
    }
    fn get_response_trailer_value(&self, key: &str) -> Option<EnvoyBuffer<'_>> {
        self.header(HeaderType::ResponseTrailer, key, 0, ptr::null_mut())
    }

    fn get_received_request_body(&mut self) -> Option<Vec<EnvoyMutBuffer<'_>>> {
        self.body(BodyType::ReceivedRequestBody)
    }
    fn get_buffered_request_body(&mut self) -> Option<Vec<EnvoyMutBuffer<'_>>> {
        self.body(BodyType::BufferedRequestBody)
    }
    fn get_received_request_body_size(&mut self) -> usize {
        self.body_size(BodyType::ReceivedRequestBody)
    }
    fn get_buffered_request_body_size(&mut self) -> usize {
        self.body_size(BodyType::BufferedRequestBody)
    }
    fn get_received_response_body(&mut self) -> Option<Vec<EnvoyMutBuffer<'_>>> {
        self.body(BodyType::ReceivedResponseBody)
    }
    fn get_received_response_body_size(&mut self) -> usize {
        self.body_size(BodyType::ReceivedResponseBody)
    }
    fn get_buffered_response_body_size(&mut self) -> usize {
        self.body_size(BodyType::BufferedResponseBody)
    }
    fn drain_buffered_request_body(&mut self, bytes: usize) -> bool {
        ask!(self, http_drain_body(BodyType::BufferedRequestBody.as_raw(), bytes) or false)
    }
    fn append_buffered_request_body(&mut self, data: &[u8]) -> bool {
        ask!(self, http_append_body(BodyType::BufferedRequestBody.as_raw(), data.into()) or false)
    }
    fn received_buffered_request_body(&mut self) -> bool {
        ask!(self, http_received_buffered_request_body() or false)
    }
    fn received_buffered_response_body(&mut self) -> bool {
        ask!(self, http_received_buffered_response_body() or false)
    }
    fn get_buffer_limit(&self) -> u64 {
        ask!(self, http_get_buffer_limit() or 0)
    }
    fn set_buffer_limit(&mut self, limit: u64) {
        ask!(self, http_set_buffer_limit(limit) or ());
    }

    fn send_response(&mut self, status: u32, headers: &[(&str, &[u8])], body: Option<&[u8]>, details: Option<&str>) {
        let headers = module_headers(headers);
        let body = body.unwrap_or_default();
        let details = details.unwrap_or_default();
        ask!(self, http_send_response(status, headers.as_ptr(), headers.len(), body.into(), details.into()) or ());
    }
    fn continue_decoding(&mut self) {
        ask!(self, http_filter_continue_decoding() or ());
    }
    fn continue_encoding(&mut self) {
        ask!(self, http_filter_continue_encoding() or ());
    }
    fn clear_route_cache(&mut self) {
        ask!(self, http_clear_route_cache() or ());
    }
    fn clear_route_cluster_cache(&mut self) {
        ask!(self, http_clear_route_cluster_cache() or ());
    }
    fn reset_stream(&mut self, reason: StreamResetReason, details: &str) {
        ask!(self, http_filter_reset_stream(reason.as_raw(), details.into()) or ());
    }
    fn recreate_stream(&mut self, headers: Option<&[(&str, &[u8])]>) -> bool {
        let headers = headers.map(module_headers);
        let (start, count) = headers.as_ref().map_or((ptr::null(), 0), |h| (h.as_ptr(), h.len()));
        ask!(self, http_filter_recreate_stream(start, count) or false)
    }
    fn set_upstream_override_host(&mut self, host: &str, strict: bool) -> bool {
        ask!(self, http_set_upstream_override_host(host.into(), strict) or false)
    }

    fn get_most_specific_route_config(&self) -> Option<Arc<HttpPerRouteConfig>> {
        per_route::get(ask!(self, get_most_specific_route_config() or ptr::null()))
    }
    fn get_worker_index(&self) -> u32 {
        ask!(self, http_filter_get_worker_index() or 0)
    }
    fn add_custom_flag(&mut self, flag: &str) {
        ask!(self, http_add_custom_flag(flag.into()) or ());
    }
    fn get_attribute_string(&self, attribute_id: AttributeId) -> Option<EnvoyBuffer<'_>> {
        self.buffer(|raw| ask!(self, http_filter_get_attribute_string(attribute_id.as_raw(), raw) or false))
    }
    fn get_attribute_int(&self, attribute_id: AttributeId) -> Option<i64> {
        let mut value = 0_u64;
        let known = ask!(self, http_filter_get_attribute_int(attribute_id.as_raw(), &raw mut value) or false);
        known.then(|| i64::try_from(value).unwrap_or(i64::MAX))
    }
    fn get_attribute_bool(&self, attribute_id: AttributeId) -> Option<bool> {
        let mut value = false;
        ask!(self, http_filter_get_attribute_bool(attribute_id.as_raw(), &raw mut value) or false).then_some(value)
    }
    fn get_cluster_name(&self) -> Option<EnvoyBuffer<'_>> {
        self.buffer(|raw| ask!(self, http_get_cluster_name(raw) or false))
    }
    fn get_cluster_host_count(&self, priority: u32) -> Option<ClusterHostCount> {
        let mut count = ClusterHostCount::default();
        let ClusterHostCount { total, healthy, degraded } = &mut count;
        ask!(self, http_get_cluster_host_count(priority, total, healthy, degraded) or false).then_some(count)
    }
    fn get_upstream_connection_id(&self) -> Option<u64> {
        Some(ask!(self, http_get_upstream_connection_id() or 0)).filter(|id| *id != 0)
    }

    fn get_metadata_string(&self, source: MetadataSource, namespace: &str, key: &str) -> Option<EnvoyBuffer<'_>> {
        self.buffer(
            |raw| ask!(self, http_get_metadata_string(source.as_raw(), namespace.into(), key.into(), raw) or false),
        )
    }
    fn get_metadata_number(&self, source: MetadataSource, namespace: &str, key: &str) -> Option<f64> {
        let mut value = 0.0;
        ask!(self, http_get_metadata_number(source.as_raw(), namespace.into(), key.into(), &raw mut value) or false)
            .then_some(value)
    }
    fn get_metadata_bool(&self, source: MetadataSource, namespace: &str, key: &str) -> Option<bool> {
        let mut value = false;
        ask!(self, http_get_metadata_bool(source.as_raw(), namespace.into(), key.into(), &raw mut value) or false)
            .then_some(value)
    }
    fn set_dynamic_metadata_string(&mut self, namespace: &str, key: &str, value: &str) {
        ask!(self, http_set_dynamic_metadata_string(namespace.into(), key.into(), value.into()) or ());
    }
    fn set_dynamic_metadata_number(&mut self, namespace: &str, key: &str, value: f64) {
        ask!(self, http_set_dynamic_metadata_number(namespace.into(), key.into(), value) or ());
    }
    fn set_dynamic_metadata_bool(&mut self, namespace: &str, key: &str, value: bool) {
        ask!(self, http_set_dynamic_metadata_bool(namespace.into(), key.into(), value) or ());
    }
    fn get_filter_state_bytes(&self, key: &[u8]) -> Option<EnvoyBuffer<'_>> {
        self.buffer(|raw| ask!(self, http_get_filter_state_bytes(key.into(), raw) or false))
    }
    fn set_filter_state_bytes(&mut self, key: &[u8], value: &[u8]) -> bool {
        ask!(self, http_set_filter_state_bytes(key.into(), value.into()) or false)
    }
    fn get_filter_state_typed(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.buffer(|raw| ask!(self, http_get_filter_state_typed(key.into(), raw) or false))
            .map(|b| b.as_slice().to_vec())
    }
    fn set_filter_state_typed(&mut self, key: &[u8], value: &[u8]) -> bool {
        ask!(self, http_set_filter_state_typed(key.into(), value.into()) or false)
    }
    fn set_socket_option_int(
        &mut self,
        level: i64,
        name: i64,
        state: SocketOptionState,
        direction: SocketDirection,
        value: i64,
    ) -> bool {
        ask!(self, http_set_socket_option_int(level, name, state.as_raw(), direction.as_raw(), value) or false)
    }
    fn get_socket_option_int(
        &self,
        level: i64,
        name: i64,
        state: SocketOptionState,
        direction: SocketDirection,
    ) -> Option<i64> {
        let mut value = 0;
        ask!(self, http_get_socket_option_int(level, name, state.as_raw(), direction.as_raw(), &raw mut value) or false)
            .then_some(value)
    }

    metric_updates!(impl labelled
        http_filter_increment_counter
        http_filter_increment_gauge
        http_filter_decrement_gauge
        http_filter_set_gauge
        http_filter_record_histogram_value);

    fn new_scheduler(&self) -> impl EnvoyHttpFilterScheduler + 'static {
        EnvoyHttpFilterSchedulerImpl::new(self.raw())
    }
    fn send_http_callout(
        &mut self,
        cluster_name: &str,
        headers: &[(&str, &[u8])],
        body: Option<&[u8]>,
        timeout_milliseconds: u64,
    ) -> (CalloutInitResult, u64) {
        let headers = module_headers(headers);
        let body = body.unwrap_or_default();
        let mut id = 0;
        // 2 is ClusterNotFound: without Envoy there is none.
        let result = ask!(self, http_filter_http_callout(
            &raw mut id, cluster_name.into(), headers.as_ptr(), headers.len(), body.into(), timeout_milliseconds
        ) or 2);
        (result.into(), id)
    }
}
