//! What Kubernetes does to pods and services all day, through istiod as it is installed.

use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use lab::istio::objects::{self, Service};
use lab::istio::{Guard, IstioMesh};
use lab::load::{Load, Plan, Report, RequestClass};
use lab::pod::{Pod, PodSpec};

use crate::scenes::{Feed, broken, first, ip, tunnels_closed, warm};

/// The pod's end and its successor's beginning lie within one debounce: istiod pushes nothing that Envoy could
/// see, and nobody can know. What then happens, with and without us, is all there is to say.
#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_within_one_push_is_not_seen_and_only_the_get_is_repeated() {
    for (guard, method, expected) in [
        (Guard::Stock, Method::GET, StatusCode::SERVICE_UNAVAILABLE),
        (Guard::Stock, Method::POST, StatusCode::SERVICE_UNAVAILABLE),
        (Guard::Enforce, Method::GET, StatusCode::OK),
        // The proxy had a tunnel open and the request went into it: whether it was executed is unknowable.
        (Guard::Enforce, Method::POST, StatusCode::SERVICE_UNAVAILABLE),
    ] {
        let mesh = Feed::Polls139.setup(guard).start().await.unwrap();
        let (_new, reply) = merged(&mesh, method.clone(), None).await;
        assert_eq!(reply.status, expected, "{guard:?} {method}: {reply:?}");
        let next = mesh.post("echo", "/").await.unwrap();
        assert_eq!((next.status, next.pod()), (StatusCode::OK, Some("new")), "{guard:?} {method}: one request pays");
    }
}

/// The same where no tunnel was open: the first CONNECT meets the RST, and no byte of the application was sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_within_one_push_costs_a_post_nothing_where_no_tunnel_was_open() {
    for (guard, expected) in [(Guard::Stock, StatusCode::SERVICE_UNAVAILABLE), (Guard::Enforce, StatusCode::OK)] {
        let mesh = Feed::Polls139.setup(guard).start().await.unwrap();
        let (new, reply) = merged(&mesh, Method::POST, Some(Duration::from_millis(200))).await;
        assert_eq!(reply.status, expected, "{guard:?}: {reply:?}");
        assert_eq!(new.executed(&reply.id), usize::from(guard == Guard::Enforce), "{guard:?}: never twice");
        assert_eq!(broken(&mesh).await, 1, "{guard:?}: the dead connection was met");
    }
}

/// A readiness flap of a pod that lives on costs a handshake, and no request.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_not_ready_for_a_while_is_fenced_and_serves_again() {
    let mesh = Feed::Polls139.setup(Guard::Enforce).start().await.unwrap();
    let pod = warm(&mesh, "flapping").await;
    mesh.istiod.step("flapping", "unready").await.unwrap();
    mesh.health("echo", pod.addr(), "UNHEALTHY").await.unwrap();
    mesh.seen(pod.ip(), "gone", 1).await.unwrap();
    mesh.istiod.step("flapping", "ready").await.unwrap();
    mesh.health("echo", pod.addr(), "HEALTHY").await.unwrap();
    let reply = first(&mesh, Method::POST, "echo").await;
    assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
}

/// Scale to zero and back, on the same address: the service's listing becomes empty in between.
#[tokio::test(flavor = "multi_thread")]
async fn scaled_to_zero_and_back() {
    for (guard, expected) in [(Guard::Enforce, StatusCode::OK), (Guard::Stock, StatusCode::SERVICE_UNAVAILABLE)] {
        let mesh = Feed::Polls139.setup(guard).start().await.unwrap();
        let old = warm(&mesh, "old").await;
        end(&mesh, old, &[]).await;
        let none = mesh.post("echo", "/").await.unwrap();
        assert_eq!(none.body, "no healthy upstream", "{guard:?}: {none:?}");
        let _new = begin(&mesh, "new", "echo").await;
        let reply = first(&mesh, Method::POST, "echo").await;
        assert_eq!(reply.status, expected, "{guard:?}: {reply:?}");
    }
}

/// A service that is deleted and made again takes its cluster along (CDS), and its endpoints with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_deleted_and_made_again_with_its_pod_on_the_same_address() {
    for (guard, expected) in [(Guard::Enforce, StatusCode::OK), (Guard::Stock, StatusCode::SERVICE_UNAVAILABLE)] {
        let mesh = Feed::Polls139.setup(guard).start().await.unwrap();
        let old = warm(&mesh, "old").await;
        let echo = Service::new("echo", ip("10.96.1.1")).yaml();
        mesh.istiod.delete(&echo).await.unwrap();
        let cluster = lab::istio::inbound_cluster("echo", 80);
        mesh.eventually("the cluster is gone", async || {
            Ok(!mesh.envoy.admin().cluster_names().await?.contains(&cluster))
        })
        .await
        .unwrap();
        tunnels_closed(&old).await;
        mesh.seen(old.ip(), "gone", 1).await.unwrap();
        mesh.istiod.step("old", "terminate").await.unwrap();
        mesh.istiod.step("old", "gone").await.unwrap();
        old.vanish().await.unwrap();
        mesh.istiod.apply(&echo).await.unwrap();
        let _new = begin(&mesh, "new", "echo").await;
        let reply = first(&mesh, Method::POST, "echo").await;
        assert_eq!(reply.status, expected, "{guard:?}: {reply:?}");
    }
}

