//! Times without a control plane.

use std::time::Duration;

use http::StatusCode;
use lab::{
    bootstrap::{Bootstrap, ExtensionPoint, Variant},
    control_plane::Protocol,
    mesh::{ECHO, Mesh, Setup, WITHIN},
    pod::Pod,
};
use serde_json::json;

use crate::support::{FEEDS, Feed, applied_at, ip, page, removed, seen, wait_connected};

fn suspicious(bootstrap: Bootstrap) -> anyhow::Result<Bootstrap> {
    bootstrap
        .with_config_fields(ExtensionPoint::Status, &json!({ "suspect_after": "1s" }))?
        .with_ads_backoff(Duration::from_millis(100), Duration::from_millis(500))
}

/// The looks at the control plane need the admin endpoint, and no polls.
fn with_looks(feed: Feed) -> Setup {
    feed.setup().bootstrap(suspicious)
}

async fn two_pods(setup: Setup) -> (Mesh, Pod, Pod) {
    let mesh = setup.start().await.unwrap();
    let (one, two) = (mesh.pod("one", 1).await.unwrap(), mesh.pod("two", 2).await.unwrap());
    mesh.list(ECHO, one.addr()).await.unwrap();
    mesh.list(ECHO, two.addr()).await.unwrap();
    for _ in 0..2 {
        assert_eq!(mesh.get(ECHO, "/").await.unwrap().status, StatusCode::OK);
    }
    wait_connected(&mesh, true).await;
    (mesh, one, two)
}

