//! What the kernel was really told about the outer connection, and what comes of it.

use std::time::{Duration, Instant};

use lab::{
    bootstrap::{ExtensionPoint, Variant},
    envoy::TcpLiveness,
    mesh::{ECHO, Setup, WITHIN},
};
use serde_json::json;

use crate::scenes::{fence, hung, warm};

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
async fn fin_lost(variant: Variant, within: Duration) -> Option<Duration> {
    let tcp = json!({ "tcp": { "user_timeout": "2s", "keepalive": { "idle": "1s", "interval": "1s" } } });
    let mut setup = Setup::new(variant);
    if variant.has_module() {
        setup = setup.bootstrap(move |bootstrap| bootstrap.with_config_fields(ExtensionPoint::Fence, &tcp));
    }
    let (_mesh, pod, mut stream) = hung(setup).await.unwrap();
    let start = Instant::now();
    pod.vanish().await.unwrap();
    stream.wait_end(within).await.is_ok().then(|| start.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_to_a_pod_whose_fin_was_lost_ends_in_bounded_time() {
    assert_eq!(fin_lost(Variant::Stock, Duration::from_secs(8)).await, None, "the control run hangs");
    let took = fin_lost(Variant::FenceOnly, WITHIN).await.expect("keepalive finds out");
    println!("a lost FIN was found out after {took:?}");
    assert!(took < Duration::from_secs(8), "idle 1 s, probes each second, 2 s in all: {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_answer_on_a_live_connection_is_not_taken_for_a_dead_one() {
    let tcp = json!({ "tcp": { "user_timeout": "1s", "keepalive": { "idle": "1s", "interval": "1s" } } });
    let (mesh, _pod) = warm(Setup::new(Variant::FenceOnly).bootstrap(fence(tcp))).await.unwrap();
    let reply = mesh.get(ECHO, "/?delay_ms=4000").await.unwrap();
    assert_eq!(reply.status, http::StatusCode::OK, "acknowledged bytes have no timeout");
}
