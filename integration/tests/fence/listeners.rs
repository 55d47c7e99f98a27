//! Several listeners and configurations, and their updates, share one registry.

use http::StatusCode;
use lab::{
    bootstrap::{Bootstrap, Variant},
    mesh::{ECHO, Mesh, Setup, WITHIN},
    pod::Pod,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::scenes::{hold, outer};

/// The tunnels' listener comes from a file, which Envoy watches (LDS).
fn with_listener_file(folder: std::path::PathBuf) -> impl FnOnce(Bootstrap) -> anyhow::Result<Bootstrap> + Send {
    move |bootstrap| {
        let place = bootstrap.listener("connect_originate")?;
        write(&folder, bootstrap.value().pointer(&place).expect("it is there"), "20s");
        let lds = json!({
            "path_config_source": {
                "path": folder.join("lds.json"),
                "watched_directory": { "path": folder },
            },
            "resource_api_version": "V3",
        });
        bootstrap.remove(&place)?.patch("/dynamic_resources/lds_config", lds)
    }
}

/// Writes the listener with another configuration of the fence; moved into place, as Envoy wants it.
fn write(folder: &std::path::Path, listener: &Value, user_timeout: &str) {
    let mut listener = listener.clone();
    listener["@type"] = json!("type.googleapis.com/envoy.config.listener.v3.Listener");
    let fence = "/filter_chains/0/filters/0/typed_config/filter_config/value";
    *listener.pointer_mut(fence).expect("the fence is first") = json!({ "tcp": { "user_timeout": user_timeout } });
    let file = folder.join("lds.json");
    let next = folder.join("next.json");
    let resources = json!({ "version_info": user_timeout, "resources": [listener] });
    std::fs::write(&next, resources.to_string()).unwrap();
    std::fs::rename(next, file).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_update_with_open_tunnels_loses_nothing_and_leaks_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::new(Variant::FenceOnly).bootstrap(with_listener_file(folder.path().to_owned()));
    // Old filter chains are taken down, with what is still open, after the drain time.
    let setup = setup.envoy(|options| options.args.extend(["--drain-time-s".into(), "4".into()]));
    let mesh = setup.start().await.unwrap();
    let pod = mesh.pod("pod", 1).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    let mut held = hold(&mesh, ECHO, "across-updates").await.unwrap();
    let listener = Bootstrap::load().unwrap();
    let listener = listener.value().pointer(&listener.listener("connect_originate").unwrap()).unwrap().clone();
    for (update, timeout) in [(2, "21s"), (3, "22s"), (4, "23s")] {
        write(folder.path(), &listener, timeout);
        let updates = "listener_manager.lds.update_success";
        mesh.envoy.admin().wait_for_stat(updates, WITHIN, |count| count >= update).await.unwrap();
        assert_eq!(mesh.post(ECHO, "/").await.unwrap().status, StatusCode::OK, "traffic flows after update {update}");
    }
    // The generations are the registry's, not a listener's: what is fenced now is fenced for all.
    let before = outer(&pod);
    mesh.unlist(ECHO, pod.addr()).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    assert_eq!(mesh.post(ECHO, "/").await.unwrap().status, StatusCode::OK);
    assert_eq!(outer(&pod), before + 1, "one new connection, under one new generation");
    assert!(held.ended().is_none(), "an update cuts nobody off before its drain time");
    // Then Envoy takes the old filter chain down, and the tunnel with it, as it does without the module.
    held.wait_end(WITHIN).await.unwrap();
    mesh.wait_stat("fence_closed_quiet", |count| count >= 1).await.unwrap();
    assert_eq!(crate::scenes::resets(&mesh).await, 0, "what Envoy takes down itself is no reset");
    pod.crash().await.unwrap();
    for gauge in ["tunnels_open", "connections_open"] {
        mesh.wait_stat(gauge, |open| open == 0).await.unwrap();
    }
    mesh.envoy.assert_alive().unwrap();
}

/// A second listener of the same kind, with a configuration of its own or without the fence, for endpoints
/// that name it.
fn with_second_listener(bootstrap: Bootstrap, fenced: bool) -> anyhow::Result<Bootstrap> {
    let place = bootstrap.listener("connect_originate")?;
    let mut listener = bootstrap.value().pointer(&place).cloned().unwrap_or_default();
    listener["name"] = json!("second_originate");
    let config = listener.pointer_mut("/filter_chains/0/filters/0/typed_config/filter_config/value");
    *config.expect("the fence is first") = json!({ "tcp": { "user_timeout": "9s" } });
    if !fenced {
        let filters = listener.pointer_mut("/filter_chains/0/filters").and_then(Value::as_array_mut);
        filters.expect("it has filters").retain(|filter| filter["name"] == "envoy.filters.network.tcp_proxy");
    }
    // A way in: plain TCP to a fixed endpoint, through the second listener.
    let way_in = json!({
        "name": "second",
        "address": { "socket_address": { "address": "127.0.0.1", "port_value": 0 } },
        "filter_chains": [{ "filters": [{
            "name": "envoy.filters.network.tcp_proxy",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                "stat_prefix": "second",
                "cluster": "second",
            }
        }] }],
    });
    let target = "10.244.1.1:8080";
    let passthrough = json!({ "name": "envoy.filters.listener.original_dst", "kind": { "host": {} } });
    let cluster = json!({
        "name": "second",
        "type": "STATIC",
        "load_assignment": { "cluster_name": "second", "endpoints": [{ "lb_endpoints": [{
            "endpoint": { "address": { "envoy_internal_address": {
                "server_listener_name": "second_originate", "endpoint_id": target } } },
            "metadata": { "filter_metadata": { "envoy.filters.listener.original_dst": { "local": target } } },
        }] }] },
        "transport_socket": { "name": "internal_upstream", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.internal_upstream.v3.InternalUpstreamTransport",
            "passthrough_metadata": [passthrough],
            "transport_socket": { "name": "raw_buffer", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer" } },
        } },
    });
    bootstrap
        .patch("/static_resources/listeners/-", listener)?
        .patch("/static_resources/listeners/-", way_in)?
        .patch("/static_resources/clusters/-", cluster)
}