/// Waits for the second fence, at the gap's end, and prints how long after Envoy had applied what the
/// control plane said it came.
#[expect(clippy::print_stdout, reason = "the figures of the report")]
async fn report(mesh: &Mesh, feed: Feed) {
    let deadline = std::time::Instant::now() + WITHIN;
    while page(mesh, "?limit=0").await["control_plane"]["suspected"].as_u64() < Some(2) {
        assert!(std::time::Instant::now() < deadline, "{feed:?}: nothing is fenced at the gap's end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    println!("delay outage recovery {feed:?}: {:?}", applied_at(mesh).elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_with_churn_behind_it_fences_everything_and_leads_to_the_right_set() {
    for feed in FEEDS {
        let (mesh, one, two) = two_pods(with_looks(feed)).await;
        let before = seen(&mesh, ip(1)).await.generation;
        mesh.control_plane.outage().await;
        mesh.wait_stat("watch_suspected", |suspected| suspected >= 1).await.unwrap();
        // Unseen: the first pod is replaced on its address, the second leaves, a third comes.
        one.vanish().await.unwrap();
        let successor = mesh.pod("successor", 1).await.unwrap();
        mesh.control_plane.remove_endpoint(&lab::control_plane::cluster_name(ECHO, 80), two.addr()).unwrap();
        let third = mesh.pod("third", 3).await.unwrap();
        mesh.control_plane
            .add_endpoint(
                &lab::control_plane::cluster_name(ECHO, 80),
                lab::control_plane::Endpoint::new(ip(3), third.addr().port()),
            )
            .unwrap();
        mesh.control_plane.recover().await.unwrap();
        mesh.acked().await.unwrap();
        report(&mesh, feed).await;
        wait_connected(&mesh, true).await;
        removed(&mesh, ip(2), 1).await;
        // The inner connections are from before and break; whoever opens a tunnel now is on a new connection.
        let mut pods = Vec::new();
        for _ in 0..6 {
            let reply = mesh.post(ECHO, "/order").await.unwrap();
            pods.push(reply.pod().map(str::to_owned).unwrap_or_else(|| reply.status.to_string()));
        }
        assert!(pods.iter().any(|pod| pod == "successor"), "{feed:?}: {pods:?}");
        assert!(pods.iter().any(|pod| pod == "third"), "{feed:?}: {pods:?}");
        assert!(!pods.iter().any(|pod| pod == "two"), "{feed:?}: {pods:?}");
        assert!(seen(&mesh, ip(1)).await.generation > before, "{feed:?}");
        assert_eq!(
            successor.ztunnel().unwrap().connections().log().len(),
            1,
            "{feed:?}: the successor saw one new outer connection"
        );
        // Neither the next update nor the next look fences once more.
        mesh.unlist(ECHO, third.addr()).await.unwrap();
        removed(&mesh, ip(3), 1).await;
        assert_eq!(mesh.stat("watch_suspected").await.unwrap(), 2, "{feed:?}: once in the gap, once at its end");
    }
}

/// The control plane comes back for a moment, says something, and is away again: at the end of that outage too
/// everything is fenced. Stock, whose EDS is the same before and after, goes on using what is dead.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_that_follows_a_brief_return_is_fenced_as_well() {
    for feed in [FEEDS[0], FEEDS[2]] {
        let (mesh, one, two) = two_pods(with_looks(feed)).await;
        mesh.control_plane.outage().await;
        mesh.wait_stat("watch_suspected", |suspected| suspected >= 1).await.unwrap();
        mesh.control_plane.remove_endpoint(&lab::control_plane::cluster_name(ECHO, 80), two.addr()).unwrap();
        mesh.control_plane.recover().await.unwrap();
        mesh.acked().await.unwrap();
        mesh.wait_stat("watch_suspected", |suspected| suspected >= 2).await.unwrap();
        mesh.control_plane.outage().await;
        mesh.wait_stat("watch_suspected", |suspected| suspected >= 3).await.unwrap();
        let (during, addr) = (seen(&mesh, ip(1)).await.generation, one.addr());
        one.vanish().await.unwrap();
        let successor = mesh.pod("successor", 1).await.unwrap();
        mesh.control_plane.recover().await.unwrap();
        mesh.acked().await.unwrap();
        mesh.wait_stat("watch_suspected", |suspected| suspected >= 4).await.unwrap();
        // The idle inner connection is from before; who opens a tunnel now is on a new connection.
        let mut last = mesh.post(ECHO, "/").await.unwrap();
        if last.status != StatusCode::OK {
            last = mesh.post(ECHO, "/").await.unwrap();
        }
        assert_eq!(last.pod(), Some("successor"), "{feed:?}");
        assert!(seen(&mesh, ip(1)).await.generation > during, "{feed:?}");
        drop((successor, addr));
    }
}

/// The control of what `suspect_after` promises: identical endpoints after an outage are no news to stock Envoy.
#[tokio::test(flavor = "multi_thread")]
async fn stock_uses_the_dead_connection_after_an_outage_that_hid_a_replacement() {
    for (setup, expected) in
        [(Setup::new(Variant::Stock), StatusCode::SERVICE_UNAVAILABLE), (with_looks(FEEDS[0]), StatusCode::OK)]
    {
        let module = expected == StatusCode::OK;
        let (mesh, pod, stream) = lab::scenes::hung(setup).await.unwrap();
        if module {
            // What was never seen to be there is not missed.
            wait_connected(&mesh, true).await;
        }
        mesh.control_plane.outage().await;
        if module {
            mesh.wait_stat("watch_suspected", |suspected| suspected >= 1).await.unwrap();
        }
        pod.vanish().await.unwrap();
        let successor = mesh.pod("successor", 1).await.unwrap();
        mesh.control_plane.recover().await.unwrap();
        mesh.control_plane.wait_connected(1, WITHIN).await.unwrap();
        mesh.control_plane.push_full();
        mesh.acked().await.unwrap();
        if module {
            mesh.wait_stat("watch_suspected", |suspected| suspected >= 2).await.unwrap();
        }
        let reply = mesh.post(ECHO, "/").await.unwrap();
        assert_eq!(reply.status, expected, "module: {module}");
        assert_eq!(successor.executed(&reply.id), usize::from(module));
        drop(stream);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_outage_and_a_restart_of_the_control_plane_fence_nothing() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let setup = with_looks(Feed::Validator(protocol)).bootstrap(|bootstrap| {
            bootstrap.with_config_fields(ExtensionPoint::Status, &json!({ "suspect_after": "20s" }))
        });
        let (mesh, one, two) = two_pods(setup).await;
        let handshakes = |pod: &Pod| pod.ztunnel().unwrap().connections().log().len();
        let before = (handshakes(&one), handshakes(&two));
        mesh.control_plane.restart().await.unwrap();
        mesh.acked().await.unwrap();
        mesh.control_plane.outage().await;
        mesh.control_plane.recover().await.unwrap();
        mesh.acked().await.unwrap();
        for _ in 0..6 {
            assert_eq!(mesh.post(ECHO, "/order").await.unwrap().status, StatusCode::OK);
        }
        assert_eq!((handshakes(&one), handshakes(&two)), before, "{protocol:?}: the same set again is no news");
        let page = page(&mesh, "").await;
        assert_eq!(page["watch"]["validator"]["removed"], 0, "{protocol:?}: {page:#}");
        assert_eq!(page["control_plane"]["suspected"], 0, "{protocol:?}: {page:#}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_gauge_an_outage_is_not_seen_and_that_is_said_once() {
    let setup = with_looks(FEEDS[0]).bootstrap(|bootstrap| {
        let inclusion = json!({ "stats_matcher": { "inclusion_list": { "patterns": [
            { "prefix": "cluster" }, { "prefix": "dynamicmodulescustom" }, { "prefix": "listener" } ] } } });
        bootstrap.patch("/stats_config", inclusion)
    });
    let mesh = setup.start().await.unwrap();
    let said = || mesh.envoy.log().unwrap().matches("Envoy has no gauge control_plane.connected_state").count();
    let deadline = std::time::Instant::now() + WITHIN;
    while said() == 0 {
        assert!(std::time::Instant::now() < deadline, "nothing is said: {}", mesh.envoy.log_tail());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let sent = mesh.envoy.admin().stat("cluster.prometheus_stats.upstream_rq_total").await.unwrap();
    assert!(sent <= 3, "looks that tell nothing become rare: {sent} were sent");
    assert_eq!(page(&mesh, "").await["control_plane"]["connected"], json!(null));
    mesh.control_plane.outage().await;
    mesh.envoy.assert_alive().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_black_hole_is_suspected_once_and_its_attempts_to_connect_are_no_return() {
    for feed in [FEEDS[0], FEEDS[2]] {
        let setup = with_looks(feed)
            .bootstrap(|bootstrap| bootstrap.with_ads_backoff(Duration::from_secs(1), Duration::from_secs(2)));
        let (mesh, one, two) = two_pods(setup).await;
        mesh.control_plane.black_hole().await.unwrap();
        mesh.wait_stat("watch_suspected", |suspected| suspected >= 1).await.unwrap();
        let timeouts = "cluster.xds-grpc.upstream_cx_connect_timeout";
        mesh.envoy.admin().wait_for_stat(timeouts, WITHIN, |attempts| attempts >= 4).await.unwrap();
        // Envoy's gauge is 1 during every attempt.
        wait_connected(&mesh, true).await;
        wait_connected(&mesh, false).await;
        assert_eq!(mesh.stat("watch_suspected").await.unwrap(), 1, "{feed:?}: once, however often Envoy tries");
        mesh.control_plane.remove_endpoint(&lab::control_plane::cluster_name(ECHO, 80), two.addr()).unwrap();
        mesh.control_plane.recover().await.unwrap();
        mesh.acked().await.unwrap();
        removed(&mesh, ip(2), 1).await;
        mesh.wait_stat("watch_suspected", |suspected| suspected >= 2).await.unwrap();
        wait_connected(&mesh, true).await;
        // A change that comes later fences its own endpoint alone.
        mesh.unlist(ECHO, one.addr()).await.unwrap();
        removed(&mesh, ip(1), 1).await;
        assert_eq!(mesh.stat("watch_suspected").await.unwrap(), 2, "{feed:?}: once in the gap, once at its end");
    }
}
