//! What is done with a request: the decision when its headers arrive, the account when its stream ends.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use envoy_proxy_dynamic_modules_rust_sdk::{
    EnvoyBuffer, EnvoyHttpFilter, abi::envoy_dynamic_module_type_attribute_id as Attribute, envoy_log_debug,
    envoy_log_warn,
};

use super::{
    asked::{RequestHeaders, route_retries, upstream},
    budget::Grant,
    budgets::{self, Loaded},
    decide::{Action, Allowance, Reason, Verdict, decide},
    explain,
    headers::{ATTEMPT_COUNT, MAX_RETRIES, parse_number},
    metrics::Metrics,
    outcome::{Attempts, Ending, Outcome, Rights},
    policy::Policy,
    request::Evidence,
    steer,
};
use crate::{
    config::Mode,
    endpoints::{Break, Endpoints},
    metadata::{self, NAMESPACE},
};

/// Custom response flag of a request that had the right to be retried and still failed by a reset.
pub(super) const FLAG: &str = "SGX";

/// What all streams of one filter configuration share.
pub(super) struct Shared {
    pub(super) loaded: Arc<Loaded>,
    pub(super) metrics: Metrics,
    pub(super) endpoints: Arc<Endpoints>,
    /// Envoy 1.39 and later: flags, details and attempt count can be read. Older ones log an error for
    /// each try.
    pub(super) shows_attempts: bool,
}

/// What is remembered of a request from its headers to its end.
pub(super) struct Stream {
    loaded: Arc<Loaded>,
    pub(super) rights: Option<Rights>,
    /// The right that the budget holds for it.
    held: Option<Grant>,
    started: Instant,
    /// The caller sent `x-envoy-attempt-count` itself, so it says nothing about Envoy's attempts.
    foreign_count: bool,
    pub(super) body: u64,
    pub(super) body_limit: u64,
    /// Envoy answered 507 between two attempts.
    pub(super) gave_up: bool,
    /// Of a local reply, on Envoys that do not show them otherwise.
    pub(super) details: Vec<u8>,
}

// === impl Stream ===

impl Stream {
    /// The policy acts, and does not only watch.
    pub(super) fn enforced(&self) -> bool {
        self.loaded.policy.mode == Mode::Enforce
    }

