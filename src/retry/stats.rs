//! Counters of `retry`, defined once when its configuration loads.

use envoy_proxy_dynamic_modules_rust_sdk::{
    EnvoyCounterId, EnvoyHttpFilter, EnvoyHttpFilterConfig, envoy_log_warn,
};

use super::{decide::Reason, outcome::Outcome};

/// Every counter's name, without Envoy's prefix for the module, and what it counts.
pub const HELP: [(&str, &str); 27] = [
    ("retry_requests", "requests that were decided on (mode enforce or observe)"),
    ("retry_granted", "requests that got the right to be retried (observe: would have got it)"),
    ("retry_granted_unprocessed", "requests that got the right only where no upstream acted on them"),
    ("retry_retries", "retries that Envoy made of requests that had the right"),
    ("retry_failed_by_reset", "requests with the right that failed by a reset all the same (custom flag SGX)"),
    ("retry_decision_rule_allows", "eligible: a rule allows it"),
    ("retry_decision_idempotency_key", "eligible: it carries an idempotency key"),
    ("retry_decision_method_eligible", "eligible: its method is in `methods`"),
    ("retry_decision_method_not_eligible", "not eligible: its method is not in `methods`"),
    ("retry_decision_grpc_not_declared", "not eligible: gRPC that no rule declares"),
    ("retry_decision_precondition", "not eligible: a replay could fail its own precondition"),
    ("retry_decision_rule_denies", "refused: a rule denies it"),
    ("retry_decision_connect", "refused: CONNECT"),
    ("retry_decision_upgrade", "refused: an upgrade"),
    ("retry_decision_invalid_request", "refused: no readable method or path"),
    ("retry_decision_evidence_unknown", "refused: what a rule asks for could not be read"),
    ("retry_decision_caller_declines", "refused: the caller sent x-envoy-max-retries: 0"),
    ("retry_decision_no_condition", "refused: no configured condition applies"),
    ("retry_decision_budget_exhausted", "refused: the budget is used up"),
    ("retry_outcome_not_needed", "had the right, and the first attempt was answered"),
    ("retry_outcome_succeeded", "was retried, and answered"),
    ("retry_outcome_exhausted", "was retried, and failed all the same"),
    ("retry_outcome_not_retried", "failed without a retry: answer begun, no condition held, circuit breaker open"),
    ("retry_outcome_body_over_limit", "failed without a retry: body larger than Envoy's buffer limit"),
    ("retry_outcome_answered_unknown", "answered after an unknown number of attempts (Envoy 1.38)"),
    ("retry_outcome_failed_unknown", "failed after an unknown number of attempts (Envoy 1.38)"),
    ("retry_outcome_cancelled", "the client left first"),
];

/// What is counted once per event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A request was decided on.
    Decided(Reason),
    /// It got the right to be retried.
    Granted,
    /// It got the right only where no upstream acted on it.
    GrantedUnprocessed,
    /// Its stream ended.
    Ended(Outcome),
    /// It failed by a reset all the same.
    FailedByReset,
}

/// The counters' ids.
#[derive(Debug)]
pub struct Stats {
    ids: Vec<(&'static str, EnvoyCounterId)>,
}

// === impl Stats ===

impl Stats {
    /// Defines every counter. One that Envoy refuses is reported once and not counted: traffic goes on.
    pub fn define(envoy: &mut impl EnvoyHttpFilterConfig) -> Self {
        let mut ids = Vec::with_capacity(HELP.len());
        for (name, _) in HELP {
            match envoy.define_counter(name) {
                Ok(id) => ids.push((name, id)),
                Err(error) => envoy_log_warn!("stale_guard retry: counter {name} is not available: {error:?}"),
            }
        }
        Self { ids }
    }

    /// Any one of the counters.
    #[must_use]
    pub fn any(&self) -> Option<EnvoyCounterId> {
        self.ids.first().map(|(_, id)| *id)
    }

    /// Counts one event.
    pub fn count(&self, envoy: &impl EnvoyHttpFilter, event: Event) {
        match event {
            Event::Decided(reason) => {
                self.add(envoy, "retry_requests", "", 1);
                self.add(envoy, "retry_decision_", reason.name(), 1);
            }
            Event::Granted => self.add(envoy, "retry_granted", "", 1),
            Event::GrantedUnprocessed => self.add(envoy, "retry_granted_unprocessed", "", 1),
            Event::Ended(outcome) => self.add(envoy, "retry_outcome_", outcome.name(), 1),
            Event::FailedByReset => self.add(envoy, "retry_failed_by_reset", "", 1),
        }
    }

    /// Counts retries that Envoy made.
    pub fn retries(&self, envoy: &impl EnvoyHttpFilter, retries: u32) {
        if retries > 0 {
            self.add(envoy, "retry_retries", "", u64::from(retries));
        }
    }

    fn add(&self, envoy: &impl EnvoyHttpFilter, prefix: &str, name: &str, value: u64) {
        let counter = self.ids.iter().find(|(known, _)| known.strip_prefix(prefix) == Some(name));
        if let Some((_, id)) = counter {
            // A counter that Envoy does not know any more is no reason to touch the request.
            let _ = envoy.increment_counter(*id, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_and_every_outcome_has_its_counter() {
        let known = |name: String| HELP.iter().any(|(counter, _)| *counter == name);
        for reason in Reason::ALL {
            assert!(known(format!("retry_decision_{}", reason.name())), "{reason:?} is not counted");
        }
        for outcome in Outcome::ALL {
            assert!(known(format!("retry_outcome_{}", outcome.name())), "{outcome:?} is not counted");
        }
        assert_eq!(HELP.len(), 5 + Reason::ALL.len() + Outcome::ALL.len());
    }
}