/// Persistent sessions: istiod keeps a terminating pod in EDS, as DRAINING.
#[tokio::test(flavor = "multi_thread")]
async fn a_draining_pod_of_a_service_with_persistent_sessions_counts_as_removed() {
    let echo = Service::new("echo", ip("10.96.1.1")).label("istio.io/persistent-session", "session-cookie");
    let mesh = Feed::Polls139.setup(Guard::Enforce).objects(echo.yaml()).start().await.unwrap();
    let old = warm(&mesh, "old").await;
    mesh.istiod.step("old", "terminate").await.unwrap();
    mesh.health("echo", old.addr(), "DRAINING").await.unwrap();
    mesh.seen(old.ip(), "gone", 1).await.unwrap();
}

/// Ten pods replaced one after the other, each new one on the address that the last one left, under 200
/// requests a second.
#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_update_under_load_fails_no_request() {
    for guard in [Guard::Enforce, Guard::Stock] {
        let mesh = Feed::Polls139.setup(guard).start().await.unwrap();
        let failed = rolling_update(&mesh).await;
        println!("{guard:?}: {} requests, {} failed", failed.0, failed.1);
        match guard {
            Guard::Stock => assert!(failed.1 > 0, "the fault is there: without it this test shows nothing"),
            _ => assert_eq!(failed.1, 0, "of {} requests", failed.0),
        }
    }
}

async fn rolling_update(mesh: &IstioMesh) -> (usize, usize) {
    let mut old = Vec::new();
    for index in 0..10 {
        let pod = mesh.pod(&format!("old-{index}"), 10 + index).await.unwrap();
        mesh.announce(&pod, "echo").await.unwrap();
        old.push(pod);
    }
    let mut all: Vec<_> = old.iter().map(Pod::addr).collect();
    mesh.listed("echo", &all).await.unwrap();
    first(mesh, Method::GET, "echo").await;
    mesh.known(10).await.unwrap();
    let authority = "echo.default.svc.cluster.local";
    let classes = vec![
        RequestClass { weight: 7, ..RequestClass::get(authority, "/") },
        RequestClass { weight: 3, ..RequestClass::new(Method::POST, authority, "/") },
    ];
    let plan = Plan { connections: 8, ..Plan::new("roll", 200.0, classes) };
    let load = Load::start(plan, mesh.connector("echo").unwrap()).await.unwrap();
    let (mut new, mut free) = (Vec::new(), ip("10.244.1.30"));
    for (index, pod) in old.into_iter().enumerate() {
        let name = format!("new-{index}");
        let successor = mesh.pod_with(PodSpec::new(&name, free)).await.unwrap();
        mesh.istiod.apply(&objects::Pod::new(&name, "echo", free).unready().yaml()).await.unwrap();
        mesh.istiod.step(&name, "ready").await.unwrap();
        mesh.health("echo", successor.addr(), "HEALTHY").await.unwrap();
        // It has had traffic before the next step.
        all.push(successor.addr());
        new.push(successor);
        free = pod.ip();
        all.retain(|addr| *addr != pod.addr());
        end(mesh, pod, &all).await;
    }
    let report: Report = load.stop(Duration::from_secs(20)).await.unwrap();
    drop(new);
    (report.records.len(), report.records.iter().filter(|record| !record.success()).count())
}

/// A pod terminates, its last tunnel ends, and it is gone without a FIN; `left` is what EDS lists then.
async fn end(mesh: &IstioMesh, pod: Pod, left: &[std::net::SocketAddr]) {
    mesh.istiod.step(pod.name(), "terminate").await.unwrap();
    mesh.listed("echo", left).await.unwrap();
    tunnels_closed(&pod).await;
    mesh.seen(pod.ip(), "gone", 1).await.unwrap();
    let name = pod.name().to_owned();
    pod.vanish().await.unwrap();
    mesh.istiod.step(&name, "gone").await.unwrap();
}

/// A pod begins on the first address: unready, then ready.
async fn begin(mesh: &IstioMesh, name: &str, app: &str) -> Pod {
    let pod = mesh.pod(name, 1).await.unwrap();
    mesh.istiod.apply(&objects::Pod::new(name, app, pod.ip()).unready().yaml()).await.unwrap();
    mesh.istiod.step(name, "ready").await.unwrap();
    mesh.health(app, pod.addr(), "HEALTHY").await.unwrap();
    pod
}

/// The pod is replaced on its address within one push; then one request. With a keep-alive timeout the
/// application has closed its connection, hence the tunnel, before.
async fn merged(mesh: &IstioMesh, method: Method, keep_alive: Option<Duration>) -> (Pod, lab::istio::Reply) {
    let spec = PodSpec { keep_alive, ..PodSpec::new("old", ip("10.244.1.1")) };
    let old = mesh.pod_with(spec).await.unwrap();
    mesh.announce(&old, "echo").await.unwrap();
    mesh.health("echo", old.addr(), "HEALTHY").await.unwrap();
    mesh.known(1).await.unwrap();
    assert_eq!(first(mesh, Method::GET, "echo").await.status, StatusCode::OK);
    if keep_alive.is_some() {
        tunnels_closed(&old).await;
        mesh.drained("echo").await.unwrap();
    }
    let start = Instant::now();
    old.vanish().await.unwrap();
    let new = mesh.pod("new", 1).await.unwrap();
    mesh.istiod.replace("old", &objects::Pod::new("new", "echo", new.ip()).yaml()).await.unwrap();
    mesh.istiod.settled(1, Duration::from_secs(10)).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    (new, first(mesh, method, "echo").await)
}
