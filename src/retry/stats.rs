//! Counters of `retry`, defined once when its configuration loads.

use envoy_proxy_dynamic_modules_rust_sdk::{EnvoyCounterId, EnvoyHttpFilter, EnvoyHttpFilterConfig, envoy_log_warn};

use super::{decide::Reason, outcome::Outcome};
use crate::endpoints::ResetClass;

/// Every counter's name, without Envoy's prefix for the module, and what it counts.
pub const HELP: [(&str, &str); 39] = [
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
    ("retry_decision_body_over_limit", "refused: its body is larger than Envoy's buffer limit"),
    ("retry_decision_budget_exhausted", "refused: the budget is used up"),
    ("retry_outcome_not_needed", "had the right, and the first attempt was answered"),
    ("retry_outcome_succeeded", "was retried, and answered"),
    ("retry_outcome_exhausted", "was retried, and failed all the same"),
    ("retry_outcome_not_retried", "failed without a retry: answer begun, no condition held, circuit breaker open"),
    ("retry_outcome_body_over_limit", "failed without a retry: body larger than Envoy's buffer limit"),
    ("retry_outcome_answered_unknown", "answered after an unknown number of attempts (Envoy 1.38)"),
    ("retry_outcome_failed_unknown", "failed after an unknown number of attempts (Envoy 1.38)"),
    ("retry_outcome_cancelled", "the client left first"),
    ("retry_reset_stale", "met a reset: the connection's endpoint had left or returned since it was opened"),
    ("retry_reset_tunnel_refused", "met a reset: the tunnel's CONNECT was refused or not answered"),
    ("retry_reset_ended_unanswered", "met a reset: the endpoint ended the tunnel orderly, without a whole answer"),
    ("retry_reset_broken", "met a reset: the tunnel broke in any other way"),
    ("retry_reset_unexplained", "met a reset that no tunnel explains"),
    ("retry_cured_stale", "of these, answered by a retry: stale"),
    ("retry_cured_tunnel_refused", "of these, answered by a retry: tunnel_refused"),
    ("retry_cured_ended_unanswered", "of these, answered by a retry: ended_unanswered"),
    ("retry_cured_broken", "of these, answered by a retry: broken"),
    ("retry_cured_unexplained", "answered by a retry of an attempt that no tunnel explains, a status code's too"),
    (
        "retry_max_retries_set",
        "requests whose number of retries is the policy's, instead of the route's or the caller's",
    ),
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
    /// It got a number of retries.
    Numbered,
    /// It met a reset, of this class if that is known, and failed by it or was cured of it.
    Reset {
        /// The class.
        class: Option<ResetClass>,
        /// Whether a retry was answered.
        cured: bool,
    },
}

/// The counters' ids, by their place in [`HELP`].
#[derive(Debug)]
pub struct Stats {
    ids: Vec<Option<EnvoyCounterId>>,
}

const REQUESTS: usize = 0;
const GRANTED: usize = 1;
const GRANTED_UNPROCESSED: usize = 2;
const RETRIES: usize = 3;
const FAILED_BY_RESET: usize = 4;
const DECISIONS: usize = 5;
const OUTCOMES: usize = DECISIONS + Reason::ALL.len();
const RESETS: usize = OUTCOMES + Outcome::ALL.len();
/// One for each class, and one for those without.
const CLASSES: usize = ResetClass::ALL.len() + 1;
const CURED: usize = RESETS + CLASSES;
const NUMBERED: usize = CURED + CLASSES;

// === impl Stats ===

impl Stats {
    /// Defines every counter. One that Envoy refuses is reported once and not counted: traffic goes on.
    pub fn define(envoy: &mut impl EnvoyHttpFilterConfig) -> Self {
        let mut define = |name| {
            let id = envoy.define_counter(name);
            id.inspect_err(|error| envoy_log_warn!("stale_guard retry: counter {name} is not available: {error:?}"))
                .ok()
        };
        Self { ids: HELP.iter().map(|(name, _)| define(name)).collect() }
    }

    /// Any one of the counters.
    #[must_use]
    pub fn any(&self) -> Option<EnvoyCounterId> {
        self.ids.iter().copied().flatten().next()
    }

    /// Counts one event.
    pub fn count(&self, envoy: &impl EnvoyHttpFilter, event: Event) {
        match event {
            Event::Decided(reason) => {
                self.add(envoy, REQUESTS, 1);
                self.add(envoy, DECISIONS + reason as usize, 1);
            }
            Event::Granted => self.add(envoy, GRANTED, 1),
            Event::GrantedUnprocessed => self.add(envoy, GRANTED_UNPROCESSED, 1),
            Event::Ended(outcome) => self.add(envoy, OUTCOMES + outcome as usize, 1),
            Event::FailedByReset => self.add(envoy, FAILED_BY_RESET, 1),
            Event::Numbered => self.add(envoy, NUMBERED, 1),
            Event::Reset { class, cured } => {
                let place = class.map_or(CLASSES - 1, ResetClass::index);
                self.add(envoy, RESETS + place, 1);
                if cured {
                    self.add(envoy, CURED + place, 1);
                }
            }
        }
    }

    /// Counts retries that Envoy made.
    pub fn retries(&self, envoy: &impl EnvoyHttpFilter, retries: u32) {
        if retries > 0 {
            self.add(envoy, RETRIES, u64::from(retries));
        }
    }

    fn add(&self, envoy: &impl EnvoyHttpFilter, place: usize, value: u64) {
        if let Some(id) = self.ids.get(place).copied().flatten() {
            // A counter that Envoy does not know any more is no reason to touch the request.
            let _ = envoy.increment_counter(id, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_has_its_counter_in_its_place() {
        let name = |place: usize| HELP[place].0;
        assert_eq!(name(REQUESTS), "retry_requests");
        assert_eq!(name(GRANTED), "retry_granted");
        assert_eq!(name(GRANTED_UNPROCESSED), "retry_granted_unprocessed");
        assert_eq!(name(RETRIES), "retry_retries");
        assert_eq!(name(FAILED_BY_RESET), "retry_failed_by_reset");
        for reason in Reason::ALL {
            assert_eq!(name(DECISIONS + reason as usize), format!("retry_decision_{}", reason.name()));
        }
        for outcome in Outcome::ALL {
            assert_eq!(name(OUTCOMES + outcome as usize), format!("retry_outcome_{}", outcome.name()));
        }
        for class in ResetClass::ALL {
            assert_eq!(name(RESETS + class.index()), format!("retry_reset_{}", class.name()));
            assert_eq!(name(CURED + class.index()), format!("retry_cured_{}", class.name()));
        }
        assert_eq!(name(NUMBERED), "retry_max_retries_set");
        assert_eq!(HELP.len(), NUMBERED + 1);
    }
}
