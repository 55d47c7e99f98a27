//! Envoy itself ends and starts again; and what a gap costs in handshakes.

use std::time::Duration;

use lab::{
    bootstrap::ExtensionPoint,
    load::{HeldStream, StreamSpec},
    mesh::{ECHO, Mesh, WITHIN},
    pod::Pod,
};
use serde_json::json;

use crate::support::{FEEDS, ip, page, removed, wait_connected};

const WORKERS: u32 = 2;

/// Answers that do not end, each on a tunnel of its own, opened one after the other: Envoy opens a second
/// connection of a pool only for what comes while the first one is being opened.
async fn hold(mesh: &Mesh, held: &mut Vec<HeldStream>, count: usize) {
    for _ in 0..count {
        let id = format!("held-{}", held.len());
        held.push(HeldStream::open(&mesh.connector(), &StreamSpec::get(ECHO, "/?hang=body"), &id).await.unwrap());
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
        let mut held = Vec::new();
        hold(&mesh, &mut held, 6).await;
        held.clear();
        mesh.restart_envoy().await.unwrap();
        mesh.wait_stat("endpoints_listed", |listed| listed == 3).await.unwrap();
        hold(&mesh, &mut held, 24).await;
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
async fn a_hot_restart_leads_to_the_right_set_and_fences_nothing() {
    for feed in [FEEDS[0], FEEDS[2]] {
        // Shared memory of this name is the machine's; the name is this process's.
        let base = 100_000_000 + std::process::id();
        let shared_memory = SharedMemory(base);
        let setup = feed.setup().workers(WORKERS).envoy(|options| {
            options.hot_restart = Some((base, 0));
            options.args = ["--drain-time-s", "1", "--parent-shutdown-time-s", "2"].map(str::to_owned).to_vec();
        });
        let mut mesh = setup.start().await.unwrap();
        let pods = pods(&mesh, 3).await;
        let mut held = Vec::new();
        hold(&mesh, &mut held, 6).await;
        held.clear();
        let predecessor = mesh.hot_restart_envoy().await.unwrap();
        let deadline = std::time::Instant::now() + WITHIN;
        // Gauges have the predecessor's values added to them while both live; the page has not.
        while page(&mesh, "?limit=0").await["totals"]["listed"] != 3 {
            assert!(std::time::Instant::now() < deadline, "{feed:?}: {}", page(&mesh, "").await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        hold(&mesh, &mut held, 24).await;
        for pod in &pods {
            let open = pod.ztunnel().unwrap().connections().log().len();
            assert!(open <= 2 * WORKERS as usize, "{feed:?}: one for each worker of each process, not {open}");
        }
        let status = predecessor.wait_exit(WITHIN).await.unwrap();
        assert!(status.success(), "{feed:?}: a supervisor that sees it abort ends the successor too: {status}");
        let log = predecessor.log().unwrap();
        assert!(log.contains("main dispatch loop exited"), "{feed:?}: it served to the end: {log}");
        let state = page(&mesh, "").await;
        assert_eq!(state["watch"][feed.name()]["removed"], 0, "{feed:?}: {state:#}");
        assert_eq!(state["control_plane"]["suspected"], 0, "{feed:?}: {state:#}");
        assert_eq!(held.iter().filter(|stream| stream.ended().is_some()).count(), 0, "{feed:?}: nothing breaks");
        mesh.unlist(ECHO, pods[0].addr()).await.unwrap();
        assert!(removed(&mesh, ip(1), 1).await.fenced, "{feed:?}: and it follows what comes");
        drop(mesh);
        drop(shared_memory);
    }
}

/// Envoy leaves its shared memory behind.
struct SharedMemory(u32);

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // The name has the base id times ten.
        let _ = std::fs::remove_file(format!("/dev/shm/envoy_shared_memory_{}", u64::from(self.0) * 10));
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
        let mut held = Vec::new();
        hold(&mesh, &mut held, 32).await;
        let warm = handshakes(&mesh).await;
        assert!(warm <= most, "{feed:?}: as on stock, one for each worker and endpoint: {warm}");
        wait_connected(&mesh, true).await;
        mesh.control_plane.outage().await;
        mesh.wait_stat("watch_suspected", |suspected| suspected >= 1).await.unwrap();
        hold(&mesh, &mut held, 32).await;
        let in_gap = handshakes(&mesh).await - warm;
        assert!((1..=most).contains(&in_gap), "{feed:?}: {in_gap} handshakes in the gap, at most {most} are right");
        mesh.control_plane.recover().await.unwrap();
        mesh.wait_stat("watch_suspected", |suspected| suspected >= 2).await.unwrap();
        hold(&mesh, &mut held, 32).await;
        let after = handshakes(&mesh).await - warm - in_gap;
        assert!((1..=most).contains(&after), "{feed:?}: {after} handshakes after the gap, at most {most} are right");
        assert_eq!(mesh.stat("watch_suspected").await.unwrap(), 2, "{feed:?}");
        let alive = held.iter().filter(|stream| stream.ended().is_none()).count();
        assert_eq!(alive, held.len(), "{feed:?}: what is in flight lives on");
    }
}
