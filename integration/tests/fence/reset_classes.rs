//! Each class of reset, produced by its fault: in the statistics, in the access logs, on the page.

use std::time::Duration;

use http::StatusCode;
use lab::{
    app::Behaviour,
    bootstrap::Variant,
    control_plane::{Service, cluster_name},
    mesh::{ECHO, Mesh, Reply, Setup, WITHIN},
    pod::{Ending, Node, Pod},
    ztunnel::{ConnectBehaviour, TlsBehaviour},
};
use serde_json::{Value, json};

use crate::scenes::{
    VERSIONS, fence, hold, http_entry, log_all_tunnels, on, page, replace_in_the_dark, resets, tunnel_entry, warm,
};

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
async fn a_replacement_that_nobody_announced_is_broken_and_told_by_its_silence() {
    let (mesh, pod) = warm(setup(json!({}))).await.unwrap();
    let ip = pod.ip();
    let _successor = replace_in_the_dark(&mesh, pod).await.unwrap();
    // The silence is the fault.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let reply = mesh.post(ECHO, "/").await.unwrap();
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    let entry = assert_told(&mesh, ip, "broken", Some(&reply)).await;
    let (told, request) = (&entry["stale_guard"], &http_entry(&mesh, &reply.id).await["stale_guard"]);
    assert!(told["connection_age_ms"].as_f64().unwrap() >= 500.0, "{entry:#}");
    assert!(told["idle_ms"].as_f64().unwrap() >= 500.0, "{entry:#}");
    assert_eq!(told["others_at_once"], 0.0, "{entry:#}");
    for key in ["connection_age_ms", "idle_ms", "waited_ms"] {
        assert_eq!(told[key], request[key], "the request's log has the numbers of its tunnel: {request:#}");
        assert!(page(&mesh, ip).await["last_reset"][key].is_u64(), "and so has the page: {key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_break_at_once_are_a_number_and_no_conclusion() {
    let mesh = setup(json!({})).start().await.unwrap();
    let (a, b) = (mesh.pod("a", 1).await.unwrap(), mesh.pod("b", 2).await.unwrap());
    for pod in [&a, &b] {
        mesh.list(ECHO, pod.addr()).await.unwrap();
    }
    let (one, two, ()) = tokio::join!(mesh.post(ECHO, "/?hang=headers"), mesh.post(ECHO, "/?hang=headers"), async {
        for pod in [&a, &b] {
            pod.executions().wait_for("a request", |all| (!all.is_empty()).then_some(())).await.unwrap();
        }
        Node::of([&a, &b]).unwrap().restart_ztunnel(Ending::Rst).await.unwrap();
    });
    assert_eq!([one, two].map(|reply| reply.unwrap().status), [StatusCode::SERVICE_UNAVAILABLE; 2]);
    mesh.wait_stat("fence_reset_broken", |count| count == 2).await.unwrap();
    let second = |entry: &Value| entry["log"] == "hbone" && entry["stale_guard"]["others_at_once"] == 1.0;
    mesh.envoy.wait_for_access_log(WITHIN, second).await.unwrap();
    let mut told = Vec::new();
    for pod in [&a, &b] {
        told.push(page(&mesh, pod.ip()).await["last_reset"]["others_at_once"].as_u64().unwrap());
    }
    told.sort_unstable();
    assert_eq!(told, [0, 1], "counted at the moment of each, and not rewritten");
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
    ztunnel.set_connect(ConnectBehaviour::NeverAnswer);
    let reply = mesh.post(ECHO, "/").await.unwrap();
    assert_eq!(reply.status, StatusCode::GATEWAY_TIMEOUT, "the route's timeout ends the request");
    let open = mesh.wait_stat("tunnels_open", |open| open == 1).await;
    open.expect("Envoy does not notice that its client has gone");
    ztunnel.connections().end_all(Ending::Rst).await.unwrap();
    let unanswered = |entry: &Value| entry["stale_guard"]["tunnel_refusal"] == "unanswered";
    mesh.envoy.wait_for_access_log(WITHIN, unanswered).await.unwrap();
    mesh.wait_stat("tunnels_open", |open| open == 0).await.unwrap();
    assert_eq!(mesh.stat("fence_reset_broken").await.unwrap(), 0, "no refusal was taken for a break");
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
    assert_eq!(mesh.stat("fence_reset_broken").await.unwrap(), 0);
}

/// A CONNECT that a draining ztunnel reads after its GOAWAY is never answered, on a connection that has served
/// others until then.
#[tokio::test(flavor = "multi_thread")]
async fn a_connect_that_is_swallowed_on_a_used_connection_is_unanswered() {
    let (mesh, pod) = warm(setup(json!({}))).await.unwrap();
    pod.app().unwrap().close_idle();
    mesh.drained(ECHO).await.unwrap();
    let ztunnel = pod.ztunnel().unwrap();
    ztunnel.set_connect(ConnectBehaviour::NeverAnswer);
    let (reply, ()) = tokio::join!(mesh.post(ECHO, "/"), async {
        ztunnel.wait_for_tunnels(2).await.unwrap();
        // The deadline of the drain, after which ztunnel cuts what is left.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        ztunnel.connections().end_all(Ending::Fin).await.unwrap();
    });
    let reply = reply.unwrap();
    assert_eq!((reply.status, pod.executed(&reply.id)), (StatusCode::SERVICE_UNAVAILABLE, 0));
    let entry = assert_told(&mesh, pod.ip(), "tunnel_refused", Some(&reply)).await;
    assert_eq!(entry["stale_guard"]["tunnel_refusal"], "unanswered", "{entry:#}");
    assert!(entry["stale_guard"]["waited_ms"].as_f64().unwrap() >= 1_000.0, "{entry:#}");
    assert_eq!(mesh.stat("fence_reset_broken").await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_nobody_acknowledges_break_the_connection_and_the_wait_is_told() {
    let (mesh, pod) = warm(setup(json!({ "tcp": { "user_timeout": "2s" } }))).await.unwrap();
    pod.link().black_hole().await.unwrap();
    let reply = mesh.post(ECHO, "/").await.unwrap();
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    println!("unacknowledged bytes: {:?}", reply.took);
    let entry = assert_told(&mesh, pod.ip(), "broken", Some(&reply)).await;
    assert!(entry["stale_guard"]["waited_ms"].as_f64().unwrap() >= 1_900.0, "{entry:#}");
}

/// A POST that the pod holds, executed, when its outer connection breaks; it is the `nth` request there.
async fn post_on_a_breaking_connection(mesh: &Mesh, pod: &Pod, nth: usize) -> Reply {
    let (reply, ()) = tokio::join!(mesh.post(ECHO, "/?hang=headers"), async {
        pod.executions().wait_for("the request", |all| (all.len() == nth).then_some(())).await.unwrap();
        pod.ztunnel().unwrap().connections().end_all(Ending::Rst).await.unwrap();
    });
    reply.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_while_it_is_used_is_broken() {
    let (mesh, pod) = warm(setup(json!({}))).await.unwrap();
    let reply = post_on_a_breaking_connection(&mesh, &pod, 2).await;
    assert_eq!((reply.status, pod.executed(&reply.id)), (StatusCode::SERVICE_UNAVAILABLE, 1));
    assert_told(&mesh, pod.ip(), "broken", Some(&reply)).await;
}

/// ztunnel ends the tunnel with END_STREAM when the application behind it resets its socket or closes it.
#[tokio::test(flavor = "multi_thread")]
async fn an_application_crash_behind_ztunnel_is_ended_unanswered_and_an_idle_end_is_not() {
    for version in VERSIONS {
        for http2 in [false, true] {
            let scene = format!("{version}, http2 {http2}");
            let mesh = on(version, setup(json!({}))).start().await.unwrap();
            if http2 {
                mesh.control_plane.remove_service(&cluster_name(ECHO, 80)).unwrap();
                mesh.acked().await.unwrap();
                mesh.control_plane.set_service(Service::new(ECHO, Vec::new()).http2());
            }
            let pod = mesh.pod("pod", 1).await.unwrap();
            mesh.list(ECHO, pod.addr()).await.unwrap();
            assert_eq!(mesh.get(ECHO, "/").await.unwrap().status, StatusCode::OK);
            // Idle: HTTP/2 leaves the acknowledgement of its settings unanswered.
            pod.app().unwrap().close_idle();
            mesh.drained(ECHO).await.unwrap();
            let met = async || mesh.envoy.admin().stats(r"^dynamicmodulescustom\.retry_reset_").await.unwrap();
            assert_eq!((resets(&mesh).await, met().await.values().sum::<u64>()), (0, 0), "{scene}: idle");
            for (nth, crash) in [(1, Behaviour::ReadThenClose), (2, Behaviour::ReadThenReset)] {
                pod.script().next(1, crash);
                let reply = mesh.post(ECHO, "/").await.unwrap();
                assert_eq!((reply.status, pod.executed(&reply.id)), (StatusCode::SERVICE_UNAVAILABLE, 1), "{scene}");
                let entry = http_entry(&mesh, &reply.id).await;
                assert_eq!(entry["stale_guard"]["reset_class"], "ended_unanswered", "{scene}: {entry:#}");
                assert_eq!(mesh.stat("retry_reset_ended_unanswered").await.unwrap(), nth, "{scene}");
                assert_eq!(resets(&mesh).await, 0, "{scene}: no connection broke");
            }
            if !http2 {
                pod.script().next(1, Behaviour::ReadThenClose);
                let reply = mesh.get(ECHO, "/").await.unwrap();
                assert_eq!((reply.status, pod.executed(&reply.id)), (StatusCode::OK, 2), "{scene}");
                assert_eq!(mesh.stat("retry_cured_ended_unanswered").await.unwrap(), 1, "{scene}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gauges_return_to_zero_and_ages_are_recorded() {
    let (mesh, pod) = warm(setup(json!({}))).await.unwrap();
    mesh.wait_stat("connections_open", |count| count == 1).await.unwrap();
    let stream = hold(&mesh, ECHO, "held").await.unwrap();
    mesh.wait_stat("tunnels_open", |count| count >= 1).await.unwrap();
    let reply = post_on_a_breaking_connection(&mesh, &pod, 3).await;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    drop(stream);
    for gauge in ["tunnels_open", "connections_open"] {
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
}

/// Before 1.39 Envoy tells neither which outer connection a tunnel is on nor why one was refused.
#[tokio::test(flavor = "multi_thread")]
async fn older_envoys_tell_less_and_the_classes_hold() {
    for version in ["1.38.3", "1.39.3"] {
        let (mesh, pod) = warm(on(version, setup(json!({})))).await.unwrap();
        let reply = post_on_a_breaking_connection(&mesh, &pod, 2).await;
        let entry = assert_told(&mesh, pod.ip(), "broken", Some(&reply)).await;
        assert_eq!(entry["stale_guard"]["connection_age_ms"].is_number(), version == "1.39.3", "{version}: {entry:#}");
        pod.ztunnel().unwrap().next_connects(1, ConnectBehaviour::Answer(StatusCode::SERVICE_UNAVAILABLE));
        let reply = mesh.post(ECHO, "/").await.unwrap();
        let entry = assert_told(&mesh, pod.ip(), "tunnel_refused", Some(&reply)).await;
        let told = entry["stale_guard"]["tunnel_refusal"] == "answered_503";
        assert_eq!(told, version == "1.39.3", "{version}: {entry:#}");
        // A tunnel from before the removal, whose pod ends with a request in flight.
        let (reply, ()) = tokio::join!(mesh.post(ECHO, "/?hang=headers"), async {
            pod.executions().wait_for("the request", |all| (all.len() == 3).then_some(())).await.unwrap();
            // Polls compare: one must have seen the endpoint before another can miss it.
            mesh.wait_stat("endpoints_listed", |count| count == 1).await.unwrap();
            mesh.unlist(ECHO, pod.addr()).await.unwrap();
            mesh.wait_stat("watch_admin_removed", |count| count == 1).await.unwrap();
            pod.ztunnel().unwrap().connections().end_all(Ending::Rst).await.unwrap();
        });
        assert_told(&mesh, pod.ip(), "stale", Some(&reply.unwrap())).await;
        mesh.envoy.assert_alive().unwrap();
    }
}
