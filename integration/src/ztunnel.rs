//! The in-pod ztunnel stand-in: HBONE on port 15008, inside the pod's network namespace.
//!
//! As the real one does: mTLS with SPIFFE certificates of its own trust domain, no session resumed; HTTP/2
//! with 200 streams a connection and a PING every ten seconds; one CONNECT stream per tunnel, to the address
//! that the connection came to; the application's socket opened from within the pod's namespace, its FIN and
//! its RST both END_STREAM; and the real one's ways to end, all in one process of tests.
//!
//! What it is not: it takes nothing from a control plane (no policy, no workload that is not known yet), and
//! it does not capture what leaves the pod.

mod inject;
mod listener;
mod outer;
pub mod real;
mod shared;
mod tunnel;
pub mod zds;

pub use listener::{HBONE_PORT, Ztunnel};
pub use shared::{ConnectBehaviour, Pings, TlsBehaviour, Tunnel};
