//! The in-pod ztunnel stand-in: HBONE on port 15008, inside the pod's network namespace.
//!
//! As the real one does: mTLS with SPIFFE certificates, HTTP/2, one CONNECT stream per tunnel, and
//! the application's socket opened from within the pod's namespace.

mod tunnel;

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use rustls::ServerConfig;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::certs::{Authority, Identity};
use crate::netns::Netns;
use crate::pod::{Connections, Control, Ending, Listener, Log, Order, Stream};

/// ztunnel's inbound port.
pub const HBONE_PORT: u16 = 15008;

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
    /// The outer connection it runs on: an id in [`Ztunnel::connections`].
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

/// The HBONE listener of one pod. Clones share it.
#[derive(Clone)]
pub struct Ztunnel {
    shared: Arc<Shared>,
    listener: Arc<Listener>,
}

pub(crate) struct Shared {
    ns: Netns,
    connections: Connections,
    tunnels: Log<Tunnel>,
    faults: Mutex<Faults>,
    tls: Tls,
}

#[derive(Clone, Copy, Default)]
struct Faults {
    tls: TlsBehaviour,
    connect: ConnectBehaviour,
    /// How many CONNECTs `connect` still applies to; none: all.
    remaining: Option<u32>,
}

struct Tls {
    normal: Arc<ServerConfig>,
    refusing: Arc<ServerConfig>,
    untrusted: Arc<ServerConfig>,
}

// === impl Ztunnel ===

impl Ztunnel {
    /// Listens on all addresses of `ns`. Call within a tokio runtime.
    ///
    /// # Errors
    /// The certificates do not fit, or the port is taken.
    pub fn start(ns: &Netns, authority: &Authority, identity: &Identity) -> anyhow::Result<Self> {
        let stranger = Authority::new()?;
        let unknown = stranger.issue(&identity.spiffe_id)?;
        let tls = Tls {
            normal: authority.server_config(identity)?,
            refusing: stranger.server_config(identity)?,
            untrusted: authority.server_config(&unknown)?,
        };
        let connections = Connections::default();
        let shared = Arc::new(Shared {
            ns: ns.clone(),
            connections: connections.clone(),
            tunnels: Log::default(),
            faults: Mutex::default(),
            tls,
        });
        let addr = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), HBONE_PORT);
        let serving = Arc::clone(&shared);
        let listener = Listener::start(ns, addr, connections, move |stream| serve(Arc::clone(&serving), stream))?;
        Ok(Self { shared, listener: Arc::new(listener) })
    }

    /// The outer connections.
    #[must_use]
    pub fn connections(&self) -> &Connections {
        &self.shared.connections
    }

    /// The tunnels.
    #[must_use]
    pub fn tunnels(&self) -> &Log<Tunnel> {
        &self.shared.tunnels
    }

    /// Waits until at least `count` tunnels were opened, counting closed ones.
    ///
    /// # Errors
    /// It did not happen before the deadline.
    pub async fn wait_for_tunnels(&self, count: usize) -> anyhow::Result<Vec<Tunnel>> {
        let what = format!("{count} tunnels");
        self.tunnels().wait_for(&what, |all| (all.len() >= count).then(|| all.to_vec())).await
    }

    /// Sets what the next handshakes meet. Open connections are left alone.
    pub fn set_tls(&self, tls: TlsBehaviour) {
        self.shared.faults().tls = tls;
    }

    /// Sets what CONNECTs meet, until told otherwise.
    pub fn set_connect(&self, connect: ConnectBehaviour) {
        let mut faults = self.shared.faults();
        (faults.connect, faults.remaining) = (connect, None);
    }

    /// Sets what the next `count` CONNECTs meet; those after them are served normally.
    pub fn next_connects(&self, count: u32, connect: ConnectBehaviour) {
        let mut faults = self.shared.faults();
        (faults.connect, faults.remaining) = (connect, Some(count));
    }

    /// Closes the listening socket: new outer connections are refused; open ones live on.
    pub async fn refuse(&self) {
        self.listener.close().await;
    }

    /// Listens again after [`Ztunnel::refuse`].
    ///
    /// # Errors
    /// The port is taken.
    pub fn listen(&self) -> anyhow::Result<()> {
        self.listener.open()
    }

    /// A restart of the process: every socket is closed at once, and the port is open again after.
    ///
    /// # Errors
    /// A socket stayed open, or the port is taken.
    pub async fn restart(&self, ending: Ending) -> anyhow::Result<()> {
        self.refuse().await;
        self.connections().end_all(ending).await?;
        self.listen()
    }

    /// GOAWAY on every outer connection (RFC 9113, section 6.8); returns once their tunnels are
    /// done and the connections closed, at latest when the waiter's deadline is over.
    ///
    /// # Errors
    /// Tunnels were still open at the deadline.
    pub async fn drain(&self) -> anyhow::Result<()> {
        self.refuse().await;
        self.connections().order_all(Order::Drain);
        self.connections().wait_all_closed().await
    }
}

