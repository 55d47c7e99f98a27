//! A broken law, with the evidence.

use std::fmt;
use std::time::{Duration, Instant};

/// The laws, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Law {
    /// A request that is not idempotent is executed at most once.
    NonIdempotentAtMostOnce,
    /// An idempotent request is executed at most `1 + max_retries` times.
    IdempotentWithinRetries,
    /// A 2xx answer means an execution, and the answering pod is among those that executed it.
    SuccessWasExecuted,
    /// Every issued id has exactly one outcome, and no outcome lacks an issued id.
    EveryRequestAccountedOnce,
    /// Applications execute only what a client sent.
    ExecutionHasRequest,
    /// No tunnel starts on an outer connection that is older than its endpoint's fence.
    FencedConnectionUnused,
    /// Attempts stay within requests times `1 + ratio`, plus the floor.
    BudgetHeld,
    /// The proxy's counters say what the history says.
    CountersEqualHistory,
}

/// One violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The law.
    pub law: Law,
    /// Request ids, connection names or counter names it is about.
    pub ids: Vec<String>,
    /// Times of the evidence, counted from the history's origin.
    pub times: Vec<Duration>,
    /// What happened and what should have.
    pub detail: String,
}

// === impl Violation ===

impl Violation {
    pub(super) fn new(
        law: Law,
        id: &str,
        origin: Instant,
        times: impl IntoIterator<Item = Instant>,
        detail: String,
    ) -> Self {
        let times = times.into_iter().map(|at| at.saturating_duration_since(origin)).collect();
        Self { law, ids: vec![id.to_owned()], times, detail }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.law, self.ids.join(", "))?;
        for time in &self.times {
            write!(f, " +{:.3}s", time.as_secs_f64())?;
        }
        write!(f, ": {}", self.detail)
    }
}
