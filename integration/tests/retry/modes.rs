//! `observe` counts and annotates what `enforce` does, and changes nothing.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{Method, Request};
use lab::{app::Behaviour, mesh::Mesh};
use serde_json::{Value, json};

use super::{
    kinds::Transport,
    setup::guarded,
    world::{ONE, World},
};

const REQUESTS: usize = 120;

/// Twelve kinds in turn; the ids are the same in every run.
fn request(mesh: &Mesh, number: usize) -> Request<Bytes> {
    let (method, path, header) = match number % 12 {
        0 => (Method::GET, "/", None),
        1 => (Method::PUT, "/", None),
        2 => (Method::POST, "/", None),
        3 => (Method::POST, "/search", None),
        4 => (Method::GET, "/reports/7/run", None),
        5 => (Method::POST, "/", Some(("idempotency-key", "\"k\""))),
        6 => (Method::PUT, "/", Some(("if-match", "\"v1\""))),
        7 => (Method::GET, "/", Some(("x-envoy-max-retries", "0"))),
        8 => (Method::DELETE, "/", None),
        9 => (Method::PATCH, "/", None),
        10 => (Method::POST, "/", Some(("content-type", "application/grpc"))),
        _ => (Method::HEAD, "/twice", None),
    };
    let request = mesh.request(method, ONE, path);
    let request = header.into_iter().fold(request, |request, (name, value)| request.header(name, value));
    request.body(Bytes::from_static(b"x")).unwrap()
}

/// What a run left: per request status, executions and decision; and the counters.
struct Run {
    statuses: Vec<(u16, usize, Option<u32>)>,
    decisions: Vec<[Value; 3]>,
    counters: BTreeMap<String, u64>,
    flagged: usize,
}

async fn run(mode: &str, faults: bool) -> Run {
    let world = World::start(
        guarded(json!({
            "mode": mode,
            "idempotency_key_headers": ["idempotency-key"],
            "rules": [
                { "name": "search", "match": { "path": { "prefix": "/search" } }, "retry": true },
                { "name": "reports", "match": { "path": { "regex": "^/reports/[0-9]+/run$" } }, "retry": false },
                { "name": "twice", "match": { "path": { "exact": "/twice" } }, "retry": true, "max_retries": 3 },
            ],
        })),
        Transport::Http1,
    )
    .await;
    world.warm(ONE).await;
    let (mut statuses, mut ids, mut flagged) = (Vec::new(), Vec::new(), 0);
    for number in 0..REQUESTS {
        // Five and twelve have no common divisor: every kind meets a fault.
        if faults && number % 5 == 0 {
            world.script.next(1, Behaviour::ReadThenReset);
        }
        let reply = world.mesh.send(request(&world.mesh, number)).await.unwrap();
        flagged += usize::from(reply.header("x-custom-flags").is_some_and(|flags| flags.contains("SGX")));
        statuses.push((reply.status.as_u16(), world.executed(&reply.id).len(), reply.attempts()));
        ids.push(reply.id);
    }
    let mut decisions = Vec::new();
    for id in &ids {
        let entry = world.logged(id).await;
        decisions.push(["retry_decision", "retry_reason", "retry_rule"].map(|key| entry["stale_guard"][key].clone()));
    }
    let counters = world.mesh.envoy.admin().stats(r"^dynamicmodulescustom\.retry_").await.unwrap();
    Run { statuses, decisions, counters, flagged }
}

fn decided(run: &Run) -> BTreeMap<&String, &u64> {
    let parts = ["retry_requests", "retry_granted", "retry_decision", "retry_max_retries_set"];
    run.counters.iter().filter(|(name, _)| parts.iter().any(|part| name.contains(part))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn observing_tells_what_enforcing_does_and_changes_nothing() {
    let (enforced, observed, off) = (run("enforce", true).await, run("observe", true).await, run("off", true).await);
    assert_eq!(observed.statuses, off.statuses, "observing changes no answer, no execution and no attempt");
    assert_eq!(observed.decisions, enforced.decisions, "the same decision for every request");
    assert_eq!(decided(&observed), decided(&enforced), "the same counts");
    assert!(off.decisions.iter().flatten().all(Value::is_null) && off.counters.values().all(|count| *count == 0));

    let saved = enforced.statuses.iter().filter(|(status, _, attempts)| *status == 200 && *attempts == Some(2)).count();
    let lost = observed.statuses.iter().filter(|(status, ..)| *status == 503).count();
    let could = observed.counters["dynamicmodulescustom.retry_failed_by_reset"];
    assert_eq!(saved as u64, could, "what observing says could be saved is what enforcing saves");
    let faults = (0..REQUESTS).filter(|number| number % 5 == 0);
    // gRPC tells its failures by another status.
    assert_eq!(lost, faults.filter(|number| number % 12 != 10).count());
    assert_eq!(
        (enforced.flagged, observed.flagged),
        (0, 0),
        "nothing failed in spite of the right; observing flags nothing"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_faults_all_counts_are_equal() {
    let (enforced, observed) = (run("enforce", false).await, run("observe", false).await);
    assert_eq!(observed.counters, enforced.counters);
    assert_eq!(observed.statuses, enforced.statuses);
}
