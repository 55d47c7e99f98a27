//! The client in front of the waypoint.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::IstioMesh;
use crate::load::{Connector, connector};

/// Bound on one request.
const WITHIN: Duration = Duration::from_secs(60);

/// One request's answer as its client saw it.
#[derive(Debug)]
pub struct Reply {
    /// The id that the request carried.
    pub id: String,
    /// The status.
    pub status: StatusCode,
    /// The answer's headers.
    pub headers: HeaderMap,
    /// The answer's body.
    pub body: Bytes,
    /// Time from sending to the end of the body.
    pub took: Duration,
}

// === impl IstioMesh ===

impl IstioMesh {
    /// Opens connections to a service, as its client does.
    ///
    /// # Errors
    /// The service was not made reachable.
    pub fn connector(&self, service: &str) -> Result<Connector> {
        let (client, addr) = (self.client.clone(), self.outbound(service)?);
        Ok(connector(move || {
            let client = client.clone();
            async move { client.tcp_connect(addr).await }
        }))
    }

    /// A GET; see [`Self::send`].
    ///
    /// # Errors
    /// No answer came.
    pub async fn get(&self, service: &str, path: &str) -> Result<Reply> {
        self.send(service, self.request(Method::GET, path).body(Bytes::new())?).await
    }

    /// A POST with a small body; see [`Self::send`].
    ///
    /// # Errors
    /// No answer came.
    pub async fn post(&self, service: &str, path: &str) -> Result<Reply> {
        self.send(service, self.request(Method::POST, path).body(Bytes::from_static(b"one order"))?).await
    }

    /// The beginning of a request with an id of its own.
    #[must_use]
    pub fn request(&self, method: Method, path: &str) -> http::request::Builder {
        let id = format!("{}-{}", method.as_str().to_lowercase(), self.next_id.fetch_add(1, Ordering::Relaxed));
        Request::builder().method(method).uri(path).header("x-request-id", id)
    }

    /// Sends a request on a connection of its own, through the client's ztunnel, and reads the whole answer.
    ///
    /// # Errors
    /// No answer came.
    pub async fn send(&self, service: &str, mut request: Request<Bytes>) -> Result<Reply> {
        let start = Instant::now();
        if !request.headers().contains_key("host") {
            request.headers_mut().insert("host", format!("{service}.default.svc.cluster.local").parse()?);
        }
        let id = request.headers().get("x-request-id").and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned();
        let exchange = async {
            let socket = self.client.tcp_connect(self.outbound(service)?).await.context("connect to the ztunnel")?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
            tokio::spawn(connection);
            let (head, body) = sender.send_request(request.map(Full::new)).await?.into_parts();
            anyhow::Ok((head, body.collect().await?.to_bytes()))
        };
        let answer = tokio::time::timeout(WITHIN, exchange).await;
        let (head, body) = answer.with_context(|| format!("request {id} hangs"))??;
        Ok(Reply { id, status: head.status, headers: head.headers, body, took: start.elapsed() })
    }

    fn outbound(&self, service: &str) -> Result<SocketAddr> {
        let outbound = self.outbounds.get(service).with_context(|| format!("{service} is not reachable"))?;
        Ok(outbound.addr())
    }
}

// === impl Reply ===

impl Reply {
    /// The pod that answered.
    #[must_use]
    pub fn pod(&self) -> Option<&str> {
        self.headers.get("x-pod")?.to_str().ok()
    }
}
