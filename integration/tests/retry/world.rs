//! Two pods behind a waypoint, reached by one transport, and the faults that a request's first attempt
//! can meet.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lab::{
    app::{Behaviour, Script},
    bootstrap::Bootstrap,
    control_plane::{Endpoint, Service},
    mesh::{Mesh, Reply, Setup, WITHIN},
    pod::{Ending, Pod, PodSpec},
};

use super::table::Seen;

/// The service whose endpoints speak HTTP/1.1.
pub const ONE: &str = "one.default.svc.cluster.local";
/// The service, on the same pods, whose endpoints speak HTTP/2.
pub const TWO: &str = "two.default.svc.cluster.local";

/// Names that the table uses.
pub trait Every: Copy + 'static {
    const EVERY: &'static [Self];
}

/// How Envoy reaches the endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    Http1,
    H2c,
    Hbone,
}

/// A request, by what decides whether it may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Get,
    Head,
    Options,
    Trace,
    Put,
    Delete,
    Post,
    Patch,
    PostWithKey,
    GrpcDeclared,
    GrpcNotDeclared,
    WebSocket,
}

/// What the first attempt meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    Refused,
    ResetOnArrival,
    ResetAfterRead,
    FinCrossing,
    ResetAfterHeaders,
    RefusedStream,
    GoAwayBelow,
}

/// The world of one transport.
pub struct World {
    pub mesh: Mesh,
    pub transport: Transport,
    /// The pods share a script, so whichever is tried first meets what was queued.
    pub pods: [Pod; 2],
    pub script: Script,
}

/// An answer over HTTP/2.
pub struct Reply2 {
    pub id: String,
    pub status: u16,
    pub headers: HeaderMap,
    pub trailers: HeaderMap,
    pub broken: bool,
}

// === impl Transport ===

impl Transport {
    pub fn name(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1.1",
            Self::H2c => "h2c",
            Self::Hbone => "HBONE",
        }
    }
}

impl Every for Transport {
    const EVERY: &'static [Self] = &[Self::Http1, Self::H2c, Self::Hbone];
}

// === impl Kind ===

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Options => "OPTIONS",
            Self::Trace => "TRACE",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Post => "POST",
            Self::Patch => "PATCH",
            Self::PostWithKey => "POST with key",
            Self::GrpcDeclared => "gRPC declared",
            Self::GrpcNotDeclared => "gRPC not declared",
            Self::WebSocket => "WebSocket",
        }
    }

    fn is_grpc(self) -> bool {
        matches!(self, Self::GrpcDeclared | Self::GrpcNotDeclared)
    }

    fn method(self) -> Method {
        match self {
            Self::Get | Self::WebSocket => Method::GET,
            Self::Head => Method::HEAD,
            Self::Options => Method::OPTIONS,
            Self::Trace => Method::TRACE,
            Self::Put => Method::PUT,
            Self::Delete => Method::DELETE,
            Self::Post | Self::PostWithKey | Self::GrpcDeclared | Self::GrpcNotDeclared => Method::POST,
            Self::Patch => Method::PATCH,
        }
    }

    fn request(self, mesh: &Mesh, host: &str) -> Request<Bytes> {
        let path = match self {
            Self::GrpcDeclared => "/shop.Catalog/GetItem",
            Self::GrpcNotDeclared => "/shop.Orders/Place",
            _ => "/thing",
        };
        let builder = mesh.request(self.method(), host, path);
        let builder = match self {
            Self::PostWithKey => builder.header("idempotency-key", "\"one-key\""),
            Self::GrpcDeclared | Self::GrpcNotDeclared => {
                builder.header("content-type", "application/grpc").header("te", "trailers")
            }
            Self::WebSocket => builder
                .header("connection", "upgrade")
                .header("upgrade", "websocket")
                .header("sec-websocket-version", "13")
                .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            _ => builder,
        };
        let body = match self {
            Self::Put | Self::Post | Self::PostWithKey | Self::Patch => Bytes::from_static(b"one order"),
            // One empty message: not compressed, no bytes.
            Self::GrpcDeclared | Self::GrpcNotDeclared => Bytes::from_static(&[0; 5]),
            _ => Bytes::new(),
        };
        builder.body(body).expect("request")
    }
}

