//! Public reports of HTTP retries as cases: each test is named after its case and holds the value that
//! its reporter would call right, or says why Envoy gives another.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use lab::{
    app::Behaviour,
    bootstrap::Variant,
    mesh::{Setup, WITHIN},
};
use serde_json::{Value, json};

use super::{
    kinds::{Fault, Kind, Transport},
    setup::{guarded, istio_outbound, no_route_policy, previous_hosts, route_policy},
    table::section,
    world::{ONE, TWO, World},
};

fn default_policy() -> Setup {
    guarded(json!({}))
}

/// Status, executions, attempts.
async fn one(world: &World, method: Method, behaviour: Behaviour) -> (u16, usize, u32) {
    world.warm(ONE).await;
    world.script.next(1, behaviour);
    let request = world.mesh.request(method, ONE, "/").body(Bytes::from_static(b"x")).unwrap();
    let reply = world.mesh.send(request).await.unwrap();
    assert!(world.script.is_done(), "the request met the fault");
    (reply.status.as_u16(), world.executed(&reply.id).len(), reply.attempts().unwrap_or(0))
}

/// envoyproxy/envoy#1979, #6190, #10007, istio#13848, istio#51704, ingress-nginx#3099, #11244: the
/// keep-alive race. The client's pace is the server's keep-alive time, so connections end just when
/// they are wanted.
#[tokio::test(flavor = "multi_thread")]
async fn case_09_keep_alive_races_cost_no_get_and_never_execute_a_post_twice() {
    let setup = default_policy().bootstrap(|bootstrap| bootstrap.with_services(&[ONE]));
    let mesh = setup.start().await.unwrap();
    let spec = lab::pod::PodSpec::new("a", [10, 244, 1, 1].into());
    let keep_alive = Duration::from_millis(25);
    let pod = mesh.pod_with(lab::pod::PodSpec { keep_alive: Some(keep_alive), hbone: false, ..spec }).await.unwrap();
    let endpoint = lab::control_plane::Endpoint::new(pod.ip(), 8080).plain();
    mesh.control_plane.set_service(lab::control_plane::Service::new(ONE, vec![endpoint]));
    mesh.acked().await.unwrap();
    let (start, mut round, mut raced) = (Instant::now(), 0_u32, 0);
    while round < 100 || raced == 0 {
        assert!(start.elapsed() < WITHIN, "no GET met a race in {round} rounds, so this has shown nothing");
        // The server's clock begins with the last byte of the answer, a little before the client's.
        let pace = keep_alive - Duration::from_micros(300 * u64::from(round % 10));
        let get = mesh.get(ONE, "/").await.unwrap();
        assert_eq!((get.status, pod.executed(&get.id)), (StatusCode::OK, 1), "round {round}: {get:?}");
        raced += get.attempts().unwrap_or(1) - 1;
        tokio::time::sleep(pace).await;
        let post = mesh.post(ONE, "/").await.unwrap();
        let executed = usize::from(post.status == StatusCode::OK);
        assert_eq!(pod.executed(&post.id), executed, "round {round}: a POST is executed once, or failed in the race");
        tokio::time::sleep(pace).await;
        round += 1;
    }
    assert!(mesh.stat("retry_retries").await.unwrap() >= u64::from(raced), "{raced} races in {round} rounds");
}

/// istio/istio#13851: the default retry replays a POST that was executed and answered 503.
#[tokio::test(flavor = "multi_thread")]
async fn case_10_an_executed_post_that_answers_503_is_not_replayed() {
    let busy = Behaviour::Status(StatusCode::SERVICE_UNAVAILABLE);
    let world = World::start(default_policy(), Transport::Http1).await;
    assert_eq!(one(&world, Method::POST, busy).await, (503, 1, 1));
    assert_eq!(one(&world, Method::GET, busy).await, (503, 1, 1), "an answer is an answer");

    let policy = json!({ "on": ["reset", "gateway-error"] });
    let world = World::start(guarded(policy), Transport::Http1).await;
    assert_eq!(one(&world, Method::GET, busy).await, (200, 2, 2), "a policy that names 503 retries what is idempotent");
    assert_eq!(one(&world, Method::POST, busy).await, (503, 1, 1));
}

