//! What a policy can say, on real Envoy: methods, preconditions, conditions, per-try timeouts.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use lab::app::Behaviour;
use serde_json::json;

use super::{
    clients::send2,
    kinds::Transport,
    setup::{guarded, no_route_policy},
    world::{ONE, TWO, World},
};

/// Status, executions and attempts of a request whose first attempt meets the behaviour.
async fn meet(world: &World, request: Request<Bytes>, behaviour: Behaviour) -> (u16, usize, u32) {
    world.warm(ONE).await;
    world.script.next(1, behaviour);
    let reply = world.mesh.send(request).await.unwrap();
    (reply.status.as_u16(), world.executed(&reply.id).len(), reply.attempts().unwrap_or(0))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_presets_and_lists_of_methods_decide() {
    for (methods, eligible) in [
        (json!("idempotent"), &[Method::GET, Method::PUT, Method::DELETE][..]),
        (json!("safe"), &[Method::GET]),
        (json!(["DELETE", "PATCH"]), &[Method::DELETE, Method::PATCH]),
    ] {
        let world = World::start(guarded(json!({ "methods": methods })), Transport::Http1).await;
        for method in [Method::GET, Method::PUT, Method::DELETE, Method::POST, Method::PATCH] {
            let request = world.mesh.request(method.clone(), ONE, "/").body(Bytes::new()).unwrap();
            let seen = meet(&world, request, Behaviour::ReadThenReset).await;
            let expected = if eligible.contains(&method) { (200, 2, 2) } else { (503, 1, 1) };
            assert_eq!(seen, expected, "{method} under {methods}");
        }
    }
}

/// RFC 9110 section 13.1: a replay that meets its own first effect fails its precondition.
#[tokio::test(flavor = "multi_thread")]
async fn a_precondition_keeps_a_put_from_being_repeated_unless_a_rule_allows_it() {
    let allow = json!({ "name": "cas", "match": { "path": { "prefix": "/cas" } }, "retry": true });
    let world = World::start(guarded(json!({ "rules": [allow] })), Transport::Http1).await;
    let put = |path: &str, header: &str| {
        world.mesh.request(Method::PUT, ONE, path).header(header, "\"v1\"").body(Bytes::from_static(b"v2")).unwrap()
    };
    for header in ["if-match", "if-none-match", "if-unmodified-since"] {
        assert_eq!(meet(&world, put("/", header), Behaviour::ReadThenReset).await, (503, 1, 1), "{header}");
    }
    assert_eq!(meet(&world, put("/cas", "if-match"), Behaviour::ReadThenReset).await, (200, 2, 2));
    // The condition of a safe method is evaluated the same again.
    let get = world.mesh.request(Method::GET, ONE, "/").header("if-none-match", "\"v1\"").body(Bytes::new()).unwrap();
    assert_eq!(meet(&world, get, Behaviour::ReadThenReset).await, (200, 2, 2));
    assert_eq!(world.stat("retry_decision_precondition").await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_request_gains_nothing_even_where_nothing_was_sent() {
    let deny = json!({ "name": "never", "match": { "path": { "prefix": "/never" } }, "retry": false });
    let setup = no_route_policy(guarded(json!({ "rules": [deny] })));
    let world = World::start(setup, Transport::Http1).await;
    let get = world.mesh.request(Method::GET, ONE, "/never").body(Bytes::new()).unwrap();
    assert_eq!(meet(&world, get, Behaviour::ReadThenReset).await, (503, 1, 1));
    world.refuse().await;
    let post = || world.mesh.request(Method::POST, ONE, "/never").body(Bytes::new()).unwrap();
    let reply = world.first_on_first(post).await;
    assert_eq!((reply.status, reply.attempts()), (StatusCode::SERVICE_UNAVAILABLE, Some(1)));
}

/// A hung endpoint is given up after the rule's time, and the request goes elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn a_per_try_timeout_moves_an_eligible_request_off_a_hung_endpoint() {
    for transport in [Transport::Http1, Transport::Hbone] {
        let rule = json!({ "name": "quick", "match": { "path": { "prefix": "/quick" } }, "retry": true, "per_try_timeout": "250ms" });
        let world = World::start(guarded(json!({ "rules": [rule] })), transport).await;
        let quick = || world.mesh.request(Method::GET, ONE, "/quick").body(Bytes::new()).unwrap();
        assert_eq!(meet(&world, quick(), Behaviour::HangBeforeHeaders).await, (200, 2, 2), "{transport:?}");

        world.script.until_told(Behaviour::HangBeforeHeaders);
        let reply = world.mesh.send(quick()).await.unwrap();
        assert_eq!(reply.status, StatusCode::GATEWAY_TIMEOUT, "{reply:?}");
        assert_eq!(reply.attempts(), Some(3), "the route's number");
        assert!(reply.took >= Duration::from_millis(750), "each attempt had its time: {:?}", reply.took);
        assert!(reply.took < Duration::from_secs(10), "and the whole is bounded: {:?}", reply.took);
        world.assert_headers_stripped();
    }
}

/// gRPC conditions hold for what answers in its headers, and only for methods that are declared.
#[tokio::test(flavor = "multi_thread")]
async fn an_unavailable_answer_is_retried_for_declared_methods_only() {
    let on = json!(["reset", "unavailable"]);
    let rule = json!({
        "name": "reads",
        "match": { "grpc": { "service": "shop.*", "method": "Get*" } },
        "retry": true,
        "max_retries": 1,
        "on": on,
    });
    let world = World::start(guarded(json!({ "on": on, "rules": [rule] })), Transport::H2c).await;
    for (path, code, executions) in [("/shop.Catalog/GetItem", "0", 2), ("/shop.Catalog/PutItem", "14", 1)] {
        world.warm(TWO).await;
        world.script.next(1, Behaviour::GrpcStatus(14));
        let request = world.mesh.request(Method::POST, TWO, path).header("content-type", "application/grpc");
        let reply = send2(&world.mesh, request.body(Bytes::from_static(&[0; 5])).unwrap()).await;
        let status = reply.trailers.get("grpc-status").or(reply.headers.get("grpc-status")).unwrap();
        assert_eq!((status.to_str().unwrap(), world.executed(&reply.id).len()), (code, executions), "{path}");
    }
    world.assert_headers_stripped();
}
