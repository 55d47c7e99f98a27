//! What the application executed.

use std::hash::{DefaultHasher, Hasher as _};
use std::net::SocketAddr;
use std::time::{Instant, SystemTime};

use http::request::Parts;
use http::{HeaderMap, Version};

use crate::tcp::Control;

/// One request that was read to its end, recorded before it was answered.
#[derive(Debug, Clone)]
pub struct Execution {
    /// `x-request-id`; empty if there was none.
    pub id: String,
    /// The method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// `:authority` or `Host`.
    pub authority: String,
    /// The name of the pod.
    pub pod: String,
    /// The application's port.
    pub port: u16,
    /// When the last byte of the request was read.
    pub at: Instant,
    /// The same, by the wall clock.
    pub wall: SystemTime,
    /// The connection it came on: an id in [`super::App::connections`].
    pub connection: usize,
    /// That connection's client address.
    pub peer: SocketAddr,
    /// HTTP/1.1 or HTTP/2.
    pub version: Version,
    /// Bytes of the body.
    pub body_len: u64,
    /// [`hash_of`] the body.
    pub body_hash: u64,
    /// `x-envoy-attempt-count`, where the route asks for it.
    pub attempt_count: Option<String>,
    /// `x-envoy-retry-on`: must never arrive here.
    pub retry_on: Option<String>,
    /// `x-envoy-max-retries`: must never arrive here.
    pub max_retries: Option<String>,
    /// All headers, if [`super::AppSpec::keep_headers`] is set.
    pub headers: Option<HeaderMap>,
}

/// The hash that [`Execution::body_hash`] holds. Equal within a process only.
#[must_use]
pub fn hash_of(body: &[u8]) -> u64 {
    let mut digest = Digest::default();
    digest.add(body);
    digest.hasher.finish()
}

/// Length and hash of a body, as it arrives.
#[derive(Default)]
pub(super) struct Digest {
    length: u64,
    hasher: DefaultHasher,
}

impl Digest {
    pub(super) fn add(&mut self, chunk: &[u8]) {
        self.length += chunk.len() as u64;
        self.hasher.write(chunk);
    }
}

/// The entry for a request of the application on `port` of `pod`.
pub(super) fn execution(
    pod: &str,
    port: u16,
    keep_headers: bool,
    control: &Control,
    request: &Parts,
    body: &Digest,
) -> Execution {
    let header = |name: &str| {
        let value = request.headers.get(name)?;
        Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let authority = request.uri.authority().map(ToString::to_string);
    Execution {
        id: header("x-request-id").unwrap_or_default(),
        method: request.method.to_string(),
        path: request.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
        authority: authority.or_else(|| header("host")).unwrap_or_default(),
        pod: pod.to_owned(),
        port,
        at: Instant::now(),
        wall: SystemTime::now(),
        connection: control.id,
        peer: control.peer,
        version: request.version,
        body_len: body.length,
        body_hash: body.hasher.finish(),
        attempt_count: header("x-envoy-attempt-count"),
        retry_on: header("x-envoy-retry-on"),
        max_retries: header("x-envoy-max-retries"),
        headers: keep_headers.then(|| request.headers.clone()),
    }
}
