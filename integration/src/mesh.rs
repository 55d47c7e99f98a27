//! The whole lab put together: services with pods, a waypoint in front, a client of it.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tempfile::TempDir;

use crate::{
    bootstrap::{Bootstrap, CertificateFiles, Variant},
    certs::{Authority, spiffe_id},
    control_plane::{ControlPlane, Endpoint, Params, Protocol, Service, cluster_name},
    envoy::{Envoy, Options},
    load::{Connector, connector},
    netns::{Fabric, Link, Netns},
    pod::{Pod, PodSpec},
};

/// The service that most scenes need.
pub const ECHO: &str = "echo.default.svc.cluster.local";

/// Bound on everything that is waited for.
pub const WITHIN: Duration = Duration::from_secs(30);

/// A change to the bootstrap beyond its variant.
type Customise = Box<dyn FnOnce(Bootstrap) -> Result<Bootstrap> + Send>;

/// What a mesh is started with.
pub struct Setup {
    variant: Variant,
    protocol: Protocol,
    params: Params,
    options: Options,
    hosts: Vec<String>,
    customise: Vec<Customise>,
}

/// A waypoint, its control plane, and the network that pods join. Everything ends with it.
pub struct Mesh {
    /// The control plane; its changes are pushed at once unless the setup says otherwise.
    pub control_plane: ControlPlane,
    /// The waypoint.
    pub envoy: Envoy,
    /// The network.
    pub fabric: Fabric,
    /// The mesh's certificate authority.
    pub authority: Authority,
    listener: SocketAddr,
    next_id: AtomicUsize,
    bootstrap: Bootstrap,
    options: Options,
    _link: Link,
    _folder: TempDir,
}

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

// === impl Setup ===

impl Setup {
    /// The shipped configuration in one of its variants, one worker, delta protocol, no debounce,
    /// one service ([`ECHO`]).
    #[must_use]
    pub fn new(variant: Variant) -> Self {
        Self {
            variant,
            protocol: Protocol::Delta,
            params: Params::immediate(),
            options: Options::default(),
            hosts: vec![ECHO.to_owned()],
            customise: Vec::new(),
        }
    }

    /// Worker threads.
    #[must_use]
    pub fn workers(mut self, workers: u32) -> Self {
        self.options.workers = workers;
        self
    }

    /// State of the world or delta.
    #[must_use]
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = protocol;
        self
    }

    /// The control plane's behaviour.
    #[must_use]
    pub fn params(mut self, params: Params) -> Self {
        self.params = params;
        self
    }

    /// The services, by host name.
    #[must_use]
    pub fn services(mut self, hosts: &[&str]) -> Self {
        self.hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        self
    }

    /// How Envoy is run.
    #[must_use]
    pub fn envoy(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self
    }

    /// A further change to the bootstrap.
    #[must_use]
    pub fn bootstrap(mut self, change: impl FnOnce(Bootstrap) -> Result<Bootstrap> + Send + 'static) -> Self {
        self.customise.push(Box::new(change));
        self
    }

    /// Starts everything but pods.
    ///
    /// # Errors
    /// Something is missing or refused; Envoy's log is part of the error.
    pub async fn start(self) -> Result<Mesh> {
        let fabric = Fabric::new().await?;
        let proxy = Netns::new("proxy")?;
        let addrs = [IpAddr::V4(Ipv4Addr::new(10, 244, 0, 2)), IpAddr::from([0xfd00, 0x244, 0, 0, 0, 0, 0, 2])];
        let link = fabric.attach(&proxy, &addrs).await?;
        let authority = Authority::new()?;
        let control_plane = ControlPlane::start(&proxy, self.params).await?;
        for host in &self.hosts {
            control_plane.set_service(Service::new(host, Vec::new()));
        }
        let folder = tempfile::tempdir()?;
        let identity = authority.issue(&spiffe_id("default", "waypoint"))?;
        let files = CertificateFiles::write(folder.path(), &identity.cert_pem, &identity.key_pem, authority.ca_pem())?;
        let hosts: Vec<&str> = self.hosts.iter().map(String::as_str).collect();
        let bootstrap = Bootstrap::load()?
            .variant(self.variant)?
            .with_services(&hosts)?
            .with_ads(control_plane.addr(), self.protocol)?
            .with_certificates(&files)?
            .with_answer_headers()?;
        let bootstrap = self.customise.into_iter().try_fold(bootstrap, |bootstrap, change| change(bootstrap))?;
        let envoy = Envoy::start_ready(&proxy, &bootstrap, &self.options, WITHIN).await?;
        control_plane.wait_acked(control_plane.version(), WITHIN).await?;
        let listener = (Ipv4Addr::LOCALHOST, envoy.admin().listener("service").await?.port()).into();
        Ok(Mesh {
            control_plane,
            envoy,
            fabric,
            authority,
            listener,
            next_id: AtomicUsize::new(0),
            bootstrap,
            options: self.options,
            _link: link,
            _folder: folder,
        })
    }
}

// === impl Mesh ===

impl Mesh {
    /// A pod on `10.244.1.<octet>`. EDS does not list it yet.
    ///
    /// # Errors
    /// The namespace could not be made.
    pub async fn pod(&self, name: &str, octet: u8) -> Result<Pod> {
        self.pod_with(PodSpec::new(name, IpAddr::V4(Ipv4Addr::new(10, 244, 1, octet)))).await
    }