    /// Gives the right back, less the retries that were made of it. The second time it does nothing.
    pub(super) fn settle(&mut self, used: u32) {
        if let Some(grant) = self.held.take() {
            let now = budgets::now();
            self.loaded.budget(now, |budget| budget.settle(now, grant, used));
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Decides, and acts on the decision.
    pub(super) fn begin(&self, envoy: &mut impl EnvoyHttpFilter, loaded: Arc<Loaded>) -> Stream {
        let now = budgets::now();
        let foreign_count = !self.shows_attempts && envoy.get_request_header_value(ATTEMPT_COUNT).is_some();
        let allowance = loaded.budget(now, |budget| {
            budget.request(now);
            budget.allowance(now)
        });
        let (verdict, headers) = judge(envoy, &loaded.policy, allowance);
        self.steer(envoy, headers, loaded.policy.mode);
        let rights = rights(&verdict.action, loaded.policy.mode);
        let held = rights.map(|_| loaded.budget(now, |budget| budget.grant(now)));
        self.account(envoy, &verdict, rights);
        if verdict.reason == Reason::BudgetExhausted {
            self.warn_exhausted(envoy, &loaded, now);
        }
        Stream {
            rights,
            held,
            started: Instant::now(),
            foreign_count,
            body: 0,
            body_limit: 0,
            gave_up: false,
            details: Vec::new(),
            loaded: Arc::clone(&loaded),
        }
    }

    /// Sets the headers that carry a decision to Envoy's router.
    fn steer(&self, envoy: &mut impl EnvoyHttpFilter, headers: Vec<steer::Header>, mode: Mode) {
        if headers.iter().any(|(name, _)| *name == MAX_RETRIES) {
            self.metrics.max_retries_set(envoy);
        }
        if mode == Mode::Enforce {
            for (name, value) in headers {
                envoy.set_request_header(name, &value);
            }
        }
    }

    /// Counts and annotates a decision.
    fn account(&self, envoy: &mut impl EnvoyHttpFilter, verdict: &Verdict<'_>, rights: Option<Rights>) {
        self.metrics.decided(envoy, verdict.reason);
        if let Some(rights) = rights {
            self.metrics.granted(envoy, rights.after_reset);
        }
        envoy.set_dynamic_metadata_string(NAMESPACE, metadata::RETRY_DECISION, verdict.action.name());
        envoy.set_dynamic_metadata_string(NAMESPACE, metadata::RETRY_REASON, verdict.reason.name());
        if let Some(rule) = verdict.rule {
            envoy.set_dynamic_metadata_string(NAMESPACE, metadata::RETRY_RULE, rule);
        }
    }

    fn warn_exhausted(&self, envoy: &impl EnvoyHttpFilter, loaded: &Arc<Loaded>, now: Duration) {
        let Some(refused) = loaded.refused(now) else { return };
        let worker_index = envoy.get_worker_index();
        // Tells which budget it was, where routes have their own.
        let route = if self.shows_attempts { envoy.get_attribute_string(Attribute::XdsRouteName) } else { None };
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
            flags: if self.shows_attempts {
                envoy.get_attribute_int(Attribute::ResponseFlags).map(i64::cast_unsigned)
            } else {
                None
            },
            details,
            body_over_limit: stream.body_limit > 0 && stream.body > stream.body_limit,
        }
    }

    /// Gives a stream's right back to the budget, less the retries that were made of it.
    pub(super) fn settle(&self, envoy: &impl EnvoyHttpFilter, stream: &mut Stream) {
        if let (Some(rights), Some(_)) = (stream.rights, stream.held) {
            let details = self.details(envoy, stream);
            let charge = self.ending(envoy, stream, &details).charge(&rights);
            stream.settle(charge);
        }
    }

    /// Counts and annotates a stream that is over.
    pub(super) fn end(&self, envoy: &mut impl EnvoyHttpFilter, mut stream: Stream) {
        self.settle(envoy, &mut stream);
        let details = self.details(envoy, &stream);
        let ending = self.ending(envoy, &stream, &details);
        let retries = match ending.attempts {
            Attempts::Known(attempts) => {
                envoy.set_dynamic_metadata_number(NAMESPACE, metadata::ATTEMPTS, f64::from(attempts));
                attempts.saturating_sub(1)
            }
            Attempts::Unknown => 0,
        };
        self.explain(envoy, &stream, &ending);
        let Some(rights) = stream.rights else { return };
        let outcome = ending.outcome();
        envoy.set_dynamic_metadata_string(NAMESPACE, metadata::RETRY_OUTCOME, outcome.name());
        self.metrics.ended(envoy, outcome, retries);
        if rights.after_reset && ending.is_reset() && !ending.is_cancelled() {
            self.metrics.failed_by_reset(envoy);
            // A flag says something about what was done; observing does nothing.
            if rights.given {
                envoy.add_custom_flag(FLAG);
            }
        }
    }

    fn attempts(&self, envoy: &impl EnvoyHttpFilter, stream: &Stream) -> Attempts {
        if self.shows_attempts {
            // Absent when the router was never reached.
            let count = envoy.get_attribute_int(Attribute::UpstreamRequestAttemptCount).unwrap_or(0);
            return Attempts::Known(u32::try_from(count).unwrap_or(0));
        }
        if stream.foreign_count {
            return Attempts::Unknown;
        }
        let count = envoy.get_request_header_value(ATTEMPT_COUNT);
        count
            .and_then(|value| parse_number(value.as_slice()))
            .and_then(|count| u32::try_from(count).ok())
            .map_or(Attempts::Unknown, Attempts::Known)
    }

    fn details(&self, envoy: &impl EnvoyHttpFilter, stream: &Stream) -> Vec<u8> {
        if !self.shows_attempts {
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
        self.metrics.reset(envoy, found.map(|found| found.reset.class), cured);
        let Some(Break { ip, reset, .. }) = found else { return };
        envoy.set_dynamic_metadata_string(NAMESPACE, metadata::RESET_CLASS, reset.class.name());
        envoy.set_dynamic_metadata_string(NAMESPACE, metadata::RESET_ENDPOINT, &ip.to_string());
        for (key, time) in [
            (metadata::CONNECTION_AGE, reset.connection_age),
            (metadata::IDLE, reset.idle),
            (metadata::WAITED, reset.waited),
        ] {
            if let Some(time) = time {
                envoy.set_dynamic_metadata_number(NAMESPACE, key, metadata::millis(time));
            }
        }
    }
}

/// The decision on a request, and the headers that carry it out.
fn judge<'a>(
    envoy: &impl EnvoyHttpFilter,
    policy: &'a Policy,
    allowance: Allowance,
) -> (Verdict<'a>, Vec<steer::Header>) {
    let pseudo = [":method", ":authority", ":path"].map(|name| envoy.get_request_header_value(name));
    let [method, authority, path] = pseudo.each_ref().map(|value| value.as_ref().map(EnvoyBuffer::as_slice));
    let request = Evidence {
        method,
        authority,
        path,
        headers: &RequestHeaders(envoy),
        // 0 is how Envoy says "no limit".
        body_limit: Some(envoy.get_buffer_limit()).filter(|limit| *limit > 0),
    };
    let verdict = decide(&request, policy, allowance);
    let headers = steer::headers(&request, &verdict.action, || route_retries(envoy));
    log_decision(&request, &verdict, policy.mode);
    (verdict, headers)
}

/// The rights that a decision gives, or would give in `observe`.
fn rights(action: &Action<'_>, mode: Mode) -> Option<Rights> {
    let given = mode == Mode::Enforce;
    match action {
        Action::Retry(terms) => Some(Rights { max_retries: terms.max_retries, given, after_reset: true }),
        Action::RetryUnprocessed(_) => {
            Some(Rights { max_retries: steer::ENVOY_DEFAULT_RETRIES, given, after_reset: false })
        }
        Action::Leave => None,
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
