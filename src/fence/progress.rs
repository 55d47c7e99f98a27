//! What the filter of one tunnel saw pass by, and what its end means.

use std::time::{Duration, Instant};

use crate::endpoints::{End, Refusal, ResetEvidence};

/// The life of a tunnel as its filter sees it.
#[derive(Debug, Default)]
pub struct Progress {
    established: bool,
    /// Which side ended its half first, if one did.
    ended: Option<Side>,
    waiting: Option<Waiting>,
    /// When bytes last came from the endpoint, through this tunnel.
    heard_at: Option<Instant>,
}

/// A side of the inner connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Pool,
    Endpoint,
}

/// Bytes that have no answer yet.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    since: Instant,
    /// How long the connection had been silent before.
    idle: Option<Duration>,
}

/// Who closed the inner connection, as its event says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClosedBy {
    /// Its client: the pool of the service's cluster.
    Pool,
    /// `tcp_proxy`, because the tunnel ended or broke, or for a reason of its own.
    Proxy {
        /// Envoy's response flags, where this Envoy shows them (1.39 and later).
        flags: Option<u64>,
    },
}

/// Response flag of a connection that met `max_downstream_connection_duration`; a bit of the ABI's enumeration.
const DURATION_TIMEOUT: u64 = 1 << 22;

// === impl Progress ===

impl Progress {
    /// Bytes went towards the endpoint, after `idle` without a word from it.
    ///
    /// `tcp_proxy` reads nothing from the inner connection before the CONNECT was answered with
    /// success, so the first bytes also say that the tunnel is established.
    pub fn sent(&mut self, idle: Option<Duration>, now: Instant) {
        self.established = true;
        self.waiting.get_or_insert(Waiting { since: now, idle });
    }

    /// Bytes came from the endpoint; `end` when it will send no more. Then gives what is known of that end, if the
    /// endpoint was the first: bytes that had no answer until then will have none.
    pub fn heard(&mut self, length: usize, end: bool, now: Instant) -> Option<ResetEvidence> {
        self.established = true;
        if length > 0 {
            self.waiting = None;
            self.heard_at = Some(now);
        }
        if !end || self.ended.is_some() {
            return None;
        }
        self.ended = Some(Side::Endpoint);
        Some(self.evidence(End::Orderly, None, now))
    }

    /// The pool will send no more. Returns whether it leaves the tunnel by this: the endpoint has not ended it
    /// before, and it was not known.
    ///
    /// Envoy before 1.40 ends the pool's half so when the pool closes the inner connection, and the filter's
    /// connection is then closed by `tcp_proxy`; from 1.40 on the close itself says who it was.
    pub fn pool_ended(&mut self) -> bool {
        let news = self.ended.is_none();
        self.ended.get_or_insert(Side::Pool);
        news
    }

    /// How the tunnel ended that is closed now, unless one side ended it properly, or Envoy for a reason of its own
    /// that can be told. The tunnel is `age` old, and `silent` says how long the endpoint has been so.
    #[must_use]
    pub fn closed(
        &self,
        by: ClosedBy,
        refusal: impl FnOnce() -> Option<Refusal>,
        (age, silent): (Duration, Option<Duration>),
        now: Instant,
    ) -> Option<ResetEvidence> {
        let ClosedBy::Proxy { flags } = by else { return None };
        if self.ended.is_some() || flags.is_some_and(|flags| flags & DURATION_TIMEOUT != 0) {
            return None;
        }
        if self.established {
            return Some(self.evidence(End::Broken, silent, now));
        }
        // What an unestablished tunnel waits with is its CONNECT.
        let evidence = self.evidence(End::Refused(refusal()), silent, now);
        Some(ResetEvidence { waited: Some(age), ..evidence })
    }

    fn evidence(&self, end: End, silent: Option<Duration>, now: Instant) -> ResetEvidence {
        let since = |at| now.saturating_duration_since(at);
        ResetEvidence {
            end,
            idle: self.waiting.map_or(silent, |waiting| waiting.idle),
            waited: self.waiting.map(|waiting| since(waiting.since)),
            answering: self.heard_at.is_some_and(|at| since(at) < ResetEvidence::ANSWERING),
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
