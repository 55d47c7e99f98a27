//! The main job, each cure against a control run without the module that fails.
//!
//! The fence's own tests run with one CONNECT attempt, so that it is the fence they prove, and look
//! at the outer connections: the dead one must not be touched.

use std::time::Duration;

use http::StatusCode;
use lab::{
    bootstrap::Variant,
    control_plane::{Protocol, cluster_name},
    mesh::{ECHO, Setup, WITHIN},
    scenes::{broken, fence, hold, hung, outer, replace_after_drain, replace_after_removal, replace_in_the_dark, warm},
};
use serde_json::json;

async fn requests_reach_the_pod_through_one_tunnel(protocol: Protocol) {
    let (mesh, pod) = warm(Setup::new(Variant::Stock).protocol(protocol)).await.unwrap();
    let reply = mesh.post(ECHO, "/order").await.unwrap();
    assert_eq!((reply.status, reply.pod()), (StatusCode::OK, Some("old")));
    let execution = pod.wait_for_execution(&reply.id).await.unwrap();
    assert_eq!((execution.method.as_str(), execution.body_len), ("POST", "one order".len() as u64));
    assert_eq!(execution.attempt_count.as_deref(), Some("1"));
    assert_eq!(pod.executed(&reply.id), 1, "one request is one execution, under the id that the client gave it");
    let tunnels = pod.wait_for_tunnels(1).await.unwrap();
    assert_eq!(tunnels.len(), 1, "the second request uses the first one's tunnel: {tunnels:#?}");
    assert_eq!(tunnels[0].authority, pod.addr().to_string());
    let entry = mesh.envoy.wait_for_access_log(WITHIN, |entry| entry["request_id"] == reply.id.as_str()).await.unwrap();
    assert_eq!(entry["upstream_cluster"], cluster_name(ECHO, 80), "{entry:#}");

    mesh.unlist(ECHO, pod.addr()).await.unwrap();
    let reply = mesh.get(ECHO, "/").await.unwrap();
    assert_eq!((reply.status, reply.header("x-response-flags")), (StatusCode::SERVICE_UNAVAILABLE, Some("UH")));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_reach_the_pod_through_one_tunnel_with_both_protocols() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        requests_reach_the_pod_through_one_tunnel(protocol).await;
    }
}

async fn post_to_the_successor(variant: Variant) -> (StatusCode, usize, usize, u64) {
    let (mesh, pod) = warm(Setup::new(variant)).await.unwrap();
    let successor = replace_after_drain(&mesh, pod).await.unwrap();
    let reply = mesh.post(ECHO, "/order").await.unwrap();
    let resets = broken(&mesh).await.unwrap();
    mesh.envoy.assert_alive().unwrap();
    (reply.status, successor.executed(&reply.id), outer(&successor), resets)
}

