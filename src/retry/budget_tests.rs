use proptest::prelude::*;

use super::*;
use crate::config::{Ratio, Span, Whole};

fn settings(ratio: f64, min_per_second: u32, window_ms: u64) -> BudgetSettings {
    BudgetSettings {
        ratio: Ratio::clamped(ratio),
        min_per_second: Whole::clamped(min_per_second),
        window: Span::clamped_ms(window_ms),
    }
}

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A right given and used at once.
fn retry(budget: &mut Budget, now: Duration) -> bool {
    if budget.allowance(now) == Allowance::Exhausted {
        return false;
    }
    let grant = budget.grant(now);
    budget.settle(now, grant, 1);
    true
}

#[test]
fn the_floor_allows_its_number_each_second_without_any_load() {
    let mut budget = Budget::new(&settings(0.2, 10, 10_000), at(0));
    for second in 0..30 {
        let allowed = (0..50).filter(|_| retry(&mut budget, at(second * 1_000))).count();
        assert_eq!(allowed, 10, "second {second}");
    }
}

#[test]
fn each_request_pays_its_ratio() {
    let mut budget = Budget::new(&settings(0.2, 0, 10_000), at(0));
    let allowed = (0..1_000).filter(|_| {
        budget.request(at(0));
        retry(&mut budget, at(0))
    });
    assert_eq!(allowed.count(), 200);
}

#[test]
fn what_was_paid_in_expires_after_its_window() {
    let mut budget = Budget::new(&settings(1.0, 0, 10_000), at(0));
    (0..100).for_each(|_| budget.request(at(0)));
    assert_eq!(budget.allowance(at(9_999)), Allowance::Available);
    assert_eq!(budget.allowance(at(11_000)), Allowance::Exhausted);
}

#[test]
fn a_healthy_service_with_many_requests_in_flight_keeps_its_rights() {
    let mut budget = Budget::new(&settings(0.2, 10, 10_000), at(0));
    let mut grants = Vec::new();
    for n in 0..10_000 {
        budget.request(at(n / 10));
        assert_eq!(budget.allowance(at(n / 10)), Allowance::Available, "request {n} must keep the right to retry");
        grants.push(budget.grant(at(n / 10)));
    }
    assert_eq!(budget.held(), 10_000);
    grants.into_iter().for_each(|grant| budget.settle(at(2_000), grant, 0));
    assert_eq!((budget.held(), budget.allowance(at(2_000))), (0, Allowance::Available));
}

#[test]
fn in_an_outage_rights_are_given_only_as_far_as_the_tokens_reach() {
    // 100 requests a second, each of which hangs for two seconds and then uses its right.
    let mut budget = Budget::new(&settings(0.2, 3, 10_000), at(0));
    let (mut held, mut retries) = (std::collections::VecDeque::new(), 0_u32);
    let mut overshoot = 0;
    for n in 0..6_000_u64 {
        let now = at(n * 10);
        while let Some((_, grant)) = held.pop_front_if(|(granted, _)| now >= *granted + at(2_000)) {
            budget.settle(now, grant, 1);
            retries += 1;
        }
        budget.request(now);
        if budget.allowance(now) == Allowance::Available {
            held.push_back((now, budget.grant(now)));
        }
        if n < 200 {
            overshoot = held.len();
        }
    }
    let paid = 6_000.0 * 0.2 + 3.0 * 61.0;
    assert!(f64::from(retries) <= paid + overshoot as f64, "{retries} retries, {paid} paid, {overshoot} overshoot");
    assert!(overshoot <= 200, "the first two seconds are all that nothing is known of");
    assert!(f64::from(retries) >= paid * 0.8, "the budget must be usable in an outage: {retries} of {paid}");
}

/// 5 requests a second: in health for 15 s, then for a minute one in twenty needs its right. How many of the
/// latter 300 are refused.
fn refused_in_a_rollout(budget: &mut Budget, mut every_200ms: impl FnMut(&mut Budget, Duration)) -> usize {
    let refused = (0..375_u64).filter(|n| {
        let now = at(n * 200);
        every_200ms(budget, now);
        budget.request(now);
        if budget.allowance(now) == Allowance::Exhausted {
            return *n >= 75;
        }
        let grant = budget.grant(now);
        budget.settle(now, grant, u32::from(*n >= 75 && n % 20 == 0));
        false
    });
    refused.count()
}

#[test]
fn requests_that_wait_long_take_no_right_from_others() {
    let fresh = || Budget::new(&settings(0.2, 10, 10_000), at(0));
    assert_eq!(refused_in_a_rollout(&mut fresh(), |_, _| ()), 0, "the control: nothing is held");

    let (mut budget, mut long_polls) = (fresh(), Vec::new());
    for _ in 0..1_000 {
        budget.request(at(0));
        long_polls.push(budget.grant(at(0)));
    }
    assert_eq!(refused_in_a_rollout(&mut budget, |_, _| ()), 0, "of 300, beside 1,000 long polls");
    long_polls.into_iter().for_each(|grant| budget.settle(at(75_000), grant, 0));
    assert_eq!(budget.held(), 0, "what is settled after its window is settled all the same");

    // As many at any time, but each for a minute and then again.
    let (mut budget, mut polls) = (fresh(), std::collections::VecDeque::new());
    let again = |budget: &mut Budget, now: Duration| {
        while let Some((_, grant)) = polls.pop_front_if(|(granted, _)| now >= *granted + at(60_000)) {
            budget.settle(now, grant, 0);
        }
        for _ in 0..if now.as_millis().is_multiple_of(1_000) { 5 } else { 3 } {
            budget.request(now);
            polls.push_back((now, budget.grant(now)));
        }
    };
    assert_eq!(refused_in_a_rollout(&mut budget, again), 0, "of 300, beside 17 polls a second");
}

