//! Correct histories for the checker's tests, generated.

use super::{History, ServerRecord};
use crate::load::{Issued, Outcome, RequestRecord, TransportError};
use http::Method;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

pub(super) const MAX_RETRIES: u32 = 2;
const POD_COUNT: usize = 4;
const STEP: Duration = Duration::from_millis(10);

/// One request of a correct history: pods that executed it, in order, and whether it succeeded.
#[derive(Clone, Debug)]
pub(super) struct Story {
    method: Method,
    keyed: bool,
    pods: Vec<usize>,
    success: bool,
}

fn story() -> impl Strategy<Value = Story> {
    let methods = prop_oneof![Just(Method::GET), Just(Method::POST), Just(Method::PUT)];
    let pods = prop::collection::vec(0..POD_COUNT, 0..=1 + MAX_RETRIES as usize);
    (methods, any::<bool>(), pods, any::<bool>()).prop_map(|(method, keyed, mut pods, success)| {
        if !(method.is_idempotent() || keyed) {
            pods.truncate(1);
        }
        let success = success && !pods.is_empty();
        Story { method, keyed, pods, success }
    })
}

/// Correct histories of up to 30 requests.
pub(super) fn correct_history() -> impl Strategy<Value = History> {
    prop::collection::vec(story(), 1..30).prop_map(|stories| build(&stories))
}

/// A correct history, and the index of one of its requests that fits.
pub(super) fn history_with(fits: fn(&RequestRecord) -> bool) -> impl Strategy<Value = (History, usize)> {
    (correct_history(), any::<prop::sample::Index>()).prop_filter_map("no request fits", move |(history, pick)| {
        let fitting: Vec<usize> = (0..history.requests.len()).filter(|i| fits(&history.requests[*i])).collect();
        (!fitting.is_empty()).then(|| {
            let index = *pick.get(&fitting);
            (history, index)
        })
    })
}

/// A record that ended `end` after `start`, both from `origin`.
pub(super) fn record(origin: Instant, id: &str, method: Method, start: u64, end: u64) -> RequestRecord {
    RequestRecord {
        id: id.to_owned(),
        class: method.as_str().into(),
        idempotent: method.is_idempotent(),
        method,
        intended: origin + Duration::from_millis(start),
        started: origin + Duration::from_millis(start),
        ended: origin + Duration::from_millis(end),
        connection: Some(0),
        outcome: Outcome::TimedOut,
    }
}

/// An execution at `at` milliseconds from `origin`.
pub(super) fn execution(origin: Instant, id: &str, pod: &str, method: &Method, at: u64) -> ServerRecord {
    let at = origin + Duration::from_millis(at);
    ServerRecord { id: id.to_owned(), pod: pod.to_owned(), at, method: method.to_string() }
}

/// A response with this status; `pod` and `attempts` as the headers would say.
pub(super) fn response(status: u16, pod: Option<&str>, attempts: Option<u32>) -> Outcome {
    Outcome::Response { status, pod: pod.map(str::to_owned), attempts, flags: None, details: None }
}

fn build(stories: &[Story]) -> History {
    let origin = Instant::now();
    let mut history = History {
        origin,
        issued: Vec::new(),
        requests: Vec::new(),
        executions: Vec::new(),
        other_ids: BTreeSet::from(["stream".to_owned()]),
    };
    history.executions.push(execution(origin, "stream", "pod-0", &Method::GET, 0));
    for (number, story) in stories.iter().enumerate() {
        let id = format!("id-{number}");
        let start = number as u64 * STEP.as_millis() as u64;
        let mut request = record(origin, &id, story.method.clone(), start, start + 8);
        request.idempotent |= story.keyed;
        let pod = |index: usize| format!("pod-{index}");
        for (attempt, index) in story.pods.iter().enumerate() {
            history.executions.push(execution(origin, &id, &pod(*index), &story.method, start + 1 + attempt as u64));
        }
        let attempts = story.pods.len().max(1) as u32;
        request.outcome = match story.pods.last() {
            Some(last) if story.success => response(200, Some(&pod(*last)), Some(attempts)),
            Some(_) => response(503, None, Some(attempts)),
            None => Outcome::Failed(TransportError::Reset),
        };
        history.issued.push(Issued { id, intended: request.intended });
        history.requests.push(request);
    }
    history
}
