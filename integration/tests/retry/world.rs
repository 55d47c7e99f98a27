//! Two pods behind a waypoint, reached by one transport.

use std::time::Instant;

use bytes::Bytes;
use http::Request;
use lab::{
    app::Script,
    bootstrap::Bootstrap,
    control_plane::{Endpoint, Service},
    mesh::{Mesh, Reply, Setup, WITHIN},
    pod::{Ending, Pod, PodSpec},
};

use super::{
    clients::{send2, upgrade},
    kinds::{Fault, Kind, Transport},
    table::Seen,
};

/// The service whose endpoints speak HTTP/1.1.
pub const ONE: &str = "one.default.svc.cluster.local";
/// The service, on the same pods, whose endpoints speak HTTP/2.
pub const TWO: &str = "two.default.svc.cluster.local";

/// The world of one transport.
pub struct World {
    pub mesh: Mesh,
    pub transport: Transport,
    /// The pods share a script, so whichever is tried first meets what was queued.
    pub pods: [Pod; 2],
    pub script: Script,
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
                let (seen, _, id) = self.exchange(kind, host).await;
                // An answer to HEAD is complete before its connection breaks, which must not meet the next
                // request; over HTTP/1.1 the application has nothing left to break.
                if fault == Fault::ResetAfterHeaders && (http2 || kind != Kind::Head) {
                    self.broken_off(&id).await;
                }
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
            let (seen, upstream, _) = self.exchange(kind, host).await;
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

    async fn exchange(&self, kind: Kind, host: &str) -> (Seen, String, String) {
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
        (seen, text("x-upstream-host").to_owned(), id)
    }

    /// The connection on which a request was executed is closed.
    async fn broken_off(&self, id: &str) {
        for pod in &self.pods {
            let execution = pod.executions().with(|all| all.iter().find(|one| one.id == id).cloned());
            if let Some(execution) = execution {
                pod.app().unwrap().connections().wait_closed(execution.connection).await.unwrap();
            }
        }
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
