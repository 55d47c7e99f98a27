//! What the connections of one HBONE listener share, and what they shall meet.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use http::StatusCode;
use rustls::ServerConfig;

use crate::netns::Netns;
use crate::tcp::{Connections, Ending, Log};

/// What the next handshakes meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsBehaviour {
    /// mTLS as configured.
    #[default]
    Normal,
    /// The client's certificate is refused by an alert, after the handshake as TLS 1.3 has it.
    RefuseClient,
    /// The server shows a certificate of an authority that nobody trusts.
    UntrustedServer,
    /// The connection is accepted and the handshake never answered.
    NeverAnswer,
}

/// What the next CONNECT requests meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ConnectBehaviour {
    /// The tunnel is opened.
    #[default]
    Normal,
    /// Answered with this status, no tunnel.
    Answer(StatusCode),
    /// Never answered; the stream stays open.
    NeverAnswer,
    /// The outer connection is closed when the CONNECT arrives.
    EndConnection(Ending),
}

/// One CONNECT stream.
#[derive(Debug, Clone)]
pub struct Tunnel {
    /// The outer connection it runs on: an id in [`super::Ztunnel::connections`].
    pub connection: usize,
    /// That connection's client address.
    pub peer: SocketAddr,
    /// The `:authority` of the CONNECT, `ip:port`.
    pub authority: String,
    /// When the CONNECT arrived.
    pub opened: Instant,
    /// The status that answered it; none if nothing did.
    pub status: Option<StatusCode>,
    /// When the stream ended, either way.
    pub closed: Option<Instant>,
}

pub(super) struct Shared {
    pub(super) ns: Netns,
    pub(super) connections: Connections,
    pub(super) tunnels: Log<Tunnel>,
    pub(super) faults: Mutex<Faults>,
    pub(super) tls: Tls,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Faults {
    pub(super) tls: TlsBehaviour,
    pub(super) connect: ConnectBehaviour,
    /// How many CONNECTs `connect` still applies to; none: all.
    pub(super) remaining: Option<u32>,
}

pub(super) struct Tls {
    pub(super) normal: Arc<ServerConfig>,
    pub(super) refusing: Arc<ServerConfig>,
    pub(super) untrusted: Arc<ServerConfig>,
}

// === impl Shared ===

impl Shared {
    pub(super) fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take_connect(&self) -> ConnectBehaviour {
        let mut faults = self.faults();
        match &mut faults.remaining {
            None => faults.connect,
            Some(0) => ConnectBehaviour::Normal,
            Some(remaining) => {
                *remaining -= 1;
                faults.connect
            }
        }
    }
}
