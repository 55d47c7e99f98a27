//! What the filter of one tunnel saw pass by, and what its end means.

use std::time::{Duration, Instant};

use crate::endpoints::ResetEvidence;

/// The life of a tunnel as its filter sees it. One worker.
#[derive(Debug, Default)]
pub struct Progress {
    established: bool,
    ended: bool,
    waiting_since: Option<Instant>,
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
        if self.waiting_since.is_none() {
            self.waiting_since = Some(now);
            self.silent = silent;
        }
    }

    /// Bytes came from the endpoint; `end` when it will send no more.
    pub fn heard(&mut self, end: bool) {
        self.established = true;
        self.waiting_since = None;
        self.ended |= end;
    }

    /// What broke, if the close of the inner connection says that something did.
    #[must_use]
    pub fn closed(&self, by: ClosedBy, user_timeout: Option<Duration>, now: Instant) -> Option<ResetEvidence> {
        match by {
            ClosedBy::Pool => None,
            ClosedBy::Proxy if self.ended => None,
            ClosedBy::Proxy => Some(ResetEvidence {
                established: self.established,
                silent: self.silent,
                waited: self.waiting_since.map(|since| now.saturating_duration_since(since)),
                user_timeout,
                ..ResetEvidence::default()
            }),
        }
    }
}
