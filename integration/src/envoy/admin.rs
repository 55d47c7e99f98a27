//! Envoy's admin endpoint, from inside the proxy's namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use crate::netns::Netns;

/// Bound on one request.
const REQUEST: Duration = Duration::from_secs(30);
/// Pause between two looks at a condition that Envoy does not announce.
const POLL: Duration = Duration::from_millis(20);

/// A client of one Envoy's admin endpoint.
#[derive(Clone, Debug)]
pub struct Admin {
    netns: Netns,
    addr: SocketAddr,
}

// === impl Admin ===

impl Admin {
    pub(super) fn new(netns: Netns, addr: SocketAddr) -> Self {
        Self { netns, addr }
    }

    /// The body of a successful GET.
    ///
    /// # Errors
    /// If Envoy cannot be reached, or answers with anything but 200.
    pub async fn get(&self, path: &str) -> Result<String> {
        self.expect_ok(Method::GET, path).await
    }

    /// The body of a successful POST.
    ///
    /// # Errors
    /// If Envoy cannot be reached, or answers with anything but 200.
    pub async fn post(&self, path: &str) -> Result<String> {
        self.expect_ok(Method::POST, path).await
    }

    /// Status and body, whatever the status.
    ///
    /// # Errors
    /// If Envoy cannot be reached.
    pub async fn request(&self, method: Method, path: &str) -> Result<(StatusCode, String)> {
        let exchange = async {
            let socket = self.netns.tcp_connect(self.addr).await?;
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
            // Ends when the sender and the body are gone.
            tokio::spawn(connection);
            let request = Request::builder()
                .method(method.clone())
                .uri(path)
                .header(http::header::HOST, self.addr.to_string())
                .body(Empty::<Bytes>::new())?;
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            anyhow::Ok((status, String::from_utf8_lossy(&body).into_owned()))
        };
        match timeout(REQUEST, exchange).await {
            Ok(result) => result.with_context(|| format!("admin {method} {path}")),
            Err(_) => bail!("admin {method} {path}: no answer within {REQUEST:?}"),
        }
    }

    async fn expect_ok(&self, method: Method, path: &str) -> Result<String> {
        let (status, body) = self.request(method.clone(), path).await?;
        ensure!(status == StatusCode::OK, "admin {method} {path} answered {status}: {body}");
        Ok(body)
    }

    // --- stats ---

    /// A counter's or gauge's value; 0 if Envoy does not have it (many are made at first use).
    ///
    /// # Errors
    /// If Envoy cannot be reached.
    pub async fn stat(&self, name: &str) -> Result<u64> {
        Ok(self.try_stat(name).await?.unwrap_or(0))
    }

    /// A counter's or gauge's value, if Envoy has it.
    ///
    /// # Errors
    /// If Envoy cannot be reached.
    pub async fn try_stat(&self, name: &str) -> Result<Option<u64>> {
        // RE2 takes what is between \Q and \E literally.
        let stats = self.stats(&format!(r"^\Q{name}\E$")).await?;
        Ok(stats.get(name).copied())
    }

