//! The HTTP filter: evidence in, headers out, and the account at the end of the stream.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use envoy_proxy_dynamic_modules_rust_sdk::{
    EnvoyHttpFilter, EnvoyHttpFilterConfig, HttpFilter, HttpFilterConfig, HttpPerRouteConfig,
    abi::{
        envoy_dynamic_module_type_attribute_id as Attribute,
        envoy_dynamic_module_type_on_http_filter_local_reply_status as LocalReplyStatus,
        envoy_dynamic_module_type_on_http_filter_request_body_status as BodyStatus,
        envoy_dynamic_module_type_on_http_filter_request_headers_status as HeadersStatus,
        envoy_dynamic_module_type_on_http_filter_response_headers_status as ResponseHeadersStatus,
    },
    envoy_log_debug, envoy_log_warn,
};

use super::{
    asked::{RequestHeaders, route_policy, route_retries, upstream},
    decide::{Action, Reason, Verdict, decide},
    explain,
    outcome::{Attempts, Ending, Outcome, Rights},
    policy::Policy,
    request::{Evidence, Headers, Kept},
    stats::{Event, Stats},
    steer,
    worker::{self, Loaded},
};
use crate::{
    config::{ConfigError, Mode},
    endpoints::{Break, Endpoints},
    metadata,
};

/// Custom response flag of a request that had the right to be retried and still failed by a reset.
pub const FLAG: &str = "SGX";
/// Where Envoy counts attempts for the upstream, if the virtual host asks for it
/// (`include_request_attempt_count`, as Istio does). The only source on Envoy 1.38.
const ATTEMPT_COUNT: &str = "x-envoy-attempt-count";

/// Envoy's response code details when the body outgrows the limit between two attempts. It answers 507
/// then, which says that the *proxy* failed for good; without a retry policy, ours or the route's, the
/// request would have ended with the upstream's failure, a 503, so that is what the client is told.
const GAVE_UP: &[u8] = b"request_payload_exceeded_retry_buffer_limit";

/// One filter configuration, shared by all streams.
pub struct RetryConfig {
    shared: Arc<Shared>,
}

struct Shared {
    loaded: Arc<Loaded>,
    stats: Stats,
    endpoints: Arc<Endpoints>,
    /// Envoy 1.39 and later: flags, details and attempt count can be read. Older ones log an error for
    /// each try.
    sees_attempts: bool,
}

/// The filter of one stream.
pub struct RetryFilter {
    shared: Arc<Shared>,
    stream: Option<Stream>,
}

/// What is kept of a request from its headers to its end.
struct Stream {
    loaded: Arc<Loaded>,
    rights: Option<Rights>,
    /// The budget has the right back.
    settled: bool,
    started: Instant,
    /// The policy acts, and does not only watch.
    enforced: bool,
    /// The caller sent `x-envoy-attempt-count` itself, so it says nothing about Envoy's attempts.
    foreign_count: bool,
    body: u64,
    body_limit: u64,
    /// Envoy answered 507 between two attempts.
    gave_up: bool,
    /// Of a local reply, on Envoys that do not show them otherwise.
    details: Vec<u8>,
}

// === impl RetryConfig ===

impl RetryConfig {
    /// Parses the filter's configuration and defines its counters. Main thread.
    ///
    /// # Errors
    /// A configuration that [`Policy::parse`] refuses.
    pub fn new(
        json: &[u8],
        envoy: &mut impl EnvoyHttpFilterConfig,
        endpoints: Arc<Endpoints>,
    ) -> Result<Self, ConfigError> {
        let loaded = Loaded::new(Policy::parse(json)?);
        let stats = Stats::define(envoy);
        // Counting outside of a stream came with the same release as the attributes.
        let sees_attempts = stats.any().is_some_and(|id| envoy.increment_counter(id, 0).is_ok());
        Ok(Self { shared: Arc::new(Shared { loaded, stats, endpoints, sees_attempts }) })
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
            if !self.shared.sees_attempts {
                stream.details = details.as_slice().to_vec();
            }
        }
        LocalReplyStatus::Continue
    }

    fn on_response_headers(&mut self, envoy: &mut E, _end_of_stream: bool) -> ResponseHeadersStatus {
        let is_507 = envoy.get_response_header_value(":status").is_some_and(|status| status.as_slice() == b"507");
        if is_507 && self.stream.as_ref().is_some_and(|stream| stream.gave_up && stream.enforced) {
            envoy.set_response_header(":status", b"503");
        }
        // No retry is possible from here on, however long the response goes on.
        if let Some(stream) = self.stream.as_mut().filter(|stream| stream.holds_right()) {
            stream.settled = true;
            self.shared.settle(envoy, stream);
        }
        ResponseHeadersStatus::Continue
    }

    fn on_stream_complete(&mut self, envoy: &mut E) {
        if let Some(stream) = self.stream.take() {
            self.shared.end(envoy, &stream);
        }
    }
}

