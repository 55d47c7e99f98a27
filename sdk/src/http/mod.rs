//! HTTP filter, downstream or upstream (in a cluster's `http_filters`).
//!
//! Configuration objects live on every thread; a filter lives on its stream's worker. Upstream
//! filters get no `on_stream_complete`, no `on_local_reply` and no per-route configuration, and a
//! failed connect shows only as `Drop`.

mod envoy_config;
mod envoy_filter;
mod envoy_filter_impl;
mod hooks;
mod per_route;
#[cfg(test)]
mod tests;

use std::any::Any;

pub use envoy_config::{EnvoyHttpFilterConfig, EnvoyHttpFilterConfigImpl};
pub use envoy_filter::{ClusterHostCount, EnvoyHttpFilter, Headers};
pub use envoy_filter_impl::EnvoyHttpFilterImpl;
pub use hooks::exported;

use crate::EnvoyBuffer;
use crate::abi::{
    envoy_dynamic_module_type_http_callout_result as HttpCalloutResult,
    envoy_dynamic_module_type_on_http_filter_local_reply_status as LocalReplyStatus,
    envoy_dynamic_module_type_on_http_filter_request_body_status as RequestBodyStatus,
    envoy_dynamic_module_type_on_http_filter_request_headers_status as RequestHeadersStatus,
    envoy_dynamic_module_type_on_http_filter_request_trailers_status as RequestTrailersStatus,
    envoy_dynamic_module_type_on_http_filter_response_body_status as ResponseBodyStatus,
    envoy_dynamic_module_type_on_http_filter_response_headers_status as ResponseHeadersStatus,
    envoy_dynamic_module_type_on_http_filter_response_trailers_status as ResponseTrailersStatus,
};

/// Per-route configuration. It is made on the main thread, read by every worker and dropped on any,
/// hence `Send + Sync` (the official crate asks for `dyn Any` only).
pub type HttpPerRouteConfig = dyn Any + Send + Sync;

/// Makes the configuration object; main thread; `None` rejects the configuration (log why first).
pub type NewHttpFilterConfigFunction<EC, EHF> = fn(&mut EC, &str, &[u8]) -> Option<Box<dyn HttpFilterConfig<EHF>>>;

/// Makes a route's configuration object; main thread; `None` rejects the configuration.
pub type NewHttpFilterPerRouteConfigFunction = fn(&str, &[u8]) -> Option<Box<HttpPerRouteConfig>>;

/// One configuration of the filter; shared by all its streams. May be dropped on any thread.
pub trait HttpFilterConfig<EHF: EnvoyHttpFilter>: Send + Sync {
    /// Makes the filter of one stream; on the stream's worker.
    fn new_http_filter(&self, envoy: &mut EHF) -> Box<dyn HttpFilter<EHF>>;

    /// A commit of the configuration's scheduler arrived; main thread.
    fn on_scheduled(&self, _event_id: u64) {}
}

/// One stream's filter. All hooks run on the stream's worker; each default is "continue".
#[allow(unused_variables, reason = "the names document what an implementation receives")]
pub trait HttpFilter<EHF: EnvoyHttpFilter> {
    /// Request headers are there.
    fn on_request_headers(&mut self, envoy_filter: &mut EHF, end_of_stream: bool) -> RequestHeadersStatus {
        RequestHeadersStatus::Continue
    }
    /// A piece of the request's body is there.
    fn on_request_body(&mut self, envoy_filter: &mut EHF, end_of_stream: bool) -> RequestBodyStatus {
        RequestBodyStatus::Continue
    }
    /// Request trailers are there.
    fn on_request_trailers(&mut self, envoy_filter: &mut EHF) -> RequestTrailersStatus {
        RequestTrailersStatus::Continue
    }
    /// Response headers are there, an upstream's or a local reply's.
    fn on_response_headers(&mut self, envoy_filter: &mut EHF, end_of_stream: bool) -> ResponseHeadersStatus {
        ResponseHeadersStatus::Continue
    }
    /// A piece of the response's body is there.
    fn on_response_body(&mut self, envoy_filter: &mut EHF, end_of_stream: bool) -> ResponseBodyStatus {
        ResponseBodyStatus::Continue
    }
    /// Response trailers are there.
    fn on_response_trailers(&mut self, envoy_filter: &mut EHF) -> ResponseTrailersStatus {
        ResponseTrailersStatus::Continue
    }
    /// The stream is over; before the access log is written. Also after a client's reset.
    fn on_stream_complete(&mut self, envoy_filter: &mut EHF) {}
    /// A call-out ended; headers and body are `None` unless it succeeded.
    fn on_http_callout_done(
        &mut self,
        envoy_filter: &mut EHF,
        callout_id: u64,
        result: HttpCalloutResult,
        response_headers: Option<&[(EnvoyBuffer, EnvoyBuffer)]>,
        response_body: Option<&[EnvoyBuffer]>,
    ) {
    }
    /// A commit of the stream's scheduler arrived.
    fn on_scheduled(&mut self, envoy_filter: &mut EHF, event_id: u64) {}
    /// The downstream's write buffer is full (terminal filters).
    fn on_downstream_above_write_buffer_high_watermark(&mut self, envoy_filter: &mut EHF) {}
    /// The downstream's write buffer has room again (terminal filters).
    fn on_downstream_below_write_buffer_low_watermark(&mut self, envoy_filter: &mut EHF) {}
    /// Envoy is about to send a reply of its own. Not called for a reply that this filter sends
    /// from inside one of its hooks: the filter is busy then.
    fn on_local_reply(
        &mut self,
        envoy_filter: &mut EHF,
        response_code: u32,
        details: EnvoyBuffer,
        reset_imminent: bool,
    ) -> LocalReplyStatus {
        LocalReplyStatus::Continue
    }
}
