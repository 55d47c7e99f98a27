//! What the field leaves open, answered with numbers: `docs/findings.md` quotes these tests.

use std::time::{Duration, Instant, SystemTime};

use http::StatusCode;
use lab::{
    bootstrap::Variant,
    control_plane::{Answer, Health, Service, cluster_name},
    mesh::{ECHO, Mesh, Setup, WITHIN},
    pod::Pod,
};
use serde_json::json;

use crate::scenes::{fence, hold, on, outer_open, page, warm};

/// A waypoint that speaks HTTP/2 or HTTP/1.1 with the service, and one pod.
async fn mesh(variant: Variant, http2: bool) -> (Mesh, Pod) {
    let mesh = Setup::new(variant).start().await.unwrap();
    if http2 {
        mesh.control_plane.remove_service(&cluster_name(ECHO, 80)).unwrap();
        mesh.acked().await.unwrap();
        mesh.control_plane.set_service(Service::new(ECHO, Vec::new()).http2());
    }
    let pod = mesh.pod("pod", 1).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    (mesh, pod)
}

/// Time from `start` until a tunnel was closed, if it was.
fn closed_after(pod: &Pod, tunnel: usize, start: Instant) -> Option<Duration> {
    let at = pod.ztunnel().unwrap().tunnels().with(|all| all[tunnel].closed)?;
    Some(at.saturating_duration_since(start))
}

