//! Load: the budget in a total outage, and a rollout whose pods break before EDS says so.

use std::time::{Duration, Instant};

use http::StatusCode;
use lab::{
    app::Behaviour,
    control_plane::cluster_name,
    history::{History, ServerRecord, laws},
    load::{Load, Outcome, Plan, RequestClass, RequestRecord},
    mesh::{Setup, WITHIN},
    pod::{Ending, Pod},
};
use serde_json::json;

use super::{
    kinds::Transport,
    setup::guarded,
    world::{ONE, World},
};

const RATE: f64 = 200.0;
const REQUESTS: u64 = 1_000;
const RATIO: f64 = 0.2;
const FLOOR: u32 = 3;
const WORKERS: u32 = 2;

/// Both endpoints reset every connection, under load.
async fn outage(mode: &str) -> (World, History) {
    let policy = json!({ "mode": mode, "budget": { "ratio": RATIO, "min_per_second": FLOOR, "window": "10s" } });
    let world = World::start(guarded(policy).workers(WORKERS), Transport::Hbone).await;
    world.script.until_told(Behaviour::ResetOnArrival);
    let plan = Plan { max_requests: REQUESTS, ..Plan::new("outage", RATE, vec![RequestClass::get(ONE, "/")]) };
    let report = Load::start(plan, world.mesh.connector()).await.unwrap().finished().await.unwrap();
    let history = History::new(report, executions(&world.pods), []);
    (world, history)
}

fn executions(pods: &[Pod]) -> Vec<ServerRecord> {
    let all = pods.iter().flat_map(|pod| pod.executions().snapshot());
    all.map(|one| ServerRecord { id: one.id, pod: one.pod, at: one.at, method: one.method }).collect()
}

fn status(record: &RequestRecord) -> u16 {
    match record.outcome {
        Outcome::Response { status, .. } => status,
        ref other => panic!("{} ended without an answer: {other}", record.id),
    }
}

/// envoyproxy/envoy#10869, #30205, istio#59504, GEP-3388, envoyproxy/gateway#2754: retries must not turn
/// an outage into a storm.
#[tokio::test(flavor = "multi_thread")]
async fn case_20_attempts_in_a_total_outage_stay_within_the_budget_and_fail_fast() {
    let (world, history) = outage("enforce").await;
    let requests = &history.requests;
    assert_eq!(requests.len() as u64, REQUESTS);
    assert!(requests.iter().all(|record| status(record) == 503));

    // docs/retry.md: per worker min_per_second × (t + 1), and what was in flight when the outage showed.
    let ended = requests.iter().map(|record| record.ended).max().unwrap();
    let seconds = (ended - history.origin).as_secs_f64();
    let floor = f64::from(WORKERS) * f64::from(FLOOR) * (seconds + 1.0) + 10.0;
    assert_eq!(laws::budget_held(&history, 0, RATIO, floor), []);
    assert!(history.attempts() > REQUESTS + 50, "the budget allows some: {}", history.attempts());

    let mut latencies: Vec<_> = requests.iter().map(RequestRecord::latency).collect();
    latencies.sort();
    let p99 = latencies[latencies.len() * 99 / 100];
    eprintln!("{} attempts for {REQUESTS} requests in {seconds:.1} s, p99 {p99:?}", history.attempts());
    assert!(p99 < Duration::from_secs(5), "a request that cannot be saved fails at once: p99 {p99:?}");

    let (granted, exhausted) = (world.stat("retry_granted").await, world.stat("retry_decision_budget_exhausted").await);
    assert_eq!(granted + exhausted, REQUESTS);
    let retries = history.attempts() - REQUESTS;
    world.mesh.wait_stat("retry_retries", |counted| counted == retries).await.expect("the counter is the history");
    let log = world.mesh.envoy.log().unwrap();
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("budget exhausted on worker")).collect();
    let most = WORKERS as usize * (1 + seconds as usize / 10);
    assert!((1..=most).contains(&warnings.len()), "one line a worker in ten seconds: {warnings:#?}");
    assert!(warnings[0].contains(&format!("route \"{ONE}\"")), "{warnings:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn case_20_the_off_switch_leaves_one_attempt_for_each_request() {
    for mode in ["off", "observe"] {
        let (world, history) = outage(mode).await;
        assert!(history.requests.iter().all(|record| status(record) == 503 && record.attempts() == Some(1)), "{mode}");
        let decided = world.stat("retry_requests").await;
        assert_eq!(decided, if mode == "off" { 0 } else { REQUESTS }, "{mode}");
        if mode == "observe" {
            let exhausted = world.stat("retry_decision_budget_exhausted").await;
            assert!(exhausted > REQUESTS / 3, "what would have been refused is foreseen: {exhausted}");
        }
    }
}

/// istio/istio#58514: in a rollout a pod is gone or broken for seconds before EDS drops it.
async fn rollout(setup: Setup, transport: Transport) -> (World, History) {
    let world = World::apart(setup, transport).await;
    world.warm(ONE).await;
    let plan = Plan { max_requests: 200, ..Plan::new("rollout", 50.0, vec![RequestClass::get(ONE, "/")]) };
    let load = Load::start(plan, world.mesh.connector()).await.unwrap();
    let reach = async |count: u64| {
        let deadline = Instant::now() + WITHIN;
        while load.progress().issued < count {
            assert!(Instant::now() < deadline, "the load goes on");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    reach(30).await;
    world.script.until_told(Behaviour::ResetOnArrival);
    reach(90).await;
    world.refuse().await;
    reach(150).await;
    let [first, second] = &world.pods;
    let cluster = cluster_name(ONE, 80);
    world.mesh.control_plane.remove_endpoint(&cluster, first.addr()).unwrap();
    world.mesh.acked().await.unwrap();
    let history = History::new(load.finished().await.unwrap(), executions(&world.pods), []);
    assert!(second.executions().len() > 100);
    (world, history)
}

#[tokio::test(flavor = "multi_thread")]
async fn case_04_a_rollout_that_eds_learns_of_late_fails_no_get() {
    for transport in [Transport::Http1, Transport::Hbone] {
        let (world, history) = rollout(guarded(json!({})), transport).await;
        let failed: Vec<_> = history.requests.iter().filter(|record| !record.success()).collect();
        assert!(failed.is_empty(), "{transport:?}: {failed:#?}");
        let load = history.executions.iter().filter(|one| one.id.starts_with("rollout"));
        assert_eq!(load.count(), history.requests.len(), "executed once each");
        let retried = history.requests.iter().filter(|record| record.attempts() == Some(2)).count();
        assert!(retried >= 40, "the fault was there: {retried} retries");
        let most = history.requests.iter().filter_map(RequestRecord::attempts).max();
        assert_eq!(most, Some(2), "each retry went to the pod that works, not to the broken one again");
        world.pods[0].app().unwrap().connections().end_all(Ending::Fin).await.unwrap();
    }
    let (_, history) = rollout(Setup::new(lab::bootstrap::Variant::Stock), Transport::Hbone).await;
    let failed = history.requests.iter().filter(|record| status(record) == StatusCode::SERVICE_UNAVAILABLE.as_u16());
    assert!(failed.count() >= 40, "the control must fail");
}
