//! Several listeners and configurations, and their updates, share one registry.

use http::StatusCode;
use lab::{
    bootstrap::{Bootstrap, Variant},
    mesh::{ECHO, Setup, WITHIN},
};
use serde_json::{Value, json};

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
    let mut held = hold(&mesh, ECHO, "across-updates").await;
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
    pod.crash().await.unwrap();
    for gauge in ["fence_tunnels_open", "tunnels_open", "connections_open"] {
        mesh.wait_stat(gauge, |open| open == 0).await.unwrap();
    }
    mesh.envoy.assert_alive().unwrap();
}

/// A second listener of the same kind, with a configuration of its own, for endpoints that name it.
fn with_second_listener(bootstrap: Bootstrap) -> anyhow::Result<Bootstrap> {
    let place = bootstrap.listener("connect_originate")?;
    let mut listener = bootstrap.value().pointer(&place).cloned().unwrap_or_default();
    listener["name"] = json!("second_originate");
    let config = listener.pointer_mut("/filter_chains/0/filters/0/typed_config/filter_config/value");
    *config.expect("the fence is first") = json!({ "tcp": { "user_timeout": "9s" }, "aged_after": "5s" });
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

#[tokio::test(flavor = "multi_thread")]
async fn two_listeners_with_two_configurations_share_one_registry() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mesh = Setup::new(Variant::FenceOnly).bootstrap(with_second_listener).start().await.unwrap();
    let pod = mesh.pod("pod", 1).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    let listener = mesh.envoy.admin().listener("second").await.unwrap();
    let through_second = async || {
        let mut socket = mesh.envoy.netns().tcp_connect(listener).await.unwrap();
        socket.write_all(b"GET / HTTP/1.1\r\nhost: second\r\nx-request-id: second\r\n\r\n").await.unwrap();
        let mut answer = [0; 1024];
        let count = socket.read(&mut answer).await.unwrap();
        assert!(String::from_utf8_lossy(&answer[..count]).starts_with("HTTP/1.1 200"));
        socket
    };
    assert_eq!(mesh.post(ECHO, "/").await.unwrap().status, StatusCode::OK);
    let _one = through_second().await;
    let known = outer(&pod);
    // EDS knows the address under the service only; the other listener's tunnels are fenced with it.
    mesh.unlist(ECHO, pod.addr()).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    let _two = through_second().await;
    assert_eq!(outer(&pod), known + 1, "a removal fences the address for every listener");
    let page = crate::scenes::page(&mesh, pod.ip()).await;
    let generations: std::collections::BTreeSet<_> =
        page["connections"].as_array().unwrap().iter().map(|one| one["generation"].to_string()).collect();
    assert_eq!(generations.len(), 2, "one entry knows the connections of both: {page:#}");
}
