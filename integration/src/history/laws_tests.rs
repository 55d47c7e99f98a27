//! A correct history passes every law; each way to break one is seen, and blamed on the right id.

use super::laws::{self, Fence, TunnelRecord};
use super::sample::{MAX_RETRIES, correct_history, history_with};
use super::{History, Law, ServerRecord};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The broken laws with their ids.
fn broken(history: &History) -> Vec<(Law, String)> {
    laws::core(history, MAX_RETRIES).into_iter().map(|violation| (violation.law, violation.ids.join(","))).collect()
}

fn execute(history: &mut History, index: usize, times: usize) {
    let request = &history.requests[index];
    let one = ServerRecord {
        id: request.id.clone(),
        pod: "pod-0".to_owned(),
        at: request.started,
        method: request.method.to_string(),
    };
    history.executions.extend(std::iter::repeat_n(one, times));
}

proptest! {
    #[test]
    fn a_correct_history_breaks_no_law(history in correct_history()) {
        prop_assert_eq!(broken(&history), []);
        prop_assert_eq!(laws::budget_held(&history, 0, f64::from(MAX_RETRIES), 0.0), []);
    }

    #[test]
    fn two_executions_of_a_non_idempotent_request_are_seen((mut history, index) in history_with(|r| !r.idempotent)) {
        execute(&mut history, index, 2);
        let id = history.requests[index].id.clone();
        prop_assert_eq!(broken(&history), [(Law::NonIdempotentAtMostOnce, id)]);
    }

    #[test]
    fn more_executions_than_retries_allow_are_seen((mut history, index) in history_with(|r| r.idempotent)) {
        execute(&mut history, index, 2 + MAX_RETRIES as usize);
        let id = history.requests[index].id.clone();
        prop_assert_eq!(broken(&history), [(Law::IdempotentWithinRetries, id)]);
    }

    #[test]
    fn a_success_that_nobody_executed_is_seen((mut history, index) in history_with(|r| r.success())) {
        let id = history.requests[index].id.clone();
        history.executions.retain(|execution| execution.id != id);
        prop_assert_eq!(broken(&history), [(Law::SuccessWasExecuted, id)]);
    }

    #[test]
    fn a_success_by_a_pod_that_did_not_execute_it_is_seen((mut history, index) in history_with(|r| r.success())) {
        let id = history.requests[index].id.clone();
        for execution in history.executions.iter_mut().filter(|execution| execution.id == id) {
            execution.pod = "another".to_owned();
        }
        prop_assert_eq!(broken(&history), [(Law::SuccessWasExecuted, id)]);
    }

    #[test]
    fn an_answer_before_its_execution_is_seen((mut history, index) in history_with(|r| r.success())) {
        let (id, ended) = (history.requests[index].id.clone(), history.requests[index].ended);
        for execution in history.executions.iter_mut().filter(|execution| execution.id == id) {
            execution.at = ended + Duration::from_millis(1);
        }
        prop_assert_eq!(broken(&history), [(Law::SuccessWasExecuted, id)]);
    }

    #[test]
    fn a_lost_outcome_is_seen((mut history, index) in history_with(|_| true)) {
        let id = history.requests.remove(index).id;
        history.executions.retain(|execution| execution.id != id);
        prop_assert_eq!(broken(&history), [(Law::EveryRequestAccountedOnce, id)]);
    }

    #[test]
    fn a_second_outcome_is_seen((mut history, index) in history_with(|r| !r.success())) {
        let twin = history.requests[index].clone();
        let id = twin.id.clone();
        history.requests.push(twin);
        prop_assert_eq!(broken(&history), [(Law::EveryRequestAccountedOnce, id)]);
    }

    #[test]
    fn an_id_given_out_twice_is_seen((mut history, index) in history_with(|_| true)) {
        let twin = history.issued[index].clone();
        let id = twin.id.clone();
        history.issued.push(twin);
        prop_assert_eq!(broken(&history), [(Law::EveryRequestAccountedOnce, id)]);
    }

    #[test]
    fn an_outcome_without_an_issued_id_is_seen((mut history, index) in history_with(|_| true)) {
        let id = history.issued.remove(index).id;
        prop_assert_eq!(broken(&history), [(Law::EveryRequestAccountedOnce, id)]);
    }

    #[test]
    fn an_execution_that_no_client_sent_is_seen((mut history, index) in history_with(|_| true)) {
        execute(&mut history, index, 1);
        history.executions.last_mut().unwrap().id = "stray".to_owned();
        prop_assert_eq!(broken(&history), [(Law::ExecutionHasRequest, "stray".to_owned())]);
    }

    #[test]
    fn an_execution_before_the_request_was_sent_is_seen((mut history, index) in history_with(|r| r.success())) {
        let id = history.requests[index].id.clone();
        let first = history.executions.iter_mut().find(|execution| execution.id == id).unwrap();
        first.at = history.requests[index].started - Duration::from_millis(1);
        prop_assert_eq!(broken(&history), [(Law::ExecutionHasRequest, id)]);
    }

    #[test]
    fn an_execution_with_another_method_is_seen((mut history, index) in history_with(|r| r.success())) {
        let id = history.requests[index].id.clone();
        history.executions.iter_mut().find(|execution| execution.id == id).unwrap().method = "PATCH".to_owned();
        prop_assert_eq!(broken(&history), [(Law::ExecutionHasRequest, id)]);
    }

    #[test]
    fn one_attempt_above_the_budget_is_seen(history in correct_history(), floor in 0_u32..5) {
        let (requests, attempts) = (history.requests.len() as f64, history.attempts() as f64);
        // The budget that just holds; one attempt more is too many.
        let ratio = ((attempts - f64::from(floor)) / requests - 1.0).max(0.0);
        let slack = requests * (1.0 + ratio) + f64::from(floor) - attempts;
        let within = (slack + 1e-6).floor() as u64;
        let floor = f64::from(floor) + 1e-6;
        prop_assert_eq!(laws::budget_held(&history, within, ratio, floor), []);
        prop_assert_eq!(laws::budget_held(&history, within + 1, ratio, floor).len(), 1);
    }

    #[test]
    fn a_tunnel_breaks_the_fence_only_on_an_older_connection(opened in 0_u64..100, age in 0_u64..100, from in 0_u64..100, took in 0_u64..20, settle in 0_u64..20) {
        let origin = Instant::now();
        let at = |ms| origin + Duration::from_millis(ms);
        let tunnel = |endpoint: &str| TunnelRecord {
            connection: "10.244.0.9:4000".to_owned(),
            endpoint: endpoint.to_owned(),
            connection_opened: at(opened),
            opened: at(opened + age),
        };
        let fences = [Fence { endpoint: "10.244.0.2".to_owned(), from: at(from), until: at(from + took) }];
        let settle = Duration::from_millis(settle);
        let found = laws::fenced_connection_unused(origin, &[tunnel("10.244.0.2"), tunnel("10.244.0.3")], &fences, settle);
        let stale = opened <= from && at(opened + age) >= at(from + took) + settle;
        prop_assert_eq!(found.len(), usize::from(stale), "{:?}", found);
    }
}

