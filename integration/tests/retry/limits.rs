//! What docs/retry.md says under "Limits, with figures".

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use lab::{
    app::Behaviour,
    bootstrap::{Bootstrap, Variant},
    control_plane::{Endpoint, Service},
    load::{Load, Outcome, Plan, RequestClass},
    mesh::{Mesh, Setup, WITHIN},
};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{
    kinds::Transport,
    setup::{guarded, istio_outbound, no_route_policy},
    world::{ONE, World},
};

/// One of two pods breaks everything, so half of all requests need a retry: more than the default budget pays for.
#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_breaks_half_of_all_requests_uses_the_default_budget_up() {
    for transport in [Transport::Http1, Transport::Hbone] {
        let failed = async |variant| {
            let world = World::apart(Setup::new(variant), transport).await;
            world.warm(ONE).await;
            world.script.until_told(Behaviour::ResetOnArrival);
            let plan = Plan { max_requests: 600, ..Plan::new("half", 100.0, vec![RequestClass::get(ONE, "/")]) };
            let report = Load::start(plan, world.mesh.connector()).await.unwrap().finished().await.unwrap();
            let status = |outcome: &Outcome| match outcome {
                Outcome::Response { status, .. } => *status,
                other => panic!("no answer: {other}"),
            };
            let failed: Vec<_> = report
                .records
                .iter()
                .filter(|record| status(&record.outcome) == 503)
                .map(|one| one.id.clone())
                .collect();
            (world, failed)
        };
        let ((_, stock), (world, failed)) = tokio::join!(failed(Variant::Stock), failed(Variant::StaleGuard));
        assert!((290..=310).contains(&stock.len()), "the control: half fail, {}", stock.len());
        let retries = world.stat("retry_retries").await;
        eprintln!("{transport:?}: {} of 600 at 503 after {retries} retries; stock {}", failed.len(), stock.len());
        // 10 a second for 6 s and 10 at the start, and 0.2 for each of 600. A retry takes the turn of the pod
        // that works, so more than half of all first attempts meet the other one.
        assert!((180..=215).contains(&retries), "the budget pays for 190: {retries}");
        assert!((100..=200).contains(&failed.len()), "{transport:?}: {} of 600 at 503", failed.len());
        let exhausted = world.stat("retry_decision_budget_exhausted").await;
        assert!(exhausted >= failed.len() as u64, "the counter tells: {exhausted}");
        for id in failed.iter().take(5) {
            let entry = world.logged(id).await;
            assert_eq!(entry["stale_guard"]["retry_reason"], "budget_exhausted", "{entry:#}");
        }
        let log = world.mesh.envoy.log().unwrap();
        assert!(log.contains("budget exhausted on worker"), "the log tells");
    }
}

const FRONT: u16 = 8090;

/// A proxy before the waypoint, whose route has Istio's outbound default of before 1.30.3, which names 503.
/// Both are the same Envoy process: a listener whose cluster is the waypoint's listener.
fn behind_a_front(bootstrap: Bootstrap) -> anyhow::Result<Bootstrap> {
    let listener = bootstrap.listener("service")?;
    let service = bootstrap.listen()?;
    let at = |port: u16| json!({ "socket_address": { "address": "127.0.0.1", "port_value": port } });
    let hosts = json!([{
        "name": "front",
        "domains": ["*"],
        "include_request_attempt_count": true,
        "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": "front", "retry_policy": istio_outbound() } }],
    }]);
    let router = json!({
        "name": "envoy.filters.http.router",
        "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" },
    });
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "front",
        "route_config": { "virtual_hosts": hosts },
        "http_filters": [router],
    });
    let chain = json!({ "name": "envoy.filters.network.http_connection_manager", "typed_config": manager });
    let endpoint = json!({ "endpoint": { "address": at(service.port()) } });
    let cluster = json!({
        "name": "front",
        "type": "STATIC",
        "load_assignment": { "cluster_name": "front", "endpoints": [{ "lb_endpoints": [endpoint] }] },
    });
    assert!(listener.starts_with("/static_resources/listeners/"));
    bootstrap
        .patch(
            "/static_resources/listeners/-",
            json!({ "name": "front", "address": at(FRONT), "filter_chains": [{ "filters": [chain] }] }),
        )?
        .patch("/static_resources/clusters/-", cluster)
}

/// Status of a request that goes through the front.
async fn through_the_front(mesh: &Mesh, request: Request<Bytes>) -> StatusCode {
    let front = SocketAddr::from((Ipv4Addr::LOCALHOST, FRONT));
    let socket = mesh.envoy.netns().tcp_connect(front).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.unwrap();
    let driver = tokio::spawn(connection);
    let answer = tokio::time::timeout(WITHIN, sender.send_request(request.map(Full::new))).await;
    driver.abort();
    answer.expect("an answer in time").expect("an answer").status()
}

/// Executions of a GET that every pod breaks.
async fn executions_behind_a_front(setup: Setup) -> usize {
    let world = World::start(setup.bootstrap(behind_a_front), Transport::Http1).await;
    world.script.until_told(Behaviour::ReadThenReset);
    let request = world.mesh.request(Method::GET, ONE, "/").body(Bytes::new()).unwrap();
    let id = request.headers()["x-request-id"].to_str().unwrap().to_owned();
    assert_eq!(through_the_front(&world.mesh, request).await, StatusCode::SERVICE_UNAVAILABLE);
    world.executed(&id).len()
}