/// What a stranger can take: requests that break what they reach, each of which uses its right. Each pays
/// 0.2 and takes 1, so more than 12.5 a second outrun the floor of 10.
#[test]
fn a_stranger_whose_requests_break_connections_can_spend_the_budget() {
    for (per_second, others_refused) in [(12, false), (15, true)] {
        let mut budget = Budget::new(&settings(0.2, 10, 10_000), at(0));
        let mut refused = 0;
        for n in 0..per_second * 60 {
            let now = at(n * 1_000 / per_second);
            budget.request(now);
            refused += usize::from(!retry(&mut budget, now));
        }
        assert_eq!(refused > 0, others_refused, "{per_second} a second: {refused} refused");
    }
}

#[test]
fn what_is_owed_is_paid_back_first() {
    let mut budget = Budget::new(&settings(0.5, 0, 60_000), at(0));
    (0..2).for_each(|_| budget.request(at(0)));
    let grants = [0; 5].map(|_| budget.grant(at(0)));
    grants.into_iter().for_each(|grant| budget.settle(at(0), grant, 1));
    assert_eq!(budget.balance(), -4.0);
    (0..9).for_each(|_| budget.request(at(100)));
    assert_eq!(budget.allowance(at(100)), Allowance::Exhausted);
    budget.request(at(100));
    assert_eq!(budget.allowance(at(100)), Allowance::Available);
}

#[test]
fn a_clock_that_runs_backwards_stands_still() {
    let mut budget = Budget::new(&settings(0.2, 1, 1_000), at(5_000));
    assert!(retry(&mut budget, at(5_000)));
    assert!(!retry(&mut budget, at(0)));
    assert!(retry(&mut budget, at(6_000)));
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Wait(u64),
    Request,
    Settle(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        1 => (0_u64..3_000).prop_map(Step::Wait),
        5 => Just(Step::Request),
        4 => (0_u32..=3).prop_map(Step::Settle),
    ];
    prop::collection::vec(step, 0..400)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn retries_are_paid_for_whatever_the_interleaving(
        steps in steps(), ratio in 0.0_f64..=1.0, floor in 0_u32..20, window in 1_000_u64..20_000
    ) {
        const MOST: u32 = 3;
        let mut budget = Budget::new(&settings(ratio, floor, window), at(0));
        let (mut now, mut requests, mut retries, mut most_held) = (0_u64, 0_u32, 0_u32, 0_u32);
        let mut held = Vec::new();
        for step in steps {
            match step {
                Step::Wait(millis) => now += millis,
                Step::Request => {
                    requests += 1;
                    budget.request(at(now));
                    if budget.allowance(at(now)) == Allowance::Available {
                        prop_assert!(budget.balance() > 0.0, "a right was given on credit");
                        held.push(budget.grant(at(now)));
                        most_held = most_held.max(held.len() as u32);
                    }
                }
                Step::Settle(used) => {
                    if let Some(grant) = held.pop() {
                        retries += used;
                        budget.settle(at(now), grant, used);
                    }
                }
            }
            prop_assert!(budget.held() <= held.len() as u64, "a right that is settled reserves nothing");
            prop_assert!(
                budget.balance() > -f64::from(most_held * MOST) - 1e-3,
                "owed more than held rights can use"
            );
        }
        let seconds = now as f64 / 1_000.0;
        let windows = now.div_ceil(window).max(1) as f64 + 1.0;
        let paid = f64::from(floor) * (seconds + 1.0) + ratio * f64::from(requests);
        let overshoot = f64::from(most_held * MOST) * windows;
        prop_assert!(f64::from(retries) <= paid + overshoot + 1e-3, "{} > {} + {}", retries, paid, overshoot);
    }

    #[test]
    fn without_delay_between_right_and_retry_nothing_is_overdrawn(
        gaps in prop::collection::vec(0_u64..200, 1..400), ratio in 0.0_f64..=1.0, floor in 0_u32..20,
    ) {
        let mut budget = Budget::new(&settings(ratio, floor, 10_000), at(0));
        let (mut now, mut retries) = (0, 0_u32);
        for (n, gap) in gaps.iter().enumerate() {
            now += gap;
            budget.request(at(now));
            while retry(&mut budget, at(now)) {
                retries += 1;
            }
            let paid = f64::from(floor) * (now as f64 / 1_000.0 + 1.0) + ratio * (n + 1) as f64;
            prop_assert!(f64::from(retries) <= paid + 1e-3, "{} retries, {} paid", retries, paid);
            prop_assert!(budget.balance() >= -1e-3);
        }
    }
}
