//! Why a tunnel ended badly: one class for what is certain, and numbers for the rest.

use std::time::Duration;

/// The class of a tunnel's bad end. Each says only what the proxy knows for certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResetClass {
    /// The connection belongs to a generation that its endpoint has left: the endpoint was removed, or has
    /// returned, since.
    Stale,
    /// The tunnel was never established: its CONNECT was refused, or not answered.
    TunnelRefused,
    /// The endpoint ended the tunnel orderly, by END_STREAM, and a request on it had no answer. Only the
    /// `retry` filter sees the request, so only its counters have this class.
    EndedUnanswered,
    /// Any other end without END_STREAM, while bytes waited for an answer or an answer was under way.
    Broken,
}

/// How a tunnel failed to be established.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No TCP connection: nothing listens there, or nobody answers.
    Connect,
    /// No TLS session: a certificate was not accepted.
    Tls,
    /// The CONNECT was answered with this status.
    Answered(u16),
    /// The connection, or the CONNECT's stream, ended before the CONNECT was answered. With TLS 1.3 also how a
    /// peer refuses the proxy's own certificate: its alert arrives after the proxy's handshake is done.
    Ended,
    /// As [`Refusal::Ended`], after the CONNECT had waited for its answer for a second or more.
    Unanswered,
}

/// How a tunnel ended, if its client did not end it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It was never established; why, where this Envoy says so (1.39 and later).
    Refused(Option<Refusal>),
    /// By the endpoint, with END_STREAM.
    Orderly,
    /// Without END_STREAM.
    Broken,
}

/// What the filter of a tunnel saw of its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResetEvidence {
    /// How it ended.
    pub end: End,
    /// How long the endpoint had been silent on the connection before the bytes were sent that have no answer,
    /// or before the end where none are waiting for one; unknown without the connection's id.
    pub idle: Option<Duration>,
    /// How long bytes had been waiting for an answer; none if none were.
    pub waited: Option<Duration>,
    /// The endpoint had sent bytes within [`ResetEvidence::ANSWERING`] before the end.
    pub answering: bool,
}

/// A tunnel's bad end, explained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reset {
    /// Its class.
    pub class: ResetClass,
    /// Age of the outer connection, where that is known (Envoy 1.39 and later).
    pub connection_age: Option<Duration>,
    /// See [`ResetEvidence::idle`].
    pub idle: Option<Duration>,
    /// See [`ResetEvidence::waited`].
    pub waited: Option<Duration>,
    /// Other connections of the same worker that broke within [`ResetEvidence::AT_ONCE`] before.
    pub others_at_once: usize,
}

// === impl ResetClass ===

impl ResetClass {
    /// Every class, in the order of [`ResetClass::index`].
    pub const ALL: [Self; 4] = [Self::Stale, Self::TunnelRefused, Self::EndedUnanswered, Self::Broken];

    /// The name in statistics, metadata and on the admin page.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stale => "stale",
            Self::TunnelRefused => "tunnel_refused",
            Self::EndedUnanswered => "ended_unanswered",
            Self::Broken => "broken",
        }
    }

    /// The place in [`ResetClass::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

// === impl Refusal ===

impl Refusal {
    /// The name in metadata.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Connect => "connect".to_owned(),
            Self::Tls => "tls".to_owned(),
            Self::Answered(status) => format!("answered_{status}"),
            Self::Ended => "ended".to_owned(),
            Self::Unanswered => "unanswered".to_owned(),
        }
    }
}

// === impl ResetEvidence ===

impl ResetEvidence {
    /// Breaks within this time are counted together.
    pub const AT_ONCE: Duration = Duration::from_millis(200);
    /// An endpoint that sent bytes so recently was answering.
    pub const ANSWERING: Duration = Duration::from_millis(500);

    /// Whether the end counts as a reset. An end on which nothing waited may be Envoy's own: no attribute
    /// tells `tcp_proxy`'s idle timeout or a drained listener from a connection that broke.
    #[must_use]
    pub fn is_reset(&self) -> bool {
        match self.end {
            End::Refused(_) => true,
            End::Orderly => false,
            End::Broken => self.waited.is_some() || self.answering,
        }
    }

    /// The class; `left` says whether the endpoint has left the connection's generation.
    #[must_use]
    pub const fn classify(&self, left: bool) -> ResetClass {
        match self.end {
            End::Orderly => ResetClass::EndedUnanswered,
            // These are about a connection that was never there, or that works.
            End::Refused(Some(Refusal::Connect | Refusal::Tls | Refusal::Answered(_))) => ResetClass::TunnelRefused,
            End::Refused(_) | End::Broken if left => ResetClass::Stale,
            End::Refused(_) => ResetClass::TunnelRefused,
            End::Broken => ResetClass::Broken,
        }
    }
}