/// A session through the second listener; the pod has answered on it.
async fn through_second(mesh: &Mesh) -> tokio::net::TcpStream {
    let listener = mesh.envoy.admin().listener("second").await.unwrap();
    let mut socket = mesh.envoy.netns().tcp_connect(listener).await.unwrap();
    socket.write_all(b"GET / HTTP/1.1\r\nhost: second\r\nx-request-id: second\r\n\r\n").await.unwrap();
    let mut answer = [0; 1024];
    let count = socket.read(&mut answer).await.unwrap();
    assert!(String::from_utf8_lossy(&answer[..count]).starts_with("HTTP/1.1 200"));
    socket
}

/// A session through each listener, a removal and a return, and one more through the second.
async fn removal_between_two_sessions(fenced: bool) -> (Mesh, Pod, usize) {
    let second = move |bootstrap| with_second_listener(bootstrap, fenced);
    let mesh = Setup::new(Variant::FenceOnly).bootstrap(second).start().await.unwrap();
    let pod = mesh.pod("pod", 1).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    assert_eq!(mesh.post(ECHO, "/").await.unwrap().status, StatusCode::OK);
    let _one = through_second(&mesh).await;
    let known = outer(&pod);
    // EDS knows the address under the service only.
    mesh.unlist(ECHO, pod.addr()).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    let _two = through_second(&mesh).await;
    let new = outer(&pod) - known;
    (mesh, pod, new)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_listeners_with_two_configurations_share_one_registry() {
    let (mesh, pod, new) = removal_between_two_sessions(true).await;
    assert_eq!(new, 1, "a removal fences the address for every listener");
    let page = crate::scenes::page(&mesh, pod.ip()).await;
    let generations: std::collections::BTreeSet<_> =
        page["connections"].as_array().unwrap().iter().map(|one| one["generation"].to_string()).collect();
    assert_eq!(generations.len(), 2, "one entry knows the connections of both: {page:#}");
}

/// As the listeners of double HBONE are, unless they are configured too.
#[tokio::test(flavor = "multi_thread")]
async fn a_listener_without_the_fence_is_left_alone() {
    let (mesh, _pod, new) = removal_between_two_sessions(false).await;
    assert_eq!(new, 0, "its tunnels pool as on stock Envoy");
    assert_eq!(mesh.stat("fence_tunnels").await.unwrap(), 1, "only the service's tunnel is followed");
}
