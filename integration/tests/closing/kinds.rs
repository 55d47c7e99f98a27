//! Every way in which a generation ends: what it leaves behind is closed, and nothing else is.

use std::{net::IpAddr, time::Duration};

use lab::{
    bootstrap::{Bootstrap, ExtensionPoint, Variant},
    control_plane::{Service, cluster_name},
    mesh::{ECHO, Mesh, Setup, WITHIN},
    pod::{Pod, PodSpec},
    scenes::{fence, hold, outer_open, warm},
};
use serde_json::json;

use crate::support::{CLOSED, LEFT_BEHIND, flap, posts};

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_a_client_holds_keeps_its_connection_and_is_shown() {
    let (mesh, pod) = warm(Setup::new(Variant::StaleGuard)).await.unwrap();
    let stream = hold(&mesh, ECHO, "held").await.unwrap();
    flap(&mesh, pod.addr()).await;
    assert_eq!(posts(&mesh, 1).await, 0);
    mesh.wait_stat(LEFT_BEHIND, |pools| pools == 1).await.unwrap();
    // A second generation ends and is closed while the first is still held.
    flap(&mesh, pod.addr()).await;
    mesh.wait_stat(CLOSED, |closed| closed == 1).await.unwrap();
    assert!(stream.ended().is_none(), "a request in flight is never broken");
    stream.release().await.unwrap();
    assert_eq!(mesh.wait_stat(CLOSED, |closed| closed > 1).await.unwrap(), 2);
    mesh.wait_stat(LEFT_BEHIND, |pools| pools == 0).await.unwrap();
}

/// A warm waypoint whose service closes its own idle connections after a moment. A tunnel that is idle still
/// belongs to its client, so it keeps its connection.
async fn idle_soon(setup: Setup) -> (Mesh, Pod) {
    let mesh = setup.start().await.unwrap();
    mesh.control_plane.remove_service(&cluster_name(ECHO, 80)).unwrap();
    mesh.acked().await.unwrap();
    let idle_timeout = Some(Duration::from_millis(300));
    mesh.control_plane.set_service(Service { idle_timeout, ..Service::new(ECHO, Vec::new()) });
    mesh.acked().await.unwrap();
    let pod = mesh.pod("pod", 1).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    assert_eq!(posts(&mesh, 1).await, 0);
    (mesh, pod)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_by_age_closes_the_old_connection() {
    let aged = fence(json!({ "max_connection_age": "1s" }));
    let (mesh, pod) = idle_soon(Setup::new(Variant::StaleGuard).bootstrap(aged)).await;
    let mut closed = 0;
    while closed == 0 {
        assert_eq!(posts(&mesh, 4).await, 0);
        // The service's idle timeout, and a new tunnel after it.
        tokio::time::sleep(Duration::from_millis(500)).await;
        closed = mesh.stat(CLOSED).await.unwrap();
    }
    assert!(outer_open(&pod) <= 3, "the present connection, and those whose time has just ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_of_the_control_plane_closes_every_idle_connection() {
    let suspect =
        |bootstrap: Bootstrap| bootstrap.with_config_fields(ExtensionPoint::Status, &json!({ "suspect_after": "1s" }));
    let (mesh, pod) = idle_soon(Setup::new(Variant::StaleGuard).bootstrap(suspect)).await;
    while !mesh.envoy.admin().get("/stale-guard?limit=0").await.unwrap().contains("\"connected\": true") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    mesh.control_plane.outage().await;
    mesh.wait_stat("watch_suspected", |fences| fences > 0).await.unwrap();
    assert_eq!(mesh.wait_stat(CLOSED, |closed| closed > 0).await.unwrap(), 1);
    pod.ztunnel().unwrap().connections().wait_closed(0).await.unwrap();
    assert_eq!(posts(&mesh, 1).await, 0, "the pod is served all the while");
}

#[tokio::test(flavor = "multi_thread")]
async fn close_after_removal_ends_the_outer_connection_too() {
    let closing = fence(json!({ "close_after_removal": "1s", "close_after_removal_jitter": 0 }));
    let (mesh, pod) = warm(Setup::new(Variant::StaleGuard).bootstrap(closing)).await.unwrap();
    let mut stream = hold(&mesh, ECHO, "held").await.unwrap();
    mesh.unlist(ECHO, pod.addr()).await.unwrap();
    stream.wait_end(WITHIN).await.expect("its time is over");
    assert_eq!(mesh.wait_stat(CLOSED, |closed| closed > 0).await.unwrap(), 1);
    pod.ztunnel().unwrap().connections().wait_closed(0).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_with_an_ipv6_address_is_closed_too() {
    let mesh = Setup::new(Variant::StaleGuard).start().await.unwrap();
    let ip = "fd00:244::1:1".parse::<IpAddr>().unwrap();
    let pod = mesh.pod_with(PodSpec::new("six", ip)).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    assert_eq!(posts(&mesh, 1).await, 0);
    mesh.unlist(ECHO, pod.addr()).await.unwrap();
    assert_eq!(mesh.wait_stat(CLOSED, |closed| closed > 0).await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn observe_and_the_switch_leave_every_connection_alone() {
    for fields in [json!({ "mode": "observe" }), json!({ "close_fenced": false })] {
        let (mesh, pod) = warm(Setup::new(Variant::StaleGuard).bootstrap(fence(fields.clone()))).await.unwrap();
        flap(&mesh, pod.addr()).await;
        assert_eq!(posts(&mesh, 1).await, 0);
        // Long enough for the searches that would have come.
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(mesh.stat(CLOSED).await.unwrap(), 0, "{fields}");
        assert!(outer_open(&pod) >= 1);
    }
}
