//! What the kernel was really told about the outer connection, and what comes of it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use lab::{
    bootstrap::Variant,
    envoy::TcpLiveness,
    mesh::{ECHO, Setup, WITHIN},
};
use serde_json::json;

use crate::scenes::{fence, hold, hung, warm};

#[tokio::test(flavor = "multi_thread")]
async fn the_outer_connections_socket_has_the_options_that_are_configured() {
    let tcp = json!({ "tcp": { "user_timeout": "7s", "keepalive": { "idle": "11s", "interval": "3s", "probes": 5 } } });
    let (mesh, pod) = warm(Setup::new(Variant::FenceOnly).bootstrap(fence(tcp))).await.unwrap();
    let sockets = mesh.envoy.tcp_liveness(pod.hbone_addr()).unwrap();
    let peer = pod.ztunnel().unwrap().connections().open()[0].peer;
    let expected = TcpLiveness {
        local: peer,
        user_timeout: Some(Duration::from_secs(7)),
        keepalive: true,
        idle: Duration::from_secs(11),
        interval: Duration::from_secs(3),
        probes: 5,
    };
    assert_eq!(sockets, [expected], "read back from Envoy's own socket");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_module_or_with_null_the_socket_has_none_of_them() {
    let null = fence(json!({ "tcp": { "user_timeout": null, "keepalive": null } }));
    for setup in [Setup::new(Variant::Stock), Setup::new(Variant::FenceOnly).bootstrap(null)] {
        let (mesh, pod) = warm(setup).await.unwrap();
        let sockets = mesh.envoy.tcp_liveness(pod.hbone_addr()).unwrap();
        assert_eq!(
            sockets.iter().map(|socket| (socket.user_timeout, socket.keepalive)).collect::<Vec<_>>(),
            [(None, false)]
        );
    }
}

/// A pod whose FIN nobody saw, and a stream that waits for its next byte. Gives the time until the
/// stream's client learned of it, if it did.
async fn found_dead(setup: Setup, within: Duration) -> Option<Duration> {
    let (_mesh, pod, mut stream) = hung(setup).await.unwrap();
    let start = Instant::now();
    pod.vanish().await.unwrap();
    stream.wait_end(within).await.is_ok().then(|| start.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_to_a_pod_whose_fin_was_lost_ends_in_bounded_time() {
    let tcp = json!({ "tcp": { "user_timeout": "2s", "keepalive": { "idle": "1s", "interval": "1s" } } });
    let quick = Setup::new(Variant::FenceOnly).bootstrap(fence(tcp));
    let (stock, took) =
        tokio::join!(found_dead(Setup::new(Variant::Stock), Duration::from_secs(8)), found_dead(quick, WITHIN));
    assert_eq!(stock, None, "the control run hangs");
    println!("a lost FIN was found out after {:?}", took.expect("keepalive finds out"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_answer_on_a_live_connection_is_not_taken_for_a_dead_one() {
    let tcp = json!({ "tcp": { "user_timeout": "1s", "keepalive": { "idle": "1s", "interval": "1s" } } });
    let (mesh, _pod) = warm(Setup::new(Variant::FenceOnly).bootstrap(fence(tcp))).await.unwrap();
    let reply = mesh.get(ECHO, "/?delay_ms=4000").await.unwrap();
    assert_eq!(reply.status, StatusCode::OK, "acknowledged bytes have no timeout");
}

/// A pod that is paused reads nothing: its window is zero, and it acknowledges every probe of that. The upload, and
/// a stream beside it, when the pod was paused for so long.
async fn paused(setup: Setup, pause: Duration) -> (StatusCode, usize, bool) {
    let mesh = setup.start().await.unwrap();
    let pod = mesh.pod("paused", 1).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    let stream = hold(&mesh, ECHO, "beside").await.unwrap();
    assert_eq!(mesh.get(ECHO, "/").await.unwrap().status, StatusCode::OK);
    pod.freeze();
    let upload = mesh.request(Method::POST, ECHO, "/upload").body(Bytes::from(vec![b'x'; 512 * 1024])).unwrap();
    let id = upload.headers()["x-request-id"].to_str().unwrap().to_owned();
    let (reply, ()) = tokio::join!(mesh.send(upload), async {
        // The pause is the fault.
        tokio::time::sleep(pause).await;
        pod.thaw();
    });
    (reply.unwrap().status, pod.executed(&id), stream.ended().is_none())
}

/// Half a minute each, so all at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn by_default_a_pause_of_28_seconds_loses_nothing_and_a_dead_connection_ends_after_30() {
    let pause = Duration::from_secs(28);
    let (stock, module, dead) = tokio::join!(
        paused(Setup::new(Variant::Stock), pause),
        paused(Setup::new(Variant::StaleGuard), pause),
        found_dead(Setup::new(Variant::StaleGuard), 2 * WITHIN),
    );
    assert_eq!(stock, (StatusCode::OK, 1, true));
    assert_eq!(module, stock, "never worse than stock");
    let dead = dead.expect("keepalive finds out");
    println!("by default a dead idle connection ended after {dead:?}");
    assert!(dead >= pause, "a pause that long must be survived: {dead:?}");
}

/// The kernel counts probes of a zero window as unacknowledged, whether they are answered or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_longer_than_the_user_timeout_breaks_an_upload_and_everything_beside_it() {
    let tcp = json!({ "tcp": { "user_timeout": "2s", "keepalive": null } });
    let short = Setup::new(Variant::StaleGuard).bootstrap(fence(tcp));
    let pause = Duration::from_secs(8);
    let (stock, module) = tokio::join!(paused(Setup::new(Variant::Stock), pause), paused(short, pause));
    assert_eq!(stock, (StatusCode::OK, 1, true));
    assert_eq!(module, (StatusCode::SERVICE_UNAVAILABLE, 0, false), "documented as the price of the timeout");
}
