//! The laws. Each function returns all violations of one law; an empty list means that it holds.

use super::{History, Law, ServerRecord, Violation};
use crate::load::RequestRecord;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// One tunnel (HTTP/2 CONNECT stream) on an outer connection, as its receiver logged it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelRecord {
    /// Name of the outer connection, such as its peer address.
    pub connection: String,
    /// The endpoint, such as its IP address.
    pub endpoint: String,
    /// When the outer connection was accepted.
    pub connection_opened: Instant,
    /// When the tunnel was opened.
    pub opened: Instant,
}

/// A removal or a return of an endpoint, which the proxy observed at some moment that we cannot see, but
/// between two that we can. A connection opened in between may belong to either side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The endpoint, as in [`TunnelRecord`].
    pub endpoint: String,
    /// Before the proxy can have observed it: connections that are open now must not be used later.
    pub from: Instant,
    /// When every worker knows.
    pub until: Instant,
}

/// The laws that need no other input than the history, with this limit on retries.
#[must_use]
pub fn core(history: &History, max_retries: u32) -> Vec<Violation> {
    [
        every_request_accounted_once(history),
        execution_has_request(history),
        non_idempotent_at_most_once(history),
        idempotent_within_retries(history, max_retries),
        success_was_executed(history),
    ]
    .concat()
}

/// [`Law::NonIdempotentAtMostOnce`].
#[must_use]
pub fn non_idempotent_at_most_once(history: &History) -> Vec<Violation> {
    executed_more_than(history, Law::NonIdempotentAtMostOnce, false, 1)
}

/// [`Law::IdempotentWithinRetries`]. `max_retries` is the total over the whole path, not per hop.
#[must_use]
pub fn idempotent_within_retries(history: &History, max_retries: u32) -> Vec<Violation> {
    let limit = usize::try_from(max_retries).unwrap_or(usize::MAX).saturating_add(1);
    executed_more_than(history, Law::IdempotentWithinRetries, true, limit)
}

/// [`Law::SuccessWasExecuted`]. A success that names no pod is a violation too: every application of
/// the lab names itself, so an answer without a name came from somewhere else.
#[must_use]
pub fn success_was_executed(history: &History) -> Vec<Violation> {
    let executions = history.executions_by_id();
    let mut violations = Vec::new();
    for request in history.requests.iter().filter(|request| request.success()) {
        let executed = executions.get(request.id.as_str()).map_or(&[][..], Vec::as_slice);
        // The application records an execution before it answers.
        let answered =
            |execution: &&ServerRecord| Some(execution.pod.as_str()) == request.pod() && execution.at <= request.ended;
        if !executed.iter().any(answered) {
            let pods: Vec<_> = executed.iter().map(|execution| execution.pod.as_str()).collect();
            let detail = format!("answered {}, but executed by {pods:?} before the answer", request.outcome);
            let times = [request.started, request.ended].into_iter().chain(executed.iter().map(|e| e.at));
            violations.push(Violation::new(Law::SuccessWasExecuted, &request.id, history.origin, times, detail));
        }
    }
    violations
}

/// [`Law::EveryRequestAccountedOnce`].
#[must_use]
pub fn every_request_accounted_once(history: &History) -> Vec<Violation> {
    let mut counts: BTreeMap<&str, (usize, Vec<Instant>)> = BTreeMap::new();
    for issued in &history.issued {
        let (count, times) = counts.entry(&issued.id).or_default();
        *count += 1;
        times.push(issued.intended);
    }
    let mut answers: BTreeMap<&str, Vec<Instant>> = BTreeMap::new();
    for request in &history.requests {
        answers.entry(&request.id).or_default().push(request.ended);
        counts.entry(&request.id).or_default();
    }
    let mut violations = Vec::new();
    for (id, (issued, mut times)) in counts {
        let ended = answers.remove(id).unwrap_or_default();
        if issued != 1 || ended.len() != 1 {
            let detail = format!("issued {issued} times, {} outcomes; one of each is due", ended.len());
            times.extend(ended);
            violations.push(Violation::new(Law::EveryRequestAccountedOnce, id, history.origin, times, detail));
        }
    }
    violations
}