async fn wait_tunnel_closed(pod: &Pod, tunnel: usize) {
    let closed = |all: &[lab::ztunnel::Tunnel]| all.get(tunnel)?.closed.map(drop);
    pod.ztunnel().unwrap().tunnels().wait_for("the tunnel's end", closed).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn removal_closes_idle_inner_connections_at_once_and_no_outer_one() {
    for http2 in [false, true] {
        let (mesh, pod) = mesh(Variant::Stock, http2).await;
        assert_eq!(mesh.get(ECHO, "/").await.unwrap().status, StatusCode::OK);
        let start = Instant::now();
        mesh.unlist(ECHO, pod.addr()).await.unwrap();
        wait_tunnel_closed(&pod, 0).await;
        println!("http2 {http2}: idle inner connection closed after {:?}", closed_after(&pod, 0, start));
        // Long enough for anything that would follow at once; the rest is the idle timeout's, an hour.
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(outer_open(&pod), 1, "the outer connection stays, idle");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn removal_leaves_a_busy_inner_connection_until_its_request_is_done() {
    for http2 in [false, true] {
        let (mesh, pod) = mesh(Variant::Stock, http2).await;
        let mut stream = hold(&mesh, ECHO, "busy").await.unwrap();
        mesh.unlist(ECHO, pod.addr()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(stream.ended().is_none() && closed_after(&pod, 0, Instant::now()).is_none(), "it is left alone");
        let start = Instant::now();
        pod.app().unwrap().release();
        stream.wait_end(WITHIN).await.unwrap();
        wait_tunnel_closed(&pod, 0).await;
        println!("http2 {http2}: busy inner connection closed {:?} after its request", closed_after(&pod, 0, start));
        assert_eq!(outer_open(&pod), 1, "the outer connection stays, idle");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clean_up_of_original_dst_hosts_leaves_idle_outer_connections_alone() {
    let quick = |bootstrap: lab::bootstrap::Bootstrap| {
        let cluster = bootstrap.cluster("connect_originate")?;
        bootstrap.patch(&format!("{cluster}/cleanup_interval"), json!("1s"))
    };
    let kept = fence(json!({ "close_fenced": false }));
    let (mesh, pod) = warm(Setup::new(Variant::FenceOnly).bootstrap(quick).bootstrap(kept)).await.unwrap();
    mesh.unlist(ECHO, pod.addr()).await.unwrap();
    mesh.drained(ECHO).await.unwrap();
    let connections = pod.ztunnel().unwrap().connections();
    let closed = tokio::time::timeout(Duration::from_secs(5), connections.wait_closed(0)).await;
    assert!(closed.is_err(), "five clean-ups: a host that has a connection counts as used ({closed:?})");
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_from_a_push_to_the_last_worker() {
    const WORKERS: u32 = 4;
    const ROUNDS: usize = 10;
    let setup = Setup::new(Variant::FenceOnly).workers(WORKERS);
    let mesh = setup.envoy(|options| options.component_log_levels.push(("dynamic_modules".into(), "debug".into())));
    let mesh = mesh.start().await.unwrap();
    let pod = mesh.pod("pod", 1).await.unwrap();
    let (mut seen, mut acked, mut last) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        mesh.list(ECHO, pod.addr()).await.unwrap();
        let first = pod.ztunnel().unwrap().tunnels().len();
        // Each on a client connection of its own: the kernel spreads them over the workers.
        let replies = futures::future::join_all((0..8 * WORKERS).map(|_| mesh.get(ECHO, "/?delay_ms=100"))).await;
        assert!(replies.into_iter().all(|reply| reply.unwrap().status == StatusCode::OK));
        let (start, clock) = (Instant::now(), SystemTime::now());
        mesh.unlist(ECHO, pod.addr()).await.unwrap();
        mesh.drained(ECHO).await.unwrap();
        let all_closed =
            |all: &[lab::ztunnel::Tunnel]| all.iter().map(|tunnel| tunnel.closed).collect::<Option<Vec<_>>>();
        let closed = pod.ztunnel().unwrap().tunnels().wait_for("the end of all tunnels", all_closed).await.unwrap();
        let pushes = mesh.control_plane.pushes();
        let Some(Answer::Acked(at)) = pushes.last().map(|push| push.answer.clone()) else { panic!("no ACK") };
        acked.push(at.saturating_duration_since(start));
        last.push(closed[first..].iter().max().unwrap().saturating_duration_since(start));
        seen.push(since(clock, &mesh.envoy.log().unwrap()));
    }
    for (name, mut times) in [("validator", seen), ("ACK", acked), ("last worker", last)] {
        times.sort_unstable();
        println!("push to {name}: median {:?}, longest {:?}", times[ROUNDS / 2], times[ROUNDS - 1]);
    }
}

/// Time from `clock` to the last look of the validator, by the log's time of day.
fn since(clock: SystemTime, log: &str) -> Duration {
    let line = log.lines().rev().find(|line| line.contains("the validator saw")).expect("the validator looked");
    let time = line.split(['[', ']', ' ']).find(|part| part.matches(':').count() == 2).expect("a time of day");
    let seconds: f64 = time.rsplit(':').next().and_then(|seconds| seconds.parse().ok()).expect("seconds");
    let minute = clock.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64() % 60.0;
    // The log has milliseconds, cut off.
    Duration::from_secs_f64((seconds + 0.001 - minute).rem_euclid(60.0))
}

/// The figures are printed, and quoted for the Envoys that have no validator.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_validator_a_poll_learns_of_a_removal() {
    for version in ["1.38.3", "1.39.3"] {
        let (mesh, pod) = warm(on(version, Setup::new(Variant::FenceOnly))).await.unwrap();
        let mut times = Vec::new();
        for _ in 0..5 {
            // Polls compare: one must have seen the endpoint before another can miss it.
            mesh.wait_stat("endpoints_listed", |count| count == 1).await.unwrap();
            assert_eq!(mesh.post(ECHO, "/").await.unwrap().status, StatusCode::OK);
            let start = Instant::now();
            mesh.unlist(ECHO, pod.addr()).await.unwrap();
            while page(&mesh, pod.ip()).await["presence"] != "gone" {
                assert!(start.elapsed() < WITHIN, "{version}: the removal is not seen");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            times.push(start.elapsed());
            mesh.list(ECHO, pod.addr()).await.unwrap();
        }
        times.sort_unstable();
        println!("{version}: push to fence by poll: {times:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_terminating_endpoint_sent_as_unhealthy_or_draining_does() {
    for health in [Health::Unhealthy, Health::Draining] {
        let (mesh, pod) = warm(Setup::new(Variant::FenceOnly)).await.unwrap();
        let (second, third) = (mesh.pod("second", 2).await.unwrap(), mesh.pod("third", 3).await.unwrap());
        let stream = hold(&mesh, ECHO, "busy").await.unwrap();
        assert_eq!(mesh.get(ECHO, "/").await.unwrap().pod(), Some("old"), "beside the busy tunnel an idle one");
        for other in [&second, &third] {
            mesh.list(ECHO, other.addr()).await.unwrap();
        }
        let tunnels = pod.ztunnel().unwrap().tunnels().len();
        mesh.control_plane.set_health(&cluster_name(ECHO, 80), pod.addr(), health).unwrap();
        mesh.acked().await.unwrap();
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let open = pod.ztunnel().unwrap().tunnels().with(|all| all.iter().filter(|one| one.closed.is_none()).count());
        for _ in 0..6 {
            assert_ne!(mesh.get(ECHO, "/").await.unwrap().pod(), Some("old"), "{health:?}: no new request goes there");
        }
        let page = page(&mesh, pod.ip()).await;
        assert_eq!((open, outer_open(&pod)), (tunnels, 1), "{health:?}: Envoy closes nothing, not even what is idle");
        assert_eq!(page["fenced"], true, "{health:?}");
        assert!(stream.ended().is_none(), "{health:?}: what is in flight lives on");
    }
}

/// A pod that is replaced between DRAINING and HEALTHY: its idle inner connections were never closed,
/// and are tunnels that are open already. Gives the status of a POST to the successor.
async fn replaced_while_draining(fields: serde_json::Value) -> StatusCode {
    let closes = !fields["close_after_removal"].is_null();
    let setup = Setup::new(Variant::FenceOnly).bootstrap(crate::scenes::fence(fields));
    let (mesh, pod) = warm(setup).await.unwrap();
    let (cluster, addr) = (cluster_name(ECHO, 80), pod.addr());
    mesh.control_plane.set_health(&cluster, addr, Health::Draining).unwrap();
    mesh.acked().await.unwrap();
    if closes {
        mesh.wait_stat("fence_closed_after_removal", |count| count == 1).await.unwrap();
    }
    pod.vanish().await.unwrap();
    let successor = mesh.pod("new", 1).await.unwrap();
    mesh.control_plane.set_health(&cluster, addr, Health::Healthy).unwrap();
    mesh.acked().await.unwrap();
    let reply = mesh.post(ECHO, "/").await.unwrap();
    assert_eq!(successor.executed(&reply.id), usize::from(reply.status == StatusCode::OK));
    reply.status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_replaced_while_draining_leaves_idle_tunnels_that_close_after_removal_closes() {
    assert_eq!(replaced_while_draining(json!({})).await, StatusCode::SERVICE_UNAVAILABLE, "the idle tunnel is used");
    assert_eq!(replaced_while_draining(json!({ "close_after_removal": "1s" })).await, StatusCode::OK);
}
