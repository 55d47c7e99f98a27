//! Counters of `retry`, defined once when its configuration loads; `docs/retry.md` tells what each counts.

use envoy_proxy_dynamic_modules_rust_sdk::{EnvoyCounterId, EnvoyHttpFilter, EnvoyHttpFilterConfig, envoy_log_warn};

use super::{decide::Reason, outcome::Outcome};
use crate::endpoints::ResetClass;

type Counter = Option<EnvoyCounterId>;

/// Counters by class of reset, and one for those without.
#[derive(Debug)]
struct ByClass {
    classes: [Counter; ResetClass::ALL.len()],
    unexplained: Counter,
}

/// What the filter counts. An id that Envoy refused is `None`: traffic matters more than its counts.
#[derive(Debug)]
pub(super) struct Metrics {
    requests: Counter,
    granted: Counter,
    granted_unprocessed: Counter,
    retries: Counter,
    failed_by_reset: Counter,
    max_retries_set: Counter,
    decisions: [Counter; Reason::ALL.len()],
    outcomes: [Counter; Outcome::ALL.len()],
    resets: ByClass,
    cured: ByClass,
}

// === impl ByClass ===

impl ByClass {
    fn define(name: &str, mut counter: impl FnMut(&str) -> Counter) -> Self {
        Self {
            classes: ResetClass::ALL.map(|class| counter(&format!("{name}_{}", class.name()))),
            unexplained: counter(&format!("{name}_unexplained")),
        }
    }

    fn of(&self, class: Option<ResetClass>) -> Counter {
        class.map_or(self.unexplained, |class| self.classes.get(class.index()).copied().flatten())
    }
}

// === impl Metrics ===

impl Metrics {
    /// Defines every counter. One that Envoy refuses is reported once and not counted.
    pub(super) fn define(envoy: &mut impl EnvoyHttpFilterConfig) -> Self {
        let mut counter = |name: &str| {
            let id = envoy.define_counter(name);
            id.inspect_err(|error| envoy_log_warn!("stale_guard retry: counter {name} is not available: {error:?}"))
                .ok()
        };
        Self {
            requests: counter("retry_requests"),
            granted: counter("retry_granted"),
            granted_unprocessed: counter("retry_granted_unprocessed"),
            retries: counter("retry_retries"),
            failed_by_reset: counter("retry_failed_by_reset"),
            max_retries_set: counter("retry_max_retries_set"),
            decisions: Reason::ALL.map(|reason| counter(&format!("retry_decision_{}", reason.name()))),
            outcomes: Outcome::ALL.map(|outcome| counter(&format!("retry_outcome_{}", outcome.name()))),
            resets: ByClass::define("retry_reset", &mut counter),
            cured: ByClass::define("retry_cured", &mut counter),
        }
    }

    /// A request was decided on.
    pub(super) fn decided(&self, envoy: &impl EnvoyHttpFilter, reason: Reason) {
        count(envoy, self.requests, 1);
        count(envoy, self.decisions.get(reason as usize).copied().flatten(), 1);
    }

    /// It got the right to be retried, after a reset or only where no upstream acted on it.
    pub(super) fn granted(&self, envoy: &impl EnvoyHttpFilter, after_reset: bool) {
        count(envoy, if after_reset { self.granted } else { self.granted_unprocessed }, 1);
    }

    /// It got a number of retries.
    pub(super) fn max_retries_set(&self, envoy: &impl EnvoyHttpFilter) {
        count(envoy, self.max_retries_set, 1);
    }

    /// The stream of a request that had the right ended, after so many retries.
    pub(super) fn ended(&self, envoy: &impl EnvoyHttpFilter, outcome: Outcome, retries: u32) {
        count(envoy, self.outcomes.get(outcome as usize).copied().flatten(), 1);
        count(envoy, self.retries, u64::from(retries));
    }

    /// It failed by a reset all the same.
    pub(super) fn failed_by_reset(&self, envoy: &impl EnvoyHttpFilter) {
        count(envoy, self.failed_by_reset, 1);
    }

    /// A request met a reset, of this class if that is known, and failed by it or was cured of it.
    pub(super) fn reset(&self, envoy: &impl EnvoyHttpFilter, class: Option<ResetClass>, cured: bool) {
        count(envoy, self.resets.of(class), 1);
        if cured {
            count(envoy, self.cured.of(class), 1);
        }
    }
}

fn count(envoy: &impl EnvoyHttpFilter, counter: Counter, value: u64) {
    if let Some(id) = counter.filter(|_| value > 0) {
        // A counter that Envoy does not know any more is no reason to touch the request.
        let _ = envoy.increment_counter(id, value);
    }
}
