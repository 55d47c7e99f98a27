//! The rule for requests in flight on a vanished pod, case by case, and what it must never excuse.

use super::sample::{correct_history, execution, record, response};
use super::{Fate, History, Vanish};
use crate::load::{Issued, Outcome, RequestRecord, TransportError};
use http::Method;
use proptest::prelude::*;
use std::time::{Duration, Instant};

/// "gone" vanishes between 95 and 100 ms; the request runs from 50 ms to 150 ms unless a case says
/// otherwise; `executions` are (pod, ms).
fn fate(method: Method, outcome: Outcome, span: (u64, u64), executions: &[(&str, u64)]) -> Fate {
    let origin = Instant::now();
    let at = |ms| origin + Duration::from_millis(ms);
    let vanish = Vanish { pod: "gone".to_owned(), from: at(95), until: at(100) };
    let request = RequestRecord { outcome, ..record(origin, "id", method.clone(), span.0, span.1) };
    let executions: Vec<_> = executions.iter().map(|(pod, ms)| execution(origin, "id", pod, &method, *ms)).collect();
    Fate::of(&request, &executions.iter().collect::<Vec<_>>(), &[vanish])
}

fn proxy_answer(attempts: Option<u32>) -> Outcome {
    response(503, None, attempts)
}

const SPAN: (u64, u64) = (50, 150);

#[test]
fn executed_on_the_vanished_pod_and_never_tried_again_is_lost() {
    for method in [Method::GET, Method::POST] {
        assert_eq!(fate(method, proxy_answer(Some(1)), SPAN, &[("gone", 60)]), Fate::InFlightLost);
    }
}

#[test]
fn executed_while_the_pod_was_vanishing_is_lost() {
    assert_eq!(fate(Method::POST, proxy_answer(Some(1)), (96, 150), &[("gone", 97)]), Fate::InFlightLost);
}

#[test]
fn started_after_the_vanish_is_a_failure() {
    assert_eq!(fate(Method::POST, proxy_answer(Some(1)), (100, 150), &[]), Fate::Failed);
    assert_eq!(fate(Method::POST, proxy_answer(Some(1)), (100, 150), &[("gone", 100)]), Fate::Failed);
}

#[test]
fn executed_by_nobody_is_a_failure() {
    assert_eq!(fate(Method::POST, proxy_answer(Some(1)), SPAN, &[]), Fate::Failed);
}

#[test]
fn executed_on_a_pod_that_is_still_there_is_a_failure() {
    assert_eq!(fate(Method::POST, proxy_answer(Some(1)), SPAN, &[("alive", 60)]), Fate::Failed);
    let replayed = [("gone", 60), ("alive", 110)];
    assert_eq!(fate(Method::GET, proxy_answer(Some(2)), SPAN, &replayed), Fate::Failed);
}

#[test]
fn failed_before_the_vanish_is_a_failure() {
    assert_eq!(
        fate(Method::POST, proxy_answer(Some(1)), (50, 94), &[("gone", 60)]),
        Fate::Failed,
        "something else broke it: a tunnel was cut while its pod still answered"
    );
}

#[test]
fn a_retry_that_met_a_stale_connection_is_a_failure() {
    assert_eq!(
        fate(Method::GET, proxy_answer(Some(2)), SPAN, &[("gone", 60)]),
        Fate::Failed,
        "the second attempt was executed by nobody; the first must not excuse it"
    );
}

#[test]
fn a_retry_that_was_lost_itself_is_lost() {
    let executions = [("alive", 60), ("gone", 80)];
    assert_eq!(fate(Method::GET, proxy_answer(Some(2)), SPAN, &executions), Fate::InFlightLost);
}

#[test]
fn without_a_report_only_a_non_idempotent_request_is_lost() {
    for outcome in [Outcome::TimedOut, Outcome::Failed(TransportError::Reset), proxy_answer(None)] {
        assert_eq!(fate(Method::POST, outcome.clone(), SPAN, &[("gone", 60)]), Fate::InFlightLost);
        assert_eq!(fate(Method::GET, outcome, SPAN, &[("gone", 60)]), Fate::Failed, "a retry could have saved it");
    }
}

