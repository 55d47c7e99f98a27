//! Client connections: a keep-alive pool for HTTP/1.1, shared connections for HTTP/2.

use super::plan::{AnswerHeaders, Protocol};
use super::record::{Outcome, TransportError};
use anyhow::Context;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderName, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// Makes one connection to the proxy.
pub type Connector = Arc<dyn Fn() -> BoxFuture<'static, io::Result<TcpStream>> + Send + Sync>;

type Body = Full<Bytes>;
type Http1 = Numbered<http1::SendRequest<Body>>;
type Http2 = Numbered<http2::SendRequest<Body>>;

/// When and on which connection a request was last handed over; kept outside the exchange, so that it
/// outlives a cancelled one.
pub(super) type Sent = Mutex<Option<(Instant, u64)>>;

/// How often a request that was not written moves to another connection.
const MOVES: usize = 8;

/// How long an HTTP/1.1 connection may take to become reusable after a complete response.
const REUSE_WAIT: Duration = Duration::from_secs(1);

/// Connections to the proxy.
pub(super) enum Pool {
    /// Idle connections, used in turn: the one that has been idle longest comes first.
    Http1 { dial: Dial, keep: usize, idle: Mutex<VecDeque<Http1>> },
    /// A fixed number of connections, used in turn, each opened anew when it is closed.
    Http2 { dial: Dial, slots: Vec<Slot>, turn: AtomicUsize },
}

/// One shared HTTP/2 connection; locked only while it is looked at or opened.
type Slot = tokio::sync::Mutex<Option<Http2>>;

/// A connection with its number in the order of opening.
#[derive(Clone)]
pub(super) struct Numbered<S> {
    number: u64,
    sender: S,
}

/// Opens connections and numbers them.
pub(super) struct Dial {
    connector: Connector,
    opened: AtomicU64,
}

/// Turns an async function that opens a connection into a [`Connector`].
pub fn connector<F, R>(open: F) -> Connector
where
    F: Fn() -> R + Send + Sync + 'static,
    R: Future<Output = io::Result<TcpStream>> + Send + 'static,
{
    Arc::new(move || Box::pin(open()))
}

// === impl Dial ===

impl Dial {
    async fn tcp(&self) -> Result<(u64, TokioIo<TcpStream>), TransportError> {
        let connect_error = |error: io::Error| TransportError::Connect(error.kind());
        let stream = (self.connector)().await.map_err(connect_error)?;
        // Requests are small and written whole: waiting for more would only add latency.
        stream.set_nodelay(true).map_err(connect_error)?;
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        Ok((number, TokioIo::new(stream)))
    }

    async fn http1(&self) -> Result<Http1, TransportError> {
        let (number, io) = self.tcp().await?;
        let (sender, connection) = http1::handshake(io).await.map_err(|error| TransportError::from_hyper(&error))?;
        // Ends when the sender is dropped or the peer closes; every request sees the error itself.
        tokio::spawn(connection);
        Ok(Numbered { number, sender })
    }

    async fn http2(&self) -> Result<Http2, TransportError> {
        let (number, io) = self.tcp().await?;
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), io).await.map_err(|error| TransportError::from_hyper(&error))?;
        tokio::spawn(connection);
        Ok(Numbered { number, sender })
    }
}

// === impl Pool ===

impl Pool {
    /// A pool with all its connections open.
    pub(super) async fn open(connector: Connector, protocol: Protocol, connections: usize) -> anyhow::Result<Self> {
        let dial = Dial { connector, opened: AtomicU64::new(0) };
        let describe = |error: TransportError| anyhow::anyhow!("{error}");
        let context = "opening the load generator's connections";
        match protocol {
            Protocol::Http1 => {
                let mut idle = VecDeque::new();
                for _ in 0..connections {
                    idle.push_back(dial.http1().await.map_err(describe).context(context)?);
                }
                Ok(Self::Http1 { dial, keep: connections, idle: Mutex::new(idle) })
            }
            Protocol::Http2 => {
                let mut slots = Vec::new();
                for _ in 0..connections {
                    let connection = dial.http2().await.map_err(describe).context(context)?;
                    slots.push(Slot::new(Some(connection)));
                }
                Ok(Self::Http2 { dial, slots, turn: AtomicUsize::new(0) })
            }
        }
    }

