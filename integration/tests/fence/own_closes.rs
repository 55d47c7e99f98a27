//! What Envoy closes for reasons of its own is no reset, as far as it can be told.

use futures::future::join_all;
use http::StatusCode;
use lab::{
    bootstrap::{Bootstrap, Variant},
    mesh::{ECHO, Mesh, Setup, WITHIN},
    pod::Pod,
};
use serde_json::json;

use crate::scenes::{VERSIONS, hold, log_all_tunnels, on, resets, warm};

fn setup(version: &str, field: &'static str) -> Setup {
    // Long enough for the tunnel to be established first, on a busy machine too.
    let short = move |bootstrap: Bootstrap| {
        let proxy = bootstrap.tunnel_filter("envoy.filters.network.tcp_proxy")?;
        bootstrap.patch(&format!("{proxy}/typed_config/{field}"), json!("3s"))
    };
    on(version, Setup::new(Variant::StaleGuard).bootstrap(log_all_tunnels).bootstrap(short))
}

/// The warming request's tunnel is closed by `tcp_proxy`, with nothing on its way.
async fn closed_idle(version: &str, field: &'static str) -> (Mesh, Pod) {
    let (mesh, pod) = warm(setup(version, field)).await.unwrap();
    mesh.envoy.wait_for_access_log(WITHIN, |entry| entry["log"] == "hbone").await.unwrap();
    (mesh, pod)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_idle_timeout_of_tcp_proxy_is_no_reset() {
    join_all(VERSIONS.map(|version| async move {
        let (mesh, _pod) = closed_idle(version, "idle_timeout").await;
        let closed = mesh.envoy.admin().stat("tcp.connect_originate.idle_timeout").await.unwrap();
        assert_eq!((closed, resets(&mesh).await), (1, 0), "{version}");
        assert_eq!(mesh.stat("fence_closed_quiet").await.unwrap(), 1, "{version}: it is counted as what it is");
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_greatest_duration_of_tcp_proxy_is_no_reset_where_envoy_says_so() {
    join_all(VERSIONS.map(|version| async move {
        let (mesh, _pod) = closed_idle(version, "max_downstream_connection_duration").await;
        assert_eq!(resets(&mesh).await, 0, "{version}: idle");
        let told = version != "1.38.3";
        assert_eq!(mesh.stat("fence_closed_quiet").await.unwrap(), u64::from(!told), "{version}");
        // Envoy cuts what is in flight, too: a flag says so from 1.39 on.
        let reply = mesh.post(ECHO, "/?hang=headers").await.unwrap();
        assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE, "{version}");
        assert_eq!(resets(&mesh).await, u64::from(!told), "{version}: busy");
    }))
    .await;
}

/// A connection that dies under a stream which is waiting for its next byte looks the same to the fence.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_ends_in_silence_is_counted_apart() {
    let tcp = json!({ "tcp": { "user_timeout": "2s", "keepalive": { "idle": "1s", "interval": "1s" } } });
    let setup = Setup::new(Variant::FenceOnly).bootstrap(crate::scenes::fence(tcp));
    let (mesh, pod) = warm(setup).await.unwrap();
    let mut stream = hold(&mesh, ECHO, "silent").await.unwrap();
    pod.link().black_hole().await.unwrap();
    stream.wait_end(WITHIN).await.expect("keepalive finds out");
    mesh.wait_stat("fence_closed_quiet", |count| count >= 1).await.unwrap();
    assert_eq!(resets(&mesh).await, 0, "nothing tells it from an end by Envoy itself");
}