/// The same where the route itself has Istio's outbound default, which names 503 for every method. A
/// filter only adds: what the route asks for stays. docs/retry.md tells what to put there instead.
#[tokio::test(flavor = "multi_thread")]
async fn case_10_what_the_routes_own_policy_replays_is_replayed_with_the_module_too() {
    let busy = Behaviour::Status(StatusCode::SERVICE_UNAVAILABLE);
    for setup in [Setup::new(Variant::Stock), default_policy()] {
        let world = World::start(route_policy(setup, istio_outbound()), Transport::Http1).await;
        assert_eq!(one(&world, Method::POST, busy).await, (200, 2, 2));
    }
}

/// istio/istio#51619: a POST is executed three times, because its connection closes after a long read
/// and the policy retries 503.
#[tokio::test(flavor = "multi_thread")]
async fn case_11_a_post_whose_connection_closes_after_it_was_read_is_executed_once() {
    for (setup, transport) in [
        (default_policy(), Transport::Http1),
        (default_policy(), Transport::Hbone),
        (route_policy(default_policy(), istio_outbound()), Transport::Http1),
    ] {
        let world = World::start(setup, transport).await;
        assert_eq!(one(&world, Method::POST, Behaviour::ReadThenClose).await, (503, 1, 1));
    }
}

/// envoyproxy/envoy#5876: a reset after the response's headers.
#[tokio::test(flavor = "multi_thread")]
async fn case_18_a_response_that_has_begun_is_never_retried() {
    let world = World::start(guarded(json!({ "max_retries": 5 })), Transport::Hbone).await;
    world.warm(ONE).await;
    world.script.next(1, Behaviour::HeadersThenReset);
    let reply = world.mesh.get(ONE, "/").await.unwrap();
    assert_eq!((reply.status, reply.broken, reply.body.len()), (StatusCode::OK, true, 10), "what came is passed on");
    assert_eq!((world.executed(&reply.id).len(), reply.attempts()), (1, Some(1)));
    let entry = world.logged(&reply.id).await;
    assert_eq!(entry["stale_guard"]["retry_outcome"], "not_retried", "{entry:#}");
}

/// envoyproxy/envoy#32580: more tries than configured. The total is 1 + N, never a product.
#[tokio::test(flavor = "multi_thread")]
async fn case_21_attempts_of_the_route_and_of_the_module_never_multiply() {
    let route = |num_retries: Value| json!({ "retry_on": "reset", "num_retries": num_retries });
    for (ours, theirs, total) in [(1, None, 2), (1, Some(1), 2), (1, Some(3), 4), (3, Some(1), 4), (2, Some(2), 3)] {
        let setup = guarded(json!({ "max_retries": ours }));
        let setup = match theirs {
            Some(number) => route_policy(setup, route(json!(number))),
            None => no_route_policy(setup),
        };
        let world = World::start(setup, Transport::Http1).await;
        world.script.until_told(Behaviour::ReadThenReset);
        let reply = world.mesh.get(ONE, "/").await.unwrap();
        let executions = world.pods.iter().flat_map(|pod| pod.executions().snapshot());
        let mut counts: Vec<_> = executions.filter(|one| one.id == reply.id).map(|one| one.attempt_count).collect();
        counts.sort();
        let numbers: Vec<_> = (1..=total).map(|number: u32| Some(number.to_string())).collect();
        assert_eq!((reply.attempts(), &counts), (Some(total), &numbers), "ours {ours}, the route's {theirs:?}");
    }
}

/// istio/istio#51762: `retriable-status-codes: 503` does not match the 503 that Envoy makes of a reset.
#[tokio::test(flavor = "multi_thread")]
async fn case_22_a_reset_is_retried_also_where_the_route_names_only_503() {
    let only_503 = json!({ "retry_on": "retriable-status-codes", "num_retries": 1, "retriable_status_codes": [503] });
    let stock = World::start(route_policy(Setup::new(Variant::Stock), only_503.clone()), Transport::Http1).await;
    assert_eq!(one(&stock, Method::GET, Behaviour::ResetOnArrival).await, (503, 0, 1), "the control must fail");
    let world = World::start(route_policy(default_policy(), only_503), Transport::Http1).await;
    assert_eq!(one(&world, Method::GET, Behaviour::ResetOnArrival).await, (200, 1, 2));
}