// === impl Shared ===

impl Shared {
    fn faults(&self) -> std::sync::MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_connect(&self) -> ConnectBehaviour {
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

async fn serve(shared: Arc<Shared>, stream: Stream) {
    let control = Arc::clone(stream.control());
    tokio::select! {
        // First: the order to end makes reads fail, which must not be taken for the peer's doing.
        biased;
        () = control.ended() => {}
        () = serve_outer(&shared, stream, &control) => {}
    }
}

/// Serves one outer connection. Errors end it; the connection's log tells why.
async fn serve_outer(shared: &Arc<Shared>, stream: Stream, control: &Arc<Control>) {
    let tls = shared.faults().tls;
    let config = match tls {
        TlsBehaviour::Normal => &shared.tls.normal,
        TlsBehaviour::RefuseClient => &shared.tls.refusing,
        TlsBehaviour::UntrustedServer => &shared.tls.untrusted,
        TlsBehaviour::NeverAnswer => {
            // Keeps the socket open until somebody ends it.
            let _open = stream;
            return control.draining().await;
        }
    };
    let handshake = TlsAcceptor::from(Arc::clone(config)).accept(stream).into_fallible();
    let handshake = tokio::select! {
        handshake = handshake => handshake,
        // No tunnel to wait for.
        () = control.draining() => return,
    };
    let tls = match handshake {
        Ok(tls) => tls,
        Err((_, stream)) => return part(stream, control).await,
    };
    let mut builder = h2::server::Builder::new();
    builder.initial_window_size(1 << 20).initial_connection_window_size(1 << 22);
    let Ok(mut outer) = builder.handshake::<_, bytes::Bytes>(tls).await else {
        return;
    };
    // Dropped with the connection, so no tunnel outlives it.
    let mut tunnels = JoinSet::new();
    let mut drained = false;
    loop {
        let accepted = tokio::select! {
            accepted = outer.accept() => accepted,
            () = control.draining(), if !drained => {
                drained = true;
                outer.graceful_shutdown();
                continue;
            }
            Some(_) = tunnels.join_next(), if !tunnels.is_empty() => continue,
        };
        let Some(Ok((request, respond))) = accepted else {
            return;
        };
        let behaviour = shared.take_connect();
        if let ConnectBehaviour::EndConnection(ending) = behaviour {
            control.give(Order::End(ending));
            return;
        }
        let authority = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        let place = shared.tunnels.push(Tunnel {
            connection: control.id,
            peer: control.peer,
            authority: authority.clone(),
            opened: Instant::now(),
            status: None,
            closed: None,
        });
        let behaviour = match behaviour {
            ConnectBehaviour::Normal if request.method() != Method::CONNECT => {
                ConnectBehaviour::Answer(StatusCode::METHOD_NOT_ALLOWED)
            }
            other => other,
        };
        let record = tunnel::Record { shared: Arc::clone(shared), place };
        tunnels.spawn(tunnel::serve(record, behaviour, authority, request.into_body(), respond));
    }
}

/// Closes a connection whose handshake failed: FIN, and what the client still sends is read. Closing
/// at once would send a RST for it, which could overtake the alert at the client.
async fn part(mut stream: Stream, control: &Control) {
    const AT_MOST: Duration = Duration::from_secs(2);
    control.shutdown_write();
    let mut sink = tokio::io::sink();
    let drain = tokio::io::copy(&mut stream, &mut sink);
    let _ = tokio::time::timeout(AT_MOST, drain).await;
}
