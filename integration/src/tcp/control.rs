//! The remote control of one accepted connection.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::task::AtomicWaker;
use socket2::SockRef;
use tokio::sync::watch;

/// How a socket is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// `close(2)`, after what had arrived was read: a FIN. Bytes that arrive later are answered by
    /// the kernel with RST.
    Fin,
    /// `close(2)` with `SO_LINGER` 0: a RST.
    Rst,
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

// === impl Control ===

impl Control {
    /// `socket` is a second descriptor of the connection's socket.
    pub(super) fn new(id: usize, peer: SocketAddr, socket: OwnedFd, frozen: bool) -> Self {
        Self {
            id,
            peer,
            order: watch::Sender::new(Order::Serve),
            frozen: AtomicBool::new(frozen),
            written: AtomicU64::new(0),
            reader: AtomicWaker::new(),
            writer: AtomicWaker::new(),
            socket: Mutex::new(Some(socket)),
        }
    }

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

    pub(super) fn set_frozen(&self, frozen: bool) {
        self.frozen.store(frozen, Ordering::SeqCst);
        self.wake();
    }

    /// Gives the second descriptor up, so that the socket can be closed.
    pub(super) fn forget_socket(&self) {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    pub(super) fn wrote(&self, count: u64) {
        self.written.fetch_add(count, Ordering::SeqCst);
    }

    pub(super) fn may_read(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.check(&self.reader, cx)
    }

    pub(super) fn may_write(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.check(&self.writer, cx)
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
