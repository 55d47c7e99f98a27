//! The HBONE listener of one pod.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::try_join_all;
use h2::Reason;

use super::inject::{Injections, go_away};
use super::outer::serve;
use super::shared::{ConnectBehaviour, Pings, Shared, Tls, TlsBehaviour, Tunnel};
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
            pings: Mutex::default(),
            injections: Injections::default(),
        });
        let addr = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), HBONE_PORT);
        let serving = Arc::clone(&shared);
        let listener = Listener::start(ns, addr, connections, true, move |stream| serve(Arc::clone(&serving), stream))?;
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

    /// Sets how connections that are accepted from now on are checked.
    pub fn set_pings(&self, pings: Pings) {
        *self.shared.pings() = pings;
    }

    /// Sends a GOAWAY (RFC 9113, section 6.8) of any content on every outer connection, and goes on serving
    /// them: for servers that are not ztunnel, and to see what a proxy makes of it.
    pub fn go_away(&self, last_stream: u32, reason: Reason) {
        self.shared.injections.send(&go_away(last_stream, reason.into()));
    }

    /// SIGTERM, as ztunnel takes it: the listener closes; every connection gets a GOAWAY that names no
    /// stream and, after a PONG, one that names the last; one that is idle closes; tunnels go on until
    /// `deadline`, and are then cut by FIN without close_notify; a CONNECT that is read after the first
    /// GOAWAY is never answered. Returns when all is closed: true, if nothing had to be cut.
    ///
    /// # Errors
    /// A socket stayed open.
    pub async fn terminate(&self, deadline: Duration) -> anyhow::Result<bool> {
        let connections = self.connections().open_ids();
        self.refuse().await;
        self.end_with_process(&connections, deadline).await
    }

    /// A rolling restart with a surge (`maxSurge: 1`, as the Helm chart has it): a successor listens on the
    /// same port first, so that no connection is refused, and then the predecessor is told to end; see
    /// [`Ztunnel::terminate`]. Logs go on.
    ///
    /// # Errors
    /// The port is taken, or a socket stayed open.
    pub async fn surge_restart(&self, deadline: Duration) -> anyhow::Result<bool> {
        self.listener.replace().await?;
        let connections = self.connections().open_ids();
        self.end_with_process(&connections, deadline).await
    }

    async fn end_with_process(&self, connections: &[usize], deadline: Duration) -> anyhow::Result<bool> {
        self.connections().order(connections, Order::Terminate);
        let closed = try_join_all(connections.iter().map(|id| self.connections().wait_closed(*id)));
        if let Ok(closed) = tokio::time::timeout(deadline, closed).await {
            return closed.map(|_| true);
        }
        self.connections().order(connections, Order::End(Ending::Fin));
        try_join_all(connections.iter().map(|id| self.connections().wait_closed(*id))).await?;
        Ok(false)
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