impl Every for Kind {
    const EVERY: &'static [Self] = &[
        Self::Get,
        Self::Head,
        Self::Options,
        Self::Trace,
        Self::Put,
        Self::Delete,
        Self::Post,
        Self::Patch,
        Self::PostWithKey,
        Self::GrpcDeclared,
        Self::GrpcNotDeclared,
        Self::WebSocket,
    ];
}

// === impl Fault ===

impl Fault {
    pub fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::ResetOnArrival => "RST before the request is read",
            Self::ResetAfterRead => "RST after it is read",
            Self::FinCrossing => "FIN crossing",
            Self::ResetAfterHeaders => "RST after response headers",
            Self::RefusedStream => "REFUSED_STREAM",
            Self::GoAwayBelow => "GOAWAY below the stream",
        }
    }

    fn behaviour(self) -> Option<Behaviour> {
        match self {
            Self::Refused => None,
            Self::ResetOnArrival => Some(Behaviour::ResetOnArrival),
            Self::ResetAfterRead => Some(Behaviour::ReadThenReset),
            Self::FinCrossing => Some(Behaviour::FinCrossing),
            Self::ResetAfterHeaders => Some(Behaviour::HeadersThenReset),
            Self::RefusedStream => Some(Behaviour::RefuseStream),
            Self::GoAwayBelow => Some(Behaviour::GoAwayBelow),
        }
    }

    fn needs_http2(self) -> bool {
        matches!(self, Self::RefusedStream | Self::GoAwayBelow)
    }
}

impl Every for Fault {
    const EVERY: &'static [Self] = &[
        Self::Refused,
        Self::ResetOnArrival,
        Self::ResetAfterRead,
        Self::FinCrossing,
        Self::ResetAfterHeaders,
        Self::RefusedStream,
        Self::GoAwayBelow,
    ];
}

// === impl World ===

impl World {
    /// Two pods, listed under [`ONE`] and [`TWO`], which share a script.
    pub async fn start(setup: Setup, transport: Transport) -> World {
        let script = Script::default();
        Self::with(setup, transport, [script.clone(), script], |service| service).await
    }

    /// The same, each pod with a script of its own; `script` is the first one's.
    pub async fn apart(setup: Setup, transport: Transport) -> World {
        Self::with(setup, transport, [Script::default(), Script::default()], |service| service).await
    }

    /// As [`World::apart`], with a change to the bootstrap after its routes were made.
    pub async fn apart_with(
        setup: Setup,
        transport: Transport,
        change: impl FnOnce(Bootstrap) -> anyhow::Result<Bootstrap> + Send + 'static,
    ) -> World {
        let setup = setup.bootstrap(|bootstrap| bootstrap.with_services(&[ONE, TWO])).bootstrap(change);
        Self::routed(setup, transport, [Script::default(), Script::default()], |service| service).await
    }

    /// The same, with a change to both services.
    pub async fn with(
        setup: Setup,
        transport: Transport,
        scripts: [Script; 2],
        change: impl Fn(Service) -> Service,
    ) -> World {
        let setup = setup.bootstrap(|bootstrap| bootstrap.with_services(&[ONE, TWO]));
        Self::routed(setup, transport, scripts, change).await
    }

    async fn routed(
        setup: Setup,
        transport: Transport,
        scripts: [Script; 2],
        change: impl Fn(Service) -> Service,
    ) -> World {
        let mesh = setup.start().await.unwrap();
        let [first, second] = scripts;
        let pod = |name: &str, octet: u8, script: &Script| PodSpec {
            script: Some(script.clone()),
            keep_headers: true,
            ..PodSpec::new(name, std::net::IpAddr::from([10, 244, 1, octet]))
        };
        let pods =
            [mesh.pod_with(pod("a", 1, &first)).await.unwrap(), mesh.pod_with(pod("b", 2, &second)).await.unwrap()];
        let endpoints = || {
            let all = pods.iter().map(|pod| Endpoint::new(pod.ip(), pod.addr().port()));
            all.map(|endpoint| if transport == Transport::Hbone { endpoint } else { endpoint.plain() }).collect()
        };
        mesh.control_plane.set_service(change(Service::new(ONE, endpoints())));
        mesh.control_plane.set_service(change(Service::new(TWO, endpoints()).http2()));
        mesh.acked().await.unwrap();
        World { mesh, transport, pods, script: first }
    }

