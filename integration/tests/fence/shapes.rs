//! Other shapes than an IPv4 service over HTTP.

use std::net::IpAddr;

use http::StatusCode;
use lab::{
    bootstrap::{Bootstrap, Variant},
    control_plane::cluster_name,
    mesh::{ECHO, Setup},
    pod::PodSpec,
};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::scenes::{BROKEN, hold, hung, outer, replace_after_removal};

fn v6() -> IpAddr {
    "fd00:244::1:1".parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ipv6_endpoint_is_fenced_like_any_other() {
    let mesh = Setup::new(Variant::FenceOnly).start().await.unwrap();
    let pod = mesh.pod_with(PodSpec::new("old6", v6())).await.unwrap();
    let addr = pod.addr();
    mesh.list(ECHO, addr).await.unwrap();
    let stream = hold(&mesh, ECHO, "hung").await.unwrap();
    mesh.unlist(ECHO, addr).await.unwrap();
    pod.vanish().await.unwrap();
    let successor = mesh.pod_with(PodSpec::new("new6", v6())).await.unwrap();
    mesh.list(ECHO, addr).await.unwrap();
    let reply = mesh.post(ECHO, "/").await.unwrap();
    assert_eq!((reply.status, successor.executed(&reply.id)), (StatusCode::OK, 1));
    assert_eq!(mesh.envoy.admin().stat(BROKEN).await.unwrap(), 0);
    drop(stream);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_address_of_a_dual_stack_pod_has_its_own_generation() {
    let mesh = Setup::new(Variant::FenceOnly).start().await.unwrap();
    let v4: IpAddr = "10.244.1.1".parse().unwrap();
    let spec = PodSpec { addrs: vec![v4, v6()], ..PodSpec::new("dual", v4) };
    let pod = mesh.pod_with(spec).await.unwrap();
    let (addr4, addr6) = (pod.addr(), std::net::SocketAddr::new(v6(), pod.addr().port()));
    for addr in [addr4, addr6] {
        mesh.list(ECHO, addr).await.unwrap();
    }
    for _ in 0..4 {
        assert_eq!(mesh.post(ECHO, "/").await.unwrap().status, StatusCode::OK);
    }
    assert_eq!(outer(&pod), 2, "one connection for each address");
    mesh.unlist(ECHO, addr6).await.unwrap();
    mesh.list(ECHO, addr6).await.unwrap();
    pod.app().unwrap().close_idle();
    mesh.drained(ECHO).await.unwrap();
    for _ in 0..4 {
        assert_eq!(mesh.post(ECHO, "/").await.unwrap().status, StatusCode::OK);
    }
    assert_eq!(outer(&pod), 3, "the address that left has a new one, the other keeps its own");
}

/// A service chain for plain TCP, in front of the same endpoints.
fn with_tcp_listener(bootstrap: Bootstrap) -> anyhow::Result<Bootstrap> {
    bootstrap.patch(
        "/static_resources/listeners/-",
        json!({
            "name": "tcp",
            "address": { "socket_address": { "address": "127.0.0.1", "port_value": 0 } },
            "filter_chains": [{ "filters": [{
                "name": "envoy.filters.network.tcp_proxy",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                    "stat_prefix": "tcp",
                    "cluster": cluster_name(ECHO, 80),
                }
            }] }],
        }),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tcp_service_is_fenced_and_its_sessions_live_on() {
    let mesh = Setup::new(Variant::FenceOnly).bootstrap(with_tcp_listener).start().await.unwrap();
    let pod = mesh.pod("tcp", 1).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    let listener = mesh.envoy.admin().listener("tcp").await.unwrap();
    let ask = async |socket: &mut tokio::net::TcpStream, id: &str| {
        let request = format!("GET / HTTP/1.1\r\nhost: tcp\r\nx-request-id: {id}\r\n\r\n");
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = [0; 1024];
        let count = socket.read(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer[..count]).starts_with("HTTP/1.1 200")
    };
    let mut old = mesh.envoy.netns().tcp_connect(listener).await.unwrap();
    assert!(ask(&mut old, "tcp-1").await);
    mesh.unlist(ECHO, pod.addr()).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    let mut new = mesh.envoy.netns().tcp_connect(listener).await.unwrap();
    assert!(ask(&mut new, "tcp-2").await);
    assert_eq!(outer(&pod), 2, "the new session has a connection of its own");
    assert!(ask(&mut old, "tcp-3").await, "the old session lives on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_to_a_name_is_left_alone() {
    // What the tunnel's inner connection says is its destination is no address: the pipe's own name.
    let without_original_dst = |bootstrap: Bootstrap| {
        let listener = bootstrap.listener("connect_originate")?;
        let proxy = bootstrap.tunnel_filter("envoy.filters.network.tcp_proxy")?;
        bootstrap
            .patch(&format!("{listener}/listener_filters"), json!([]))?
            .patch(&format!("{proxy}/typed_config/cluster"), json!("by-name"))?
            .patch(&format!("{proxy}/typed_config/tunneling_config"), json!({ "hostname": "10.244.1.1:8080" }))
    };
    let by_name = |bootstrap: Bootstrap| {
        let cluster = bootstrap.cluster("connect_originate")?;
        let mut copy = bootstrap.value().pointer(&cluster).cloned().unwrap_or_default();
        copy["name"] = json!("by-name");
        copy["type"] = json!("STATIC");
        copy["load_assignment"] = json!({ "cluster_name": "by-name", "endpoints": [{ "lb_endpoints": [{ "endpoint": {
            "address": { "socket_address": { "address": "10.244.1.1", "port_value": 15008 } } } }] }] });
        for field in ["lb_policy", "cleanup_interval", "original_dst_lb_config"] {
            copy.as_object_mut().and_then(|copy| copy.remove(field));
        }
        bootstrap.patch("/static_resources/clusters/-", copy)
    };
    let mesh = Setup::new(Variant::FenceOnly).bootstrap(without_original_dst).bootstrap(by_name).start().await.unwrap();
    let pod = mesh.pod("named", 1).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    assert_eq!(mesh.post(ECHO, "/").await.unwrap().status, StatusCode::OK, "no fence, no harm");
    assert_eq!(mesh.stat("fence_tunnels_unfenced").await.unwrap(), 1);
    assert_eq!(mesh.stat("fence_tunnels").await.unwrap(), 0);
}

/// A gateway has the same chain behind a listener for clients from outside.
#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_in_front_of_ztunnel_is_fenced_like_a_waypoint() {
    let outbound = |bootstrap: Bootstrap| {
        let listener = bootstrap.listener("service")?;
        bootstrap.patch(&format!("{listener}/traffic_direction"), json!("OUTBOUND"))
    };
    for variant in [Variant::Stock, Variant::FenceOnly] {
        let (mesh, pod, stream) = hung(Setup::new(variant).bootstrap(outbound)).await.unwrap();
        let successor = replace_after_removal(&mesh, pod).await.unwrap();
        let reply = mesh.post(ECHO, "/").await.unwrap();
        let cured = variant.has_module();
        assert_eq!(reply.status == StatusCode::OK, cured, "{}: {reply:?}", variant.name());
        assert_eq!(successor.executed(&reply.id), usize::from(cured));
        drop(stream);
    }
}