impl Drop for RetryFilter {
    /// A stream that Envoy drops without completing it gives its right back.
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take().filter(Stream::holds_right) {
            let now = worker::now();
            stream.loaded.budget(now, |budget| budget.settle(now, 0));
        }
    }
}

// === impl Stream ===

impl Stream {
    /// Whether the budget still holds a right for it.
    fn holds_right(&self) -> bool {
        self.rights.is_some() && !self.settled
    }
}

// === impl Shared ===

impl Shared {
    /// Decides, and acts on the decision.
    fn begin(&self, envoy: &mut impl EnvoyHttpFilter, loaded: Arc<Loaded>) -> Stream {
        let now = worker::now();
        let policy = &loaded.policy;
        let allowance = loaded.budget(now, |budget| {
            budget.request(now);
            budget.allowance(now)
        });
        let headers = RequestHeaders(&*envoy);
        let request = Evidence {
            method: envoy.get_request_header_value(":method").map(|value| value.as_slice()),
            authority: envoy.get_request_header_value(":authority").map(|value| value.as_slice()),
            path: envoy.get_request_header_value(":path").map(|value| value.as_slice()),
            headers: &headers,
            // 0 is how Envoy says "no limit".
            kept: match envoy.get_buffer_limit() {
                0 => Kept::All,
                limit => Kept::UpTo(limit),
            },
        };
        let verdict = decide(&request, policy, allowance);
        let set = steer::headers(&request, &verdict.action, || route_retries(envoy));
        let foreign_count = headers.contains(ATTEMPT_COUNT);
        log_decision(&request, &verdict, policy.mode);

        if set.iter().any(|(name, _)| *name == steer::MAX_RETRIES) {
            self.stats.count(envoy, Event::Numbered);
        }
        let given = policy.mode == Mode::Enforce;
        if given {
            for (name, value) in set {
                envoy.set_request_header(name, &value);
            }
        }
        let rights = match &verdict.action {
            Action::Retry(terms) => Some(Rights { max_retries: terms.max_retries, given, after_reset: true }),
            Action::RetryUnprocessed(_) => {
                Some(Rights { max_retries: steer::ENVOY_DEFAULT_RETRIES, given, after_reset: false })
            }
            Action::Leave => None,
        };
        self.account(envoy, &verdict, rights);
        if rights.is_some() {
            loaded.budget(now, super::budget::Budget::grant);
        }
        if verdict.reason == Reason::BudgetExhausted {
            self.warn_exhausted(envoy, &loaded, now);
        }
        Stream {
            rights,
            settled: false,
            started: Instant::now(),
            enforced: given,
            foreign_count,
            body: 0,
            body_limit: 0,
            gave_up: false,
            details: Vec::new(),
            loaded: Arc::clone(&loaded),
        }
    }

    /// Counts and annotates a decision.
    fn account(&self, envoy: &mut impl EnvoyHttpFilter, verdict: &Verdict<'_>, rights: Option<Rights>) {
        self.stats.count(envoy, Event::Decided(verdict.reason));
        match rights {
            Some(Rights { after_reset: true, .. }) => self.stats.count(envoy, Event::Granted),
            Some(Rights { after_reset: false, .. }) => self.stats.count(envoy, Event::GrantedUnprocessed),
            None => {}
        }
        envoy.set_dynamic_metadata_string(metadata::NAMESPACE, metadata::RETRY_DECISION, verdict.action.name());
        envoy.set_dynamic_metadata_string(metadata::NAMESPACE, metadata::RETRY_REASON, verdict.reason.name());
        if let Some(rule) = verdict.rule {
            envoy.set_dynamic_metadata_string(metadata::NAMESPACE, metadata::RETRY_RULE, rule);
        }
    }

    fn warn_exhausted(&self, envoy: &impl EnvoyHttpFilter, loaded: &Arc<Loaded>, now: Duration) {
        let Some(refused) = loaded.refused(now) else { return };
        let worker_index = envoy.get_worker_index();
        // Tells which budget it was, where routes have their own.
        let route = if self.sees_attempts { envoy.get_attribute_string(Attribute::XdsRouteName) } else { None };
        envoy_log_warn!(
            "stale_guard retry: budget exhausted on worker {worker_index}, route \"{}\": {refused} requests passed without \
             the right to be retried since the last such line",
            route.map(|name| String::from_utf8_lossy(name.as_slice()).escape_debug().to_string()).unwrap_or_default(),
        );
    }

