//! Watches the bytes of a connection for the first one of a request, where faults may act that no
//! HTTP library offers: before the request is read.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::sync::watch;

use super::script::{Behaviour, Script};
use crate::tcp::Stream;

/// The client connection preface (RFC 9113, section 3.4). `PRI` is no method that a client uses.
const PREFACE_LENGTH: usize = 24;
const PREFACE_START: &[u8] = b"PRI";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// Requests in progress on a connection, and since when it is so.
#[derive(Debug, Clone, Copy)]
pub(super) struct Activity {
    pub(super) requests: usize,
    pub(super) since: Instant,
}

/// Shared by a connection's socket and the code that serves its requests.
pub(super) struct Gate {
    script: Script,
    tripped: watch::Sender<Option<Behaviour>>,
    activity: watch::Sender<Activity>,
    scanner: Mutex<Scanner>,
}

/// Held while a request is in progress.
pub(super) struct InProgress {
    gate: Arc<Gate>,
}

enum Scanner {
    Unknown,
    /// `in_head`: a request's first bytes were seen, and its head is not complete yet.
    Http1 {
        in_head: bool,
    },
    Http2(Frames),
}

/// Follows the frame boundaries of one direction of HTTP/2 (RFC 9113, section 4.1), enough to tell
/// that a HEADERS frame begins. The frames themselves are for the library.
struct Frames {
    skip: usize,
    head: Vec<u8>,
}

/// A connection's socket behind its gate.
pub(super) struct Gated {
    stream: Stream,
    gate: Arc<Gate>,
    /// Bytes read to tell the protocol, not handed on yet.
    prefix: Vec<u8>,
}

// === impl Gate ===

impl Gate {
    pub(super) fn new(script: Script) -> Self {
        Self {
            script,
            tripped: watch::Sender::new(None),
            activity: watch::Sender::new(Activity { requests: 0, since: Instant::now() }),
            scanner: Mutex::new(Scanner::Unknown),
        }
    }

    /// Returns the behaviour that a request's arrival has met. From then on the connection's bytes
    /// are read and thrown away.
    pub(super) async fn tripped(&self) -> Behaviour {
        let mut changes = self.tripped.subscribe();
        match changes.wait_for(Option::is_some).await.map(|value| *value) {
            Ok(Some(behaviour)) => behaviour,
            _ => std::future::pending().await,
        }
    }

    pub(super) fn activity(&self) -> watch::Receiver<Activity> {
        self.activity.subscribe()
    }

    /// A request's head was read.
    pub(super) fn begin(self: &Arc<Self>) -> InProgress {
        if let Scanner::Http1 { in_head } = &mut *self.scanner() {
            *in_head = false;
        }
        self.change(|requests| requests + 1);
        InProgress { gate: Arc::clone(self) }
    }

    fn change(&self, change: impl FnOnce(usize) -> usize) {
        self.activity.send_modify(|activity| {
            *activity = Activity { requests: change(activity.requests), since: Instant::now() };
        });
    }

    fn scanner(&self) -> std::sync::MutexGuard<'_, Scanner> {
        self.scanner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_tripped(&self) -> bool {
        self.tripped.borrow().is_some()
    }

    /// Whether `bytes` may be handed on.
    fn admits(&self, bytes: &[u8]) -> bool {
        let request_begins = match &mut *self.scanner() {
            Scanner::Unknown => false,
            Scanner::Http1 { in_head } => {
                let begins = !*in_head && self.activity.borrow().requests == 0;
                *in_head |= begins;
                begins
            }
            Scanner::Http2(frames) => frames.feed(bytes),
        };
        if !request_begins {
            return true;
        }
        let Some(behaviour) = self.script.take_on_arrival() else {
            return true;
        };
        self.tripped.send_replace(Some(behaviour));
        false
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.gate.change(|requests| requests.saturating_sub(1));
    }
}

// === impl Frames ===

impl Frames {
    fn feed(&mut self, mut bytes: &[u8]) -> bool {
        const HEAD_LENGTH: usize = 9;
        const HEADERS: u8 = 0x1;
        let mut found = false;
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = bytes.get(skipped..).unwrap_or_default();
            let missing = (HEAD_LENGTH - self.head.len()).min(bytes.len());
            let (part, rest) = bytes.split_at(missing);
            self.head.extend_from_slice(part);
            bytes = rest;
            if let [a, b, c, kind, ..] = *self.head.as_slice()
                && self.head.len() == HEAD_LENGTH
            {
                found |= kind == HEADERS;
                self.skip = u32::from_be_bytes([0, a, b, c]) as usize;
                self.head.clear();
            }
        }
        found
    }
}

// === impl Gated ===

impl Gated {
    pub(super) fn new(stream: Stream, gate: Arc<Gate>) -> Self {
        Self { stream, gate, prefix: Vec::new() }
    }

    /// Reads as little as tells HTTP/1.1 from HTTP/2.
    pub(super) async fn sniff(&mut self) -> io::Result<Protocol> {
        let mut start = [0; PREFACE_START.len()];
        let mut length = 0;
        while length < start.len() {
            let count = self.stream.read(start.get_mut(length..).unwrap_or_default()).await?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            length += count;
        }
        self.prefix = start.to_vec();
        let protocol = if start == PREFACE_START { Protocol::Http2 } else { Protocol::Http1 };
        *self.gate.scanner() = match protocol {
            Protocol::Http1 => Scanner::Http1 { in_head: false },
            Protocol::Http2 => Scanner::Http2(Frames { skip: PREFACE_LENGTH, head: Vec::new() }),
        };
        Ok(protocol)
    }
}

impl AsyncRead for Gated {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let before = buf.filled().len();
            if this.prefix.is_empty() {
                futures::ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
            } else {
                let count = this.prefix.len().min(buf.remaining());
                buf.put_slice(&this.prefix.drain(..count).collect::<Vec<_>>());
            }
            let bytes = buf.filled().get(before..).unwrap_or_default();
            // End of stream, or a full buffer.
            if bytes.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if !this.gate.is_tripped() && this.gate.admits(bytes) {
                return Poll::Ready(Ok(()));
            }
            buf.set_filled(before);
        }
    }
}

impl AsyncWrite for Gated {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_boundaries_are_followed_however_the_bytes_are_cut() {
        let mut wire = vec![b'P'; PREFACE_LENGTH];
        // SETTINGS with a payload of six bytes that look like a HEADERS frame's head.
        wire.extend([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1]);
        let quiet = wire.len();
        wire.extend([0, 0, 1, 1, 5, 0, 0, 0, 1, 0x82]);
        for cut in 1..wire.len() {
            let mut frames = Frames { skip: PREFACE_LENGTH, head: Vec::new() };
            let hits: Vec<_> = wire.chunks(cut).map(|chunk| frames.feed(chunk)).collect();
            let first = hits.iter().position(|hit| *hit).expect("HEADERS is found");
            assert!((first + 1) * cut > quiet + 8, "cut at {cut}: found too early");
        }
    }
}
