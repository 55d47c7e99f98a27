//! The HBONE listener of one pod.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use super::outer::serve;
use super::shared::{ConnectBehaviour, Shared, Tls, TlsBehaviour, Tunnel};
use crate::certs::{Authority, Identity};
use crate::netns::Netns;
use crate::tcp::{Connections, Ending, Listener, Log, Order};

/// ztunnel's inbound port.
pub const HBONE_PORT: u16 = 15008;

/// The HBONE listener of one pod. Clones share it.
#[derive(Clone)]
pub struct Ztunnel {
    shared: Arc<Shared>,
    listener: Arc<Listener>,
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
