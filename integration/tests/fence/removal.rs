//! `close_after_removal`: what is still open some time after its endpoint was removed is closed.

use std::time::{Duration, Instant};

use http::StatusCode;
use lab::{
    app::Behaviour,
    bootstrap::{Bootstrap, ExtensionPoint, Variant},
    envoy::{Binary, Envoy, Options},
    load::{HeldStream, StreamSpec},
    mesh::{ECHO, Setup, WITHIN},
    netns::Netns,
    scenes::HANG,
    ztunnel::Tunnel,
};
use serde_json::{Value, json};

use crate::scenes::{fence, hold, hung, log_all_tunnels, warm};

const DETAILS: &str = "stale_guard_endpoint_removed";

fn closing(variant: Variant) -> Setup {
    Setup::new(variant).bootstrap(log_all_tunnels).bootstrap(fence(json!({ "close_after_removal": "1s" })))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_a_removed_endpoint_is_closed_after_the_set_time_and_the_log_names_us() {
    let (mesh, pod, mut stream) = hung(closing(Variant::FenceOnly)).await.unwrap();
    let start = Instant::now();
    mesh.unlist(ECHO, pod.addr()).await.unwrap();
    stream.wait_end(WITHIN).await.expect("it is closed");
    let took = start.elapsed();
    println!("closed {took:?} after the removal");
    assert!(took >= Duration::from_millis(990), "not before its time: {took:?}");
    let named = |entry: &Value| entry["connection_termination_details"] == DETAILS;
    let entry = mesh.envoy.wait_for_access_log(WITHIN, |entry| entry["log"] == "hbone").await.unwrap();
    assert!(named(&entry), "{entry:#}");
    assert_eq!(mesh.wait_stat("fence_closed_after_removal", |count| count > 0).await.unwrap(), 1);
    assert_eq!(mesh.stat("fence_reset_broken").await.unwrap(), 0, "what we close ourselves is no reset");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_in_flight_then_fails_fast_and_a_get_succeeds_elsewhere() {
    let (mesh, pod) = warm(closing(Variant::StaleGuard)).await.unwrap();
    pod.script().next(1, Behaviour::HangBeforeHeaders);
    let second = mesh.pod("second", 2).await.unwrap();
    let request = mesh.request(http::Method::GET, ECHO, "/").body(bytes::Bytes::new()).unwrap();
    let id = request.headers()["x-request-id"].to_str().unwrap().to_owned();
    let (reply, ()) = tokio::join!(mesh.send(request), async {
        pod.wait_for_execution(&id).await.unwrap();
        mesh.list(ECHO, second.addr()).await.unwrap();
        mesh.unlist(ECHO, pod.addr()).await.unwrap();
    });
    let reply = reply.unwrap();
    assert_eq!((reply.status, reply.pod(), reply.attempts()), (StatusCode::OK, Some("second"), Some(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_came_back_keeps_its_tunnels() {
    let mesh = closing(Variant::FenceOnly).services(&[ECHO, "gone.default.svc.cluster.local"]).start().await.unwrap();
    let (flapping, gone) = (mesh.pod("flapping", 1).await.unwrap(), mesh.pod("gone", 2).await.unwrap());
    let other = "gone.default.svc.cluster.local";
    mesh.list(ECHO, flapping.addr()).await.unwrap();
    mesh.list(other, gone.addr()).await.unwrap();
    let (kept, mut closed) = (hold(&mesh, ECHO, "kept").await.unwrap(), hold(&mesh, other, "closed").await.unwrap());
    mesh.unlist(ECHO, flapping.addr()).await.unwrap();
    // Removed later, hence due later: when its tunnel is closed, the other's time is over.
    mesh.unlist(other, gone.addr()).await.unwrap();
    mesh.list(ECHO, flapping.addr()).await.unwrap();
    closed.wait_end(WITHIN).await.expect("the one that stays away is closed");
    assert!(kept.ended().is_none(), "a readiness flap cuts nobody off");
    assert_eq!(mesh.stat("fence_closed_after_removal").await.unwrap(), 1);
    kept.release().await.unwrap();
}

/// 24: by default a long-lived stream of a removed endpoint is left alone, and no new one goes there.
#[tokio::test(flavor = "multi_thread")]
async fn case_24_by_default_nothing_is_closed_and_nothing_new_goes_to_a_removed_endpoint() {
    let (mesh, pod, stream) = hung(Setup::new(Variant::StaleGuard)).await.unwrap();
    mesh.unlist(ECHO, pod.addr()).await.unwrap();
    let tunnels = pod.ztunnel().unwrap().tunnels().len();
    for _ in 0..5 {
        assert_eq!(mesh.get(ECHO, "/").await.unwrap().status, StatusCode::SERVICE_UNAVAILABLE);
    }
    assert_eq!(pod.ztunnel().unwrap().tunnels().len(), tunnels, "no new tunnel to a removed endpoint");
    assert!(stream.ended().is_none(), "a terminating pod still answers");
    pod.app().unwrap().release();
    let mut stream = stream;
    let end = stream.wait_end(WITHIN).await.expect("the application ends it");
    assert_eq!(end, lab::load::StreamEnd::Complete, "properly, to its last byte");
    assert_eq!(mesh.stat("fence_closed_after_removal").await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_sessions_of_a_removed_endpoint_are_not_cut_in_one_instant() {
    let spread = json!({ "close_after_removal": "1s", "close_after_removal_jitter": 1.0 });
    let mesh = Setup::new(Variant::FenceOnly).bootstrap(fence(spread)).start().await.unwrap();
    let pod = mesh.pod("pod", 1).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    let connector = mesh.connector();
    let session = |number: usize| {
        let (connector, id) = (connector.clone(), format!("session-{number}"));
        async move { HeldStream::open(&connector, &StreamSpec::get(ECHO, HANG), &id).await.unwrap() }
    };
    let sessions = futures::future::join_all((0..60).map(session)).await;
    mesh.unlist(ECHO, pod.addr()).await.unwrap();
    let all_closed = |all: &[Tunnel]| all.iter().map(|tunnel| tunnel.closed).collect::<Option<Vec<_>>>();
    let mut closed = pod.ztunnel().unwrap().tunnels().wait_for("the end of all", all_closed).await.unwrap();
    closed.sort_unstable();
    let took = closed[closed.len() - 1].duration_since(closed[0]);
    println!("{} sessions cut within {took:?}", closed.len());
    assert_eq!(closed.len(), sessions.len());
    assert!(took >= Duration::from_millis(500), "a second is to be used: {took:?}");
    assert_eq!(mesh.wait_stat("fence_closed_after_removal", |count| count >= 60).await.unwrap(), 60);
}

/// Why Envoy refuses this bootstrap.
async fn refused(bootstrap: Bootstrap, options: &Options) -> String {
    let closing = json!({ "close_after_removal": "1s" });
    let bootstrap = bootstrap.with_config_fields(ExtensionPoint::Fence, &closing).unwrap();
    let netns = Netns::new("refused").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let authority = lab::certs::Authority::new().unwrap();
    let identity = authority.issue("spiffe://cluster.local/ns/default/sa/waypoint").unwrap();
    let (chain, key, root) = (&identity.cert_pem, &identity.key_pem, authority.ca_pem());
    let files = lab::bootstrap::CertificateFiles::write(folder.path(), chain, key, root).unwrap();
    let bootstrap = bootstrap.with_certificates(&files).unwrap();
    let validation = Envoy::validate(&netns, &bootstrap, options).await.unwrap();
    assert!(!validation.status.success(), "{}", validation.log);
    assert!(validation.log.contains("close_after_removal"), "{}", validation.log);
    validation.log.replace("\\\"", "\"")
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_refused_where_no_status_extension_gives_the_module_its_pulse() {
    let why = refused(Bootstrap::load().unwrap().without_status().unwrap(), &Options::default()).await;
    assert!(why.contains("needs the bootstrap extension \"status\""), "{why}");
}

/// There, waking a filter from another thread can race with the end of its connection, inside of Envoy.
#[tokio::test(flavor = "multi_thread")]
async fn it_is_refused_on_envoy_1_38() {
    let options = Options { binary: Some(Binary::version("1.38.3").unwrap()), ..Options::default() };
    let why = refused(Bootstrap::load().unwrap().without_config_validators().unwrap(), &options).await;
    assert!(why.contains("needs Envoy 1.39 or later"), "{why}");
    // From 1.39 on it works.
    let setup = crate::scenes::on("1.39.3", closing(Variant::FenceOnly));
    let (mesh, pod, mut stream) = hung(setup).await.unwrap();
    mesh.wait_stat("endpoints_listed", |count| count == 1).await.unwrap();
    mesh.unlist(ECHO, pod.addr()).await.unwrap();
    stream.wait_end(WITHIN).await.expect("it is closed");
    assert_eq!(mesh.wait_stat("fence_closed_after_removal", |count| count > 0).await.unwrap(), 1);
}