#[tokio::test(flavor = "multi_thread")]
async fn stock_fails_a_post_to_a_pod_that_took_over_an_address() {
    let (status, executed, _, resets) = post_to_the_successor(Variant::Stock).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "the control run must fail, else the fault is not injected");
    assert_eq!((executed, resets), (0, 1), "the dead connection was used and answered with RST");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fence_sends_a_post_over_a_new_connection_at_the_first_attempt() {
    let (status, executed, connections, resets) = post_to_the_successor(Variant::FenceOnly).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!((executed, connections), (1, 1), "one execution, over one new outer connection");
    assert_eq!(resets, 0, "the dead connection was not touched");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shipped_file_reaches_the_successor_without_touching_the_dead_connection() {
    let outcome = post_to_the_successor(Variant::StaleGuard).await;
    assert_eq!(outcome, (StatusCode::OK, 1, 1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn more_connect_attempts_reach_the_successor_by_way_of_the_dead_connection() {
    let outcome = post_to_the_successor(Variant::MaxConnectAttempts(3)).await;
    assert_eq!(outcome, (StatusCode::OK, 1, 1, 1), "no byte of the request was sent before the CONNECT was answered");
}

/// The same with a stream that hangs on the outer connection, which is never idle then.
async fn post_beside_a_hung_stream(setup: Setup) -> (StatusCode, usize, u64) {
    let (mesh, pod, stream) = hung(setup).await.unwrap();
    let successor = replace_after_removal(&mesh, pod).await.unwrap();
    let reply = mesh.post(ECHO, "/order").await.unwrap();
    let resets = broken(&mesh).await.unwrap();
    drop(stream);
    (reply.status, successor.executed(&reply.id), resets)
}

#[tokio::test(flavor = "multi_thread")]
async fn stock_fails_a_post_beside_a_hung_stream_even_with_an_idle_timeout() {
    for variant in [Variant::Stock, Variant::HboneIdleTimeout(Duration::from_millis(500))] {
        let (status, executed, _) = post_beside_a_hung_stream(Setup::new(variant)).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{}: the control run must fail", variant.name());
        assert_eq!(executed, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fence_leaves_a_connection_with_a_hung_stream_to_itself() {
    let (status, executed, resets) = post_beside_a_hung_stream(Setup::new(Variant::FenceOnly)).await;
    assert_eq!((status, executed), (StatusCode::OK, 1));
    assert_eq!(resets, 0, "the dead connection, and the stream that hangs on it, were not touched");
}

const OTHER: &str = "other.default.svc.cluster.local";

/// The address moves to a pod of another service, within one response of the control plane.
async fn moved_to_another_service(variant: Variant) -> (StatusCode, usize, u64) {
    let (mesh, pod, stream) = hung(Setup::new(variant).services(&[ECHO, OTHER])).await.unwrap();
    let addr = pod.addr();
    pod.vanish().await.unwrap();
    let successor = mesh.pod("of-other", 1).await.unwrap();
    mesh.control_plane.hold();
    mesh.control_plane.remove_endpoint(&cluster_name(ECHO, 80), addr).unwrap();
    let endpoint = lab::control_plane::Endpoint::new(addr.ip(), addr.port());
    mesh.control_plane.add_endpoint(&cluster_name(OTHER, 80), endpoint).unwrap();
    mesh.control_plane.release();
    mesh.acked().await.unwrap();
    let reply = mesh.post(OTHER, "/order").await.unwrap();
    let resets = broken(&mesh).await.unwrap();
    let old = mesh.get(ECHO, "/").await.unwrap();
    assert_eq!(old.status, StatusCode::SERVICE_UNAVAILABLE, "the first service has no endpoint any more");
    assert_eq!(successor.executed(&old.id), 0, "its request must not reach the other service's pod");
    drop(stream);
    (reply.status, successor.executed(&reply.id), resets)
}

#[tokio::test(flavor = "multi_thread")]
async fn stock_uses_the_old_services_connection_for_the_new_service() {
    let (status, executed, resets) = moved_to_another_service(Variant::Stock).await;
    assert_eq!((status, executed, resets), (StatusCode::SERVICE_UNAVAILABLE, 0, 1), "the control run must fail");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fence_keeps_the_new_service_off_the_old_services_connection() {
    let (status, executed, resets) = moved_to_another_service(Variant::FenceOnly).await;
    assert_eq!((status, executed, resets), (StatusCode::OK, 1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flap_of_a_live_pod_breaks_nothing_in_flight() {
    let (mesh, pod) = warm(Setup::new(Variant::StaleGuard)).await.unwrap();
    let held = hold(&mesh, ECHO, "held").await.unwrap();
    let slow = mesh.request(http::Method::POST, ECHO, "/?delay_ms=1500").body(bytes::Bytes::new()).unwrap();
    let id = slow.headers()["x-request-id"].to_str().unwrap().to_owned();
    let (slow, flapped) = tokio::join!(mesh.send(slow), async {
        pod.wait_for_execution(&id).await.unwrap();
        mesh.unlist(ECHO, pod.addr()).await.unwrap();
        mesh.list(ECHO, pod.addr()).await.unwrap();
        mesh.post(ECHO, "/order").await.unwrap()
    });
    assert_eq!(slow.unwrap().status, StatusCode::OK, "a request in flight lives on: a terminating pod still answers");
    assert_eq!(flapped.status, StatusCode::OK);
    assert!(held.ended().is_none(), "the long-lived stream lives on");
    assert_eq!(outer(&pod), 2, "new tunnels are on a connection of their own; the old one stays");
    assert_eq!(pod.ztunnel().unwrap().connections().open().len(), 2, "nobody closed the old one");
    assert_eq!(pod.executed(&id), 1);
    held.release().await.unwrap();
}

/// A second pod, and the first one becomes a black hole; every request wants the first pod's turn.
async fn black_hole(setup: Setup) -> (Duration, StatusCode, Option<String>) {
    let (mesh, pod) =
        warm(setup.bootstrap(|bootstrap| bootstrap.with_route_timeout(Duration::from_secs(15)))).await.unwrap();
    pod.link().black_hole().await.unwrap();
    let second = mesh.pod("second", 2).await.unwrap();
    mesh.list(ECHO, second.addr()).await.unwrap();
    // Round robin: one of two consecutive requests picks the black hole.
    let (one, two) = tokio::join!(mesh.get(ECHO, "/"), mesh.get(ECHO, "/"));
    let slower = [one.unwrap(), two.unwrap()].into_iter().max_by_key(|reply| reply.took).unwrap();
    (slower.took, slower.status, slower.pod().map(str::to_owned))
}

#[tokio::test(flavor = "multi_thread")]
async fn stock_hangs_in_a_black_hole_until_the_routes_timeout() {
    let (took, status, _) = black_hole(Setup::new(Variant::RetryOnReset)).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT, "the control run must fail");
    assert!(took >= Duration::from_secs(14), "nothing but the route's timeout ends it: {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_user_timeout_ends_a_black_hole_and_the_request_succeeds_elsewhere() {
    let (took, status, pod) =
        black_hole(Setup::new(Variant::StaleGuard).bootstrap(fence(json!({ "tcp": { "user_timeout": "3s" } })))).await;
    assert_eq!((status, pod.as_deref()), (StatusCode::OK, Some("second")));
    assert!(took < Duration::from_secs(12), "bounded by the user timeout, not by the route's: {took:?}");
}

/// The pod is replaced, and no update says so; then a request comes that its inner connection takes.
async fn unannounced_replacement(variant: Variant, method: http::Method) -> (StatusCode, usize, Option<u32>) {
    let (mesh, pod) = warm(Setup::new(variant)).await.unwrap();
    let successor = replace_in_the_dark(&mesh, pod).await.unwrap();
    let request = mesh.request(method, ECHO, "/").body(bytes::Bytes::new()).unwrap();
    let reply = mesh.send(request).await.unwrap();
    (reply.status, successor.executed(&reply.id), reply.attempts())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_get_at_an_unannounced_replacement_is_retried_and_succeeds() {
    let (status, executed, _) = unannounced_replacement(Variant::Stock, http::Method::GET).await;
    assert_eq!((status, executed), (StatusCode::SERVICE_UNAVAILABLE, 0), "the control run must fail");
    let (status, executed, attempts) = unannounced_replacement(Variant::StaleGuard, http::Method::GET).await;
    assert_eq!((status, executed, attempts), (StatusCode::OK, 1, Some(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_post_at_an_unannounced_replacement_fails_and_is_not_replayed() {
    let (status, executed, attempts) = unannounced_replacement(Variant::StaleGuard, http::Method::POST).await;
    assert_eq!((status, executed, attempts), (StatusCode::SERVICE_UNAVAILABLE, 0, Some(1)));
    let (status, executed, _) = unannounced_replacement(Variant::RetryOnReset, http::Method::POST).await;
    assert_eq!((status, executed), (StatusCode::OK, 1), "the blind retry that operators have today does replay it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_is_explained_to_the_operator() {
    let (mesh, pod) = warm(Setup::new(Variant::StaleGuard)).await.unwrap();
    let _successor = replace_in_the_dark(&mesh, pod).await.unwrap();
    let reply = mesh.post(ECHO, "/order").await.unwrap();
    let entry = mesh.envoy.wait_for_access_log(WITHIN, |entry| entry["request_id"] == reply.id.as_str()).await.unwrap();
    assert_eq!(entry["response_flags"], "UC", "{entry:#}");
    assert_eq!(entry["stale_guard"]["reset_class"], "broken", "{entry:#}");
    assert_eq!(mesh.stat("fence_reset_broken").await.unwrap(), 1);
}
