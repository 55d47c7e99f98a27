//! What the filter of one tunnel saw pass by, and what its end means.

use std::time::{Duration, Instant};

use crate::endpoints::{Refusal, ResetEvidence};

/// The life of a tunnel as its filter sees it. One worker.
#[derive(Debug, Default)]
pub struct Progress {
    established: bool,
    ended: bool,
    waiting: Option<Waiting>,
}

/// Bytes that have no answer yet.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    first: Instant,
    last: Instant,
    /// How long the connection had been silent before the first.
    silent: Option<Duration>,
}

/// Who closed the inner connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosedBy {
    /// Its client: the pool of the service's cluster.
    Pool,
    /// `tcp_proxy`, because the tunnel ended or broke, or the filter itself.
    Proxy,
}

// === impl Progress ===

impl Progress {
    /// Bytes went towards the endpoint, after `silent` without a word from it.
    ///
    /// `tcp_proxy` reads nothing from the inner connection before the CONNECT was answered with
    /// success, so the first bytes also say that the tunnel is established.
    pub fn sent(&mut self, silent: Option<Duration>, now: Instant) {
        self.established = true;
        match &mut self.waiting {
            Some(waiting) => waiting.last = now,
            None => self.waiting = Some(Waiting { first: now, last: now, silent }),
        }
    }

    /// Bytes came from the endpoint; `end` when it will send no more.
    pub fn heard(&mut self, end: bool) {
        self.established = true;
        self.waiting = None;
        self.ended |= end;
    }

    /// What broke, if the close of the inner connection says that something did. The tunnel is `age` old,
    /// and `silent` says how long the endpoint has been so.
    #[must_use]
    pub fn closed(&self, by: ClosedBy, age: Duration, silent: Option<Duration>, now: Instant) -> Option<ResetEvidence> {
        // What an unestablished tunnel waits with is its CONNECT.
        let connect = (!self.established).then_some((age, age));
        match by {
            ClosedBy::Pool => None,
            ClosedBy::Proxy if self.ended => None,
            ClosedBy::Proxy => Some(ResetEvidence {
                established: self.established,
                silent: self.waiting.map_or(silent, |waiting| waiting.silent),
                waited: connect.or(self.waiting.map(|Waiting { first, last, .. }| {
                    (now.saturating_duration_since(first), now.saturating_duration_since(last))
                })),
                ..ResetEvidence::default()
            }),
        }
    }
}

/// What Envoy's reason for a tunnel that could not be opened says
/// (`%UPSTREAM_TRANSPORT_FAILURE_REASON%` of `tcp_proxy`) when it was `age` old.
#[must_use]
pub fn refusal(reason: &str, age: Duration) -> Refusal {
    /// TLS and CONNECT take milliseconds.
    const UNANSWERED_AFTER: Duration = Duration::from_secs(1);
    if let Some(status) = reason.strip_prefix("tunnel_response:") {
        return status.trim().parse().map_or(Refusal::Ended, Refusal::Answered);
    }
    if reason.is_empty() {
        if age < UNANSWERED_AFTER { Refusal::Ended } else { Refusal::Unanswered }
    } else if reason.starts_with("TLS_error") {
        Refusal::Tls
    } else {
        // "delayed connect error: Connection refused", "immediate connect error: ...", "connection timeout"
        Refusal::Connect
    }
}

#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