#[test]
fn counters_that_differ_from_the_history_are_seen() {
    let counters = |values: &[(&str, u64)]| -> BTreeMap<String, u64> {
        values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    };
    let expected = counters(&[("retry", 3), ("reset", 1), ("never", 0)]);
    let check = |actual| laws::counters_equal_history(Instant::now(), &expected, &actual);
    assert_eq!(check(counters(&[("retry", 3), ("reset", 1), ("unrelated", 9)])), []);
    let found = check(counters(&[("retry", 2)]));
    let names: Vec<_> = found.iter().flat_map(|violation| violation.ids.clone()).collect();
    assert_eq!(names, ["reset", "retry"], "a wrong and an absent counter");
}

#[test]
fn a_violation_prints_law_id_times_and_reason() {
    let origin = Instant::now();
    let tunnel = TunnelRecord {
        connection: "10.244.0.9:4000".to_owned(),
        endpoint: "10.244.0.2".to_owned(),
        connection_opened: origin,
        opened: origin + Duration::from_millis(1500),
    };
    let at = |ms| origin + Duration::from_millis(ms);
    let fence = Fence { endpoint: "10.244.0.2".to_owned(), from: at(250), until: at(300) };
    let found = laws::fenced_connection_unused(origin, &[tunnel], &[fence], Duration::ZERO);
    assert_eq!(
        found[0].to_string(),
        "FencedConnectionUnused: 10.244.0.9:4000 +0.000s +0.250s +0.300s +1.500s: \
         tunnel to 10.244.0.2 on a connection older than the fence"
    );
}
