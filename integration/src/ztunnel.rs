//! The in-pod ztunnel stand-in: HBONE on port 15008, inside the pod's network namespace.
//!
//! As the real one does: mTLS with SPIFFE certificates, HTTP/2, one CONNECT stream per tunnel, and
//! the application's socket opened from within the pod's namespace.

mod listener;
mod outer;
mod shared;
mod tunnel;

pub use listener::{HBONE_PORT, Ztunnel};
pub use shared::{ConnectBehaviour, TlsBehaviour, Tunnel};
