//! Public reports of HTTP/2 and gRPC retries as cases, and of bodies that Envoy cannot keep.

use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use http::{Method, StatusCode};
use lab::{
    app::{Behaviour, Script, hash_of},
    control_plane::{Service, cluster_name},
    mesh::Reply,
    pod::Ending,
};
use serde_json::json;

use super::{
    kinds::{Fault, Kind, Transport},
    setup::{guarded, no_route_policy, previous_hosts, route_policy},
    world::{ONE, TWO, World},
};

fn seen(cell: super::table::Seen) -> (String, usize, u32) {
    (cell.status, cell.executions, cell.attempts)
}

/// envoyproxy/envoy#39800: the upstream dies after reading a unary call, Envoy calls that UNAVAILABLE,
/// and a policy that retries `unavailable` sends it again.
#[tokio::test(flavor = "multi_thread")]
async fn case_12_a_call_that_was_read_is_sent_again_only_if_its_method_is_declared() {
    let declare = json!({ "name": "reads", "match": { "grpc": { "service": "shop.Catalog" } }, "retry": true });
    let unavailable = json!({
        "retry_on": "unavailable,connect-failure",
        "num_retries": 2,
        "retry_host_predicate": [previous_hosts()],
    });
    let setup = route_policy(guarded(json!({ "rules": [declare] })), unavailable);
    let world = World::start(setup, Transport::H2c).await;
    let call = async |kind| seen(world.meet(kind, Fault::ResetAfterRead).await);
    assert_eq!(call(Kind::GrpcNotDeclared).await, ("grpc 14".to_owned(), 1, 1));
    assert_eq!(call(Kind::GrpcDeclared).await, ("grpc 0".to_owned(), 2, 2));
}

