//! The TCP connections that a listener accepted: a log of them, and the means to end each.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::net::TcpStream;

use super::control::{Control, Ending, Order};
use super::log::Log;
use super::stream::{Cause, Stream};

/// One accepted connection.
#[derive(Debug, Clone)]
pub struct Connection {
    /// Its place in the log, from 0.
    pub id: usize,
    /// The client's address: tells which of the proxy's outer connections this is.
    pub peer: SocketAddr,
    /// The address it was accepted on.
    pub local: SocketAddr,
    /// When it was accepted.
    pub opened: Instant,
    /// When and why it was closed; none while it is open.
    pub closed: Option<(Instant, Cause)>,
}

/// The connections of one listener. Clones share it.
#[derive(Clone, Default)]
pub struct Connections {
    log: Log<Connection>,
    live: Arc<Live>,
}

#[derive(Default)]
struct Live {
    controls: Mutex<HashMap<usize, Arc<Control>>>,
    frozen: AtomicBool,
}

// === impl Connections ===

impl Connections {
    /// The log: every connection that was ever accepted.
    #[must_use]
    pub fn log(&self) -> &Log<Connection> {
        &self.log
    }

    /// The connections that are open now.
    #[must_use]
    pub fn open(&self) -> Vec<Connection> {
        self.log.with(|all| all.iter().filter(|one| one.closed.is_none()).cloned().collect())
    }

    /// Ends one connection. False if it is closed already.
    pub fn end(&self, id: usize, ending: Ending) -> bool {
        let control = self.live.controls().get(&id).cloned();
        control.is_some_and(|control| {
            control.give(Order::End(ending));
            true
        })
    }

    /// Ends all connections, and returns when their sockets are closed.
    ///
    /// # Errors
    /// A socket stayed open until the deadline.
    pub async fn end_all(&self, ending: Ending) -> anyhow::Result<()> {
        self.order_all(Order::End(ending));
        self.wait_all_closed().await
    }

    /// Lets the kernel take bytes from the peer, but reads and writes nothing, until [`Self::thaw`].
    pub fn freeze(&self) {
        self.set_frozen(true);
    }

    /// Undoes [`Self::freeze`].
    pub fn thaw(&self) {
        self.set_frozen(false);
    }

    /// Waits until connection `id` is closed.
    ///
    /// # Errors
    /// It stayed open until the deadline.
    pub async fn wait_closed(&self, id: usize) -> anyhow::Result<Cause> {
        let what = format!("the end of connection {id}");
        let cause = |all: &[Connection]| Some(all.get(id)?.closed.as_ref()?.1.clone());
        self.log.wait_for(&what, cause).await
    }

    pub(crate) async fn wait_all_closed(&self) -> anyhow::Result<()> {
        let none_open = |all: &[Connection]| all.iter().all(|one| one.closed.is_some()).then_some(());
        self.log.wait_for("the end of all connections", none_open).await
    }

    pub(crate) fn order_all(&self, order: Order) {
        for control in self.live.controls().values() {
            control.give(order);
        }
    }

    /// Enters an accepted socket in the log.
    pub(crate) fn admit(&self, tcp: TcpStream, peer: SocketAddr) -> io::Result<Stream> {
        let socket = tcp.as_fd().try_clone_to_owned()?;
        let local = canonical(tcp.local_addr()?);
        let peer = canonical(peer);
        // The lock spans both, so that `end` finds every connection that the log shows.
        let mut controls = self.live.controls();
        let id = self.log.push(Connection { id: 0, peer, local, opened: Instant::now(), closed: None });
        self.log.update(id, |entry| entry.id = id);
        let frozen = self.live.frozen.load(Ordering::SeqCst);
        let control = Arc::new(Control::new(id, peer, socket, frozen));
        controls.insert(id, Arc::clone(&control));
        drop(controls);
        let connections = self.clone();
        Ok(Stream::new(tcp, control, move |cause| {
            connections.live.controls().remove(&id);
            let at = Instant::now();
            connections.log.update(id, |entry| entry.closed = Some((at, cause)));
        }))
    }

    fn set_frozen(&self, frozen: bool) {
        self.live.frozen.store(frozen, Ordering::SeqCst);
        for control in self.live.controls().values() {
            control.set_frozen(frozen);
        }
    }
}

// === impl Live ===

impl Live {
    fn controls(&self) -> MutexGuard<'_, HashMap<usize, Arc<Control>>> {
        self.controls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An IPv4 address that a dual-stack socket reports as `::ffff:a.b.c.d`, as IPv4.
fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}
