//! The laws of the history checker over real Envoy: a seeded churn of pods under load, with the module
//! and without. The control must break the fence's law and fail requests, else the faults do nothing.
//!
//! `CHURN_SEED=<number>` tries another seed. A failure names its seed and lists the faults with their
//! times.

mod faults;
mod judge;
mod stage;

use faults::Plan;
use lab::bootstrap::Variant;
use stage::Source;

/// The seeds that are always tried.
const SEEDS: [u64; 2] = [1, 20_260_803];

async fn churn(index: usize, source: Source) {
    let asked = std::env::var("CHURN_SEED").ok();
    let seed = asked.map_or(SEEDS[index], |seed| seed.parse().expect("CHURN_SEED is a number"));
    let plan = Plan::seeded(seed);
    println!("seed {seed}: {plan:?}");

    let control = stage::run(&plan, source, Variant::Stock).await.unwrap();
    let (failed, violations) = (judge::failed(&control), judge::fence(&control));
    assert!(!failed.is_empty(), "the control run must fail, else no fault was injected:\n{control}");
    assert!(!violations.is_empty(), "stock Envoy must use connections from before a removal:\n{control}");

    let guarded = stage::run(&plan, source, Variant::StaleGuard).await.unwrap();
    let violations = judge::all(&guarded).await;
    assert!(violations.is_empty(), "{}\n{guarded}", judge::list(&violations));
    let failed = judge::failed(&guarded);
    assert!(failed.is_empty(), "requests that no fault excuses: {}\n{guarded}", judge::list(&failed));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_laws_hold_with_validators() {
    churn(0, Source::Validator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_laws_hold_with_validators_and_another_seed() {
    churn(1, Source::Validator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_laws_hold_with_polls_on_envoy_1_39() {
    churn(0, Source::Polls).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_laws_hold_with_polls_on_envoy_1_39_and_another_seed() {
    churn(1, Source::Polls).await;
}