    /// What can be said of a stream's end, or of its response's beginning.
    fn ending<'a>(&self, envoy: &impl EnvoyHttpFilter, stream: &Stream, details: &'a [u8]) -> Ending<'a> {
        Ending {
            attempts: self.attempts(envoy, stream),
            status: envoy.get_attribute_int(Attribute::ResponseCode).and_then(|code| code.try_into().ok()).unwrap_or(0),
            flags: if self.sees_attempts {
                envoy.get_attribute_int(Attribute::ResponseFlags).map(i64::cast_unsigned)
            } else {
                None
            },
            details,
            body_over_limit: stream.body_limit > 0 && stream.body > stream.body_limit,
        }
    }

    /// Gives a right back to the budget, less the retries that were made of it.
    fn settle(&self, envoy: &impl EnvoyHttpFilter, stream: &Stream) {
        let Some(rights) = stream.rights else { return };
        let details = self.details(envoy, stream);
        let charge = self.ending(envoy, stream, &details).charge(&rights);
        let now = worker::now();
        stream.loaded.budget(now, |budget| budget.settle(now, charge));
    }

    /// Counts and annotates a stream that is over.
    fn end(&self, envoy: &mut impl EnvoyHttpFilter, stream: &Stream) {
        if stream.holds_right() {
            self.settle(envoy, stream);
        }
        let details = self.details(envoy, stream);
        let ending = self.ending(envoy, stream, &details);
        if let Attempts::Known(attempts) = ending.attempts {
            envoy.set_dynamic_metadata_number(metadata::NAMESPACE, metadata::ATTEMPTS, f64::from(attempts));
        }
        self.explain(envoy, stream, &ending);
        let Some(rights) = stream.rights else { return };
        let outcome = ending.outcome();
        envoy.set_dynamic_metadata_string(metadata::NAMESPACE, metadata::RETRY_OUTCOME, outcome.name());
        self.stats.count(envoy, Event::Ended(outcome));
        if let Attempts::Known(attempts) = ending.attempts {
            self.stats.retries(envoy, attempts.saturating_sub(1));
        }
        if rights.after_reset && ending.is_reset() && !ending.is_cancelled() {
            self.stats.count(envoy, Event::FailedByReset);
            // A flag says something about what was done; observing does nothing.
            if rights.given {
                envoy.add_custom_flag(FLAG);
            }
        }
    }

    fn attempts(&self, envoy: &impl EnvoyHttpFilter, stream: &Stream) -> Attempts {
        if self.sees_attempts {
            // Absent when the router was never reached.
            let count = envoy.get_attribute_int(Attribute::UpstreamRequestAttemptCount).unwrap_or(0);
            return Attempts::Known(u32::try_from(count).unwrap_or(0));
        }
        if stream.foreign_count {
            return Attempts::Unknown;
        }
        let count = envoy.get_request_header_value(ATTEMPT_COUNT);
        count
            .and_then(|value| steer::parse_retries(value.as_slice()))
            .and_then(|count| u32::try_from(count).ok())
            .map_or(Attempts::Unknown, Attempts::Known)
    }

    fn details(&self, envoy: &impl EnvoyHttpFilter, stream: &Stream) -> Vec<u8> {
        if !self.sees_attempts {
            return stream.details.clone();
        }
        let details = envoy.get_attribute_string(Attribute::ResponseCodeDetails);
        details.map(|details| details.as_slice().to_vec()).unwrap_or_default()
    }

    /// Counts and annotates the reset that the request met, whether it failed by it or was cured of it.
    fn explain(&self, envoy: &mut impl EnvoyHttpFilter, stream: &Stream, ending: &Ending<'_>) {
        let failed = ending.is_reset() && !ending.is_cancelled();
        let cured = ending.outcome() == Outcome::Succeeded;
        let worker = envoy.get_worker_index();
        let found = if failed {
            upstream(envoy).and_then(|ip| explain::failed(&self.endpoints, ip, worker, ending))
        } else if cured {
            self.endpoints.break_since(stream.started, worker)
        } else {
            return;
        };
        self.stats.count(envoy, Event::Reset { class: found.map(|found| found.reset.class), cured });
        let Some(Break { ip, reset, .. }) = found else { return };
        envoy.set_dynamic_metadata_string(metadata::NAMESPACE, metadata::RESET_CLASS, reset.class.name());
        envoy.set_dynamic_metadata_string(metadata::NAMESPACE, metadata::RESET_ENDPOINT, &ip.to_string());
        for (key, time) in [
            (metadata::CONNECTION_AGE, reset.connection_age),
            (metadata::IDLE, reset.idle),
            (metadata::WAITED, reset.waited),
        ] {
            if let Some(time) = time {
                envoy.set_dynamic_metadata_number(metadata::NAMESPACE, key, metadata::millis(time));
            }
        }
    }
}

fn log_decision(request: &Evidence<'_>, verdict: &Verdict<'_>, mode: Mode) {
    envoy_log_debug!(
        "stale_guard retry: {:?} {} {}: {} because {}{}{}",
        mode,
        String::from_utf8_lossy(request.method.unwrap_or(b"-")).escape_debug(),
        String::from_utf8_lossy(request.bare_path().unwrap_or(b"-")).escape_debug(),
        verdict.action.name(),
        verdict.reason.name(),
        verdict.rule.map_or("", |_| ", rule "),
        verdict.rule.unwrap_or("")
    );
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