    /// A pod as specified. EDS does not list it yet.
    ///
    /// # Errors
    /// The namespace could not be made.
    pub async fn pod_with(&self, spec: PodSpec) -> Result<Pod> {
        Pod::start(&self.fabric, &self.authority, spec).await
    }

    /// Ends the waypoint and starts it again, with the same configuration and control plane.
    ///
    /// # Errors
    /// It does not end, or does not start.
    pub async fn restart_envoy(&mut self) -> Result<()> {
        self.envoy.quit(WITHIN).await?;
        self.control_plane.wait_connected(0, WITHIN).await?;
        let netns = self.envoy.netns().clone();
        self.envoy = Envoy::start_ready(&netns, &self.bootstrap, &self.options, WITHIN).await?;
        self.acked().await?;
        self.listener = (Ipv4Addr::LOCALHOST, self.envoy.admin().listener("service").await?.port()).into();
        Ok(())
    }

    /// Starts the waypoint's successor beside it, as a hot restart does; gives back the predecessor, which
    /// ends by itself. The setup must have chosen a base id.
    ///
    /// # Errors
    /// It does not start.
    pub async fn hot_restart_envoy(&mut self) -> Result<Envoy> {
        let (base, epoch) = self.options.hot_restart.context("no base id was chosen")?;
        self.options.hot_restart = Some((base, epoch + 1));
        let netns = self.envoy.netns().clone();
        let successor = Envoy::start(&netns, &self.bootstrap, &self.options)?;
        // Until the successor takes the admin endpoint over, its predecessor answers.
        let deadline = Instant::now() + WITHIN;
        while successor.admin().stat("server.hot_restart_epoch").await.ok() != Some(u64::from(epoch) + 1) {
            successor.assert_alive()?;
            if Instant::now() > deadline {
                bail!("the successor does not take over: {}", successor.log_tail());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        successor.wait_ready(WITHIN).await?;
        let predecessor = std::mem::replace(&mut self.envoy, successor);
        self.acked().await?;
        self.listener = (Ipv4Addr::LOCALHOST, self.envoy.admin().listener("service").await?.port()).into();
        Ok(predecessor)
    }

    /// EDS lists the pod's address under `host`; returns once Envoy has acknowledged it.
    ///
    /// # Errors
    /// Envoy did not.
    pub async fn list(&self, host: &str, pod: SocketAddr) -> Result<()> {
        self.control_plane.add_endpoint(&cluster_name(host, 80), Endpoint::new(pod.ip(), pod.port()))?;
        self.acked().await
    }

    /// EDS lists the pod's address under `host` no longer; returns once Envoy has acknowledged it and
    /// its workers have closed the service's idle connections to it.
    ///
    /// # Errors
    /// Envoy did not.
    pub async fn unlist(&self, host: &str, pod: SocketAddr) -> Result<()> {
        self.control_plane.remove_endpoint(&cluster_name(host, 80), pod)?;
        self.acked().await
    }

    /// Envoy has acknowledged everything that was pushed.
    ///
    /// # Errors
    /// It did not, or it refused something.
    pub async fn acked(&self) -> Result<()> {
        self.control_plane.wait_acked(self.control_plane.version(), WITHIN).await
    }

    /// No connection of `host`'s cluster to its endpoints is left: the workers have applied a removal.
    ///
    /// # Errors
    /// Some are left.
    pub async fn drained(&self, host: &str) -> Result<()> {
        let stat = format!("cluster.{}.upstream_cx_active", cluster_name(host, 80));
        self.envoy.admin().wait_for_stat(&stat, WITHIN, |active| active == 0).await?;
        Ok(())
    }

    /// A counter or gauge of the module's, by its name without the prefix; 0 where it was not touched.
    ///
    /// # Errors
    /// The admin endpoint did not answer.
    pub async fn stat(&self, name: &str) -> Result<u64> {
        Ok(self.envoy.admin().try_stat(&module_stat(name)).await?.unwrap_or(0))
    }

    /// Waits until a counter or gauge of the module's is as wanted.
    ///
    /// # Errors
    /// It did not become so.
    pub async fn wait_stat(&self, name: &str, wanted: impl Fn(u64) -> bool) -> Result<u64> {
        let deadline = Instant::now() + WITHIN;
        loop {
            let value = self.stat(name).await?;
            if wanted(value) {
                return Ok(value);
            }
            if Instant::now() > deadline {
                bail!("{name} is {value}, which is not what was waited for");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

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

// === impl Bootstrap ===

impl Bootstrap {
    /// Has every answer, also Envoy's own, tell its client what the access log tells the operator:
    /// the number of attempts, the response flags, the details and the last endpoint.
    ///
    /// # Errors
    /// If the file has lost its place.
    pub fn with_answer_headers(self) -> Result<Self> {
        let host = format!("{}/typed_config/route_config/virtual_hosts/0", self.hcm()?);
        let header = |name: &str, value: &str| json!({ "header": { "key": name, "value": value } });
        self.patch(&format!("{host}/include_attempt_count_in_response"), json!(true))?.patch(
            &format!("{host}/response_headers_to_add"),
            json!([
                header("x-response-flags", "%RESPONSE_FLAGS%"),
                header("x-custom-flags", "%CUSTOM_FLAGS%"),
                header("x-upstream-host", "%UPSTREAM_HOST%"),
                header("x-response-code-details", "%RESPONSE_CODE_DETAILS%"),
            ]),
        )
    }
}

fn module_stat(name: &str) -> String {
    format!("dynamicmodulescustom.{name}")
}
