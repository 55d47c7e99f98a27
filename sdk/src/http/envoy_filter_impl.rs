//! The stream of a real Envoy.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use super::envoy_filter::EnvoyHttpFilter;
use super::per_route::{self, HttpPerRouteConfig};
use crate::abi::{
    ask, envoy_dynamic_module_type_attribute_id as AttributeId, envoy_dynamic_module_type_envoy_buffer as RawBuffer,
    envoy_dynamic_module_type_envoy_http_header as RawHeader, envoy_dynamic_module_type_http_body_type as BodyType,
    envoy_dynamic_module_type_http_filter_stream_reset_reason as StreamResetReason,
    envoy_dynamic_module_type_http_header_type as HeaderType,
    envoy_dynamic_module_type_metadata_source as MetadataSource,
    envoy_dynamic_module_type_module_buffer as ModuleBuffer,
};
use crate::buffer::{self, EnvoyBuffer, module_headers};
use crate::metrics::{ABSENT, EnvoyCounterId, MetricResult, outcome};
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

    fn headers(&self, kind: HeaderType) -> Vec<(EnvoyBuffer<'_>, EnvoyBuffer<'_>)> {
        let size = ask!(self, http_get_headers_size(kind.as_raw()) or 0);
        let mut raw = vec![RawHeader::EMPTY; size];
        if !ask!(self, http_get_headers(kind.as_raw(), raw.as_mut_ptr()) or false) {
            return Vec::new();
        }
        // SAFETY: as in `buffer`.
        unsafe { buffer::headers(raw.as_ptr(), raw.len()) }
    }

    fn set_header(&mut self, kind: HeaderType, key: &str, value: ModuleBuffer) -> bool {
        ask!(self, http_set_header(kind.as_raw(), key.into(), value) or false)
    }
}

impl EnvoyHttpFilter for EnvoyHttpFilterImpl {
    fn get_request_header_value(&self, key: &str) -> Option<EnvoyBuffer<'_>> {
        self.header(HeaderType::RequestHeader, key, 0, ptr::null_mut())
    }
    fn get_request_header_values(&self, key: &str) -> Vec<EnvoyBuffer<'_>> {
        self.header_values(HeaderType::RequestHeader, key)
    }
    fn get_request_headers(&self) -> Vec<(EnvoyBuffer<'_>, EnvoyBuffer<'_>)> {
        self.headers(HeaderType::RequestHeader)
    }
    fn set_request_header(&mut self, key: &str, value: &[u8]) -> bool {
        self.set_header(HeaderType::RequestHeader, key, value.into())
    }
    fn remove_request_header(&mut self, key: &str) -> bool {
        self.set_header(HeaderType::RequestHeader, key, ModuleBuffer::NULL)
    }
    fn get_response_header_value(&self, key: &str) -> Option<EnvoyBuffer<'_>> {
        self.header(HeaderType::ResponseHeader, key, 0, ptr::null_mut())
    }
    fn set_response_header(&mut self, key: &str, value: &[u8]) -> bool {
        self.set_header(HeaderType::ResponseHeader, key, value.into())
    }
    fn remove_response_header(&mut self, key: &str) -> bool {
        self.set_header(HeaderType::ResponseHeader, key, ModuleBuffer::NULL)
    }

    fn get_received_request_body_size(&mut self) -> usize {
        ask!(self, http_get_body_size(BodyType::ReceivedRequestBody.as_raw()) or 0)
    }
    fn get_buffer_limit(&self) -> u64 {
        ask!(self, http_get_buffer_limit() or 0)
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
    fn reset_stream(&mut self, reason: StreamResetReason, details: &str) {
        ask!(self, http_filter_reset_stream(reason.as_raw(), details.into()) or ());
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
    fn get_upstream_connection_id(&self) -> u64 {
        ask!(self, http_get_upstream_connection_id() or 0)
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
    fn set_dynamic_metadata_string(&mut self, namespace: &str, key: &str, value: &str) {
        ask!(self, http_set_dynamic_metadata_string(namespace.into(), key.into(), value.into()) or ());
    }
    fn set_dynamic_metadata_number(&mut self, namespace: &str, key: &str, value: f64) {
        ask!(self, http_set_dynamic_metadata_number(namespace.into(), key.into(), value) or ());
    }
    fn set_dynamic_metadata_bool(&mut self, namespace: &str, key: &str, value: bool) {
        ask!(self, http_set_dynamic_metadata_bool(namespace.into(), key.into(), value) or ());
    }

    fn increment_counter(&self, id: EnvoyCounterId, value: u64) -> MetricResult {
        outcome(ask!(self, http_filter_increment_counter(id.0, ptr::null(), 0, value) or ABSENT))
    }
    fn new_scheduler(&self) -> impl EnvoyHttpFilterScheduler + 'static {
        EnvoyHttpFilterSchedulerImpl::new(self.raw())
    }
}