#[test]
fn a_response_that_broke_off_is_lost_whatever_the_method() {
    let broken = Outcome::Broken { status: 200, error: TransportError::Closed };
    assert_eq!(fate(Method::GET, broken, SPAN, &[("gone", 60)]), Fate::InFlightLost);
}

#[test]
fn an_answer_of_the_application_is_not_lost() {
    let answer = response(500, Some("gone"), Some(1));
    assert_eq!(fate(Method::POST, answer, SPAN, &[("gone", 60)]), Fate::Failed);
}

#[test]
fn counts_by_method_duplicates_and_retries() {
    let origin = Instant::now();
    let vanish = Vanish::at("gone", origin + Duration::from_millis(100));
    let request = |id: &str, method, outcome| RequestRecord { outcome, ..record(origin, id, method, 50, 1150) };
    let requests = vec![
        request("ok", Method::GET, response(200, Some("a"), Some(2))),
        request("get", Method::GET, proxy_answer(Some(1))),
        request("twice", Method::POST, response(200, Some("a"), Some(2))),
        request("post", Method::POST, Outcome::TimedOut),
        request("lost", Method::POST, proxy_answer(Some(1))),
        request("put", Method::PUT, Outcome::Abandoned),
    ];
    let run = |id, pod, at| execution(origin, id, pod, &Method::POST, at);
    let history = History {
        origin,
        issued: requests.iter().map(|r| Issued { id: r.id.clone(), intended: r.intended }).collect(),
        executions: vec![run("ok", "a", 60), run("twice", "gone", 60), run("twice", "a", 110), run("lost", "gone", 60)],
        requests,
        other_ids: Default::default(),
    };
    let summary = history.summary(std::slice::from_ref(&vanish));
    assert_eq!((summary.requests, summary.failed_get, summary.failed_post, summary.failed_other), (6, 1, 1, 1));
    assert_eq!((summary.duplicate_posts, summary.retries, summary.in_flight_lost), (1, 2, 1));
    assert_eq!(summary.failed_around_vanish, 3, "the three failures spanned the vanish, without proof");

    let tallies = history.failures_over_time(&[vanish], Duration::from_millis(20));
    assert_eq!(tallies.len(), 3, "slices up to the last intended start");
    let slice = tallies[2];
    assert_eq!((slice.failed_get, slice.failed_post, slice.in_flight_lost), (2, 1, 1));
}

proptest! {
    #[test]
    fn nothing_that_started_after_the_vanish_or_was_not_executed_is_excused(
        history in correct_history(),
        pod in 0_usize..4,
        at in 0_u64..300,
        took in 0_u64..20,
    ) {
        let from = history.origin + Duration::from_millis(at);
        let vanish = Vanish { pod: format!("pod-{pod}"), from, until: from + Duration::from_millis(took) };
        let executions = history.executions_by_id();
        let vanished = [vanish.clone()];
        for (request, fate) in history.fates(&vanished) {
            if fate == Fate::InFlightLost {
                prop_assert!(!request.success());
                prop_assert!(request.started < vanish.until && request.ended >= vanish.from);
                let last = executions[request.id.as_str()].last().unwrap();
                prop_assert!(last.pod == vanish.pod && last.at <= vanish.until);
            }
        }
    }

    #[test]
    fn every_request_has_one_fate(history in correct_history(), at in 0_u64..300) {
        let vanished = [Vanish::at("pod-1", history.origin + Duration::from_millis(at))];
        let summary = history.summary(&vanished);
        let succeeded = history.requests.iter().filter(|request| request.success()).count() as u64;
        let failed = summary.failed_get + summary.failed_post + summary.failed_other;
        prop_assert_eq!(succeeded + failed + summary.in_flight_lost, summary.requests);
        let slices = history.failures_over_time(&vanished, Duration::from_millis(7));
        let in_slices: u64 = slices.iter().map(|s| s.failed_get + s.failed_post + s.in_flight_lost).sum();
        prop_assert_eq!(in_slices, failed + summary.in_flight_lost);
    }
}
