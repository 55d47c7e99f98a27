//! What an operator sees: metadata, flag, counters and log lines.

use bytes::Bytes;
use futures::future::join_all;
use http::{Method, StatusCode};
use lab::{
    app::{Behaviour, Execution},
    mesh::Setup,
    pod::Ending,
};
use serde_json::{Value, json};

use super::{
    kinds::Transport,
    setup::guarded,
    world::{ONE, World},
};

fn setup() -> Setup {
    guarded(json!({})).envoy(|options| options.component_log_levels.push(("dynamic_modules".into(), "debug".into())))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_that_a_retry_cured_is_explained() {
    let world = World::start(setup(), Transport::Hbone).await;
    world.warm(ONE).await;
    world.script.next(1, Behaviour::ReadThenReset);
    let reply = world.mesh.get(ONE, "/").await.unwrap();
    assert_eq!((reply.status, reply.attempts()), (StatusCode::OK, Some(2)));
    let entry = world.logged(&reply.id).await;
    let told = &entry["stale_guard"];
    let first = world.executed(&reply.id).into_iter().find(|pod| Some(pod.as_str()) != reply.pod()).unwrap();
    let endpoint = world.pods.iter().find(|pod| pod.name() == first).unwrap().ip().to_string();
    assert_eq!(
        (&told["retry_decision"], &told["retry_reason"], &told["retry_outcome"], &told["reset_class"]),
        (&json!("retry"), &json!("method_eligible"), &json!("succeeded"), &json!("ended_unanswered")),
        "{entry:#}"
    );
    assert_eq!(
        told["reset_endpoint"],
        json!(endpoint),
        "the endpoint whose connection broke, not the one that answered"
    );
    assert_eq!(told["attempts"], json!(2));
    assert!(told["connection_age_ms"].as_f64().is_some_and(|age| age > 0.0), "{entry:#}");
    assert_eq!(
        (world.stat("retry_reset_ended_unanswered").await, world.stat("retry_cured_ended_unanswered").await),
        (1, 1)
    );
    assert_eq!(world.stat("retry_outcome_succeeded").await, 1);
    let debug = world.mesh.envoy.log().unwrap();
    let lines: Vec<_> = debug.lines().filter(|line| line.contains("stale_guard retry: ")).collect();
    // Two of them, or more, are the warming requests'.
    assert!(lines.len() >= 3, "one line for each decision: {lines:#?}");
    let last = lines.last().unwrap();
    assert!(last.contains("Enforce GET /: retry because method_eligible"), "{last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_fails_in_spite_of_its_right_is_flagged_and_explained() {
    let world = World::start(setup(), Transport::Hbone).await;
    world.warm(ONE).await;
    world.script.until_told(Behaviour::ResetOnArrival);
    let reply = world.mesh.get(ONE, "/").await.unwrap();
    assert_eq!((reply.status.as_u16(), reply.attempts()), (503, Some(3)), "the route's number");
    let entry = world.logged(&reply.id).await;
    assert_eq!(entry["custom_flags"], "SGX", "the shipped access log shows the flag: {entry:#}");
    let told = &entry["stale_guard"];
    assert_eq!((&told["retry_outcome"], &told["attempts"]), (&json!("exhausted"), &json!(3)), "{entry:#}");
    assert!(told["reset_class"].is_string(), "{entry:#}");
    assert_eq!((world.stat("retry_failed_by_reset").await, world.stat("retry_outcome_exhausted").await), (1, 1));

    let reply = world.mesh.post(ONE, "/").await.unwrap();
    let entry = world.logged(&reply.id).await;
    assert_eq!(entry["custom_flags"], "", "without the right there is nothing to flag: {entry:#}");
    assert!(entry["stale_guard"]["reset_class"].is_string(), "but it is explained: {entry:#}");
    let classes = world.mesh.envoy.admin().stats(r"^dynamicmodulescustom\.retry_reset_").await.unwrap();
    assert_eq!(classes.values().sum::<u64>(), 2, "each failed request counts one reset: {classes:?}");
}

/// A tunnel that ztunnel refuses is told apart from a connection that breaks.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_tunnel_has_a_class_of_its_own() {
    let world = World::start(setup(), Transport::Hbone).await;
    world.refuse().await;
    let reply = world.first_on_first(|| world.mesh.request(Method::GET, ONE, "/").body(Bytes::new()).unwrap()).await;
    assert_eq!((reply.status, reply.pod()), (StatusCode::OK, Some("b")));
    let entry = world.logged(&reply.id).await;
    assert_eq!(entry["stale_guard"]["reset_class"], "tunnel_refused", "{entry:#}");
    assert_eq!(world.stat("retry_cured_tunnel_refused").await, 1);
}

/// Without tunnels the module cannot tell why, and says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_without_a_tunnel_is_counted_as_unexplained() {
    let world = World::start(setup(), Transport::Http1).await;
    world.warm(ONE).await;
    world.script.next(1, Behaviour::ReadThenReset);
    let reply = world.mesh.get(ONE, "/").await.unwrap();
    assert_eq!((reply.status, reply.attempts()), (StatusCode::OK, Some(2)));
    assert_eq!(world.logged(&reply.id).await["stale_guard"]["reset_class"], Value::Null);
    assert_eq!(world.stat("retry_cured_unexplained").await, 1);
}

/// Twenty requests wait at one pod when all of its application's connections break.
#[tokio::test(flavor = "multi_thread")]
async fn each_request_that_a_retry_saves_is_counted_and_explained() {
    let world = World::apart(guarded(json!({})), Transport::Hbone).await;
    world.warm(ONE).await;
    world.script.until_told(Behaviour::HangBeforeHeaders);
    let all = join_all((0..40).map(|_| world.mesh.get(ONE, "/many")));
    let break_off = async {
        let hung = |all: &[Execution]| (all.iter().filter(|one| one.path == "/many").count() == 20).then_some(());
        world.pods[0].executions().wait_for("twenty requests", hung).await.unwrap();
        world.script.clear();
        world.pods[0].app().unwrap().connections().end_all(Ending::Rst).await.unwrap();
    };
    let (replies, ()) = tokio::join!(all, break_off);
    let replies: Vec<_> = replies.into_iter().map(|reply| reply.unwrap()).collect();
    assert!(replies.iter().all(|reply| reply.status == StatusCode::OK && reply.pod() == Some("b")));
    let first = world.pods[0].ip().to_string();
    for reply in replies.iter().filter(|reply| reply.attempts() == Some(2)) {
        let entry = world.logged(&reply.id).await;
        assert_eq!(entry["stale_guard"]["reset_endpoint"], first.as_str(), "{entry:#}");
    }
    let cured = world.mesh.envoy.admin().stats(r"^dynamicmodulescustom\.retry_cured_").await.unwrap();
    let met = world.mesh.envoy.admin().stats(r"^dynamicmodulescustom\.retry_reset_").await.unwrap();
    assert_eq!((cured.values().sum::<u64>(), met.values().sum::<u64>()), (20, 20), "{cured:?} {met:?}");
    assert_eq!(world.stat("retry_cured_unexplained").await, 0, "one cause, so none is in doubt: {cured:?}");
    assert_eq!(world.stat("retry_outcome_succeeded").await, 20);
}
