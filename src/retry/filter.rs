//! The HTTP filter: Envoy's hooks.

use std::sync::Arc;

use envoy_proxy_dynamic_modules_rust_sdk::{
    EnvoyHttpFilter, EnvoyHttpFilterConfig, HttpFilter, HttpFilterConfig,
    abi::{
        envoy_dynamic_module_type_on_http_filter_local_reply_status as LocalReplyStatus,
        envoy_dynamic_module_type_on_http_filter_request_body_status as BodyStatus,
        envoy_dynamic_module_type_on_http_filter_request_headers_status as HeadersStatus,
        envoy_dynamic_module_type_on_http_filter_response_headers_status as ResponseHeadersStatus,
    },
    extra::HttpPerRouteConfig,
};

use super::{
    asked::route_policy,
    budgets::Loaded,
    metrics::Metrics,
    policy::Policy,
    stream::{Shared, Stream},
};
use crate::{
    config::{ConfigError, Mode},
    endpoints::Endpoints,
};

/// Envoy's response code details when the body outgrows the limit between two attempts. It answers 507
/// then, which says that the *proxy* failed for good; without a retry policy, ours or the route's, the
/// request would have ended with the upstream's failure, a 503, so that is what the client is told.
const GAVE_UP: &[u8] = b"request_payload_exceeded_retry_buffer_limit";

/// One filter configuration, shared by all streams.
pub struct RetryConfig {
    shared: Arc<Shared>,
}

/// The filter of one stream.
pub struct RetryFilter {
    shared: Arc<Shared>,
    stream: Option<Stream>,
}

// === impl RetryConfig ===

impl RetryConfig {
    /// Parses the filter's configuration and defines its counters. Main thread.
    ///
    /// `shows_attempts`: this Envoy shows what became of a request's attempts (1.39 and later).
    ///
    /// # Errors
    /// A configuration that [`Policy::parse`] refuses.
    pub fn new(
        json: &[u8],
        envoy: &mut impl EnvoyHttpFilterConfig,
        endpoints: Arc<Endpoints>,
        shows_attempts: bool,
    ) -> Result<Self, ConfigError> {
        let loaded = Loaded::new(Policy::parse(json)?);
        let metrics = Metrics::define(envoy);
        Ok(Self { shared: Arc::new(Shared { loaded, metrics, endpoints, shows_attempts }) })
    }
}

/// Parses a route's configuration, which replaces the filter's. Main thread.
///
/// # Errors
/// A configuration that [`Policy::parse`] refuses.
pub fn new_per_route(json: &[u8]) -> Result<Box<HttpPerRouteConfig>, ConfigError> {
    Ok(Box::new(Loaded::new(Policy::parse(&super::wire::json(json))?)))
}

impl<E: EnvoyHttpFilter> HttpFilterConfig<E> for RetryConfig {
    fn new_http_filter(&self, _envoy: &mut E) -> Box<dyn HttpFilter<E>> {
        Box::new(RetryFilter { shared: Arc::clone(&self.shared), stream: None })
    }
}

// === impl RetryFilter ===

impl<E: EnvoyHttpFilter> HttpFilter<E> for RetryFilter {
    fn on_request_headers(&mut self, envoy: &mut E, _end_of_stream: bool) -> HeadersStatus {
        let loaded = route_policy(envoy).unwrap_or_else(|| Arc::clone(&self.shared.loaded));
        if loaded.policy.mode != Mode::Off {
            self.stream = Some(self.shared.begin(envoy, loaded));
        }
        HeadersStatus::Continue
    }

    fn on_request_body(&mut self, envoy: &mut E, _end_of_stream: bool) -> BodyStatus {
        if let Some(stream) = self.stream.as_mut().filter(|stream| stream.rights.is_some()) {
            stream.body = stream.body.saturating_add(envoy.get_received_request_body_size() as u64);
            stream.body_limit = envoy.get_buffer_limit();
        }
        BodyStatus::Continue
    }

    fn on_local_reply(
        &mut self,
        _envoy: &mut E,
        _response_code: u32,
        details: envoy_proxy_dynamic_modules_rust_sdk::EnvoyBuffer,
        _reset_imminent: bool,
    ) -> LocalReplyStatus {
        if let Some(stream) = self.stream.as_mut() {
            stream.gave_up = details.as_slice() == GAVE_UP;
            if !self.shared.shows_attempts {
                stream.details = details.as_slice().to_vec();
            }
        }
        LocalReplyStatus::Continue
    }

    fn on_response_headers(&mut self, envoy: &mut E, _end_of_stream: bool) -> ResponseHeadersStatus {
        let is_507 = envoy.get_response_header_value(":status").is_some_and(|status| status.as_slice() == b"507");
        if is_507 && self.stream.as_ref().is_some_and(|stream| stream.gave_up && stream.enforced()) {
            envoy.set_response_header(":status", b"503");
        }
        // No retry is possible from here on, however long the response goes on.
        if let Some(stream) = self.stream.as_mut() {
            self.shared.settle(envoy, stream);
        }
        ResponseHeadersStatus::Continue
    }

    fn on_stream_complete(&mut self, envoy: &mut E) {
        if let Some(stream) = self.stream.take() {
            self.shared.end(envoy, stream);
        }
    }
}

impl Drop for RetryFilter {
    /// A stream that Envoy drops without completing it gives its right back.
    fn drop(&mut self) {
        if let Some(stream) = self.stream.as_mut() {
            stream.settle(0);
        }
    }
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