    /// Sends a request whose first attempt meets the fault.
    pub async fn meet(&self, kind: Kind, fault: Fault) -> Seen {
        let http2 = self.transport == Transport::H2c || kind.is_grpc() || fault.needs_http2();
        let host = if http2 { TWO } else { ONE };
        match fault.behaviour() {
            Some(behaviour) => {
                self.warm(host).await;
                self.script.next(1, behaviour);
                let seen = self.exchange(kind, host).await.0;
                assert!(self.script.is_done(), "{kind:?} on {:?} did not meet {fault:?}", self.transport);
                seen
            }
            None => self.meet_refusal(kind, host).await,
        }
    }

    /// Every endpoint has an idle connection, as in service.
    pub async fn warm(&self, host: &str) {
        let mut warm = [false; 2];
        let deadline = Instant::now() + WITHIN;
        while warm != [true; 2] {
            assert!(Instant::now() < deadline, "{host} does not answer from both pods");
            let reply = self.mesh.get(host, "/warm").await.unwrap();
            for (pod, warm) in self.pods.iter().zip(&mut warm) {
                *warm |= reply.pod() == Some(pod.name());
            }
        }
    }

    /// The first pod refuses connections, and has none. Requests go round both: one of two meets it.
    async fn meet_refusal(&self, kind: Kind, host: &str) -> Seen {
        let [refusing, _] = &self.pods;
        let ip = refusing.ip().to_string();
        for _ in 0..6 {
            let (seen, upstream) = self.exchange(kind, host).await;
            if seen.attempts > 1 || upstream.contains(&ip) {
                return seen;
            }
        }
        panic!("six requests went round the pod that refuses");
    }

    /// The first pod refuses connections from now on, and has none.
    pub async fn refuse(&self) {
        let app = self.pods[0].app().unwrap();
        app.refuse().await;
        app.connections().end_all(Ending::Rst).await.unwrap();
    }

    /// Sends requests round the endpoints until one had its first attempt on the first pod, which means
    /// that it was retried or that it ended there.
    pub async fn first_on_first(&self, request: impl Fn() -> Request<Bytes>) -> Reply {
        let ip = self.pods[0].ip().to_string();
        for _ in 0..6 {
            let reply = self.mesh.send(request()).await.unwrap();
            let there = reply.header("x-upstream-host").is_some_and(|host| host.contains(&ip));
            if there || reply.attempts().is_some_and(|attempts| attempts > 1) {
                return reply;
            }
        }
        panic!("six requests went round the first pod");
    }

    /// How the access log tells of a request.
    pub async fn logged(&self, id: &str) -> serde_json::Value {
        self.mesh.envoy.wait_for_access_log(WITHIN, |entry| entry["request_id"] == id).await.unwrap()
    }

    /// A counter of the module's.
    pub async fn stat(&self, name: &str) -> u64 {
        self.mesh.stat(name).await.unwrap()
    }

    /// Undoes [`World::refuse`].
    pub fn listen(&self) {
        self.pods[0].app().unwrap().listen().unwrap();
    }

    async fn exchange(&self, kind: Kind, host: &str) -> (Seen, String) {
        let request = kind.request(&self.mesh, host);
        let (id, status, headers, broken) = if kind.is_grpc() {
            let reply = send2(&self.mesh, request).await;
            let code = reply.trailers.get("grpc-status").or(reply.headers.get("grpc-status"));
            let status = match code.and_then(|code| code.to_str().ok()) {
                Some(code) => format!("grpc {code}"),
                None => reply.status.to_string(),
            };
            (reply.id, status, reply.headers, reply.broken)
        } else if kind == Kind::WebSocket {
            upgrade(&self.mesh, request).await
        } else {
            let reply = self.mesh.send(request).await.unwrap();
            (reply.id, reply.status.as_str().to_owned(), reply.headers, reply.broken)
        };
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let seen = Seen {
            status: format!("{status}{}", if broken { "~" } else { "" }),
            executions: self.executed(&id).len(),
            attempts: text("x-envoy-attempt-count").parse().unwrap_or(0),
        };
        (seen, text("x-upstream-host").to_owned())
    }

