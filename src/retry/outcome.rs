//! What became of a request, told from what Envoy knows when the stream ends.

use memchr::memmem;

/// Attempts that Envoy made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempts {
    /// As Envoy counted them; 0: the router was never reached.
    Known(u32),
    /// This Envoy does not say.
    Unknown,
}

/// How the stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending<'a> {
    /// Attempts made.
    pub attempts: Attempts,
    /// Status sent to the client; 0: none.
    pub status: u32,
    /// Envoy's response flags as a bit mask, where this Envoy shows them.
    pub flags: Option<u64>,
    /// Envoy's response code details; empty where there are none.
    pub details: &'a [u8],
    /// The request's body was larger than what Envoy keeps for another attempt.
    pub body_over_limit: bool,
}

/// The rights that a request had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights {
    /// Retries that it might have used.
    pub max_retries: u32,
    /// Whether they were given to it, or only would have been (`observe`).
    pub given: bool,
    /// Whether it might be sent again after a reset, and not only where no upstream acted on it.
    pub after_reset: bool,
}

/// What became of a request that had, or would have had, the right to be retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// The first attempt was answered.
    NotNeeded,
    /// It was retried, and answered.
    Succeeded,
    /// It was retried, and failed all the same.
    Exhausted,
    /// It failed and was not retried: its answer had begun, no condition held, or a circuit breaker
    /// was open.
    NotRetried,
    /// It failed and was not retried, and its body was larger than what Envoy keeps for a retry.
    BodyOverLimit,
    /// It was answered, after an unknown number of attempts.
    AnsweredUnknown,
    /// It failed, after an unknown number of attempts.
    FailedUnknown,
    /// The client left before it was answered.
    Cancelled,
}

// Bits of Envoy's `response_flags`, ABI enumeration of dynamic modules.
const UPSTREAM_REQUEST_TIMEOUT: u64 = 1 << 2;
const UPSTREAM_REMOTE_RESET: u64 = 1 << 4;
const UPSTREAM_CONNECTION_FAILURE: u64 = 1 << 5;
const UPSTREAM_CONNECTION_TERMINATION: u64 = 1 << 6;
const DOWNSTREAM_CONNECTION_TERMINATION: u64 = 1 << 14;
const UPSTREAM_PROTOCOL_ERROR: u64 = 1 << 23;
const DOWNSTREAM_REMOTE_RESET: u64 = 1 << 28;
const LOCAL_RESET: u64 = 1 << 3;

const RESETS: u64 = UPSTREAM_REMOTE_RESET
    | UPSTREAM_CONNECTION_FAILURE
    | UPSTREAM_CONNECTION_TERMINATION
    | UPSTREAM_PROTOCOL_ERROR
    | LOCAL_RESET;
const LEFT: u64 = DOWNSTREAM_CONNECTION_TERMINATION | DOWNSTREAM_REMOTE_RESET;

// === impl Ending ===

impl Ending<'_> {
    /// Whether the last attempt was broken off by a reset or a failed connection.
    #[must_use]
    pub fn is_reset(&self) -> bool {
        self.flags.is_some_and(|flags| flags & RESETS != 0)
            || self.details.starts_with(b"upstream_reset_")
            || self.details.starts_with(b"upstream_per_try_")
    }

    /// Whether the last attempt ended with its connection, or for want of one.
    #[must_use]
    pub fn lost_its_connection(&self) -> bool {
        const LOST: u64 = UPSTREAM_CONNECTION_FAILURE | UPSTREAM_CONNECTION_TERMINATION;
        self.flags.is_some_and(|flags| flags & LOST != 0)
            || self.says(b"connection_failure")
            || self.says(b"connection_termination")
    }

    /// Whether the client left first.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.flags.is_some_and(|flags| flags & LEFT != 0) || self.details.starts_with(b"downstream_")
    }

    /// Whether no upstream acted on the last attempt: no connection, or REFUSED_STREAM.
    fn is_unprocessed(&self) -> bool {
        self.flags.is_some_and(|flags| flags & UPSTREAM_CONNECTION_FAILURE != 0)
            || self.says(b"connection_failure")
            || self.says(b"refused_stream")
    }

    /// Whether the answer had begun when the attempt broke.
    fn has_begun(&self) -> bool {
        self.details.starts_with(b"upstream_reset_after_response_started")
    }

    /// Whether the response code details hold the word.
    fn says(&self, word: &[u8]) -> bool {
        memmem::find(self.details, word).is_some()
    }

    fn is_failure(&self) -> bool {
        self.is_reset() || self.status >= 500 || self.flags.is_some_and(|flags| flags & UPSTREAM_REQUEST_TIMEOUT != 0)
    }

    /// What became of the request.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match (self.attempts, self.is_failure()) {
            _ if self.is_cancelled() => Outcome::Cancelled,
            (Attempts::Unknown, true) => Outcome::FailedUnknown,
            (Attempts::Unknown, false) => Outcome::AnsweredUnknown,
            (Attempts::Known(0 | 1), false) => Outcome::NotNeeded,
            (Attempts::Known(0 | 1), true) if self.body_over_limit && !self.has_begun() => Outcome::BodyOverLimit,
            (Attempts::Known(0 | 1), true) => Outcome::NotRetried,
            (Attempts::Known(_), false) => Outcome::Succeeded,
            (Attempts::Known(_), true) => Outcome::Exhausted,
        }
    }

    /// Retries that the budget is charged with.
    ///
    /// Where the number is not known (Envoy 1.38, or `observe`, which makes none), a request that ended
    /// in a reset is charged with all that it was, or would have been, allowed.
    #[must_use]
    pub fn charge(&self, rights: &Rights) -> u32 {
        let would_retry = self.is_reset() && (rights.after_reset || self.is_unprocessed());
        let assumed = if would_retry { rights.max_retries } else { 0 };
        match self.attempts {
            Attempts::Known(attempts) if rights.given => attempts.saturating_sub(1),
            Attempts::Known(attempts) => attempts.saturating_sub(1).max(assumed),
            Attempts::Unknown => assumed,
        }
    }
}

// === impl Outcome ===

impl Outcome {
    /// Every outcome, in the order of the documentation's table.
    pub const ALL: [Self; 8] = [
        Self::NotNeeded,
        Self::Succeeded,
        Self::Exhausted,
        Self::NotRetried,
        Self::BodyOverLimit,
        Self::AnsweredUnknown,
        Self::FailedUnknown,
        Self::Cancelled,
    ];

    /// The outcome's name in metadata, logs and counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotNeeded => "not_needed",
            Self::Succeeded => "succeeded",
            Self::Exhausted => "exhausted",
            Self::NotRetried => "not_retried",
            Self::BodyOverLimit => "body_over_limit",
            Self::AnsweredUnknown => "answered_unknown",
            Self::FailedUnknown => "failed_unknown",
            Self::Cancelled => "cancelled",
        }
    }
}

#[cfg(test)]
#[path = "outcome_tests.rs"]
mod tests;