/// Two hops that both retry multiply; the rule that docs/retry.md shows keeps the second hop's retries for the
/// first hop's first attempt.
#[tokio::test(flavor = "multi_thread")]
async fn two_hops_multiply_unless_a_rule_denies_what_the_first_hop_repeats() {
    assert_eq!(executions_behind_a_front(Setup::new(Variant::Stock)).await, 3, "the front's own");
    assert_eq!(executions_behind_a_front(no_route_policy(guarded(json!({})))).await, 6, "3 x 2");
    assert_eq!(executions_behind_a_front(guarded(json!({}))).await, 9, "3 x 3: the shipped route says num_retries 2");
    let repeated = json!({ "name": "x-envoy-attempt-count", "regex": "^([2-9]|[1-9][0-9]+)$" });
    let rule = json!({ "name": "repeated-by-the-hop-before", "match": { "headers": [repeated] }, "retry": false });
    let denied = guarded(json!({ "rules": [rule] }));
    assert_eq!(executions_behind_a_front(no_route_policy(denied)).await, 4, "2 + 1 + 1");
}

/// Answers 401 as soon as it has a request's headers and closes, which resets a connection with unread bytes.
async fn refusing_server(mesh: &Mesh, addr: SocketAddr) -> Arc<AtomicUsize> {
    let arrived = Arc::new(AtomicUsize::new(0));
    let listener = mesh.envoy.netns().tcp_listener(addr).unwrap();
    let count = Arc::clone(&arrived);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.windows(4).any(|four| four == b"\r\n\r\n") {
                    if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                count.fetch_add(1, Ordering::Relaxed);
                let answer = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                let _ = stream.write_all(answer).await;
            });
        }
    });
    arrived
}

/// 40 uploads of 900 KiB that are refused before they are read: how many are answered 401 (the others 503), and
/// how often the server was asked.
async fn refused_uploads(setup: Setup) -> (usize, usize) {
    let mesh = setup.bootstrap(|bootstrap| bootstrap.with_services(&[ONE])).start().await.unwrap();
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 9_000));
    let arrived = refusing_server(&mesh, addr).await;
    mesh.control_plane.set_service(Service::new(ONE, vec![Endpoint::new(addr.ip(), addr.port()).plain()]));
    mesh.acked().await.unwrap();
    let mut refused = 0;
    for _ in 0..40 {
        let request = mesh.request(Method::PUT, ONE, "/").body(Bytes::from(vec![b'x'; 900 * 1024])).unwrap();
        let reply = mesh.send(request).await.unwrap();
        assert!(matches!(reply.status.as_u16(), 401 | 503), "{reply:?}");
        refused += usize::from(reply.status == StatusCode::UNAUTHORIZED);
    }
    (refused, arrived.load(Ordering::Relaxed))
}

/// Whether Envoy sees the answer first or the reset that follows it is a race inside Envoy, which no filter can
/// decide: an answer that Envoy reads wins, and nothing is sent again.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_is_refused_before_it_is_read_may_be_sent_again() {
    let (stock, stock_sent) = refused_uploads(no_route_policy(Setup::new(Variant::Stock))).await;
    let (answered, sent) = refused_uploads(guarded(json!({}))).await;
    let large = json!({ "name": "content-length", "regex": "^[0-9]{6,}$" });
    let rule = json!({ "name": "large-uploads", "match": { "headers": [large] }, "retry": false });
    let (_, denied_sent) = refused_uploads(guarded(json!({ "rules": [rule] }))).await;
    eprintln!("of 40 answered 401: {stock} with {stock_sent} sent; with the module {answered} with {sent} sent");
    assert_eq!((stock_sent, denied_sent), (40, 40), "once each without the module, and where a rule denies");
    assert!((41..=120).contains(&sent), "again at least once, and 1 + the route's 2 times at most: {sent}");
}

/// A POST to a pod whose port 15008 refuses. With one attempt the inner connection closes in the turn of the event
/// loop in which it was opened, so that Envoy takes it for a connect failure; with two it counts as made.
#[tokio::test(flavor = "multi_thread")]
async fn a_tunnel_that_is_refused_at_once_is_a_connect_failure_where_tcp_proxy_makes_one_attempt() {
    for (attempts, status, tries) in [(1, StatusCode::OK, 2), (2, StatusCode::SERVICE_UNAVAILABLE, 1)] {
        let setup = no_route_policy(guarded(json!({})));
        let setup = setup.bootstrap(move |bootstrap| bootstrap.with_max_connect_attempts(attempts));
        let world = World::apart(setup, Transport::Hbone).await;
        world.pods[0].ztunnel().unwrap().refuse().await;
        let post = || world.mesh.request(Method::POST, ONE, "/").body(Bytes::new()).unwrap();
        let reply = world.first_on_first(post).await;
        assert_eq!(
            (reply.status, reply.attempts()),
            (status, Some(tries)),
            "max_connect_attempts {attempts}: {reply:?}"
        );
    }
}
