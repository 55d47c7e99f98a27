//! Each class of reset, produced by its fault: in the statistics, in the access logs, on the page.

use std::time::Duration;

use http::StatusCode;
use lab::{
    app::Behaviour,
    bootstrap::Variant,
    envoy::Binary,
    mesh::{ECHO, Mesh, Reply, Setup, WITHIN},
    pod::{Ending, Node, Pod},
    ztunnel::{ConnectBehaviour, TlsBehaviour},
};
use serde_json::{Value, json};

use crate::scenes::{fence, hold, http_entry, log_all_tunnels, page, replace_in_the_dark, tunnel_entry, warm};

fn setup(fields: Value) -> Setup {
    Setup::new(Variant::StaleGuard)
        .bootstrap(|bootstrap| bootstrap.with_max_connect_attempts(1))
        .bootstrap(log_all_tunnels)
        .bootstrap(fence(fields))
}

/// Everybody who asks gets the same class; gives the tunnel's access log entry.
async fn assert_told(mesh: &Mesh, ip: std::net::IpAddr, class: &str, reply: Option<&Reply>) -> Value {
    let entry = tunnel_entry(mesh, class).await;
    assert!(mesh.stat(&format!("fence_reset_{class}")).await.unwrap() >= 1, "the counter of {class}");
    let page = page(mesh, ip).await;
    assert_eq!(page["last_reset"]["class"], class, "{page:#}");
    if let Some(reply) = reply {
        let entry = http_entry(mesh, &reply.id).await;
        assert_eq!(entry["stale_guard"]["reset_class"], class, "the request's own log says so too: {entry:#}");
    }
    entry
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_is_a_connection_from_before_the_removal() {
    // Observing, the fence lets Envoy use what it would have fenced, and says what came of it.
    let (mesh, pod) = warm(setup(json!({ "mode": "observe" }))).await.unwrap();
    let addr = pod.addr();
    mesh.unlist(ECHO, addr).await.unwrap();
    mesh.drained(ECHO).await.unwrap();
    pod.vanish().await.unwrap();
    let _successor = mesh.pod("new", 1).await.unwrap();
    mesh.list(ECHO, addr).await.unwrap();
    let reply = mesh.post(ECHO, "/").await.unwrap();
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    let entry = assert_told(&mesh, addr.ip(), "stale", Some(&reply)).await;
    assert!(entry["stale_guard"]["connection_age_ms"].as_f64().unwrap() > 0.0, "{entry:#}");
    assert_eq!(mesh.stat("fence_reset_tunnel_refused").await.unwrap(), 0, "nobody refused anything");
}

#[tokio::test(flavor = "multi_thread")]
async fn aged_is_a_connection_that_was_silent_for_long() {
    let (mesh, pod) = warm(setup(json!({ "aged_after": "400ms" }))).await.unwrap();
    let ip = pod.ip();
    let _successor = replace_in_the_dark(&mesh, pod).await.unwrap();
    // The silence is the fault.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let reply = mesh.post(ECHO, "/").await.unwrap();
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    let entry = assert_told(&mesh, ip, "aged", Some(&reply)).await;
    assert!(entry["stale_guard"]["connection_age_ms"].as_f64().unwrap() >= 400.0, "{entry:#}");
    assert!(entry["stale_guard"]["waited_ms"].as_f64().unwrap() < 400.0, "it broke at once: {entry:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn peer_restart_is_the_ztunnel_of_a_node_going_with_all_its_connections() {
    let mesh = setup(json!({})).start().await.unwrap();
    let (a, b) = (mesh.pod("a", 1).await.unwrap(), mesh.pod("b", 2).await.unwrap());
    for pod in [&a, &b] {
        mesh.list(ECHO, pod.addr()).await.unwrap();
    }
    let streams = [hold(&mesh, ECHO, "one").await.unwrap(), hold(&mesh, ECHO, "two").await.unwrap()];
    Node::of([&a, &b]).unwrap().restart_ztunnel(Ending::Rst).await.unwrap();
    mesh.wait_stat("fence_reset_peer_restart", |count| count == 1).await.unwrap();
    assert_eq!(mesh.stat("fence_reset_fresh").await.unwrap(), 1, "the first of them could not know yet");
    tunnel_entry(&mesh, "peer_restart").await;
    for pod in [&a, &b] {
        assert_eq!(page(&mesh, pod.ip()).await["last_reset"]["class"], "peer_restart", "the page knows better by now");
    }
    drop(streams);
}

/// The next request's tunnel is refused, and the log says how.
async fn refused(mesh: &Mesh, pod: &Pod, expected: &str) {
    let before = mesh.stat("fence_reset_tunnel_refused").await.unwrap();
    let reply = mesh.post(ECHO, "/").await.unwrap();
    assert!(reply.status.is_server_error(), "{expected}: {reply:?}");
    assert_eq!(pod.executed(&reply.id), 0);
    let wanted = |entry: &Value| entry["stale_guard"]["tunnel_refusal"] == expected;
    let entry = mesh.envoy.wait_for_access_log(WITHIN, wanted).await.unwrap();
    assert_eq!((&entry["log"], &entry["stale_guard"]["reset_class"]), (&json!("hbone"), &json!("tunnel_refused")));
    let after = mesh.wait_stat("fence_reset_tunnel_refused", |count| count > before).await.unwrap();
    assert!(after > before, "{expected}");
    assert_eq!(page(mesh, pod.ip()).await["last_reset"]["class"], "tunnel_refused", "{expected}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tunnel_refused_names_what_refused_it() {
    let timeout = |bootstrap: lab::bootstrap::Bootstrap| bootstrap.with_route_timeout(Duration::from_secs(2));
    let mesh = setup(json!({})).bootstrap(timeout).start().await.unwrap();
    let pod = mesh.pod("partial", 1).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    let ztunnel = pod.ztunnel().unwrap();

    ztunnel.refuse().await;
    refused(&mesh, &pod, "connect").await;
    ztunnel.listen().unwrap();
    ztunnel.set_tls(TlsBehaviour::UntrustedServer);
    refused(&mesh, &pod, "tls").await;
    ztunnel.set_tls(TlsBehaviour::RefuseClient);
    refused(&mesh, &pod, "ended").await;
    ztunnel.set_tls(TlsBehaviour::Normal);
    for status in [StatusCode::UNAUTHORIZED, StatusCode::SERVICE_UNAVAILABLE] {
        ztunnel.set_connect(ConnectBehaviour::Answer(status));
        refused(&mesh, &pod, &format!("answered_{}", status.as_u16())).await;
    }
    // On a connection of its own: on one that has served others it would be the connection that broke.
    ztunnel.connections().end_all(Ending::Fin).await.unwrap();
    ztunnel.set_connect(ConnectBehaviour::NeverAnswer);
    let reply = mesh.post(ECHO, "/").await.unwrap();
    assert_eq!(reply.status, StatusCode::GATEWAY_TIMEOUT, "the route's timeout ends the request");
    assert_eq!(mesh.stat("fence_tunnels_open").await.unwrap(), 1, "Envoy does not notice that its client has gone");
    ztunnel.connections().end_all(Ending::Rst).await.unwrap();
    let unanswered = |entry: &Value| entry["stale_guard"]["tunnel_refusal"] == "unanswered";
    mesh.envoy.wait_for_access_log(WITHIN, unanswered).await.unwrap();
    assert_eq!(mesh.stat("fence_tunnels_open").await.unwrap(), 0);
    assert_eq!(mesh.stat("fence_reset_fresh").await.unwrap(), 0, "no refusal was taken for a break");
    ztunnel.set_connect(ConnectBehaviour::Normal);
    assert_eq!(mesh.post(ECHO, "/").await.unwrap().status, StatusCode::OK, "nothing lasts once the fault is over");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_read_from_the_inner_connection_before_the_connect_is_answered() {
    let (mesh, pod) = warm(setup(json!({}))).await.unwrap();
    pod.app().unwrap().close_idle();
    mesh.drained(ECHO).await.unwrap();
    pod.ztunnel().unwrap().set_connect(ConnectBehaviour::Answer(StatusCode::SERVICE_UNAVAILABLE));
    let body = bytes::Bytes::from(vec![b'x'; 256 * 1024]);
    let request = mesh.request(http::Method::POST, ECHO, "/").body(body).unwrap();
    let reply = mesh.send(request).await.unwrap();
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    // Bytes that the filter had seen pass would have made it an established tunnel that broke.
    assert_told(&mesh, pod.ip(), "tunnel_refused", Some(&reply)).await;
    assert_eq!(mesh.stat("fence_reset_fresh").await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn timeout_is_the_kernel_giving_up_on_bytes_that_nobody_acknowledges() {
    let (mesh, pod) = warm(setup(json!({ "tcp": { "user_timeout": "2s" } }))).await.unwrap();
    pod.link().black_hole().await.unwrap();
    let reply = mesh.post(ECHO, "/").await.unwrap();
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    println!("unacknowledged bytes: {:?}", reply.took);
    assert!(reply.took < Duration::from_secs(8), "bounded by the user timeout: {:?}", reply.took);
    let entry = assert_told(&mesh, pod.ip(), "timeout", Some(&reply)).await;
    assert!(entry["stale_guard"]["waited_ms"].as_f64().unwrap() >= 1_900.0, "{entry:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn timeout_is_also_the_kernel_giving_up_on_a_quiet_connection() {
    let tcp = json!({ "tcp": { "user_timeout": "2s", "keepalive": { "idle": "1s", "interval": "1s" } } });
    let (mesh, pod) = warm(setup(tcp)).await.unwrap();
    pod.link().black_hole().await.unwrap();
    mesh.wait_stat("fence_reset_timeout", |count| count == 1).await.unwrap();
    assert_told(&mesh, pod.ip(), "timeout", None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fresh_is_an_application_that_broke_while_it_was_asked() {
    let (mesh, pod) = warm(setup(json!({}))).await.unwrap();
    pod.script().next(1, Behaviour::ReadThenReset);
    let reply = mesh.post(ECHO, "/").await.unwrap();
    assert_eq!((reply.status, pod.executed(&reply.id)), (StatusCode::SERVICE_UNAVAILABLE, 1));
    assert_told(&mesh, pod.ip(), "fresh", Some(&reply)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gauges_return_to_zero_and_ages_are_recorded() {
    let (mesh, pod) = warm(setup(json!({}))).await.unwrap();
    let stream = hold(&mesh, ECHO, "held").await.unwrap();
    mesh.wait_stat("fence_tunnels_open", |count| count >= 1).await.unwrap();
    mesh.wait_stat("connections_open", |count| count == 1).await.unwrap();
    pod.crash().await.unwrap();
    for gauge in ["fence_tunnels_open", "tunnels_open", "connections_open"] {
        mesh.wait_stat(gauge, |count| count == 0).await.unwrap();
    }
    for histogram in ["fence_connection_age_at_close_ms", "fence_connection_age_at_reset_ms"] {
        // Histograms are merged every few seconds.
        let deadline = std::time::Instant::now() + WITHIN;
        loop {
            let text = mesh.envoy.admin().get(&format!("/stats?filter={histogram}")).await.unwrap();
            if text.contains("P99") {
                break;
            }
            assert!(std::time::Instant::now() < deadline, "{histogram} has no values: {text}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    drop(stream);
}

/// Before 1.39 Envoy tells neither which outer connection a tunnel is on nor why one was refused.
#[tokio::test(flavor = "multi_thread")]
async fn older_envoys_tell_less_and_the_classes_hold() {
    for version in ["1.38.3", "1.39.3"] {
        let binary = Binary::version(version).unwrap();
        let setup = setup(json!({ "tcp": { "user_timeout": "2s" } })).envoy(|options| options.binary = Some(binary));
        let (mesh, pod) = warm(setup.bootstrap(|bootstrap| bootstrap.without_config_validators())).await.unwrap();
        pod.script().next(1, Behaviour::ReadThenReset);
        mesh.post(ECHO, "/").await.unwrap();
        assert_eq!(mesh.wait_stat("fence_reset_fresh", |count| count > 0).await.unwrap(), 1, "{version}");
        pod.ztunnel().unwrap().next_connects(1, ConnectBehaviour::Answer(StatusCode::SERVICE_UNAVAILABLE));
        mesh.post(ECHO, "/").await.unwrap();
        assert_eq!(mesh.wait_stat("fence_reset_tunnel_refused", |count| count > 0).await.unwrap(), 1, "{version}");
        let entry = tunnel_entry(&mesh, "tunnel_refused").await;
        let told = entry["stale_guard"]["tunnel_refusal"] == "answered_503";
        assert_eq!(told, version == "1.39.3", "{version}: {entry:#}");
        assert_eq!(mesh.post(ECHO, "/").await.unwrap().status, StatusCode::OK);
        pod.link().black_hole().await.unwrap();
        let reply = mesh.post(ECHO, "/").await.unwrap();
        println!("{version}: unacknowledged bytes: {:?}", reply.took);
        mesh.wait_stat("fence_reset_timeout", |count| count > 0).await.unwrap();
        mesh.envoy.assert_alive().unwrap();
    }
}
