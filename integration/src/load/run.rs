//! The generator: dispatches arrivals, collects records, accounts for every id.

use super::arrivals::{Mix, Schedule};
use super::client::{Connector, Exchanged, Pool, Sent};
use super::plan::{AnswerHeaders, Plan, RequestClass};
use super::record::{Issued, Outcome, RequestRecord};
use anyhow::Context;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// After the drain time, requests have only to notice that they are abandoned.
const ABANDON_WAIT: Duration = Duration::from_secs(5);

/// A running load. Dropping it ends it and loses the records; [`Load::stop`] returns them.
#[derive(Debug)]
pub struct Load {
    phase: watch::Sender<Phase>,
    driver: JoinHandle<Report>,
    counters: Arc<Counters>,
}

/// Counts so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Requests whose arrival was due.
    pub issued: u64,
    /// Requests with an outcome.
    pub finished: u64,
    /// Of these, the ones without a 2xx response.
    pub failed: u64,
}

/// Everything the client knows at the end.
#[derive(Clone, Debug)]
pub struct Report {
    /// Origin of the schedule.
    pub origin: Instant,
    /// Every id given out, in order.
    pub issued: Vec<Issued>,
    /// One record per id, in order of completion.
    pub records: Vec<RequestRecord>,
    /// Client connections opened during the run.
    pub connections_opened: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Run,
    /// No new arrivals.
    Drain,
    /// What is in flight is given up.
    Abandon,
}

#[derive(Debug, Default)]
struct Counters {
    issued: AtomicU64,
    finished: AtomicU64,
    failed: AtomicU64,
}

/// What every request task shares.
struct Shared {
    pool: Pool,
    counters: Arc<Counters>,
    headers: AnswerHeaders,
    timeout: Duration,
}

// === impl Load ===

impl Load {
    /// Opens the connections and starts the arrivals. Call within a tokio runtime.
    ///
    /// # Errors
    /// When the plan is not valid or the proxy cannot be connected to.
    pub async fn start(plan: Plan, connector: Connector) -> anyhow::Result<Self> {
        plan.validate()?;
        let pool = Pool::open(connector, plan.protocol, plan.connections).await?;
        let counters = Arc::new(Counters::default());
        let shared = Arc::new(Shared {
            pool,
            counters: Arc::clone(&counters),
            headers: plan.answer_headers.clone(),
            timeout: plan.timeout,
        });
        let (phase, phases) = watch::channel(Phase::Run);
        let driver = tokio::spawn(drive(plan, shared, phases));
        Ok(Self { phase, driver, counters })
    }

    /// Counts so far.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // `finished` first: a request may end between the reads, and never more ended than began.
        let (failed, finished) = (count(&self.counters.failed), count(&self.counters.finished));
        Progress { issued: count(&self.counters.issued), finished, failed }
    }

    /// Stops the arrivals, waits up to `drain` for what is in flight, and abandons the rest.
    ///
    /// # Errors
    /// When the generator itself broke.
    pub async fn stop(mut self, drain: Duration) -> anyhow::Result<Report> {
        self.phase.send_replace(Phase::Drain);
        if let Ok(report) = tokio::time::timeout(drain, &mut self.driver).await {
            return report.context("load generator");
        }
        self.phase.send_replace(Phase::Abandon);
        tokio::time::timeout(ABANDON_WAIT, &mut self.driver)
            .await
            .context("load generator did not stop")?
            .context("load generator")
    }

    /// Waits until `max_requests` were issued and all of them have an outcome. Bounded by the plan:
    /// its schedule plus one client timeout.
    ///
    /// # Errors
    /// When the generator itself broke.
    pub async fn finished(mut self) -> anyhow::Result<Report> {
        (&mut self.driver).await.context("load generator")
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

async fn drive(plan: Plan, shared: Arc<Shared>, mut phases: watch::Receiver<Phase>) -> Report {
    let classes: Vec<(RequestClass, Arc<str>)> =
        plan.classes.iter().map(|class| (class.clone(), Arc::from(class.name.as_str()))).collect();
    let mut mix = Mix::new(plan.classes.iter().map(|class| class.weight));
    let mut schedule = Schedule::new(plan.arrivals, plan.rate);
    let mut tasks = JoinSet::new();
    let (mut issued, mut records) = (Vec::new(), Vec::new());
    let origin = Instant::now();
    let mut next = schedule.next();

    while let Some(offset) = next.filter(|_| (issued.len() as u64) < plan.max_requests) {
        let intended = origin + offset;
        tokio::select! {
            biased;
            changed = phases.changed() => {
                // An error means that `Load` is gone, and with it the interest in the rest.
                if changed.is_err() || *phases.borrow() != Phase::Run {
                    break;
                }
            }
            () = tokio::time::sleep_until(intended.into()) => {
                let Some((class, name)) = mix.pick().and_then(|index| classes.get(index)) else { break };
                let id = plan.id(class, issued.len() as u64);
                issued.push(Issued { id: id.clone(), intended });
                shared.counters.issued.fetch_add(1, Ordering::Relaxed);
                let now = Instant::now();
                let record = RequestRecord {
                    id,
                    class: Arc::clone(name),
                    method: class.method.clone(),
                    idempotent: class.idempotent(),
                    intended,
                    started: now,
                    ended: now,
                    connection: None,
                    outcome: Outcome::NotSent,
                };
                match class.request(&record.id, plan.protocol) {
                    Ok(request) if tasks.len() < plan.max_outstanding => {
                        tasks.spawn(perform(record, request, Arc::clone(&shared), phases.clone()));
                    }
                    _ => records.push(shared.finish(record)),
                }
                next = schedule.next();
            }
            Some(done) = tasks.join_next(), if !tasks.is_empty() => records.extend(done.ok()),
        }
    }
    // A task that panicked leaves no record, which the history checker reports for its id.
    while let Some(done) = tasks.join_next().await {
        records.extend(done.ok());
    }
    Report { origin, issued, records, connections_opened: shared.pool.opened() }
}

async fn perform(
    mut record: RequestRecord,
    request: http::Request<http_body_util::Full<bytes::Bytes>>,
    shared: Arc<Shared>,
    mut phases: watch::Receiver<Phase>,
) -> RequestRecord {
    let sent = Sent::default();
    let deadline = record.intended + shared.timeout;
    let mut connection = None;
    tokio::select! {
        exchanged = shared.pool.exchange(request, &shared.headers, &sent) => {
            let Exchanged { ended, outcome, http1 } = exchanged;
            (record.ended, record.outcome, connection) = (ended, outcome, http1);
        }
        () = tokio::time::sleep_until(deadline.into()) => {
            (record.ended, record.outcome) = (Instant::now(), Outcome::TimedOut);
        }
        _ = phases.wait_for(|phase| *phase == Phase::Abandon) => {
            (record.ended, record.outcome) = (Instant::now(), Outcome::Abandoned);
        }
    }
    if let Some((started, connection)) = *sent.lock().unwrap_or_else(PoisonError::into_inner) {
        (record.started, record.connection) = (started, Some(connection));
    }
    shared.pool.give_back(connection).await;
    shared.finish(record)
}

// === impl Shared ===

impl Shared {
    fn finish(&self, record: RequestRecord) -> RequestRecord {
        if !record.success() {
            self.counters.failed.fetch_add(1, Ordering::Relaxed);
        }
        self.counters.finished.fetch_add(1, Ordering::Relaxed);
        record
    }
}