    /// The pods that executed a request.
    pub fn executed(&self, id: &str) -> Vec<String> {
        let of = |pod: &Pod| vec![pod.name().to_owned(); pod.executed(id)];
        self.pods.iter().flat_map(of).collect()
    }

    /// No application has ever seen one of the headers that steer the router.
    pub fn assert_headers_stripped(&self) {
        for execution in self.pods.iter().flat_map(|pod| pod.executions().snapshot()) {
            let headers = execution.headers.expect("headers are kept");
            let steering = headers.keys().filter(|name| {
                let name = name.as_str();
                name.starts_with("x-envoy-retry") || name == "x-envoy-max-retries" || name.contains("per-try-timeout")
            });
            let steering: Vec<_> = steering.collect();
            assert!(steering.is_empty(), "{} reached the application with {steering:?}", execution.id);
        }
    }
}

/// Sends a request over HTTP/2 on a connection of its own.
pub async fn send2(mesh: &Mesh, request: Request<Bytes>) -> Reply2 {
    let id = request.headers()["x-request-id"].to_str().expect("id").to_owned();
    let (mut parts, body) = request.into_parts();
    let host = parts.headers.remove("host").expect("host");
    parts.uri = format!("http://{}{}", host.to_str().expect("host"), parts.uri).parse().expect("uri");
    let socket = mesh.envoy.netns().tcp_connect(mesh.listener()).await.expect("connect");
    let exchange = async {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.expect("handshake");
        let driver = tokio::spawn(connection);
        let answer = sender.send_request(Request::from_parts(parts, Full::new(body))).await;
        let answer = answer.unwrap_or_else(|error| panic!("{id} got no answer: {error:?}"));
        let (head, mut body) = answer.into_parts();
        let (mut trailers, mut broken) = (HeaderMap::new(), false);
        while let Some(frame) = body.frame().await {
            match frame.map(hyper::body::Frame::into_trailers) {
                Ok(Ok(got)) => trailers = got,
                Ok(Err(_)) => {}
                Err(_) => {
                    broken = true;
                    break;
                }
            }
        }
        driver.abort();
        Reply2 { id: id.clone(), status: head.status.as_u16(), headers: head.headers, trailers, broken }
    };
    tokio::time::timeout(WITHIN, exchange).await.unwrap_or_else(|_| panic!("{id} hangs"))
}

/// Asks for an upgrade; where it is granted, sends a few bytes and looks whether they come back.
async fn upgrade(mesh: &Mesh, request: Request<Bytes>) -> (String, String, HeaderMap, bool) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let id = request.headers()["x-request-id"].to_str().expect("id").to_owned();
    let socket = mesh.envoy.netns().tcp_connect(mesh.listener()).await.expect("connect");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.expect("handshake");
    let driver = tokio::spawn(connection.with_upgrades());
    let exchange = async {
        let mut answer = sender.send_request(request.map(Full::new)).await.expect("an answer");
        let (status, headers) = (answer.status(), answer.headers().clone());
        let mut broken = false;
        if status == 101 {
            let upgraded = hyper::upgrade::on(&mut answer).await.expect("upgraded");
            let mut upgraded = TokioIo::new(upgraded);
            let mut back = [0; 4];
            let echo = async {
                upgraded.write_all(b"ping").await?;
                upgraded.read_exact(&mut back).await
            };
            broken = echo.await.is_err() || &back != b"ping";
        }
        (id, status.as_str().to_owned(), headers, broken)
    };
    let seen = tokio::time::timeout(Duration::from_secs(30), exchange).await.expect("the upgrade hangs");
    driver.abort();
    seen
}
