//! Rule 1's race: the module has seen a removal that the workers have not applied yet.

use std::{net::IpAddr, time::Duration};

use futures::{StreamExt as _, stream::FuturesUnordered};
use http::StatusCode;
use lab::{
    bootstrap::Variant,
    control_plane::{Endpoint, Health, cluster_name},
    mesh::{ECHO, Mesh, Setup, WITHIN},
    pod::Pod,
};
use serde_json::json;

use crate::scenes::{BROKEN, fence, hold, outer};

/// Before [`ECHO`] in every response, and so large that applying it takes the main thread a while.
const LARGE: &str = "a-large-one.default.svc.cluster.local";

/// The pod vanishes, its successor is listed, and a POST must reach it over a connection of its own.
async fn assert_fenced(mesh: &Mesh, pod: Pod, list: impl AsyncFnOnce()) {
    let broken = mesh.envoy.admin().stat(BROKEN).await.unwrap();
    pod.vanish().await.unwrap();
    let successor = mesh.pod("new", 1).await.unwrap();
    list().await;
    mesh.acked().await.unwrap();
    let reply = mesh.post(ECHO, "/order").await.unwrap();
    assert_eq!((reply.status, successor.executed(&reply.id)), (StatusCode::OK, 1));
    assert_eq!(outer(&successor), 1, "neither the connection of before nor the one of between");
    assert_eq!(mesh.envoy.admin().stat(BROKEN).await.unwrap(), broken, "no dead connection was touched");
}

/// Requests that each need a tunnel, until `done`.
async fn tunnels(mesh: &Mesh, done: impl Future<Output = ()>) {
    let mut done = std::pin::pin!(done);
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    let (mut pending, mut over) = (FuturesUnordered::new(), false);
    while !over || !pending.is_empty() {
        tokio::select! {
            () = &mut done, if !over => over = true,
            // So slow that none finds the idle tunnel of another.
            _ = ticks.tick(), if !over && pending.len() < 200 => pending.push(mesh.get(ECHO, "/?delay_ms=1000")),
            Some(_) = pending.next() => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_a_worker_opened_before_it_applied_the_removal_is_not_used_after_the_return() {
    let mesh = Setup::new(Variant::FenceOnly).workers(2).services(&[ECHO, LARGE]).start().await.unwrap();
    let pod = mesh.pod("old", 1).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    let many = |third: u8| -> Vec<Endpoint> {
        let ip = move |number: u16| IpAddr::from([172, third, number.to_be_bytes()[0], number.to_be_bytes()[1]]);
        (0..4_000).map(|number| Endpoint::new(ip(number), 8080)).collect()
    };
    let mut provoked = false;
    for attempt in 0..8 {
        mesh.list(ECHO, pod.addr()).await.ok();
        let before = hold(&mesh, ECHO, "before").await.unwrap();
        let known = outer(&pod);
        tunnels(&mesh, async {
            mesh.control_plane.hold();
            let large = many(16 + attempt);
            mesh.control_plane.edit_endpoints(&cluster_name(LARGE, 80), |endpoints| *endpoints = large).unwrap();
            mesh.control_plane.remove_endpoint(&cluster_name(ECHO, 80), pod.addr()).unwrap();
            mesh.control_plane.release();
            mesh.acked().await.unwrap();
        })
        .await;
        before.release().await.unwrap();
        provoked = outer(&pod) > known;
        if provoked {
            break;
        }
    }
    assert!(provoked, "no worker opened a tunnel between the validator's look and its own update: not provoked");
    let addr = pod.addr();
    assert_fenced(&mesh, pod, async || mesh.list(ECHO, addr).await.unwrap()).await;
}

/// With fewer than half of its endpoints healthy (`healthy_panic_threshold`) Envoy picks any, also one
/// that is draining: for as long as it likes, tunnels are opened to an endpoint whose removal is known.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_opened_to_a_draining_endpoint_in_panic_mode_is_not_used_after_its_return() {
    let mesh = Setup::new(Variant::FenceOnly).start().await.unwrap();
    let pod = mesh.pod("old", 1).await.unwrap();
    let (cluster, addr) = (cluster_name(ECHO, 80), pod.addr());
    mesh.list(ECHO, addr).await.unwrap();
    let before = hold(&mesh, ECHO, "before").await.unwrap();
    mesh.control_plane.set_health(&cluster, addr, Health::Draining).unwrap();
    mesh.acked().await.unwrap();
    let between = hold(&mesh, ECHO, "between").await.unwrap();
    assert_eq!(between.pod(), Some("old"), "panic mode, or the race is not provoked");
    assert_eq!(outer(&pod), 2, "after the removal was seen: a connection of its own, under a new generation");
    assert_fenced(&mesh, pod, async || mesh.control_plane.set_health(&cluster, addr, Health::Healthy).unwrap()).await;
    drop((before, between));
}

/// What Envoy opens to an endpoint whose removal is known long since is not cut as soon as it opens.
#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_opened_in_panic_mode_lives_as_long_as_close_after_removal_says() {
    let setup = Setup::new(Variant::FenceOnly).bootstrap(fence(json!({ "close_after_removal": "1s" })));
    let mesh = setup.start().await.unwrap();
    let pod = mesh.pod("old", 1).await.unwrap();
    let (cluster, addr) = (cluster_name(ECHO, 80), pod.addr());
    mesh.list(ECHO, addr).await.unwrap();
    let mut before = hold(&mesh, ECHO, "before").await.unwrap();
    mesh.control_plane.set_health(&cluster, addr, Health::Draining).unwrap();
    mesh.acked().await.unwrap();
    before.wait_end(WITHIN).await.expect("its time is over");
    let reply = mesh.get(ECHO, "/?delay_ms=500").await.unwrap();
    assert_eq!((reply.status, reply.pod()), (StatusCode::OK, Some("old")), "panic mode: {reply:?}");
    let mut after = hold(&mesh, ECHO, "after").await.unwrap();
    after.wait_end(WITHIN).await.expect("counted from its own beginning");
}
