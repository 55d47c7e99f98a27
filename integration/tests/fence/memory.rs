//! 100,000 tunnels over 1,000 endpoints leave memory where it was.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use http::StatusCode;
use lab::{
    bootstrap::Variant,
    mesh::{ECHO, Setup, WITHIN},
    pod::PodSpec,
};
use stale_guard::endpoints::{Cluster, DEFAULT_CAPACITY, Endpoints, ResetEvidence};

/// Resident memory of this process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// 100,000 tunnels: each endpoint leaves and returns, tunnels overlap, some break, deadlines are set.
fn round(endpoints: &Arc<Endpoints>, first_id: u64) {
    let cluster = Cluster::named("echo");
    let ip = |number: u64| IpAddr::from([10, 1, (number / 250) as u8, (number % 250) as u8]);
    let mut open = std::collections::VecDeque::new();
    for number in 0..100_000 {
        let now = Instant::now();
        let ip = ip(number % 1_000);
        let mut tunnel = endpoints.open(ip, None, now);
        tunnel.on_connection(first_id + number / 3, now);
        tunnel.close_after_removal(Duration::from_secs(3_600), Arc::new(|| {}));
        open.push_back(tunnel);
        if number % 7 == 0 {
            endpoints.removed(ip, cluster, false, now);
            endpoints.added(ip, cluster);
        }
        if open.len() > 500
            && let Some(oldest) = open.pop_front()
        {
            match number % 5 {
                0 => drop(oldest.broke(ResetEvidence { established: true, ..ResetEvidence::default() }, now)),
                _ => drop(oldest),
            }
        }
    }
}

#[test]
fn a_hundred_thousand_tunnels_over_a_thousand_endpoints_leave_the_registrys_memory_where_it_was() {
    let endpoints = Endpoints::new(DEFAULT_CAPACITY);
    // What an endpoint costs is paid in the first round.
    round(&endpoints, 1);
    let before = resident();
    for more in 1..=3 {
        round(&endpoints, 1 + more * 1_000_000);
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 1_024, "{grown} KiB more after 300,000 more tunnels");
    let totals = endpoints.totals();
    assert_eq!((totals.endpoints, totals.tunnels, totals.connections), (1_000, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_tunnels_over_a_hundred_endpoints_leave_envoys_memory_where_it_was() {
    const ADDRESSES: u8 = 100;
    let mesh = Setup::new(Variant::FenceOnly).start().await.unwrap();
    let addrs: Vec<IpAddr> = (1..=ADDRESSES).map(|octet| IpAddr::from([10, 244, 1, octet])).collect();
    let pod = mesh.pod_with(PodSpec { addrs: addrs.clone(), ..PodSpec::new("many", addrs[0]) }).await.unwrap();
    let port = pod.addr().port();
    let cluster = lab::control_plane::cluster_name(ECHO, 80);
    let list = |addrs: &[IpAddr]| {
        let all = addrs.iter().map(|ip| lab::control_plane::Endpoint::new(*ip, port)).collect();
        mesh.control_plane.edit_endpoints(&cluster, |endpoints| *endpoints = all).unwrap();
    };
    let mut allocated = Vec::new();
    for _ in 0..6 {
        list(&addrs);
        mesh.acked().await.unwrap();
        for _ in 0..4 {
            // Each needs a tunnel: the application closes those that are idle.
            let replies = futures::future::join_all((0..ADDRESSES).map(|_| mesh.get(ECHO, "/"))).await;
            assert!(replies.into_iter().all(|reply| reply.unwrap().status == StatusCode::OK));
            pod.app().unwrap().close_idle();
            mesh.wait_stat("fence_tunnels_open", |open| open == 0).await.unwrap();
        }
        list(&[]);
        mesh.acked().await.unwrap();
        // The pools of what left would count as growth: they end with the connections.
        pod.ztunnel().unwrap().connections().end_all(lab::pod::Ending::Fin).await.unwrap();
        let active = "cluster.connect_originate.upstream_cx_active";
        mesh.envoy.admin().wait_for_stat(active, WITHIN, |active| active == 0).await.unwrap();
        let memory: serde_json::Value =
            serde_json::from_str(&mesh.envoy.admin().get("/memory").await.unwrap()).unwrap();
        allocated.push(memory["allocated"].as_str().unwrap().parse::<u64>().unwrap());
    }
    assert!(mesh.stat("fence_tunnels").await.unwrap() >= 1_500, "there were tunnels");
    println!("memory_allocated after each round: {allocated:?}");
    // The least of several: what is just being freed, or cached for a thread, comes and goes.
    let least = |rounds: &[u64]| rounds.iter().min().copied().unwrap();
    let (early, late) = (least(&allocated[..3]), least(&allocated[3..]));
    assert!(late < early + early / 20, "grown by more than a twentieth: {allocated:?}");
}
