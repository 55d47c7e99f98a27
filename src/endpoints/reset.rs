//! Why a connection broke: one class per reset, from what was known when it happened.

use std::time::Duration;

/// The class of a reset, by the cure that it calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResetClass {
    /// The connection was older than the endpoint's last removal.
    Stale,
    /// The connection had been silent for long before it was used again.
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

/// What is known when a tunnel breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResetEvidence {
    /// Whether the tunnel's CONNECT was answered with success.
    pub established: bool,
    /// Whether the connection was born before the last removal of its endpoint; unknown without id.
    pub older_than_removal: Option<bool>,
    /// How long the connection had been silent before the bytes that broke it were sent.
    pub silent: Option<Duration>,
    /// How long bytes had been waiting for an answer when it broke.
    pub waited: Option<Duration>,
    /// The `TCP_USER_TIMEOUT` of the connection, where the fence set one.
    pub user_timeout: Option<Duration>,
    /// Other connections, of this endpoint or of others, that broke within [`ResetEvidence::AT_ONCE`].
    pub others_at_once: usize,
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

// === impl ResetEvidence ===

impl ResetEvidence {
    /// A connection that was silent for longer is called aged: past the keepalive and idle timeouts
    /// that servers and middleboxes commonly have by default.
    pub const AGED_AFTER: Duration = Duration::from_secs(30);
    /// Breaks within this time count as one event.
    pub const AT_ONCE: Duration = Duration::from_secs(1);

    /// The class. The first that applies wins: what the proxy knows for certain comes before what it
    /// concludes from time and company.
    #[must_use]
    pub fn classify(&self) -> ResetClass {
        if !self.established {
            return ResetClass::TunnelRefused;
        }
        if self.older_than_removal == Some(true) {
            return ResetClass::Stale;
        }
        if let (Some(waited), Some(user_timeout)) = (self.waited, self.user_timeout)
            && waited >= user_timeout.mul_f64(0.9)
        {
            return ResetClass::Timeout;
        }
        if self.others_at_once > 0 {
            return ResetClass::PeerRestart;
        }
        if self.silent.is_some_and(|silent| silent >= Self::AGED_AFTER) {
            return ResetClass::Aged;
        }
        ResetClass::Fresh
    }
}
