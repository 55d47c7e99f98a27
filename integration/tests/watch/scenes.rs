//! Every way an endpoint can leave, once for each source.

use std::time::Duration;

use http::StatusCode;
use lab::{
    control_plane::{Endpoint, Health, Service, cluster_name},
    load::{HeldStream, StreamSpec},
    mesh::{ECHO, Mesh},
    pod::Pod,
};
use serde_json::json;

use crate::support::{
    Delays, FEEDS, Feed, applied_at, fenced_at, ip, page, polls, removed, seen, wait_polls, wait_seen,
};

const OTHER: &str = "other.default.svc.cluster.local";

/// The default `max_interval` of polls.
const MAX_INTERVAL: Duration = Duration::from_secs(5);

/// A mesh with one pod that has answered one request, so that a tunnel to it is idle.
async fn warm(feed: Feed) -> (Mesh, Pod) {
    let mesh = feed.setup().services(&[ECHO, OTHER]).start().await.unwrap();
    let pod = mesh.pod("pod", 1).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    settled(&mesh, feed).await;
    assert_eq!(mesh.get(ECHO, "/").await.unwrap().status, StatusCode::OK, "{feed:?}: the path works");
    // A poll has seen that tunnel: only then do the counters tell a return.
    settled(&mesh, feed).await;
    (mesh, pod)
}

