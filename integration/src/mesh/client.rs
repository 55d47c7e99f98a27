//! A client of the waypoint.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::waypoint::{Mesh, WITHIN};
use crate::load::{Connector, connector};

/// One request's answer as its client saw it.
#[derive(Debug)]
pub struct Reply {
    /// The id the request carried.
    pub id: String,
    /// The status.
    pub status: StatusCode,
    /// The answer's headers.
    pub headers: HeaderMap,
    /// The answer's body, as far as it came.
    pub body: Bytes,
    /// Whether the body broke off.
    pub broken: bool,
    /// Time from sending to the end of the body.
    pub took: Duration,
}

// === impl Mesh ===

impl Mesh {
    /// The address of the waypoint's listener, inside the proxy's namespace.
    #[must_use]
    pub fn listener(&self) -> SocketAddr {
        self.listener
    }

    /// Opens connections to the waypoint.
    #[must_use]
    pub fn connector(&self) -> Connector {
        let (netns, listener) = (self.envoy.netns().clone(), self.listener);
        connector(move || {
            let netns = netns.clone();
            async move { netns.tcp_connect(listener).await }
        })
    }

    /// A request without a body; see [`Mesh::send`].
    ///
    /// # Errors
    /// No answer came.
    pub async fn get(&self, host: &str, path: &str) -> Result<Reply> {
        self.send(self.request(Method::GET, host, path).body(Bytes::new())?).await
    }

    /// A POST with a small body; see [`Mesh::send`].
    ///
    /// # Errors
    /// No answer came.
    pub async fn post(&self, host: &str, path: &str) -> Result<Reply> {
        self.send(self.request(Method::POST, host, path).body(Bytes::from_static(b"one order"))?).await
    }

    /// The beginning of a request with an id of its own.
    #[must_use]
    pub fn request(&self, method: Method, host: &str, path: &str) -> http::request::Builder {
        let id = format!("{}-{}", method.as_str().to_lowercase(), self.next_id.fetch_add(1, Ordering::Relaxed));
        Request::builder().method(method).uri(path).header("host", host).header("x-request-id", id)
    }

    /// Sends a request on a connection of its own and reads the whole answer.
    ///
    /// # Errors
    /// No answer came.
    pub async fn send(&self, request: Request<Bytes>) -> Result<Reply> {
        let start = Instant::now();
        let id = request.headers().get("x-request-id").and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned();
        let socket = self.envoy.netns().tcp_connect(self.listener).await.context("connect to the waypoint")?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
        let driver = tokio::spawn(connection);
        let exchange = async {
            let (head, mut body) = sender.send_request(request.map(Full::new)).await?.into_parts();
            let (mut bytes, mut broken) = (Vec::new(), false);
            while let Some(frame) = body.frame().await {
                match frame {
                    Ok(frame) => bytes.extend(frame.into_data().unwrap_or_default()),
                    Err(_) => {
                        broken = true;
                        break;
                    }
                }
            }
            anyhow::Ok((head, bytes, broken))
        };
        let answer = tokio::time::timeout(2 * WITHIN, exchange).await;
        driver.abort();
        let (head, body, broken) = answer.with_context(|| format!("request {id} hangs"))??;
        Ok(Reply { id, status: head.status, headers: head.headers, body: body.into(), broken, took: start.elapsed() })
    }
}

// === impl Reply ===

impl Reply {
    /// The pod that answered.
    #[must_use]
    pub fn pod(&self) -> Option<&str> {
        self.header("x-pod")
    }

    /// Attempts that Envoy made.
    #[must_use]
    pub fn attempts(&self) -> Option<u32> {
        self.header("x-envoy-attempt-count")?.parse().ok()
    }

    /// A header of the answer.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}
