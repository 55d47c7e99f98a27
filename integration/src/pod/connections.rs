//! The TCP connections that a listener accepted: a log of them, and the means to end each.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::task::AtomicWaker;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::log::Log;

/// How a socket is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// `close(2)`, after what had arrived was read: a FIN. Bytes that arrive later are answered by
    /// the kernel with RST.
    Fin,
    /// `close(2)` with `SO_LINGER` 0: a RST.
    Rst,
}

/// Why a connection is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// The server was done, or a fault ended the connection.
    Local(Ending),
    /// The peer sent FIN.
    PeerFin,
    /// The peer, or its kernel, sent RST.
    PeerRst,
    /// The socket failed otherwise (`ETIMEDOUT`, `EHOSTUNREACH`).
    Failed(io::ErrorKind),
}

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

/// What the task that serves a connection has been told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Serve,
    /// Finish what is in progress, then close.
    Drain,
    End(Ending),
}

/// The remote control of one connection.
pub(crate) struct Control {
    pub(crate) id: usize,
    pub(crate) peer: SocketAddr,
    order: watch::Sender<Order>,
    frozen: AtomicBool,
    written: AtomicU64,
    reader: AtomicWaker,
    writer: AtomicWaker,
    /// A second descriptor of the socket, for `shutdown(2)`; given up before the socket is closed.
    socket: Mutex<Option<OwnedFd>>,
}

/// An accepted socket that obeys its [`Control`] and reports its end.
pub(crate) struct Stream {
    /// None only within `drop`, which closes the socket before the log says so.
    tcp: Option<TcpStream>,
    control: Arc<Control>,
    connections: Connections,
    cause: Option<Cause>,
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
        let control = Arc::new(Control {
            id,
            peer,
            order: watch::Sender::new(Order::Serve),
            frozen: AtomicBool::new(self.live.frozen.load(Ordering::SeqCst)),
            written: AtomicU64::new(0),
            reader: AtomicWaker::new(),
            writer: AtomicWaker::new(),
            socket: Mutex::new(Some(socket)),
        });
        controls.insert(id, Arc::clone(&control));
        drop(controls);
        Ok(Stream { tcp: Some(tcp), control, connections: self.clone(), cause: None })
    }

    fn set_frozen(&self, frozen: bool) {
        self.live.frozen.store(frozen, Ordering::SeqCst);
        for control in self.live.controls().values() {
            control.frozen.store(frozen, Ordering::SeqCst);
            control.wake();
        }
    }
}

// === impl Live ===

impl Live {
    fn controls(&self) -> MutexGuard<'_, HashMap<usize, Arc<Control>>> {
        self.controls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Control ===

impl Control {
    pub(crate) fn give(&self, order: Order) {
        self.order.send_modify(|current| {
            // The first end wins: it is what the wire shows.
            if !matches!(current, Order::End(_)) {
                *current = order;
            }
        });
        self.wake();
    }

    pub(crate) fn order(&self) -> Order {
        *self.order.borrow()
    }

    /// Returns when the connection shall end at once.
    pub(crate) async fn ended(&self) {
        self.reached(|order| matches!(order, Order::End(_))).await;
    }

    /// Returns when the connection shall drain.
    pub(crate) async fn draining(&self) {
        self.reached(|order| *order == Order::Drain).await;
    }

    async fn reached(&self, wanted: impl FnMut(&Order) -> bool) {
        let mut orders = self.order.subscribe();
        // The sender is `self`, so the wait cannot end for want of one.
        let _ = orders.wait_for(wanted).await;
    }

    /// Sends FIN and keeps reading.
    pub(crate) fn shutdown_write(&self) {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(socket) = socket.as_ref() {
            // Fails only if the peer has closed already, which serves as well.
            let _ = SockRef::from(socket).shutdown(Shutdown::Write);
        }
    }

    /// Returns when bytes were written since `mark`, and then none for a moment.
    pub(crate) async fn settled_since(&self, mark: u64) {
        let mut last = mark;
        loop {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let now = self.written();
            if now > mark && now == last {
                return;
            }
            last = now;
        }
    }

    /// Bytes given to the kernel so far.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }

    fn wake(&self) {
        self.reader.wake();
        self.writer.wake();
    }

    fn check(&self, waker: &AtomicWaker, cx: &Context<'_>) -> Poll<io::Result<()>> {
        waker.register(cx.waker());
        if matches!(self.order(), Order::End(_)) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if self.frozen.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

// === impl Stream ===

impl Stream {
    pub(crate) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    fn tcp(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        self.tcp.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn saw(&mut self, error: &io::Error) {
        let cause = match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Cause::PeerRst,
            other => Cause::Failed(other),
        };
        self.cause = Some(cause);
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        futures::ready!(this.control.check(&this.control.reader, cx))?;
        let before = buf.filled().len();
        let result = futures::ready!(this.tcp()?.poll_read(cx, buf));
        match &result {
            Err(error) => this.saw(error),
            Ok(()) if buf.filled().len() == before && buf.remaining() > 0 => {
                this.cause.get_or_insert(Cause::PeerFin);
            }
            Ok(()) => {}
        }
        Poll::Ready(result)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        futures::ready!(this.control.check(&this.control.writer, cx))?;
        let result = futures::ready!(this.tcp()?.poll_write(cx, buf));
        match &result {
            Err(error) => this.saw(error),
            Ok(count) => {
                this.control.written.fetch_add(*count as u64, Ordering::SeqCst);
            }
        }
        Poll::Ready(result)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().tcp()?.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        futures::ready!(this.control.check(&this.control.writer, cx))?;
        this.tcp()?.poll_shutdown(cx)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let cause = match self.control.order() {
            Order::End(ending) => Cause::Local(ending),
            _ => self.cause.take().unwrap_or(Cause::Local(Ending::Fin)),
        };
        self.control.socket.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(tcp) = self.tcp.take() {
            match cause {
                Cause::Local(Ending::Rst) => {
                    let _ = SockRef::from(&tcp).set_linger(Some(Duration::ZERO));
                }
                // Unread bytes would turn the FIN into a RST.
                Cause::Local(Ending::Fin) => while matches!(tcp.try_read(&mut [0; 4096]), Ok(1..)) {},
                _ => {}
            }
        }
        self.connections.live.controls().remove(&self.control.id);
        let at = Instant::now();
        self.connections.log.update(self.control.id, |entry| entry.closed = Some((at, cause)));
    }
}

/// An IPv4 address that a dual-stack socket reports as `::ffff:a.b.c.d`, as IPv4.
fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}
