//! How the control plane behaves.

use std::net::SocketAddr;
use std::time::Duration;

/// How the control plane behaves.
#[derive(Clone, Debug)]
pub struct Params {
    /// Where it listens, in the proxy's namespace; port 0 picks one, see [`super::ControlPlane::addr`].
    pub listen: SocketAddr,
    /// A push waits for this long without further changes (istiod: `PILOT_DEBOUNCE_AFTER`, 100 ms).
    /// Zero: every change is a push of its own, made before the call that changes returns.
    pub debounce_after: Duration,
    /// A push waits no longer than this after the first change (istiod: `PILOT_DEBOUNCE_MAX`, 10 s).
    pub debounce_max: Duration,
    /// Send everything to a proxy that comes back, as istiod does; `false`: in the delta protocol, only
    /// what differs from the versions that the proxy says it has.
    pub resend_on_reconnect: bool,
}

/// The two protocols of one ADS server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// State of the world: `api_type: GRPC`.
    Sotw,
    /// Incremental: `api_type: DELTA_GRPC`.
    Delta,
}

// === impl Params ===

impl Default for Params {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 15010)),
            debounce_after: Duration::from_millis(100),
            debounce_max: Duration::from_secs(10),
            resend_on_reconnect: true,
        }
    }
}

impl Params {
    /// Every change is a push of its own, made before the call returns.
    pub fn immediate() -> Self {
        Self { debounce_after: Duration::ZERO, ..Self::default() }
    }
}
