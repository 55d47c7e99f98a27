//! A living pod whose readiness flaps: the case that leaves most behind.

use lab::{
    bootstrap::{Bootstrap, Variant},
    envoy::Binary,
    mesh::{ECHO, Setup},
    scenes::fence,
};
use serde_json::json;

use crate::support::{CLOSED, LEFT_BEHIND, OPEN, churn, posts};

const WORKERS: u32 = 8;
const FLAPS: usize = 50;

/// Outer connections that are open after many flaps, at once and when nothing more is to be closed.
async fn open_after_flaps(setup: Setup, closes: bool) -> (u64, u64) {
    let mesh = setup.workers(WORKERS).start().await.unwrap();
    let pod = mesh.pod("flapping", 1).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    assert_eq!(posts(&mesh, 32).await, 0);
    assert_eq!(churn(&mesh, pod.addr(), FLAPS, 32).await, 0, "no request is lost to a flap");
    let at_once = mesh.envoy.admin().stat(OPEN).await.unwrap();
    if closes {
        mesh.wait_stat(LEFT_BEHIND, |pools| pools == 0).await.unwrap();
    }
    (at_once, mesh.envoy.admin().stat(OPEN).await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flapping_pod_leaves_no_more_connections_than_stock_twice_over() {
    let (_, stock) = open_after_flaps(Setup::new(Variant::Stock), false).await;
    let off = Setup::new(Variant::StaleGuard).bootstrap(fence(json!({ "close_fenced": false })));
    let (_, kept) = open_after_flaps(off, false).await;
    assert!(kept > stock * 4, "the control must show what is left behind: {kept} beside {stock} of stock");
    let (_, closed) = open_after_flaps(Setup::new(Variant::StaleGuard), true).await;
    assert!(closed <= stock * 2, "{closed} connections beside {stock} of stock");
}

/// Envoy 1.38 shows neither id nor address of an outer connection; 1.38 and 1.39 have polls alone.
async fn a_removal_closes_on(version: &str) {
    let binary = Binary::version(version).unwrap();
    let setup = Setup::new(Variant::StaleGuard).envoy(move |options| options.binary = Some(binary));
    let mesh = setup.bootstrap(Bootstrap::without_config_validators).start().await.unwrap();
    let pod = mesh.pod("pod", 1).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    mesh.wait_stat("watch_admin_added", |added| added == 1).await.unwrap();
    assert_eq!(posts(&mesh, 1).await, 0);
    mesh.unlist(ECHO, pod.addr()).await.unwrap();
    assert_eq!(mesh.wait_stat(CLOSED, |closed| closed > 0).await.unwrap(), 1, "{version}");
    pod.ztunnel().unwrap().connections().wait_closed(0).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    assert_eq!(posts(&mesh, 1).await, 0, "{version}: the pod is served over a new connection");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_removal_leaves_behind_is_closed_on_envoy_1_38() {
    a_removal_closes_on("1.38.3").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_removal_leaves_behind_is_closed_on_envoy_1_39() {
    a_removal_closes_on("1.39.3").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_removal_leaves_behind_is_closed_on_envoy_1_40_by_polls() {
    a_removal_closes_on("1.40.0").await;
}