    /// All counters and gauges whose name matches the regular expression (RE2).
    ///
    /// # Errors
    /// If Envoy cannot be reached, or does not accept the expression.
    pub async fn stats(&self, filter: &str) -> Result<BTreeMap<String, u64>> {
        let filter = utf8_percent_encode(filter, NON_ALPHANUMERIC);
        let body = self.get(&format!("/stats?filter={filter}")).await?;
        let stats = body.lines().filter_map(|line| {
            let (name, value) = line.rsplit_once(": ")?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        Ok(stats.collect())
    }

    /// Waits until a stat (0 if Envoy does not have it) meets the condition, and returns it.
    ///
    /// # Errors
    /// `within` is over: the message has the last value.
    pub async fn wait_for_stat(&self, name: &str, within: Duration, wanted: impl Fn(u64) -> bool) -> Result<u64> {
        let found = self.wait(within, async || {
            let value = self.stat(name).await?;
            Ok(wanted(value).then_some(value).ok_or(value))
        });
        found.await.with_context(|| format!("wait for stat {name}"))
    }

    // --- clusters and listeners ---

    /// `/clusters?format=json`.
    ///
    /// # Errors
    /// If Envoy cannot be reached.
    pub async fn clusters_json(&self) -> Result<Value> {
        let body = self.get("/clusters?format=json").await?;
        serde_json::from_str(&body).context("/clusters is no JSON")
    }

    /// The names of all clusters.
    ///
    /// # Errors
    /// If Envoy cannot be reached.
    pub async fn cluster_names(&self) -> Result<BTreeSet<String>> {
        let clusters = self.clusters_json().await?;
        let names = entries(&clusters, "/cluster_statuses").filter_map(|cluster| text(cluster, "/name"));
        Ok(names.collect())
    }

    /// The addresses (`ip:port`) of a cluster's endpoints, tunnel endpoints by their `endpoint_id`; empty if
    /// Envoy does not know the cluster.
    ///
    /// # Errors
    /// If Envoy cannot be reached.
    pub async fn endpoints(&self, cluster: &str) -> Result<BTreeSet<String>> {
        let clusters = self.clusters_json().await?;
        let cluster =
            entries(&clusters, "/cluster_statuses").find(|entry| text(entry, "/name").as_deref() == Some(cluster));
        let hosts = cluster.into_iter().flat_map(|cluster| entries(cluster, "/host_statuses"));
        let addresses = hosts.filter_map(|host| {
            text(host, "/address/envoy_internal_address/endpoint_id").or_else(|| {
                let ip = text(host, "/address/socket_address/address")?;
                let port = host.pointer("/address/socket_address/port_value")?.as_u64()?;
                Some(format!("{ip}:{port}"))
            })
        });
        Ok(addresses.collect())
    }

    /// Waits until a cluster has exactly these endpoints, in Envoy's main thread.
    ///
    /// # Errors
    /// `within` is over: the message has the last set.
    pub async fn wait_for_endpoints(&self, cluster: &str, within: Duration, wanted: &[SocketAddr]) -> Result<()> {
        let wanted: BTreeSet<String> = wanted.iter().map(ToString::to_string).collect();
        let found = self.wait(within, async || {
            let endpoints = self.endpoints(cluster).await?;
            Ok((endpoints == wanted).then_some(()).ok_or(endpoints))
        });
        found.await.with_context(|| format!("wait for the endpoints of {cluster} to be {wanted:?}"))
    }

    /// Where a listener listens, with the port that it really has.
    ///
    /// # Errors
    /// If there is no such listener, or it is not open yet.
    pub async fn listener(&self, name: &str) -> Result<SocketAddr> {
        let body = self.get("/listeners?format=json").await?;
        let listeners: Value = serde_json::from_str(&body).context("/listeners is no JSON")?;
        let listener =
            entries(&listeners, "/listener_statuses").find(|entry| text(entry, "/name").as_deref() == Some(name));
        let listener = listener.with_context(|| format!("no listener {name}"))?;
        let place = listener.pointer("/local_address/socket_address").context("it has no socket address")?;
        let ip = text(place, "/address").context("no address")?;
        let port = place.get("port_value").and_then(Value::as_u64).context("no port")?;
        Ok(SocketAddr::new(ip.parse()?, u16::try_from(port)?))
    }

    /// Looks again and again until the look is `Ok(Ok(_))`; `Ok(Err(_))` is what it saw instead.
    pub(super) async fn wait<T, S: std::fmt::Debug>(
        &self,
        within: Duration,
        look: impl AsyncFn() -> Result<Result<T, S>>,
    ) -> Result<T> {
        let deadline = Instant::now() + within;
        loop {
            match look().await? {
                Ok(found) => return Ok(found),
                Err(seen) if Instant::now() >= deadline => bail!("not within {within:?}; last seen: {seen:?}"),
                Err(_) => sleep(POLL).await,
            }
        }
    }
}

fn entries<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    value.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

fn text(value: &Value, pointer: &str) -> Option<String> {
    value.pointer(pointer).and_then(Value::as_str).map(str::to_owned)
}
