//! Thousands of tunnels over a hundred endpoints leave Envoy's memory where it was. What the registry itself keeps
//! is counted in `src/endpoints/memory_tests.rs`.

use std::net::IpAddr;

use http::StatusCode;
use lab::{
    bootstrap::Variant,
    mesh::{ECHO, Setup, WITHIN},
    pod::PodSpec,
    ztunnel::Tunnel,
};

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
            // An answer is read by its client before its connection counts as idle, so one call may miss some.
            let active = format!("cluster.{cluster}.upstream_cx_active");
            let deadline = std::time::Instant::now() + WITHIN;
            while mesh.envoy.admin().stat(&active).await.unwrap() > 0 {
                assert!(std::time::Instant::now() < deadline, "connections stay open");
                pod.app().unwrap().close_idle();
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            let ended = |all: &[Tunnel]| all.iter().all(|tunnel| tunnel.closed.is_some()).then_some(());
            pod.ztunnel().unwrap().tunnels().wait_for("the end of all tunnels", ended).await.unwrap();
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