    /// Connections opened so far.
    pub(super) fn opened(&self) -> u64 {
        let (Self::Http1 { dial, .. } | Self::Http2 { dial, .. }) = self;
        dial.opened.load(Ordering::Relaxed)
    }

    /// Sends one request and reads the whole response. Cancel-safe: dropping the future closes the
    /// HTTP/1.1 connection or resets the HTTP/2 stream.
    pub(super) async fn exchange(&self, request: Request<Body>, headers: &AnswerHeaders, sent: &Sent) -> Exchanged {
        match self.send(request, sent).await {
            Ok((response, http1)) => {
                let outcome = read(response, headers).await;
                Exchanged { ended: Instant::now(), outcome, http1 }
            }
            Err(error) => Exchanged { ended: Instant::now(), outcome: Outcome::Failed(error), http1: None },
        }
    }

    /// Takes back the connection of a finished exchange, if it can carry another request.
    pub(super) async fn give_back(&self, exchanged: Option<Http1>) {
        let (Self::Http1 { keep, idle, .. }, Some(mut connection)) = (self, exchanged) else {
            return;
        };
        let ready = tokio::time::timeout(REUSE_WAIT, connection.sender.ready()).await;
        if matches!(ready, Ok(Ok(()))) {
            let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < *keep {
                idle.push_back(connection);
            }
        }
    }

    async fn send(
        &self,
        mut request: Request<Body>,
        sent: &Sent,
    ) -> Result<(Response<Incoming>, Option<Http1>), TransportError> {
        let mut last = TransportError::Closed;
        for _ in 0..MOVES {
            let result = match self {
                Self::Http1 { dial, idle, .. } => {
                    let mut connection = match pop_usable(idle) {
                        Some(connection) => connection,
                        None => dial.http1().await?,
                    };
                    mark(sent, connection.number);
                    let result = connection.sender.try_send_request(request).await;
                    result.map(|response| (response, Some(connection)))
                }
                Self::Http2 { dial, slots, turn } => {
                    let index = turn.fetch_add(1, Ordering::Relaxed) % slots.len().max(1);
                    let Some(slot) = slots.get(index) else {
                        return Err(last);
                    };
                    let mut connection = usable(dial, slot).await?;
                    mark(sent, connection.number);
                    let result = connection.sender.try_send_request(request).await;
                    result.map(|response| (response, None))
                }
            };
            match result {
                Ok(response) => return Ok(response),
                Err(mut error) => {
                    last = TransportError::from_hyper(error.error());
                    // A message that comes back was provably not written: another connection may carry it.
                    match error.take_message() {
                        Some(unsent) => request = unsent,
                        None => return Err(last),
                    }
                }
            }
        }
        Err(last)
    }
}

/// What became of a request, and its HTTP/1.1 connection if the response is complete.
pub(super) struct Exchanged {
    pub(super) ended: Instant,
    pub(super) outcome: Outcome,
    pub(super) http1: Option<Http1>,
}

fn mark(sent: &Sent, connection: u64) {
    *sent.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), connection));
}

fn pop_usable(idle: &Mutex<VecDeque<Http1>>) -> Option<Http1> {
    let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
    while let Some(connection) = idle.pop_front() {
        if !connection.sender.is_closed() {
            return Some(connection);
        }
    }
    None
}

async fn usable(dial: &Dial, slot: &Slot) -> Result<Http2, TransportError> {
    let mut slot = slot.lock().await;
    match slot.as_ref().filter(|open| !open.sender.is_closed()) {
        Some(open) => Ok(open.clone()),
        None => Ok(slot.insert(dial.http2().await?).clone()),
    }
}

async fn read(response: Response<Incoming>, names: &AnswerHeaders) -> Outcome {
    let (head, mut body) = response.into_parts();
    let status = head.status.as_u16();
    // The body is read to its end, as only then the exchange is over, but not kept.
    while let Some(frame) = body.frame().await {
        if let Err(error) = frame {
            let error = TransportError::from_hyper(&error);
            return Outcome::Broken { status, error };
        }
    }
    let text = |name: &HeaderName| {
        let value = head.headers.get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    Outcome::Response {
        status,
        pod: text(&names.pod),
        attempts: text(&names.attempts).and_then(|value| value.parse().ok()),
        flags: text(&names.flags),
        details: text(&names.details),
    }
}
