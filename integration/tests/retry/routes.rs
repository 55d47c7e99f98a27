//! Per-route configuration, and what the filter joins: Istio's default policy and callers' headers.

use bytes::Bytes;
use http::{Method, StatusCode};
use lab::{
    app::Behaviour,
    bootstrap::{Bootstrap, Variant},
    control_plane::cluster_name,
    mesh::Setup,
};
use serde_json::{Value, json};

use super::{
    kinds::{Fault, Kind, Transport},
    setup::{edge, guarded, istio_outbound, per_route, previous_hosts, range, route_policy, virtual_host},
    world::{ONE, World},
};

/// A policy that says who made it, and asks for so many retries.
fn signed(name: &str, max_retries: u32) -> Value {
    json!({
        "rules": [{ "name": name, "match": {}, "retry": true, "max_retries": max_retries }],
        "budget": { "ratio": 1.0, "min_per_second": 10000 },
    })
}

/// A virtual host with a policy, whose routes have none, one of their own, and one in a weighted cluster.
fn layered(bootstrap: Bootstrap) -> anyhow::Result<Bootstrap> {
    let cluster = cluster_name(ONE, 80);
    let direct = json!({ "cluster": cluster });
    let weighted = json!({ "weighted_clusters": { "clusters": [
        { "name": cluster, "weight": 1, "typed_per_filter_config": per_route(&signed("by-weighted-cluster", 5)) },
    ] } });
    let at = virtual_host(&bootstrap)?;
    bootstrap.patch(&format!("{at}/typed_per_filter_config"), per_route(&signed("by-virtual-host", 3)))?.patch(
        &format!("{at}/routes"),
        json!([
            { "match": { "prefix": "/virtual-host" }, "route": direct },
            {
                "match": { "prefix": "/route" },
                "route": direct,
                "typed_per_filter_config": per_route(&signed("by-route", 4)),
            },
            {
                "match": { "prefix": "/weighted-cluster" },
                "route": weighted,
                "typed_per_filter_config": per_route(&signed("by-route", 4)),
            },
            {
                "match": { "prefix": "/off" },
                "route": direct,
                "typed_per_filter_config": per_route(&json!({ "mode": "off" })),
            },
        ]),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn the_most_specific_configuration_replaces_the_others() {
    let world = World::apart(guarded(signed("by-filter", 2)), Transport::Http1).await;
    world.pods.iter().for_each(|pod| pod.script().until_told(Behaviour::ResetOnArrival));
    let reply = world.mesh.post(ONE, "/").await.unwrap();
    assert_eq!(reply.attempts(), Some(3), "no route has a configuration: the filter's holds");
    assert_eq!(world.logged(&reply.id).await["stale_guard"]["retry_rule"], "by-filter");

    let setup = guarded(signed("by-filter", 2));
    // The world's own routes are made first.
    let world = World::apart_with(setup, Transport::Http1, layered).await;
    world.pods.iter().for_each(|pod| pod.script().until_told(Behaviour::ResetOnArrival));
    for (path, retries) in [("virtual-host", 3), ("route", 4), ("weighted-cluster", 5)] {
        let reply = world.mesh.post(ONE, &format!("/{path}")).await.unwrap();
        assert_eq!(reply.attempts(), Some(1 + retries), "{path}");
        assert_eq!(world.logged(&reply.id).await["stale_guard"]["retry_rule"], format!("by-{path}"));
    }
    let reply = world.mesh.get(ONE, "/off").await.unwrap();
    assert_eq!(
        (reply.status, reply.attempts()),
        (StatusCode::SERVICE_UNAVAILABLE, Some(1)),
        "a route may switch it off"
    );
    assert_eq!(world.logged(&reply.id).await["stale_guard"], Value::Null);
    world.assert_headers_stripped();
}

/// Istio's outbound default has two retries, on other endpoints first, on conditions of its own.
#[tokio::test(flavor = "multi_thread")]
async fn istios_default_policy_keeps_its_numbers_and_its_conditions() {
    let broken = [Behaviour::ReadThenReset, Behaviour::Status(StatusCode::SERVICE_UNAVAILABLE)];
    for (ours, behaviour, method, total) in [
        // What only we ask for: the reset of a GET. The number stays the route's.
        (1, broken[0], Method::GET, 3),
        // What only the route asks for: 503, for every method.
        (1, broken[1], Method::GET, 3),
        (1, broken[1], Method::POST, 3),
        // What nobody asks for.
        (1, broken[0], Method::POST, 1),
        // A number of ours replaces the route's, also a smaller one's: docs/retry.md.
        (2, broken[0], Method::GET, 3),
        (4, broken[0], Method::GET, 5),
        (4, broken[0], Method::POST, 1),
        (4, broken[1], Method::POST, 3),
    ] {
        let setup = route_policy(guarded(json!({ "max_retries": ours })), istio_outbound());
        let world = World::start(setup, Transport::Http1).await;
        world.script.until_told(behaviour);
        let reply = world.mesh.send(world.mesh.request(method.clone(), ONE, "/").body(Bytes::new()).unwrap()).await;
        let reply = reply.unwrap();
        let executed = world.executed(&reply.id);
        assert_eq!(reply.attempts(), Some(total), "{method} {behaviour:?}, ours {ours}");
        assert_eq!(executed.len(), total as usize, "attempts are never multiplied");
        if total > 1 {
            assert!(executed.iter().any(|pod| pod == "a") && executed.iter().any(|pod| pod == "b"), "previous_hosts");
        }
        world.assert_headers_stripped();
    }
}

/// A smaller number of ours than the route's: what it lowers is told by the operator's hint.
#[tokio::test(flavor = "multi_thread")]
async fn a_number_of_ours_that_is_smaller_than_the_routes_wins_unless_the_route_tells_its_own() {
    let policy = json!({
        "retry_on": "reset",
        "num_retries": 4,
        "retry_host_predicate": [previous_hosts()],
        "host_selection_retry_max_attempts": "5",
    });
    for (hint, total) in [(None, 3), (Some(4), 5)] {
        let setup = route_policy(guarded(json!({ "max_retries": 2 })), policy.clone());
        let setup = match hint {
            Some(hint) => setup.bootstrap(move |bootstrap| with_hint(bootstrap, hint)),
            None => setup,
        };
        let world = World::start(setup, Transport::Http1).await;
        world.script.until_told(Behaviour::ResetOnArrival);
        let reply = world.mesh.get(ONE, "/").await.unwrap();
        assert_eq!(reply.attempts(), Some(total), "hint {hint:?}");
    }
}

fn with_hint(bootstrap: Bootstrap, num_retries: u32) -> anyhow::Result<Bootstrap> {
    let at = virtual_host(&bootstrap)?;
    let hint = json!({ "filter_metadata": { "stale_guard": { "num_retries": num_retries } } });
    bootstrap.patch(&format!("{at}/routes/0/metadata"), hint)
}

const ASKS: [(&str, &str); 4] = [
    ("x-envoy-retry-on", "5xx,reset,connect-failure"),
    ("x-envoy-retry-grpc-on", "unavailable"),
    ("x-envoy-max-retries", "6"),
    ("x-envoy-upstream-rq-per-try-timeout-ms", "1"),
];

#[tokio::test(flavor = "multi_thread")]
async fn an_untrusted_client_gains_no_retry_and_cannot_decline_one() {
    // Edges, and the shipped waypoint.
    let edges = [Value::Null, range("10.0.0.0")].map(|internal| edge(guarded(json!({})), internal));
    for setup in edges.into_iter().chain([guarded(json!({}))]) {
        let world = World::start(setup, Transport::Http1).await;
        world.script.until_told(Behaviour::ReadThenReset);
        let ask = |method: Method| {
            ASKS.iter()
                .fold(world.mesh.request(method, ONE, "/"), |request, (name, value)| request.header(*name, *value))
        };
        let reply = world.mesh.send(ask(Method::POST).body(Bytes::new()).unwrap()).await.unwrap();
        assert_eq!((reply.attempts(), world.executed(&reply.id).len()), (Some(1), 1), "a POST gains nothing");
        let reply = world.mesh.send(ask(Method::GET).body(Bytes::new()).unwrap()).await.unwrap();
        assert_eq!(reply.attempts(), Some(3), "a GET has the policy's right, and the route's number, not six");
        world.script.until_told(Behaviour::Status(StatusCode::INTERNAL_SERVER_ERROR));
        let reply = world.mesh.send(ask(Method::GET).body(Bytes::new()).unwrap()).await.unwrap();
        assert_eq!((reply.status.as_u16(), reply.attempts()), (500, Some(1)), "5xx is not the policy's");
        world.script.clear();
        world.script.next(1, Behaviour::ResetOnArrival);
        let decline = world.mesh.request(Method::GET, ONE, "/").header("x-envoy-max-retries", "0");
        let reply = world.mesh.send(decline.body(Bytes::new()).unwrap()).await.unwrap();
        assert_eq!((reply.status.as_u16(), reply.attempts()), (200, Some(2)));
        world.assert_headers_stripped();
    }
}

/// Envoy's own reading, which docs/retry.md warns of: a field without a range means every private address.
#[tokio::test(flavor = "multi_thread")]
async fn an_edge_whose_internal_addresses_are_an_empty_list_trusts_private_ones() {
    let world = World::start(edge(guarded(json!({})), json!({ "cidr_ranges": [] })), Transport::Http1).await;
    world.script.until_told(Behaviour::ReadThenReset);
    let ask = world.mesh.request(Method::POST, ONE, "/").header("x-envoy-retry-on", "reset");
    let reply = world.mesh.send(ask.body(Bytes::new()).unwrap()).await.unwrap();
    assert_eq!(reply.attempts(), Some(3), "the caller is trusted, and asks for it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trusted_callers_wishes_are_kept_and_joined() {
    let world = World::start(edge(guarded(json!({})), range("127.0.0.0")), Transport::Http1).await;
    let asked = async |method: Method, behaviour: Behaviour, asks: &[(&str, &str)]| {
        world.script.until_told(behaviour);
        let request = world.mesh.request(method, ONE, "/");
        let request = asks.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let reply = world.mesh.send(request.body(Bytes::new()).unwrap()).await.unwrap();
        let reason = world.logged(&reply.id).await["stale_guard"]["retry_reason"].clone();
        (reply.attempts().unwrap_or(0), reason.as_str().unwrap_or_default().to_owned())
    };
    let eligible = |attempts| (attempts, "method_eligible".to_owned());
    let reset = Behaviour::ReadThenReset;
    let error = Behaviour::Status(StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(asked(Method::GET, reset, &[]).await, eligible(3), "nobody asks: the route's number");
    assert_eq!(asked(Method::GET, reset, &[("x-envoy-max-retries", "3")]).await, eligible(4), "a larger number wins");
    assert_eq!(asked(Method::GET, error, &[("x-envoy-retry-on", "5xx")]).await, eligible(3), "their condition stays");
    assert_eq!(asked(Method::GET, reset, &[("x-envoy-retry-on", "retriable-4xx")]).await, eligible(3), "ours is added");
    let declines = asked(Method::GET, reset, &[("x-envoy-max-retries", "0")]).await;
    assert_eq!(declines, (1, "caller_declines".to_owned()), "a caller that declines is obeyed");
    let post = asked(Method::POST, reset, &[("x-envoy-retry-on", "reset")]).await;
    assert_eq!(post, (3, "method_not_eligible".to_owned()), "what a trusted caller asks for is its own affair");
    world.assert_headers_stripped();
}

/// The filter adds nothing to an upgrade, and the route's policy is not touched by it.
#[tokio::test(flavor = "multi_thread")]
async fn stock_and_module_agree_on_what_the_route_alone_asks_for() {
    for setup in [Setup::new(Variant::Stock), guarded(json!({}))] {
        let policy = json!({ "retry_on": "reset", "num_retries": 1 });
        let world = World::start(route_policy(setup, policy), Transport::Http1).await;
        for kind in [Kind::Post, Kind::WebSocket] {
            let seen = world.meet(kind, Fault::ResetOnArrival).await;
            assert_eq!((seen.executions, seen.attempts), (1, 2), "{kind:?}");
        }
    }
}
