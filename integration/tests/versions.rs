//! One `libstale_guard.so` on every Envoy from 1.38: fence and retry, with the admin endpoint as the
//! source of `watch`, since a config validator exists from 1.40 only.

use bytes::Bytes;
use http::{Method, StatusCode};
use lab::{
    bootstrap::{Bootstrap, Variant},
    envoy::Binary,
    mesh::{ECHO, Setup},
    scenes::{replace_in_the_dark, warm},
};

fn on(version: &str, variant: Variant) -> Setup {
    let binary = Binary::version(version).unwrap();
    let setup = Setup::new(variant).envoy(|options| options.binary = Some(binary));
    if variant.has_module() { setup.bootstrap(Bootstrap::without_config_validators) } else { setup }
}

/// Removal, then the address goes to another pod; `seen` waits until the module knows of each step.
async fn post_to_the_successor(setup: Setup, polls: bool) -> (StatusCode, usize) {
    let (mesh, pod) = warm(setup).await.unwrap();
    let addr = pod.addr();
    if polls {
        mesh.wait_stat("watch_admin_added", |added| added == 1).await.unwrap();
    }
    mesh.unlist(ECHO, addr).await.unwrap();
    mesh.drained(ECHO).await.unwrap();
    if polls {
        mesh.wait_stat("watch_admin_removed", |removed| removed == 1).await.unwrap();
    }
    pod.vanish().await.unwrap();
    let successor = mesh.pod("new", 1).await.unwrap();
    mesh.list(ECHO, addr).await.unwrap();
    let reply = mesh.post(ECHO, "/order").await.unwrap();
    mesh.envoy.assert_alive().unwrap();
    (reply.status, successor.executed(&reply.id))
}

async fn fence_works_on(version: &str) {
    let stock = post_to_the_successor(on(version, Variant::Stock), false).await;
    assert_eq!(stock, (StatusCode::SERVICE_UNAVAILABLE, 0), "{version}: the control run must fail");
    let fenced = post_to_the_successor(on(version, Variant::FenceOnly), true).await;
    assert_eq!(fenced, (StatusCode::OK, 1), "{version}: first attempt, one execution");
}

async fn retry_works_on(version: &str) {
    for (method, expected) in [(Method::GET, StatusCode::OK), (Method::POST, StatusCode::SERVICE_UNAVAILABLE)] {
        let (mesh, pod) = warm(on(version, Variant::StaleGuard)).await.unwrap();
        let successor = replace_in_the_dark(&mesh, pod).await.unwrap();
        let request = mesh.request(method.clone(), ECHO, "/").body(Bytes::new()).unwrap();
        let reply = mesh.send(request).await.unwrap();
        assert_eq!(reply.status, expected, "{version}: {method} at an unannounced replacement");
        assert_eq!(successor.executed(&reply.id), usize::from(expected == StatusCode::OK));
        mesh.envoy.assert_alive().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fence_works_on_envoy_1_38() {
    fence_works_on("1.38.3").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fence_works_on_envoy_1_39() {
    fence_works_on("1.39.3").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fence_works_on_envoy_1_40_without_the_validator() {
    fence_works_on("1.40.0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_works_on_envoy_1_38() {
    retry_works_on("1.38.3").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_works_on_envoy_1_39() {
    retry_works_on("1.39.3").await;
}
