//! Hedging: at the end of a per-try timeout Envoy sends a request again beside its first attempt, if it has any
//! retry condition, whatever the condition says.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use lab::{
    app::Behaviour,
    bootstrap::{Bootstrap, Variant},
    mesh::Setup,
};
use serde_json::{Value, json};

use super::{
    kinds::Transport,
    setup::{edge, guarded, no_route_policy, on, range, route_policy, virtual_host},
    world::{ONE, World},
};

const VERSIONS: [&str; 3] = ["1.38.3", "1.39.3", "1.40.0"];
const PER_TRY: &str = "0.3s";
const SLOW: Duration = Duration::from_millis(900);

/// Status and executions of a request that takes three per-try timeouts.
async fn slow(world: &World, method: Method, headers: &[(&str, &str)]) -> (u16, usize) {
    world.script.until_told(Behaviour::Delay(SLOW));
    let request = world.mesh.request(method, ONE, "/");
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let reply = world.mesh.send(request.body(Bytes::from_static(b"x")).unwrap()).await.unwrap();
    (reply.status.as_u16(), world.executed(&reply.id).len())
}

/// A virtual host hedges; its route has a per-try timeout, and no retry condition.
fn hedging_host(setup: Setup) -> Setup {
    route_policy(setup, json!({ "per_try_timeout": PER_TRY })).bootstrap(|bootstrap: Bootstrap| {
        let at = virtual_host(&bootstrap)?;
        bootstrap.patch(&format!("{at}/hedge_policy"), json!({ "hedge_on_per_try_timeout": true }))
    })
}

/// A filter cannot see the hedge policy of a route or virtual host. docs/retry.md says what to set there.
#[tokio::test(flavor = "multi_thread")]
async fn a_route_that_hedges_executes_a_post_twice_unless_the_filter_is_told_to_add_nothing() {
    for version in VERSIONS {
        let post = async |setup: Setup, variant: Variant| {
            let world = World::start(on(version, hedging_host(setup), variant), Transport::Http1).await;
            slow(&world, Method::POST, &[]).await
        };
        let stock = post(Setup::new(Variant::Stock), Variant::Stock).await;
        assert_eq!(stock, (200, 1), "{version}: the control: Envoy hedges nothing that has no condition");
        let guarded_by = async |policy: Value| post(guarded(policy), Variant::StaleGuard).await;
        assert_eq!(guarded_by(json!({})).await, (200, 2), "{version}: the documented limit");
        assert_eq!(guarded_by(json!({ "unprocessed": false })).await, (200, 1), "{version}: the switch");
    }
}

/// The caller's header the filter does see.
#[tokio::test(flavor = "multi_thread")]
async fn a_trusted_caller_that_asks_for_hedging_has_its_post_executed_once() {
    const HEDGE: [(&str, &str); 2] =
        [("x-envoy-hedge-on-per-try-timeout", "true"), ("x-envoy-upstream-rq-per-try-timeout-ms", "300")];
    let trusting = |setup: Setup| no_route_policy(edge(setup, range("127.0.0.0")));
    for version in VERSIONS {
        let stock = on(version, trusting(Setup::new(Variant::Stock)), Variant::Stock);
        let stock = World::start(stock, Transport::Http1).await;
        assert_eq!(slow(&stock, Method::POST, &HEDGE).await, (200, 1), "{version}: the control");

        let deny = json!({ "name": "pay", "match": { "methods": ["PATCH"] }, "retry": false });
        let world = on(version, trusting(guarded(json!({ "rules": [deny] }))), Variant::StaleGuard);
        let world = World::start(world, Transport::Http1).await;
        assert_eq!(slow(&world, Method::POST, &HEDGE).await, (200, 1), "{version}");
        assert_eq!(slow(&world, Method::PATCH, &HEDGE).await, (200, 1), "{version}: a rule that denies");
        assert_eq!(world.stat("retry_decision_hedged").await, 1, "{version}");
        assert_eq!(
            slow(&world, Method::GET, &HEDGE).await,
            (200, 2),
            "{version}: eligible, and its caller asks for it"
        );
        world.assert_headers_stripped();
    }
}
