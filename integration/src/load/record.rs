//! What the client saw of one request.

use http::Method;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An id that the generator gave out. Kept apart from the records, so that a lost record shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    /// Unique id.
    pub id: String,
    /// When the arrival was due.
    pub intended: Instant,
}

/// The whole story of one request, as the client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRecord {
    /// Unique id, as in `x-request-id`.
    pub id: String,
    /// Name of the request class.
    pub class: Arc<str>,
    /// HTTP method.
    pub method: Method,
    /// May it be executed more than once (by method or idempotency key)?
    pub idempotent: bool,
    /// When the arrival was due.
    pub intended: Instant,
    /// When it was handed to a connection; if it never was, when the client began to work on it.
    pub started: Instant,
    /// When the outcome was known; for a response, when its body was complete.
    pub ended: Instant,
    /// Number of the client connection it was handed to.
    pub connection: Option<u64>,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A complete response.
    Response {
        /// Status code.
        status: u16,
        /// Pod that answered; `None` if the proxy answered by itself.
        pod: Option<String>,
        /// Attempts that the proxy reports.
        attempts: Option<u32>,
        /// Envoy's response flags.
        flags: Option<String>,
        /// Envoy's response code details.
        details: Option<String>,
    },
    /// The response began and broke off.
    Broken {
        /// Status code of the part that arrived.
        status: u16,
        /// Why it broke off.
        error: TransportError,
    },
    /// No response.
    Failed(TransportError),
    /// The client's own deadline passed.
    TimedOut,
    /// Still in flight when the run's drain time was over.
    Abandoned,
    /// Never sent: too many requests in flight, or it could not be built.
    NotSent,
}

/// Why the transport failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportError {
    /// No connection could be made.
    Connect(io::ErrorKind),
    /// The peer closed the connection in order (FIN).
    Closed,
    /// The peer reset the connection (RST).
    Reset,
    /// The peer reset the HTTP/2 stream or sent GOAWAY; the HTTP/2 error code.
    Http2(String),
    /// Anything else.
    Other(String),
}

// === impl RequestRecord ===

impl RequestRecord {
    /// Time from the intended start to the end.
    #[must_use]
    pub fn latency(&self) -> Duration {
        self.ended.saturating_duration_since(self.intended)
    }

    /// A complete 2xx response.
    #[must_use]
    pub fn success(&self) -> bool {
        matches!(self.outcome, Outcome::Response { status, .. } if (200..300).contains(&status))
    }

    /// Pod that answered, if an application did.
    #[must_use]
    pub fn pod(&self) -> Option<&str> {
        match &self.outcome {
            Outcome::Response { pod, .. } => pod.as_deref(),
            _ => None,
        }
    }

    /// Attempts that the proxy reported.
    #[must_use]
    pub fn attempts(&self) -> Option<u32> {
        match &self.outcome {
            Outcome::Response { attempts, .. } => *attempts,
            _ => None,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Response { status, pod, attempts, flags, details } => {
                write!(f, "{status}")?;
                for text in [pod, flags, details].into_iter().flatten() {
                    write!(f, " {text}")?;
                }
                match attempts {
                    Some(attempts) if *attempts > 1 => write!(f, " ({attempts} attempts)"),
                    _ => Ok(()),
                }
            }
            Self::Broken { status, error } => write!(f, "{status}, body broke off: {error}"),
            Self::Failed(error) => write!(f, "{error}"),
            Self::TimedOut => f.write_str("client timeout"),
            Self::Abandoned => f.write_str("still in flight at the end of the run"),
            Self::NotSent => f.write_str("not sent"),
        }
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(kind) => write!(f, "cannot connect: {kind}"),
            Self::Closed => f.write_str("connection closed"),
            Self::Reset => f.write_str("connection reset"),
            Self::Http2(reason) => write!(f, "HTTP/2 error: {reason}"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

impl TransportError {
    /// Finds the cause in hyper's chain of errors.
    pub(super) fn from_hyper(error: &hyper::Error) -> Self {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(current) = cause {
            if let Some(h2) = current.downcast_ref::<h2::Error>()
                && let Some(reason) = h2.reason()
            {
                return Self::Http2(reason.to_string());
            }
            if let Some(io) = current.downcast_ref::<io::Error>() {
                match io.kind() {
                    io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                        return Self::Reset;
                    }
                    io::ErrorKind::UnexpectedEof => return Self::Closed,
                    _ => {}
                }
            }
            cause = current.source();
        }
        if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
            Self::Closed
        } else {
            Self::Other(error.to_string())
        }
    }
}
