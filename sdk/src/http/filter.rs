//! The user's side of an HTTP filter.

use super::envoy_filter::EnvoyHttpFilter;
use super::per_route::HttpPerRouteConfig;
use crate::abi::{
    envoy_dynamic_module_type_on_http_filter_local_reply_status as LocalReplyStatus,
    envoy_dynamic_module_type_on_http_filter_request_body_status as RequestBodyStatus,
    envoy_dynamic_module_type_on_http_filter_request_headers_status as RequestHeadersStatus,
    envoy_dynamic_module_type_on_http_filter_request_trailers_status as RequestTrailersStatus,
    envoy_dynamic_module_type_on_http_filter_response_body_status as ResponseBodyStatus,
    envoy_dynamic_module_type_on_http_filter_response_headers_status as ResponseHeadersStatus,
    envoy_dynamic_module_type_on_http_filter_response_trailers_status as ResponseTrailersStatus,
};
use crate::buffer::EnvoyBuffer;

/// Makes the configuration object; main thread; `None` rejects the configuration (log why first).
pub type NewHttpFilterConfigFunction<EC, EHF> = fn(&mut EC, &str, &[u8]) -> Option<Box<dyn HttpFilterConfig<EHF>>>;

/// Makes a route's configuration object; main thread; `None` rejects the configuration.
pub type NewHttpFilterPerRouteConfigFunction = fn(&str, &[u8]) -> Option<Box<HttpPerRouteConfig>>;

/// One configuration of the filter; shared by all its streams. May be dropped on any thread.
pub trait HttpFilterConfig<EHF: EnvoyHttpFilter>: Send + Sync {
    /// Makes the filter of one stream; on the stream's worker.
    fn new_http_filter(&self, envoy: &mut EHF) -> Box<dyn HttpFilter<EHF>>;
}

/// One stream's filter. All hooks, and the drop, run on the stream's worker; each default is
/// "continue".
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
    /// The stream is over; before the access log is written. Also after a client's reset. If the
    /// stream ends inside another hook of this filter (it sent a response from `on_scheduled`, or reset
    /// the stream), this runs when that hook has returned; if Envoy has destroyed the stream by then,
    /// `envoy_filter` gives only default answers.
    fn on_stream_complete(&mut self, envoy_filter: &mut EHF) {}
    /// A commit of the stream's scheduler arrived.
    fn on_scheduled(&mut self, envoy_filter: &mut EHF, event_id: u64) {}
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
