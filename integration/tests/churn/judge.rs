//! The laws, over what a run left behind.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::{Duration, Instant};

use lab::control_plane::cluster_name;
use lab::history::{Violation, laws};
use lab::load::RequestRecord;
use lab::mesh::ECHO;

use crate::faults::Fault;
use crate::stage::{Run, Source};

/// The route's `num_retries` as shipped: the most retries of one request, the module's included.
const MAX_RETRIES: u32 = 2;

/// How long a CONNECT may be on its way on a busy machine.
const SETTLE: Duration = Duration::from_millis(250);

/// The tail of a fault within which its failures may show.
const TAIL: Duration = Duration::from_millis(500);

/// All laws.
pub async fn all(run: &Run) -> Vec<Violation> {
    let mut violations = laws::core(&run.history, MAX_RETRIES);
    violations.extend(fence(run));
    violations.extend(budget(run));
    violations.extend(counters(run).await);
    violations
}

/// No tunnel starts on a connection from before a removal or a return.
pub fn fence(run: &Run) -> Vec<Violation> {
    laws::fenced_connection_unused(run.history.origin, &run.tunnels, &run.fences, SETTLE)
}

/// Failed requests that no fault excuses: a pod that is replaced in the dark, or whose ztunnel restarts,
/// may lose what is in flight.
pub fn failed(run: &Run) -> Vec<String> {
    let excused = |request: &RequestRecord| {
        run.events.iter().any(|event| {
            matches!(event.fault, Fault::ReplaceInTheDark | Fault::RestartZtunnel)
                && request.ended >= event.from
                && request.started <= event.until + TAIL
        })
    };
    let failed = run.history.requests.iter().filter(|request| !request.success() && !excused(request));
    failed.map(|request| format!("{} {}", request.id, request.outcome)).collect()
}

/// docs/retry.md: a fifth of the requests, and ten a second on each of two workers.
fn budget(run: &Run) -> Vec<Violation> {
    let ended = run.history.requests.iter().map(|request| request.ended).max();
    let seconds = ended.map_or(0.0, |ended| (ended - run.history.origin).as_secs_f64());
    laws::budget_held(&run.history, 0, 0.2, 2.0 * 10.0 * (seconds + 1.0))
}

/// What Envoy and the module counted is what clients, applications and the control plane saw.
async fn counters(run: &Run) -> Vec<Violation> {
    let requests = &run.history.requests;
    let retries = requests.iter().map(|request| u64::from(request.attempts().unwrap_or(1)) - 1).sum();
    let source = match run.source {
        Source::Validator => "validator",
        Source::Polls => "admin",
    };
    let module = |name: &str| format!("dynamicmodulescustom.{name}");
    let expected: BTreeMap<String, u64> = [
        (format!("cluster.{}.upstream_rq_retry", cluster_name(ECHO, 80)), retries),
        (module("retry_requests"), requests.len() as u64),
        (module(&format!("watch_{source}_removed")), run.removed),
        (module(&format!("watch_{source}_added")), run.added),
        (module("panics"), 0),
    ]
    .into();
    // The module publishes some of its counts on a tick.
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let mut actual = BTreeMap::new();
        for name in expected.keys() {
            actual.extend(run.mesh.envoy.admin().try_stat(name).await.unwrap().map(|value| (name.clone(), value)));
        }
        let violations = laws::counters_equal_history(run.history.origin, &expected, &actual);
        if violations.is_empty() || Instant::now() > deadline {
            return violations;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// One line each.
pub fn list(what: &[impl Display]) -> String {
    what.iter().map(|one| format!("\n  {one}")).collect()
}
