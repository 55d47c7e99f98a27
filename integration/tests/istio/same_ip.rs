//! A pod's address goes to another pod, and the API server tells istiod so.

use http::{Method, StatusCode};
use lab::istio::objects::Service;
use lab::istio::{Guard, IstioMesh};
use lab::pod::{Pod, PodSpec};

use crate::scenes::{Feed, address, broken, first, ip, warm};

/// The pod terminates, is gone without a FIN, and another one, of service `app`, begins on its address: each
/// step as Kubernetes takes it, each pushed before the next. The proxy's own connections to the pod have ended
/// by then, so that nothing is retransmitted to the successor.
#[must_use = "the pod ends with it"]
async fn replace(mesh: &IstioMesh, old: Pod, name: &str, app: &str) -> Pod {
    let (addr, ip) = (old.addr(), old.ip());
    mesh.istiod.step(old.name(), "terminate").await.unwrap();
    mesh.listed("echo", &[]).await.unwrap();
    mesh.drained("echo").await.unwrap();
    mesh.seen(ip, "gone", 1).await.unwrap();
    let gone = old.name().to_owned();
    old.vanish().await.unwrap();
    mesh.istiod.step(&gone, "gone").await.unwrap();
    let new = mesh.pod_with(PodSpec::new(name, ip)).await.unwrap();
    let object = lab::istio::objects::Pod::new(name, app, ip);
    mesh.istiod.apply(&object.clone().unready().yaml()).await.unwrap();
    mesh.health(app, addr, "UNHEALTHY").await.unwrap();
    mesh.istiod.step(name, "ready").await.unwrap();
    mesh.health(app, addr, "HEALTHY").await.unwrap();
    new
}

#[tokio::test(flavor = "multi_thread")]
async fn a_post_to_the_successor_succeeds_at_its_first_attempt() {
    for feed in Feed::ALL {
        let mesh = feed.setup(Guard::Enforce).start().await.unwrap();
        let old = warm(&mesh, "old").await;
        let new = replace(&mesh, old, "new", "echo").await;
        let reply = first(&mesh, Method::POST, "echo").await;
        assert_eq!((reply.status, reply.pod()), (StatusCode::OK, Some("new")), "{feed:?}: {reply:?}");
        assert_eq!(new.executed(&reply.id), 1, "{feed:?}");
        assert_eq!(broken(&mesh).await, 0, "{feed:?}: the dead connection was not touched");
        let retried = mesh.stat("cluster.inbound-vip|80|http|echo.default.svc.cluster.local;.upstream_rq_retry").await;
        assert_eq!(retried.unwrap(), 0, "{feed:?}: at the first attempt");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_stock_istio_it_fails() {
    for feed in [Feed::Polls139, Feed::Polls140] {
        let mesh = feed.setup(Guard::Stock).start().await.unwrap();
        let old = warm(&mesh, "old").await;
        let new = replace(&mesh, old, "new", "echo").await;
        let reply = first(&mesh, Method::POST, "echo").await;
        assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE, "{feed:?}: the fault is there: {reply:?}");
        assert_eq!(new.executed(&reply.id), 0, "{feed:?}");
        assert_eq!(broken(&mesh).await, 1, "{feed:?}: it was the dead connection");
    }
}

/// Observe counts and changes nothing: the fault of stock Istio is still there.
#[tokio::test(flavor = "multi_thread")]
async fn observe_sees_the_removal_and_the_fault_stays() {
    let mesh = Feed::Polls139.setup(Guard::Observe).start().await.unwrap();
    let old = warm(&mesh, "old").await;
    let _new = replace(&mesh, old, "new", "echo").await;
    let reply = first(&mesh, Method::POST, "echo").await;
    assert_eq!((reply.status, broken(&mesh).await), (StatusCode::SERVICE_UNAVAILABLE, 1), "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_moves_to_another_service_is_fenced_too() {
    for (guard, expected) in [(Guard::Enforce, StatusCode::OK), (Guard::Stock, StatusCode::SERVICE_UNAVAILABLE)] {
        let shop = Service::new("shop", ip("10.96.1.2"));
        let mut mesh = Feed::Polls139.setup(guard).objects(shop.yaml()).start().await.unwrap();
        mesh.reach("shop", address("10.96.1.2:80")).unwrap();
        let old = warm(&mesh, "old").await;
        let _new = replace(&mesh, old, "shop-1", "shop").await;
        let reply = first(&mesh, Method::POST, "shop").await;
        assert_eq!(reply.status, expected, "{guard:?}: {reply:?}");
        assert_eq!(broken(&mesh).await, u64::from(guard == Guard::Stock), "{guard:?}: dead connections touched");
    }
}

/// A StatefulSet's pod with a fixed address: name and address are the old one's.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_returns_under_its_own_name_is_a_new_pod() {
    for (guard, expected) in [(Guard::Enforce, StatusCode::OK), (Guard::Stock, StatusCode::SERVICE_UNAVAILABLE)] {
        let mesh = Feed::Polls139.setup(guard).start().await.unwrap();
        let old = warm(&mesh, "db-0").await;
        let new = replace(&mesh, old, "db-0", "echo").await;
        let reply = first(&mesh, Method::POST, "echo").await;
        assert_eq!(reply.status, expected, "{guard:?}: {reply:?}");
        assert_eq!(new.executed(&reply.id), usize::from(expected == StatusCode::OK), "{guard:?}");
    }
}