/// [`Law::ExecutionHasRequest`].
#[must_use]
pub fn execution_has_request(history: &History) -> Vec<Violation> {
    let requests: BTreeMap<&str, &RequestRecord> =
        history.requests.iter().map(|request| (request.id.as_str(), request)).collect();
    let mut violations = Vec::new();
    for execution in &history.executions {
        let detail = match requests.get(execution.id.as_str()) {
            _ if history.other_ids.contains(&execution.id) => continue,
            None => format!("executed by {}, but no client sent it", execution.pod),
            Some(request) if execution.at < request.started => {
                format!("executed by {} before it was sent", execution.pod)
            }
            Some(request) if execution.method != request.method.as_str() => {
                format!("sent as {}, executed by {} as {}", request.method, execution.pod, execution.method)
            }
            Some(_) => continue,
        };
        let (law, at) = (Law::ExecutionHasRequest, [execution.at]);
        violations.push(Violation::new(law, &execution.id, history.origin, at, detail));
    }
    violations
}

/// [`Law::FencedConnectionUnused`]. Logs of the receiving side run behind the proxy's decision, so
/// tunnels opened less than `settle` after a fence are not judged.
#[must_use]
pub fn fenced_connection_unused(
    origin: Instant,
    tunnels: &[TunnelRecord],
    fences: &[Fence],
    settle: Duration,
) -> Vec<Violation> {
    let mut violations = Vec::new();
    for tunnel in tunnels {
        let broken = fences.iter().find(|fence| {
            fence.endpoint == tunnel.endpoint
                && tunnel.connection_opened <= fence.from
                && tunnel.opened >= fence.until + settle
        });
        if let Some(fence) = broken {
            let detail = format!("tunnel to {} on a connection older than the fence", tunnel.endpoint);
            let times = [tunnel.connection_opened, fence.from, fence.until, tunnel.opened];
            let law = Law::FencedConnectionUnused;
            violations.push(Violation::new(law, &tunnel.connection, origin, times, detail));
        }
    }
    violations
}

/// [`Law::BudgetHeld`] over the whole history: attempts ≤ requests × (1 + `ratio`) + `floor`.
///
/// The attempts of a request are what the proxy reported or what applications executed, whichever is
/// more; `unseen_retries` adds the ones that neither shows (0, or from the proxy's counters).
#[must_use]
pub fn budget_held(history: &History, unseen_retries: u64, ratio: f64, floor: f64) -> Vec<Violation> {
    let attempts = history.attempts() + unseen_retries;
    let requests = history.requests.len();
    let allowed = requests as f64 * (1.0 + ratio) + floor;
    if attempts as f64 <= allowed {
        return Vec::new();
    }
    let detail = format!("{attempts} attempts for {requests} requests, {allowed:.1} allowed");
    vec![Violation::new(Law::BudgetHeld, "all", history.origin, [], detail)]
}

/// [`Law::CountersEqualHistory`]: every expected counter has this value. A counter that is absent
/// counts as zero, as Envoy creates some only when they are first used.
#[must_use]
pub fn counters_equal_history(
    origin: Instant,
    expected: &BTreeMap<String, u64>,
    actual: &BTreeMap<String, u64>,
) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (name, expected) in expected {
        let actual = actual.get(name).copied().unwrap_or(0);
        if actual != *expected {
            let detail = format!("counter says {actual}, history says {expected}");
            violations.push(Violation::new(Law::CountersEqualHistory, name, origin, [], detail));
        }
    }
    violations
}

fn executed_more_than(history: &History, law: Law, idempotent: bool, limit: usize) -> Vec<Violation> {
    let executions = history.executions_by_id();
    let mut violations = Vec::new();
    for request in history.requests.iter().filter(|request| request.idempotent == idempotent) {
        let executed = executions.get(request.id.as_str()).map_or(&[][..], Vec::as_slice);
        if executed.len() > limit {
            let pods: Vec<_> = executed.iter().map(|execution| execution.pod.as_str()).collect();
            let detail = format!("{} executed {} times, by {pods:?}; {limit} allowed", request.method, executed.len());
            let times = executed.iter().map(|execution| execution.at);
            violations.push(Violation::new(law, &request.id, history.origin, times, detail));
        }
    }
    violations
}

// === impl History ===

impl History {
    /// Attempts over all requests: per request what the proxy reported, what applications executed, or
    /// one, whichever is most.
    #[must_use]
    pub fn attempts(&self) -> u64 {
        let executions = self.executions_by_id();
        let attempts = |request: &RequestRecord| {
            let executed = executions.get(request.id.as_str()).map_or(0, |list| list.len() as u64);
            executed.max(u64::from(request.attempts().unwrap_or(1))).max(1)
        };
        self.requests.iter().map(attempts).sum()
    }
}
