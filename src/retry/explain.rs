//! The question that `retry` asks about a reset, and whoever answers it.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use crate::endpoints::{Break, Endpoints, ResetClass, ResetEvidence};

/// A reset, as the HTTP filter sees it.
#[derive(Debug, Clone, Copy)]
pub struct Reset<'a> {
    /// The endpoint of the last attempt: behind a waypoint the pod, not the internal listener.
    pub upstream: IpAddr,
    /// Envoy's response flags as a bit mask, where this Envoy shows them (1.39 and later).
    pub flags: Option<u64>,
    /// Envoy's response code details; empty where there are none.
    pub details: &'a [u8],
    /// The worker that the stream ran on.
    pub worker: u32,
}

/// Why a reset happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Explanation {
    /// Its class.
    pub class: ResetClass,
    /// The endpoint whose connection broke.
    pub endpoint: IpAddr,
    /// Age of the connection that broke, where it is known.
    pub connection_age: Option<Duration>,
}

/// Answers [`Reset`]s. Called on workers, at the end of a stream; must not wait.
pub trait Explain: Send + Sync {
    /// Why this reset happened; `None` when nothing is known of the endpoint.
    fn explain(&self, reset: &Reset<'_>) -> Option<Explanation>;

    /// Why an earlier attempt of a request broke that began at `start`, ran on this thread, was retried
    /// and answered; `None` when that is not known, or not certain.
    fn explain_cured(&self, start: Instant) -> Option<Explanation>;
}

/// Knows nothing: for a filter that runs without `endpoints`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Explain for Silent {
    fn explain(&self, _reset: &Reset<'_>) -> Option<Explanation> {
        None
    }

    fn explain_cured(&self, _start: Instant) -> Option<Explanation> {
        None
    }
}

impl Explain for Endpoints {
    /// The tunnel of a request breaks right before the request does, so what the fence saw of the
    /// endpoint a moment ago is the cause.
    fn explain(&self, reset: &Reset<'_>) -> Option<Explanation> {
        let (closed, since) = self.last_reset(reset.upstream, Instant::now())?;
        (since <= ResetEvidence::AT_ONCE).then(|| Explanation {
            class: closed.class,
            endpoint: reset.upstream,
            connection_age: closed.connection.map(|connection| connection.age),
        })
    }

    fn explain_cured(&self, start: Instant) -> Option<Explanation> {
        let Break { ip, closed, .. } = Break::here_since(start, Instant::now())?;
        Some(Explanation {
            class: closed.class,
            endpoint: ip,
            connection_age: closed.connection.map(|connection| connection.age),
        })
    }
}