/// The source has seen what Envoy has applied.
async fn settled(mesh: &Mesh, feed: Feed) {
    if feed.is_admin() {
        // One may be in flight whose answer is older.
        wait_polls(mesh, 2).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_fences_before_it_is_applied_or_within_a_poll_interval() {
    for feed in FEEDS {
        let (mesh, pod) = warm(feed).await;
        let mut delays = Delays::default();
        let mut generations = vec![seen(&mesh, ip(1)).await.generation];
        for round in 1..=10 {
            mesh.unlist(ECHO, pod.addr()).await.unwrap();
            assert!(removed(&mesh, ip(1), round).await.fenced, "{feed:?}: the next tunnel gets another generation");
            delays.measure(&mesh, ip(1)).await;
            if !feed.is_admin() {
                let (earliest, _) = fenced_at(&mesh, ip(1)).await;
                assert!(earliest <= applied_at(&mesh), "the validator comes before the acknowledgement");
            }
            mesh.list(ECHO, pod.addr()).await.unwrap();
            wait_seen(&mesh, ip(1), |seen| seen.presence == "present").await;
            assert_eq!(mesh.get(ECHO, "/").await.unwrap().status, StatusCode::OK);
            generations.push(seen(&mesh, ip(1)).await.generation);
        }
        delays.report("removal with an idle tunnel", feed);
        assert!(delays.worst() < MAX_INTERVAL, "{feed:?}: {delays:?}");
        assert!(generations.is_sorted_by(|one, next| one < next), "{feed:?}: every return is a new generation");
        assert_eq!(page(&mesh, "").await["watch"][feed.name()]["removed"], 10, "{feed:?}: each removal counts once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_without_any_tunnel_is_seen_within_a_poll_interval() {
    for feed in FEEDS.into_iter().filter(|feed| feed.is_admin()) {
        let interval = Duration::from_secs(1);
        let watch = json!({ "min_interval": "250ms", "max_interval": "1s" });
        let mesh = feed.setup().bootstrap(move |bootstrap| polls(bootstrap, &watch)).start().await.unwrap();
        let cluster = cluster_name(ECHO, 80);
        let endpoints: Vec<Endpoint> = (10..13).map(|octet| Endpoint::new(ip(octet), 8080)).collect();
        mesh.control_plane.edit_endpoints(&cluster, |list| list.extend(endpoints.clone())).unwrap();
        mesh.acked().await.unwrap();
        let mut delays = Delays::default();
        for endpoint in endpoints {
            // Quiet times: the pause between polls is the longest.
            wait_polls(&mesh, 2).await;
            mesh.unlist(ECHO, endpoint.addr()).await.unwrap();
            removed(&mesh, endpoint.ip, 1).await;
            delays.measure(&mesh, endpoint.ip).await;
        }
        delays.report("removal without a tunnel, max_interval 1s", feed);
        assert!(delays.worst() < interval + interval / 2, "{feed:?}: an interval, and the time of a poll: {delays:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_endpoint_is_fenced_and_its_return_to_health_fences_again() {
    for feed in FEEDS {
        let (mesh, pod) = warm(feed).await;
        let cluster = cluster_name(ECHO, 80);
        let set = async |health| {
            mesh.control_plane.set_health(&cluster, pod.addr(), health).unwrap();
            mesh.acked().await.unwrap();
        };
        let mut delays = Delays::default();
        set(Health::Unhealthy).await;
        assert_eq!(removed(&mesh, ip(1), 1).await.presence, "gone", "{feed:?}: it may be replaced until it is healthy");
        delays.measure(&mesh, ip(1)).await;
        set(Health::Healthy).await;
        wait_seen(&mesh, ip(1), |seen| seen.presence == "present").await;
        mesh.get(ECHO, "/").await.unwrap();
        set(Health::Draining).await;
        let draining = removed(&mesh, ip(1), 2).await;
        assert_eq!((draining.removals, draining.presence.as_str()), (2, "gone"), "{feed:?}");
        delays.measure(&mesh, ip(1)).await;
        delays.report("health change", feed);
        assert!(delays.worst() < MAX_INTERVAL, "{feed:?}: {delays:?}");
        set(Health::Healthy).await;
        let back = wait_seen(&mesh, ip(1), |seen| seen.presence == "present").await;
        assert!(back.fenced, "{feed:?}: the pod may be another one");
        // The tunnel from before is idle, and Envoy keeps it: a host that stays listed keeps its pool. Once
        // that tunnel is taken, the next one is new.
        let held = HeldStream::open(&mesh.connector(), &StreamSpec::get(ECHO, "/?hang=body"), "held").await.unwrap();
        assert_eq!(mesh.get(ECHO, "/").await.unwrap().status, StatusCode::OK);
        assert!(seen(&mesh, ip(1)).await.generation > draining.generation, "{feed:?}");
        drop(held);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_move_to_another_service_in_one_response_is_fenced() {
    for feed in FEEDS {
        let (mesh, pod) = warm(feed).await;
        let before = seen(&mesh, ip(1)).await.generation;
        mesh.control_plane.hold();
        mesh.control_plane.remove_endpoint(&cluster_name(ECHO, 80), pod.addr()).unwrap();
        mesh.control_plane.add_endpoint(&cluster_name(OTHER, 80), Endpoint::new(ip(1), pod.addr().port())).unwrap();
        mesh.control_plane.release();
        mesh.acked().await.unwrap();
        let moved = wait_seen(&mesh, ip(1), |seen| seen.removals == 1 && seen.presence == "present").await;
        assert!(moved.fenced, "{feed:?}: a removal from any cluster fences: {moved:?}");
        let mut delays = Delays::default();
        delays.measure(&mesh, ip(1)).await;
        delays.report("move to another service", feed);
        assert_eq!(mesh.get(OTHER, "/").await.unwrap().status, StatusCode::OK);
        assert!(seen(&mesh, ip(1)).await.generation > before, "{feed:?}: its connection is not the first service's");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_and_return_in_one_response_have_no_signal() {
    for feed in FEEDS {
        let (mesh, pod) = warm(feed).await;
        mesh.control_plane.hold();
        mesh.control_plane.remove_endpoint(&cluster_name(ECHO, 80), pod.addr()).unwrap();
        mesh.control_plane.add_endpoint(&cluster_name(ECHO, 80), Endpoint::new(ip(1), pod.addr().port())).unwrap();
        mesh.control_plane.release();
        mesh.acked().await.unwrap();
        settled(&mesh, feed).await;
        let seen = seen(&mesh, ip(1)).await;
        assert_eq!((seen.removals, seen.fenced), (0, false), "{feed:?}: byte-identical endpoints say nothing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_and_return_between_two_polls_are_seen_by_the_counters() {
    for feed in FEEDS.into_iter().filter(|feed| feed.is_admin()) {
        let watch = json!({ "min_interval": "1500ms", "max_interval": "1500ms" });
        let mesh = feed.setup().bootstrap(move |bootstrap| polls(bootstrap, &watch)).start().await.unwrap();
        let pod = mesh.pod("pod", 1).await.unwrap();
        mesh.list(ECHO, pod.addr()).await.unwrap();
        assert_eq!(mesh.get(ECHO, "/").await.unwrap().status, StatusCode::OK);
        wait_polls(&mesh, 2).await;
        mesh.unlist(ECHO, pod.addr()).await.unwrap();
        mesh.list(ECHO, pod.addr()).await.unwrap();
        let seen = removed(&mesh, ip(1), 1).await;
        assert_eq!((seen.removals, seen.presence.as_str(), seen.fenced), (1, "present", true), "{feed:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flap_is_a_removal_and_a_return_and_breaks_nothing() {
    for feed in FEEDS {
        let (mesh, pod) = warm(feed).await;
        let mut last = seen(&mesh, ip(1)).await.generation;
        let mut delays = Delays::default();
        let flaps = if feed.is_admin() { 2 } else { 5 };
        for flap in 1..=flaps {
            mesh.unlist(ECHO, pod.addr()).await.unwrap();
            mesh.list(ECHO, pod.addr()).await.unwrap();
            // The return, or the fallen counters, or both.
            let seen = wait_seen(&mesh, ip(1), |seen| seen.removals >= flap && seen.presence == "present").await;
            assert!(seen.fenced, "{feed:?}: flap {flap}: {seen:?}");
            delays.measure(&mesh, ip(1)).await;
            assert_eq!(mesh.post(ECHO, "/order").await.unwrap().status, StatusCode::OK, "{feed:?}: flap {flap}");
            let now = self::seen(&mesh, ip(1)).await.generation;
            assert!(now > last, "{feed:?}: flap {flap}");
            last = now;
            settled(&mesh, feed).await;
        }
        delays.report("flap", feed);
        assert_eq!(seen(&mesh, ip(1)).await.removals, flaps, "{feed:?}: no flap counts twice");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_services_with_rolling_churn_lose_no_removal() {
    for feed in [FEEDS[0], FEEDS[1], FEEDS[2]] {
        let hosts: Vec<String> = (0..50).map(|service| format!("s{service}.default.svc.cluster.local")).collect();
        let names: Vec<&str> = hosts.iter().map(String::as_str).collect();
        let mesh = feed.setup().services(&names).start().await.unwrap();
        let address = |service: usize, pod: usize| {
            let [high, low] = u16::try_from(service * 256 + pod).unwrap().to_be_bytes();
            std::net::IpAddr::from([10, 245, high, low])
        };
        mesh.control_plane.hold();
        for (service, host) in hosts.iter().enumerate() {
            let pods = (0..40).map(|pod| Endpoint::new(address(service, pod), 8080)).collect();
            mesh.control_plane.set_service(Service::new(host, pods));
        }
        mesh.control_plane.release();
        mesh.acked().await.unwrap();
        // A real one, with a tunnel, in the middle of it.
        let pod = mesh.pod("pod", 1).await.unwrap();
        mesh.list(names[25], pod.addr()).await.unwrap();
        mesh.wait_stat("endpoints_listed", |listed| listed == 2_001).await.unwrap();
        let mut delays = Delays::default();
        // The module as tests build it is slow, and polls keep to their share of the main thread.
        let rounds = if feed.is_admin() { 5 } else { 20 };
        for round in 0..rounds {
            mesh.control_plane.hold();
            for (service, host) in hosts.iter().enumerate() {
                mesh.control_plane
                    .edit_endpoints(&cluster_name(host, 80), |endpoints| {
                        endpoints.retain(|endpoint| endpoint.ip != address(service, round));
                        endpoints.push(Endpoint::new(address(service, 40 + round), 8080));
                    })
                    .unwrap();
            }
            mesh.control_plane.release();
            mesh.acked().await.unwrap();
            for service in [0, 49] {
                removed(&mesh, address(service, round), 1).await;
                delays.measure(&mesh, address(service, round)).await;
            }
        }
        delays.report("50 services with rolling churn", feed);
        assert!(delays.worst() < MAX_INTERVAL, "{feed:?}: {delays:?}");
        let page = page(&mesh, "?limit=0").await;
        assert_eq!(page["watch"][feed.name()]["removed"], 50 * rounds, "{feed:?}: 50 removals in each round: {page:#}");
        assert_eq!(page["totals"]["listed"], 2_001, "{feed:?}: {page:#}");
        assert_eq!(seen(&mesh, ip(1)).await.removals, 0, "{feed:?}: who stays is not fenced");
    }
}
