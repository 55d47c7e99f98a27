//! Envoy itself ends and starts again; and what a gap costs in handshakes.

use std::time::Duration;

use futures::future::join_all;
use http::StatusCode;
use lab::{
    bootstrap::ExtensionPoint,
    mesh::{ECHO, Mesh},
    pod::Pod,
};
use serde_json::json;

use crate::support::{FEEDS, ip, page, removed};

const WORKERS: u32 = 2;

/// So many requests at once, each of which must be answered.
async fn burst(mesh: &Mesh, requests: usize) {
    let replies = join_all((0..requests).map(|_| mesh.get(ECHO, "/?delay_ms=20"))).await;
    for reply in replies {
        assert_eq!(reply.unwrap().status, StatusCode::OK);
    }
}

async fn handshakes(mesh: &Mesh) -> u64 {
    mesh.envoy.admin().try_stat("cluster.connect_originate.ssl.handshake").await.unwrap().unwrap_or(0)
}

async fn pods(mesh: &Mesh, count: u8) -> Vec<Pod> {
    let mut pods = Vec::new();
    for octet in 1..=count {
        let pod = mesh.pod(&format!("pod-{octet}"), octet).await.unwrap();
        mesh.list(ECHO, pod.addr()).await.unwrap();
        pods.push(pod);
    }
    pods
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_envoy_has_the_right_set_and_makes_no_more_than_its_first_handshakes() {
    for feed in [FEEDS[0], FEEDS[1], FEEDS[2]] {
        let mut mesh = feed.setup().workers(WORKERS).start().await.unwrap();
        let pods = pods(&mesh, 3).await;
        burst(&mesh, 24).await;
        mesh.restart_envoy().await.unwrap();
        mesh.wait_stat("endpoints_listed", |listed| listed == 3).await.unwrap();
        for _ in 0..3 {
            burst(&mesh, 24).await;
        }
        let made = handshakes(&mesh).await;
        assert!(made <= 3 * u64::from(WORKERS), "{feed:?}: {made} handshakes for 3 endpoints");
        let state = page(&mesh, "").await;
        assert_eq!(state["watch"][feed.name()]["removed"], 0, "{feed:?}: the first set is no change: {state:#}");
        assert_eq!(state["control_plane"]["suspected"], 0, "{feed:?}: {state:#}");
        mesh.unlist(ECHO, pods[0].addr()).await.unwrap();
        assert!(removed(&mesh, ip(1), 1).await.fenced, "{feed:?}: and it follows what comes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_costs_each_worker_one_handshake_for_each_endpoint_at_its_begin_and_at_its_end() {
    const PODS: u8 = 4;
    for feed in [FEEDS[0], FEEDS[2]] {
        let mesh = feed
            .setup()
            .workers(WORKERS)
            .bootstrap(|bootstrap| {
                bootstrap
                    .with_config_fields(ExtensionPoint::Status, &json!({ "suspect_after": "1s" }))?
                    .with_ads_backoff(Duration::from_millis(100), Duration::from_millis(500))
            })
            .start()
            .await
            .unwrap();
        let _pods = pods(&mesh, PODS).await;
        let most = u64::from(PODS) * u64::from(WORKERS);
        // Each burst is larger than the one before, so that tunnels must be opened.
        burst(&mesh, 16).await;
        burst(&mesh, 16).await;
        let warm = handshakes(&mesh).await;
        assert!(warm <= most, "{feed:?}: as on stock, one for each worker and endpoint: {warm}");
        mesh.control_plane.outage().await;
        mesh.wait_stat("watch_suspected", |suspected| suspected >= 1).await.unwrap();
        burst(&mesh, 48).await;
        burst(&mesh, 64).await;
        let in_gap = handshakes(&mesh).await - warm;
        assert!((1..=most).contains(&in_gap), "{feed:?}: {in_gap} handshakes in the gap, at most {most} are right");
        mesh.control_plane.recover().await.unwrap();
        mesh.wait_stat("watch_suspected", |suspected| suspected >= 2).await.unwrap();
        burst(&mesh, 128).await;
        burst(&mesh, 192).await;
        let after = handshakes(&mesh).await - warm - in_gap;
        assert!((1..=most).contains(&after), "{feed:?}: {after} handshakes after the gap, at most {most} are right");
        assert_eq!(mesh.stat("watch_suspected").await.unwrap(), 2, "{feed:?}");
    }
}
