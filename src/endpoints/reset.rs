//! Why a connection broke: one class per reset, from what was known when it happened.

use std::time::Duration;

/// The class of a reset, by the cure that it calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResetClass {
    /// The connection was older than the endpoint's last removal.
    Stale,
    /// The connection had been silent for long before it was used again, or until it broke.
    Aged,
    /// Several endpoints, or several connections of this one, broke at once, and none was removed.
    PeerRestart,
    /// The tunnel was never established: its CONNECT was refused or not answered.
    TunnelRefused,
    /// The kernel gave up on a peer that no longer acknowledges.
    Timeout,
    /// None of these: the application or the pod broke while its connection was in use.
    Fresh,
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
    /// The connection ended before the CONNECT was answered. With TLS 1.3 also how a peer refuses the
    /// proxy's own certificate: its alert arrives after the proxy's handshake is done.
    Ended,
    /// As [`Refusal::Ended`], after the CONNECT had waited for its answer for a second or more.
    Unanswered,
}

/// What is known when a tunnel breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResetEvidence {
    /// Whether the tunnel's CONNECT was answered with success.
    pub established: bool,
    /// How the CONNECT failed, where it did and this Envoy says so (1.39 and later).
    pub refusal: Option<Refusal>,
    /// Whether the connection is older than the tunnel.
    pub reused: bool,
    /// Whether the connection was born before the last removal of its endpoint; unknown without id.
    pub older_than_removal: Option<bool>,
    /// How long the connection had been silent before the bytes that broke it were sent, or before it
    /// broke where none were waiting for an answer.
    pub silent: Option<Duration>,
    /// How long bytes had been waiting for an answer when it broke: the first of them, and the last.
    pub waited: Option<(Duration, Duration)>,
    /// When the kernel gives the connection up, where the fence set that.
    pub liveness: Liveness,
    /// A connection that was silent for longer is called aged.
    pub aged_after: Option<Duration>,
    /// Other connections, of this endpoint or of others, that broke within [`ResetEvidence::AT_ONCE`].
    pub others_at_once: usize,
}

/// The times after which the kernel gives a connection up whose peer is silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Liveness {
    /// With bytes unacknowledged: `TCP_USER_TIMEOUT`.
    pub unacknowledged: Option<Duration>,
    /// With nothing unacknowledged: the last keepalive probe.
    pub idle: Option<Duration>,
}

// === impl ResetClass ===

impl ResetClass {
    /// Every class, in the order of [`ResetClass::index`].
    pub const ALL: [Self; 6] =
        [Self::Stale, Self::Aged, Self::PeerRestart, Self::TunnelRefused, Self::Timeout, Self::Fresh];

    /// The name in statistics, metadata and on the admin page.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stale => "stale",
            Self::Aged => "aged",
            Self::PeerRestart => "peer_restart",
            Self::TunnelRefused => "tunnel_refused",
            Self::Timeout => "timeout",
            Self::Fresh => "fresh",
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

// === impl Liveness ===

impl Liveness {
    /// Whether the kernel gave up after `first..=last`, the times since the first and the last bytes that
    /// it may have given up on. Linux counts from the first retransmission (`tcp_write_timeout`), and
    /// acts when its timer fires: the retransmission timeout is added, up to its initial 3 s and more.
    fn explains(given_up: Option<Duration>, (first, last): (Duration, Duration)) -> bool {
        const RETRANSMISSION: Duration = Duration::from_secs(4);
        given_up.is_some_and(|after| first >= after.mul_f64(0.9) && last <= after.mul_f64(1.5) + RETRANSMISSION)
    }
}

// === impl ResetEvidence ===

impl ResetEvidence {
    /// The default of `aged_after`: the keepalive and idle timeouts that servers and middleboxes commonly
    /// have begin here.
    pub const AGED_AFTER: Duration = Duration::from_secs(30);
    /// Breaks within this time count as one event.
    pub const AT_ONCE: Duration = Duration::from_millis(200);

    /// Whether it was a connection that broke, and not a tunnel that was refused.
    #[must_use]
    pub fn is_connection(&self) -> bool {
        // A CONNECT that gets no answer on a connection that had served others says as little about
        // ztunnel as a request that gets none.
        self.established || (self.reused && matches!(self.refusal, None | Some(Refusal::Ended | Refusal::Unanswered)))
    }

    /// The class. The first that applies wins: what the proxy knows for certain comes before what it
    /// concludes from time and company.
    #[must_use]
    pub fn classify(&self) -> ResetClass {
        if !self.is_connection() {
            return ResetClass::TunnelRefused;
        }
        if self.older_than_removal == Some(true) {
            return ResetClass::Stale;
        }
        let given_up = match (self.waited, self.silent) {
            (Some(waited), _) => Liveness::explains(self.liveness.unacknowledged, waited),
            (None, Some(silent)) => Liveness::explains(self.liveness.idle, (silent, silent)),
            (None, None) => false,
        };
        if given_up {
            return ResetClass::Timeout;
        }
        if self.others_at_once > 0 {
            return ResetClass::PeerRestart;
        }
        let aged_after = self.aged_after.unwrap_or(Self::AGED_AFTER);
        if self.silent.is_some_and(|silent| silent >= aged_after) {
            return ResetClass::Aged;
        }
        ResetClass::Fresh
    }
}
