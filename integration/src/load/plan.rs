//! What load to run.

use super::arrivals::Arrivals;
use anyhow::{Context, ensure};
use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::Full;
use std::time::Duration;

/// Header that carries a request's unique id.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Protocol towards the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 with keep-alive; one request at a time on a connection.
    Http1,
    /// HTTP/2 with prior knowledge (h2c). A connection carries many requests at once; those beyond
    /// the peer's `SETTINGS_MAX_CONCURRENT_STREAMS` wait in the client, and that wait is measured.
    Http2,
}

/// One kind of request in the mix.
#[derive(Clone, Debug)]
pub struct RequestClass {
    /// Name used in records and reports.
    pub name: String,
    /// Share in the mix, relative to the other classes.
    pub weight: u32,
    /// HTTP method.
    pub method: Method,
    /// `Host` or `:authority`.
    pub authority: String,
    /// Path and query.
    pub path: String,
    /// Headers besides `Host` and `x-request-id`.
    pub headers: HeaderMap,
    /// Body, the same for every request of the class.
    pub body: Bytes,
    /// If set, every request carries this header with its own id as value: the caller's promise
    /// that the server deduplicates, which makes the request idempotent whatever its method.
    pub idempotency_key: Option<HeaderName>,
}

/// Response headers that are kept with every record. Absent ones are `None` there.
///
/// A virtual host with `include_attempt_count_in_response` and `response_headers_to_add` sends the
/// proxy's headers with its own replies (503) too; [`crate::history::Fate`] needs the attempts there.
#[derive(Clone, Debug)]
pub struct AnswerHeaders {
    /// Name of the pod that answered; set by the application.
    pub pod: HeaderName,
    /// Number of attempts (Envoy: `include_attempt_count_in_response`).
    pub attempts: HeaderName,
    /// `%RESPONSE_FLAGS%`, if the proxy's configuration adds it.
    pub flags: HeaderName,
    /// `%RESPONSE_CODE_DETAILS%`, if the proxy's configuration adds it.
    pub details: HeaderName,
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Ids are `<id_prefix>-<class>-<number>`. Must be unique among runs whose histories are merged.
    pub id_prefix: String,
    /// Arrivals per second over all classes.
    pub rate: f64,
    /// Arrival process.
    pub arrivals: Arrivals,
    /// The mix.
    pub classes: Vec<RequestClass>,
    /// Connections that are opened before the first arrival and kept. With HTTP/1.1 they are used
    /// in turn, so that the load spreads over the proxy's workers; more are opened while all of them
    /// are busy, and closed again after use.
    pub connections: usize,
    /// Protocol.
    pub protocol: Protocol,
    /// Client-side deadline of a request, counted from its intended start.
    pub timeout: Duration,
    /// Arrivals end after this many; [`super::Load::stop`] may end them earlier.
    pub max_requests: u64,
    /// Above this many requests in flight, arrivals are recorded as [`super::Outcome::NotSent`]: the
    /// generator neither waits (that would close the loop) nor grows without bound.
    pub max_outstanding: usize,
    /// Response headers to keep.
    pub answer_headers: AnswerHeaders,
}

// === impl RequestClass ===

impl RequestClass {
    /// A class without headers and body, weight 1, named as the method in lower case.
    #[must_use]
    pub fn new(method: Method, authority: &str, path: &str) -> Self {
        Self {
            name: method.as_str().to_ascii_lowercase(),
            weight: 1,
            method,
            authority: authority.to_owned(),
            path: path.to_owned(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            idempotency_key: None,
        }
    }

    /// A GET class.
    #[must_use]
    pub fn get(authority: &str, path: &str) -> Self {
        Self::new(Method::GET, authority, path)
    }

    /// A POST class.
    #[must_use]
    pub fn post(authority: &str, path: &str, body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), ..Self::new(Method::POST, authority, path) }
    }

    /// The same class with another name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// The same class with this weight.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// The same class with one more header.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.append(name, value);
        self
    }

    /// The same class, each request with its id in this idempotency key header.
    #[must_use]
    pub fn idempotency_key(mut self, header: HeaderName) -> Self {
        self.idempotency_key = Some(header);
        self
    }

    /// May a request of this class be executed more than once? By method (RFC 9110 section 9.2.2) or
    /// by idempotency key.
    #[must_use]
    pub fn idempotent(&self) -> bool {
        self.method.is_idempotent() || self.idempotency_key.is_some()
    }

    /// The request with this id.
    pub(super) fn request(&self, id: &str, protocol: Protocol) -> anyhow::Result<Request<Full<Bytes>>> {
        let uri = match protocol {
            Protocol::Http1 => Uri::builder().path_and_query(self.path.as_str()).build(),
            Protocol::Http2 => Uri::builder()
                .scheme("http")
                .authority(self.authority.as_str())
                .path_and_query(self.path.as_str())
                .build(),
        }
        .with_context(|| format!("class {}: authority or path", self.name))?;
        let id = HeaderValue::from_str(id).with_context(|| format!("request id {id:?}"))?;

        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = self.headers.clone();
        if protocol == Protocol::Http1 {
            let host =
                HeaderValue::from_str(&self.authority).with_context(|| format!("class {}: authority", self.name))?;
            request.headers_mut().insert(HOST, host);
        }
        if let Some(key) = &self.idempotency_key {
            request.headers_mut().insert(key.clone(), id.clone());
        }
        request.headers_mut().insert(REQUEST_ID, id);
        Ok(request)
    }
}

// === impl AnswerHeaders ===

impl Default for AnswerHeaders {
    fn default() -> Self {
        Self {
            pod: HeaderName::from_static("x-pod"),
            attempts: HeaderName::from_static("x-envoy-attempt-count"),
            flags: HeaderName::from_static("x-response-flags"),
            details: HeaderName::from_static("x-response-code-details"),
        }
    }
}

// === impl Plan ===

impl Plan {
    /// HTTP/1.1 at a fixed rate over 16 connections, 15 s timeout, until stopped (at most a million
    /// requests).
    #[must_use]
    pub fn new(id_prefix: &str, rate: f64, classes: Vec<RequestClass>) -> Self {
        Self {
            id_prefix: id_prefix.to_owned(),
            rate,
            arrivals: Arrivals::Fixed,
            classes,
            connections: 16,
            protocol: Protocol::Http1,
            timeout: Duration::from_secs(15),
            max_requests: 1_000_000,
            max_outstanding: 10_000,
            answer_headers: AnswerHeaders::default(),
        }
    }

    /// The id of the `number`th request.
    ///
    /// Never 36 characters long: Envoy's UUID request id extension takes an id of that length for a
    /// UUID and may write the trace reason into it.
    pub(super) fn id(&self, class: &RequestClass, number: u64) -> String {
        let id = format!("{}-{}-{number:06}", self.id_prefix, class.name);
        if id.len() == 36 { format!("{id}-") } else { id }
    }

    /// Fails on a plan that cannot run, before any connection is made.
    pub(super) fn validate(&self) -> anyhow::Result<()> {
        ensure!(self.rate.is_finite() && self.rate > 0.0, "rate is {}; it must be above zero", self.rate);
        ensure!(self.connections > 0, "connections is 0; at least one is needed");
        ensure!(self.classes.iter().any(|class| class.weight > 0), "no request class with a weight above zero");
        for class in &self.classes {
            class.request(&self.id(class, 0), self.protocol)?;
        }
        Ok(())
    }
}