/// istio/istio#61084: the retry hits the same broken pod.
#[tokio::test(flavor = "multi_thread")]
async fn case_23_the_second_attempt_goes_to_the_other_endpoint() {
    for transport in [Transport::Http1, Transport::H2c, Transport::Hbone] {
        let host = if transport == Transport::H2c { TWO } else { ONE };
        let world = World::apart(default_policy(), transport).await;
        world.script.until_told(Behaviour::ReadThenReset);
        for _ in 0..10 {
            let reply = world.first_on_first(|| world.mesh.request(Method::GET, host, "/").body(Bytes::new()).unwrap());
            let reply = reply.await;
            assert_eq!((reply.status, reply.pod(), reply.attempts()), (StatusCode::OK, Some("b"), Some(2)));
            assert_eq!(world.executed(&reply.id), ["a", "b"], "one attempt on each, over {transport:?}");
        }
    }
}

/// kubernetes/ingress-nginx#2846, #3639, #7097: what is refused may be sent elsewhere whatever its
/// method; what was sent and then reset only if it is idempotent.
#[tokio::test(flavor = "multi_thread")]
async fn case_30_a_refused_post_goes_elsewhere_and_a_reset_one_does_not() {
    let world = World::start(no_route_policy(default_policy()), Transport::Http1).await;
    let status = |seen: super::table::Seen| (seen.status, seen.executions, seen.attempts);
    assert_eq!(status(world.meet(Kind::Get, Fault::ResetAfterRead).await), ("200".to_owned(), 2, 2));
    assert_eq!(status(world.meet(Kind::Post, Fault::ResetAfterRead).await), ("503".to_owned(), 1, 1));
    // Without the route's previous_hosts, as here, the retry may pick the refusing endpoint again.
    let hosts = json!({ "retry_host_predicate": [previous_hosts()], "host_selection_retry_max_attempts": "5" });
    let world = World::start(route_policy(default_policy(), hosts), Transport::Http1).await;
    world.refuse().await;
    assert_eq!(status(world.meet(Kind::Get, Fault::Refused).await), ("200".to_owned(), 1, 2));
    assert_eq!(status(world.meet(Kind::Post, Fault::Refused).await), ("200".to_owned(), 1, 2));
}

/// istio/istio#60375, GEP-1731 (gateway-api#3199): an HTTPRoute whose retry stanza names only status
/// codes must retry connection errors too.
#[tokio::test(flavor = "multi_thread")]
async fn case_31_a_route_that_retries_500_retries_a_reset_too() {
    let stanza = json!({ "retry_on": "retriable-status-codes", "num_retries": 1, "retriable_status_codes": [500] });
    let world = World::start(route_policy(default_policy(), stanza), Transport::Http1).await;
    assert_eq!(one(&world, Method::GET, Behaviour::ResetOnArrival).await, (200, 1, 2), "disconnect, reset");
    world.refuse().await;
    for _ in 0..2 {
        let reply = world.mesh.get(ONE, "/").await.unwrap();
        assert_eq!(reply.status, StatusCode::OK, "TCP failure; round robin has the retry pick the other endpoint");
    }
}

/// envoyproxy/envoy#2747: retry resets only for idempotent methods. The matrix runs it; this holds the
/// matrix to the report.
#[test]
fn case_32_the_matrix_repeats_idempotent_methods_only() {
    use Kind::{Delete, Get, Head, Options, Patch, Post, Put, Trace};
    let cells = section("With the module");
    for ((kind, fault, transport), cell) in &cells {
        let Some(cell) = cell else { continue };
        let seen = (cell.status.as_str(), cell.executions, cell.attempts);
        let expected = match (kind, fault) {
            (Get | Head | Options | Trace | Put | Delete, Fault::ResetOnArrival) => ("200", 1, 2),
            (Get | Head | Options | Trace | Put | Delete, Fault::ResetAfterRead) => ("200", 2, 2),
            (Post | Patch, Fault::ResetOnArrival) => ("503", 0, 1),
            (Post | Patch, Fault::ResetAfterRead) => ("503", 1, 1),
            _ => continue,
        };
        assert_eq!(seen, expected, "{kind:?}, {fault:?}, {transport:?}");
    }
}
