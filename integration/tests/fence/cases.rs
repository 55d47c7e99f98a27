//! Cases that people who run meshes reported, each with the outcome that they would call right, and
//! with the same proxy without the module as its control.

use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, stream::FuturesUnordered};
use http::{Method, StatusCode};
use lab::{
    app::Behaviour,
    bootstrap::Variant,
    control_plane::{Service, cluster_name},
    mesh::{ECHO, Mesh, Setup},
    pod::{Pod, PodSpec},
};

use crate::scenes::{
    broken, hold, hung, outer, outer_open, replace_after_drain, replace_after_removal, replace_in_the_dark, warm,
};

/// 1: the address is used again, and a half-open outer connection answers with RST.
#[tokio::test(flavor = "multi_thread")]
async fn case_1_an_announced_replacement_gets_a_post_at_the_first_attempt() {
    for (variant, expected) in [(Variant::Stock, (503, 0, 1)), (Variant::FenceOnly, (200, 1, 0))] {
        let (mesh, pod) = warm(Setup::new(variant)).await.unwrap();
        let successor = replace_after_drain(&mesh, pod).await.unwrap();
        let request = mesh.request(Method::POST, ECHO, "/").body(Bytes::from(vec![b'x'; 100])).unwrap();
        let reply = mesh.send(request).await.unwrap();
        let got = (reply.status.as_u16(), successor.executed(&reply.id), broken(&mesh).await.unwrap());
        assert_eq!(got, expected, "{}: status, executions, dead connections used", variant.name());
        assert_eq!(reply.attempts(), Some(1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_1_without_any_signal_a_get_is_retried_and_a_post_is_not() {
    let (mesh, pod) = warm(Setup::new(Variant::StaleGuard)).await.unwrap();
    let successor = replace_in_the_dark(&mesh, pod).await.unwrap();
    let post = mesh.post(ECHO, "/").await.unwrap();
    assert_eq!(
        (post.status, successor.executed(&post.id), post.attempts()),
        (StatusCode::SERVICE_UNAVAILABLE, 0, Some(1))
    );
    let (mesh, pod) = warm(Setup::new(Variant::StaleGuard)).await.unwrap();
    let successor = replace_in_the_dark(&mesh, pod).await.unwrap();
    let get = mesh.get(ECHO, "/").await.unwrap();
    assert_eq!((get.status, successor.executed(&get.id), get.attempts()), (StatusCode::OK, 1, Some(2)));
}

/// 2: an idle timeout does not help an endpoint that is back before it is over.
#[tokio::test(flavor = "multi_thread")]
async fn case_2_a_return_before_the_idle_timeout_opens_a_new_outer_connection() {
    let idle = Duration::from_secs(15);
    let (mesh, pod, stream) = hung(Setup::new(Variant::HboneIdleTimeout(idle))).await.unwrap();
    let successor = replace_after_removal(&mesh, pod).await.unwrap();
    let reply = mesh.post(ECHO, "/").await.unwrap();
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE, "the control run must fail");
    assert_eq!(successor.executed(&reply.id), 0);
    drop((stream, mesh));

    let with_idle = move |bootstrap: lab::bootstrap::Bootstrap| bootstrap.with_hbone_idle_timeout(idle);
    let (mesh, pod, stream) = hung(Setup::new(Variant::FenceOnly).bootstrap(with_idle)).await.unwrap();
    let total = "cluster.connect_originate.upstream_cx_total";
    let before = mesh.envoy.admin().stat(total).await.unwrap();
    let successor = replace_after_removal(&mesh, pod).await.unwrap();
    let reply = mesh.post(ECHO, "/").await.unwrap();
    assert_eq!((reply.status, successor.executed(&reply.id)), (StatusCode::OK, 1));
    assert_eq!(mesh.envoy.admin().stat(total).await.unwrap(), before + 1, "one new outer connection");
    drop(stream);
}

#[tokio::test(flavor = "multi_thread")]
async fn case_2_a_connection_closed_by_the_idle_timeout_is_replaced() {
    let with_idle =
        |bootstrap: lab::bootstrap::Bootstrap| bootstrap.with_hbone_idle_timeout(Duration::from_millis(300));
    let (mesh, pod) = warm(Setup::new(Variant::FenceOnly).bootstrap(with_idle)).await.unwrap();
    // The outer connection is idle once its last tunnel is over.
    pod.app().unwrap().close_idle();
    pod.ztunnel().unwrap().connections().wait_closed(0).await.unwrap();
    assert_eq!(mesh.post(ECHO, "/").await.unwrap().status, StatusCode::OK);
    assert_eq!((outer(&pod), outer_open(&pod)), (2, 1));
}

/// 3: removal and re-add merge into one push, which then says nothing new.
#[tokio::test(flavor = "multi_thread")]
async fn case_3_a_merged_replacement_disturbs_nobody_else_and_is_survived_by_retry() {
    for variant in [Variant::Stock, Variant::StaleGuard] {
        let mesh = Setup::new(variant).start().await.unwrap();
        let (a, b) = (mesh.pod("a", 1).await.unwrap(), mesh.pod("b", 2).await.unwrap());
        for pod in [&a, &b] {
            mesh.list(ECHO, pod.addr()).await.unwrap();
        }
        // Round robin: one each, twice.
        for _ in 0..4 {
            mesh.get(ECHO, "/").await.unwrap();
        }
        let connections = outer(&b);
        a.vanish().await.unwrap();
        let successor = mesh.pod("a2", 1).await.unwrap();
        mesh.control_plane.push_full();
        mesh.acked().await.unwrap();
        let replies = [mesh.get(ECHO, "/").await.unwrap(), mesh.get(ECHO, "/").await.unwrap()];
        let good = replies.iter().filter(|reply| reply.status == StatusCode::OK).count();
        match variant {
            Variant::Stock => assert_eq!(good, 1, "the control run must fail where the replaced pod has its turn"),
            _ => {
                assert_eq!(good, 2, "{replies:?}");
                assert_eq!(mesh.stat("fence_generations").await.unwrap(), 0, "the same endpoints are no event");
                for reply in &replies {
                    assert_eq!(successor.executed(&reply.id) + b.executed(&reply.id), 1);
                }
            }
        }
        assert_eq!(outer(&b), connections, "the other endpoint keeps its connection");
    }
}

/// 6: a keep-alive timeout in the application meets requests on their way. GETs until as many as `crossed` attempts
/// met the FIN, which is when nobody executed them. Gives the GETs that failed.
async fn short_keep_alive(variant: Variant, crossed: usize) -> Vec<lab::mesh::Reply> {
    const ROUNDS: u64 = 2_000;
    let mesh = Setup::new(variant).start().await.unwrap();
    let keep_alive = Duration::from_millis(60);
    let ip = "10.244.1.1".parse().unwrap();
    let pod = mesh.pod_with(PodSpec { keep_alive: Some(keep_alive), ..PodSpec::new("short", ip) }).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    let (mut failed, mut races) = (Vec::new(), 0);
    for round in 0..ROUNDS {
        let reply = mesh.get(ECHO, "/").await.unwrap();
        let attempts = usize::try_from(reply.attempts().unwrap()).unwrap();
        races += attempts - pod.executed(&reply.id);
        if reply.status != StatusCode::OK {
            failed.push(reply);
        }
        if races >= crossed {
            return failed;
        }
        // Around the timeout, so that its FIN and the next request cross: the pause is the fault.
        tokio::time::sleep(keep_alive - Duration::from_micros(2_000) + Duration::from_micros(round * 97 % 4_000)).await;
    }
    panic!("{}: only {races} of {ROUNDS} requests crossed a FIN: not provoked", variant.name());
}

#[tokio::test(flavor = "multi_thread")]
async fn case_6_gets_that_cross_the_fin_of_a_short_keep_alive_all_succeed() {
    let (stock, guarded) = tokio::join!(short_keep_alive(Variant::Stock, 1), short_keep_alive(Variant::StaleGuard, 5));
    assert_eq!(stock.len(), 1, "the control run must fail");
    assert!(guarded.is_empty(), "{guarded:?}");
}

/// POSTs to a service whose cluster keeps idle connections for so long, while its application closes them after 60 ms;
/// until one fails, at most so many. Gives the number that was answered.
async fn posts_to_a_short_keep_alive(idle_timeout: Option<Duration>, most: usize) -> usize {
    let mesh = Setup::new(Variant::StaleGuard).start().await.unwrap();
    mesh.control_plane.remove_service(&cluster_name(ECHO, 80)).unwrap();
    mesh.acked().await.unwrap();
    mesh.control_plane.set_service(Service { idle_timeout, ..Service::new(ECHO, Vec::new()) });
    let (keep_alive, ip) = (Duration::from_millis(60), "10.244.1.1".parse().unwrap());
    let pod = mesh.pod_with(PodSpec { keep_alive: Some(keep_alive), ..PodSpec::new("short", ip) }).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    for round in 0..most {
        if mesh.post(ECHO, "/").await.unwrap().status != StatusCode::OK {
            return round;
        }
        let jitter = Duration::from_micros(round as u64 * 97 % 4_000);
        tokio::time::sleep(keep_alive - Duration::from_micros(2_000) + jitter).await;
    }
    most
}

/// What nobody may replay: the cure is to be first to close, by the service's own cluster.
#[tokio::test(flavor = "multi_thread")]
async fn case_6_a_cluster_that_closes_idle_connections_first_loses_no_post() {
    let answered = posts_to_a_short_keep_alive(None, 2_000).await;
    assert!(answered < 2_000, "the control run must fail");
    println!("without the cluster's idle timeout the POST number {} failed", answered + 1);
    assert_eq!(posts_to_a_short_keep_alive(Some(Duration::from_millis(30)), 200).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn case_6_a_fin_that_crosses_a_get_is_survived() {
    for (variant, status) in [(Variant::Stock, StatusCode::SERVICE_UNAVAILABLE), (Variant::StaleGuard, StatusCode::OK)]
    {
        let (mesh, pod) = warm(Setup::new(variant)).await.unwrap();
        pod.script().next(1, Behaviour::FinCrossing);
        let reply = mesh.get(ECHO, "/").await.unwrap();
        assert_eq!(reply.status, status, "{}", variant.name());
        assert!(pod.script().is_done(), "the FIN has crossed");
    }
}

/// Replaces a pod as a rolling update does: EDS first, then the pod; the successor gets its address.
async fn roll(mesh: &Mesh, pod: Pod, name: &str, octet: u8) -> Pod {
    let addr = pod.addr();
    mesh.unlist(ECHO, addr).await.unwrap();
    // What is still on its way gets its answer. The worker has applied the removal before it answers this request;
    // then the pod's tunnels end, but for the held stream's.
    mesh.get(ECHO, "/").await.unwrap();
    let open = |all: &[lab::ztunnel::Tunnel]| all.iter().filter(|tunnel| tunnel.closed.is_none()).count();
    let drained = |all: &[lab::ztunnel::Tunnel]| (open(all) <= 1).then_some(());
    pod.ztunnel().unwrap().tunnels().wait_for("all tunnels but one to end", drained).await.unwrap();
    pod.vanish().await.unwrap();
    let successor = mesh.pod(name, octet).await.unwrap();
    mesh.list(ECHO, addr).await.unwrap();
    successor
}

/// 7: POSTs only, which nobody may replay, while both pods are replaced.
async fn rolling_update_under_posts(variant: Variant) -> (usize, Vec<lab::mesh::Reply>, Vec<(String, usize)>) {
    let mesh = Setup::new(variant).start().await.unwrap();
    let (a, b) = (mesh.pod("a1", 1).await.unwrap(), mesh.pod("b1", 2).await.unwrap());
    let executions = [a.executions().clone(), b.executions().clone()];
    for pod in [&a, &b] {
        mesh.list(ECHO, pod.addr()).await.unwrap();
    }
    // One stream on each: their connections are never idle, and nothing is sent on them meanwhile.
    let streams = [hold(&mesh, ECHO, "held-1").await.unwrap(), hold(&mesh, ECHO, "held-2").await.unwrap()];
    let stop = tokio::sync::watch::Sender::new(false);
    let load = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        let (mut pending, mut replies) = (FuturesUnordered::new(), Vec::new());
        while !*stop.borrow() || !pending.is_empty() {
            tokio::select! {
                _ = ticks.tick() => if !*stop.borrow() { pending.push(mesh.post(ECHO, "/order")) },
                Some(reply) = pending.next() => replies.push(reply.unwrap()),
            }
        }
        replies
    };
    let rolling = async {
        let a2 = roll(&mesh, a, "a2", 1).await;
        let b2 = roll(&mesh, b, "b2", 2).await;
        // Both successors are at work.
        for pod in [&a2, &b2] {
            pod.executions().wait_for("ten requests", |all| (all.len() >= 10).then_some(())).await.unwrap();
        }
        stop.send_replace(true);
        (a2, b2)
    };
    let (replies, (a2, b2)) = tokio::join!(load, rolling);
    drop(streams);
    let mut counts = std::collections::BTreeMap::<String, usize>::new();
    let mut logs = executions.to_vec();
    logs.extend([a2.executions().clone(), b2.executions().clone()]);
    for log in logs {
        log.with(|all| all.iter().for_each(|one| *counts.entry(one.id.clone()).or_default() += 1));
    }
    let twice = counts.into_iter().filter(|(_, count)| *count > 1).collect();
    let failed = replies.iter().filter(|reply| reply.status != StatusCode::OK).count();
    (failed, replies, twice)
}

#[tokio::test(flavor = "multi_thread")]
async fn case_7_a_rolling_update_fails_no_post_and_repeats_none() {
    let (failed, ..) = rolling_update_under_posts(Variant::Stock).await;
    assert!(failed > 0, "the control run must fail");
    let (failed, replies, twice) = rolling_update_under_posts(Variant::FenceOnly).await;
    assert!(replies.len() > 20, "there was load");
    assert_eq!((failed, twice), (0, vec![]), "not one POST fails, and none is executed twice");
    assert!(replies.iter().all(|reply| reply.attempts() == Some(1)), "the fence alone does it, no retry");
}

/// 25: the outer connection of an endpoint that has gone dangles.
#[tokio::test(flavor = "multi_thread")]
async fn case_25_after_a_removal_no_tunnel_goes_over_the_dangling_connection() {
    let (mesh, pod) = warm(Setup::new(Variant::FenceOnly)).await.unwrap();
    mesh.unlist(ECHO, pod.addr()).await.unwrap();
    mesh.drained(ECHO).await.unwrap();
    assert_eq!(outer_open(&pod), 1, "Envoy keeps the outer connection; nobody may use it");
    mesh.list(ECHO, pod.addr()).await.unwrap();
    assert_eq!(mesh.post(ECHO, "/").await.unwrap().status, StatusCode::OK);
    let tunnels = pod.ztunnel().unwrap().tunnels().snapshot();
    assert_eq!(tunnels.iter().map(|tunnel| tunnel.connection).collect::<Vec<_>>(), [0, 1]);
}

/// 27: the address now belongs to another service's pod.
#[tokio::test(flavor = "multi_thread")]
async fn case_27_a_pod_of_another_service_gets_no_request_after_the_removal() {
    for variant in [Variant::Stock, Variant::StaleGuard] {
        let (mesh, pod) = warm(Setup::new(variant)).await.unwrap();
        let addr = pod.addr();
        pod.vanish().await.unwrap();
        let stranger = mesh.pod("stranger", 1).await.unwrap();
        // The control: while EDS lists the address, the stranger is what the proxy reaches.
        let mut reached = 0;
        for _ in 0..2 {
            let reply = mesh.get(ECHO, "/").await.unwrap();
            reached += stranger.executed(&reply.id);
        }
        assert!(reached > 0, "{}: the hazard is real", variant.name());
        mesh.control_plane.remove_endpoint(&cluster_name(ECHO, 80), addr).unwrap();
        mesh.acked().await.unwrap();
        mesh.drained(ECHO).await.unwrap();
        let before = stranger.executions().len();
        for _ in 0..20 {
            assert_eq!(mesh.get(ECHO, "/").await.unwrap().status, StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(mesh.post(ECHO, "/").await.unwrap().status, StatusCode::SERVICE_UNAVAILABLE);
        }
        assert_eq!(stranger.executions().len(), before, "no request reaches the stranger after the removal");
    }
}