/// A POST of 20,000 bytes over HTTP/2 while another stream is served on the connection.
async fn post_beside_a_served_stream(transport: Transport, behaviour: Behaviour) -> (u16, usize, Option<u32>, u16) {
    let world = World::start(no_route_policy(guarded(json!({}))), transport).await;
    let body = Bytes::from(vec![b'b'; 20_000]);
    world.warm(TWO).await;
    // Two: one for each endpoint.
    let served = [0, 1].map(|_| world.mesh.get(TWO, "/?delay_ms=400"));
    let post = async {
        let served =
            |pod: &lab::pod::Pod| pod.executions().with(|all| all.iter().any(|one| one.path.contains("delay")));
        let deadline = tokio::time::Instant::now() + lab::mesh::WITHIN;
        while !world.pods.iter().all(served) {
            assert!(tokio::time::Instant::now() < deadline, "both streams are being served");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        world.script.next(1, behaviour);
        world.mesh.send(world.mesh.request(Method::POST, TWO, "/order").body(body.clone()).unwrap()).await.unwrap()
    };
    let (reply, served) = tokio::join!(post, join_all(served));
    let execution = world
        .pods
        .iter()
        .find_map(|pod| pod.executions().with(|all| all.iter().find(|one| one.id == reply.id).cloned()));
    if let Some(execution) = execution {
        assert_eq!((execution.body_len, execution.body_hash), (20_000, hash_of(&body)), "no truncated replay");
    }
    let worst = served.iter().map(|reply| reply.as_ref().unwrap().status.as_u16()).max().unwrap_or(0);
    (reply.status.as_u16(), world.executed(&reply.id).len(), reply.attempts(), worst)
}

/// envoyproxy/envoy#36450: streams above a GOAWAY's last stream id get 503. RFC 9113 section 6.8: they
/// were not processed, whatever their method.
#[tokio::test(flavor = "multi_thread")]
async fn case_13_a_post_above_a_goaways_last_stream_is_sent_again() {
    for transport in [Transport::H2c, Transport::Hbone] {
        let (status, executions, attempts, _) = post_beside_a_served_stream(transport, Behaviour::GoAwayBelow).await;
        assert_eq!((status, executions, attempts), (200, 1, Some(2)), "{transport:?}");
    }
}

/// envoyproxy/envoy#68: REFUSED_STREAM before the request is read. RFC 9113 section 8.7.
#[tokio::test(flavor = "multi_thread")]
async fn case_15_a_refused_post_is_sent_again() {
    for transport in [Transport::H2c, Transport::Hbone] {
        let seen = post_beside_a_served_stream(transport, Behaviour::RefuseStream).await;
        assert_eq!(seen, (200, 1, Some(2), 200), "{transport:?}: and the stream beside it is left alone");
    }
}

/// Fifty requests wait at one endpoint, over one HTTP/2 connection, which is then reset.
async fn fifty_at_once(max_retries: Option<u32>) -> (World, Vec<Reply>) {
    let scripts = [Script::default(), Script::default()];
    let change = |service: Service| Service { max_retries, ..service };
    let world = World::with(guarded(json!({})), Transport::H2c, scripts, change).await;
    world.warm(TWO).await;
    world.script.until_told(Behaviour::HangBeforeHeaders);
    let all = join_all((0..100).map(|_| world.mesh.get(TWO, "/many")));
    let break_off = async {
        let hung =
            |all: &[lab::app::Execution]| (all.iter().filter(|one| one.path == "/many").count() == 50).then_some(());
        world.pods[0].executions().wait_for("fifty requests", hung).await.unwrap();
        world.script.clear();
        world.pods[0].app().unwrap().connections().end_all(Ending::Rst).await.unwrap();
    };
    let (replies, ()) = tokio::join!(all, break_off);
    let replies = replies.into_iter().map(|reply| reply.unwrap()).collect();
    (world, replies)
}

/// envoyproxy/envoy#27330: many requests of one worker at once, and the circuit breaker's three retries.
#[tokio::test(flavor = "multi_thread")]
async fn case_19_fifty_requests_on_one_connection_are_all_saved_within_the_budget() {
    let (_world, replies) = fifty_at_once(None).await;
    let saved = replies.iter().filter(|reply| reply.attempts() == Some(2)).count();
    assert!(replies.iter().all(|reply| reply.status == StatusCode::OK && reply.pod() == Some("b")));
    assert_eq!(saved, 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn case_19_what_the_circuit_breaker_refuses_is_counted_and_fails_fast() {
    let (world, replies) = fifty_at_once(Some(3)).await;
    let failed: Vec<_> = replies.iter().filter(|reply| reply.status == StatusCode::SERVICE_UNAVAILABLE).collect();
    let saved = replies.iter().filter(|reply| reply.attempts() == Some(2)).count();
    assert_eq!((failed.len() + saved, saved >= 3), (50, true), "three at once, and as many as the back-off lets in");
    let overflow = format!("cluster.{}.upstream_rq_retry_overflow", cluster_name(TWO, 80));
    let overflow = world.mesh.envoy.admin().stat(&overflow).await.unwrap();
    assert_eq!(overflow, failed.len() as u64, "each is counted");
    let counted = |count| count == failed.len() as u64;
    world.mesh.wait_stat("retry_outcome_not_retried", counted).await.expect("each is counted here, too");
    assert!(failed.iter().all(|reply| reply.header("x-response-flags").is_some_and(|flags| flags.contains("UC"))));
}

const LIMIT: usize = 32 * 1024;

/// envoyproxy/envoy#29386, #32464, #15211, contour#5869: a body over the buffer limit. Never 413, never
/// 507, never a truncated replay: the original 503, and a count.
#[tokio::test(flavor = "multi_thread")]
async fn case_16_a_body_over_the_limit_is_streamed_and_not_retried() {
    for routed in [true, false] {
        let setup = guarded(json!({})).bootstrap(|bootstrap| {
            let listener = bootstrap.listener("service")?;
            bootstrap.patch(&format!("{listener}/per_connection_buffer_limit_bytes"), json!(LIMIT))
        });
        let setup = if routed { setup } else { no_route_policy(setup) };
        let world = World::start(setup, Transport::Http1).await;
        let mut refused = 0;
        for (size, chunked) in [33 * 1024, 1 << 20].into_iter().flat_map(|size| [(size, false), (size, true)]) {
            for behaviour in [Behaviour::ReadThenReset, Behaviour::ResetOnArrival] {
                world.warm(ONE).await;
                world.script.next(1, behaviour);
                let reply = put(&world, size, chunked).await;
                let (id, executions) = (&reply.id, world.executed(&reply.id).len());
                let read = usize::from(behaviour == Behaviour::ReadThenReset);
                assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE, "{size} {chunked} {behaviour:?} {reply:?}");
                assert_eq!(executions, read, "{id}: never executed again");
                let reason = &world.logged(id).await["stale_guard"]["retry_reason"];
                assert_eq!(*reason, if chunked { "method_eligible" } else { "body_over_limit" });
                refused += 1;
            }
        }
        let counted = world.stat("retry_decision_body_over_limit").await;
        let outcome = world.stat("retry_outcome_body_over_limit").await;
        assert_eq!((counted, counted + outcome), (refused / 2, refused), "every one is counted, by either reason");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_16_a_body_at_the_limit_is_sent_again_whole() {
    let setup = guarded(json!({})).bootstrap(|bootstrap| {
        let listener = bootstrap.listener("service")?;
        bootstrap.patch(&format!("{listener}/per_connection_buffer_limit_bytes"), json!(LIMIT))
    });
    let world = World::start(setup, Transport::Http1).await;
    for (size, chunked) in [LIMIT, LIMIT - 1, 100].into_iter().flat_map(|size| [(size, false), (size, true)]) {
        world.warm(ONE).await;
        world.script.next(1, Behaviour::ReadThenReset);
        let reply = put(&world, size, chunked).await;
        assert_eq!(reply.status, StatusCode::OK, "{size} {chunked}: {reply:?}");
        let executions: Vec<_> = world.pods.iter().flat_map(|pod| pod.executions().snapshot()).collect();
        let executions: Vec<_> = executions.into_iter().filter(|one| one.id == reply.id).collect();
        assert_eq!(executions.len(), 2);
        let hash = hash_of(&vec![b'b'; size]);
        assert!(executions.iter().all(|one| one.body_len == size as u64 && one.body_hash == hash), "{executions:#?}");
    }
}

async fn put(world: &World, size: usize, chunked: bool) -> Reply {
    let request = world.mesh.request(Method::PUT, ONE, "/upload");
    let request = if chunked { request.header("transfer-encoding", "chunked") } else { request };
    world.mesh.send(request.body(Bytes::from(vec![b'b'; size])).unwrap()).await.unwrap()
}
