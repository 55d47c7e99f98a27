//! Frames that the HTTP/2 library would not send, put between those that it does.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use futures::task::AtomicWaker;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::frames::Frames;

/// The open connections of a listener, by id.
#[derive(Default)]
pub(super) struct Injections {
    open: Mutex<HashMap<usize, Arc<Injection>>>,
}

/// What is to be put into one connection.
#[derive(Default)]
pub(super) struct Injection {
    pending: Mutex<VecDeque<Bytes>>,
    waker: AtomicWaker,
}

/// Takes the connection off the list.
pub(super) struct Entry<'a> {
    injections: &'a Injections,
    id: usize,
}

/// A server's transport; what is pending is sent where a frame ends.
pub(super) struct Injector<T> {
    io: T,
    injection: Arc<Injection>,
    sent: Frames,
    /// An injected frame of which a part was sent.
    partial: Bytes,
}

/// A GOAWAY frame (RFC 9113, section 6.8).
pub(super) fn go_away(last_stream: u32, reason: u32) -> Bytes {
    const LENGTH: u8 = 8;
    const GOAWAY: u8 = 0x7;
    let mut frame = BytesMut::new();
    frame.put_slice(&[0, 0, LENGTH, GOAWAY, 0]);
    frame.put_u32(0);
    frame.put_u32(last_stream & 0x7fff_ffff);
    frame.put_u32(reason);
    frame.freeze()
}

// === impl Injections ===

impl Injections {
    /// Enters a connection, until the entry is dropped.
    pub(super) fn enter<T>(&self, id: usize, io: T) -> (Entry<'_>, Injector<T>) {
        let injection = Arc::<Injection>::default();
        self.open().insert(id, Arc::clone(&injection));
        let injector = Injector { io, injection, sent: Frames::of_server(), partial: Bytes::new() };
        (Entry { injections: self, id }, injector)
    }

    /// Sends `frame` on every open connection.
    pub(super) fn send(&self, frame: &Bytes) {
        for injection in self.open().values() {
            injection.pending().push_back(frame.clone());
            injection.waker.wake();
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<usize, Arc<Injection>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.injections.open().remove(&self.id);
    }
}

// === impl Injection ===

impl Injection {
    fn pending(&self) -> MutexGuard<'_, VecDeque<Bytes>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Injector ===

impl<T: AsyncWrite + Unpin> Injector<T> {
    /// Sends what is pending, if no frame of the library's is under way.
    fn poll_inject(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent.at_boundary() {
            if self.partial.is_empty() {
                match self.injection.pending().pop_front() {
                    Some(frame) => self.partial = frame,
                    None => break,
                }
            }
            let count = futures::ready!(Pin::new(&mut self.io).poll_write(cx, &self.partial))?;
            self.partial.advance(count);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Injector<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.injection.waker.register(cx.waker());
        // A library that has nothing to send may not flush by itself.
        if this.poll_inject(cx)?.is_ready() {
            let _ = Pin::new(&mut this.io).poll_flush(cx)?;
        }
        Pin::new(&mut this.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Injector<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        futures::ready!(this.poll_inject(cx))?;
        let count = futures::ready!(Pin::new(&mut this.io).poll_write(cx, buf))?;
        this.sent.feed(buf.get(..count).unwrap_or_default());
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        futures::ready!(this.poll_inject(cx))?;
        Pin::new(&mut this.io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}
