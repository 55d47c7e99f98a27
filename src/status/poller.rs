//! Polls of Envoy's admin endpoint, on behalf of `watch`.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use envoy_proxy_dynamic_modules_rust_sdk::{EnvoyBuffer, envoy_log_info, envoy_log_warn};

use crate::{
    shared::shared,
    watch::{
        Change, Source,
        admin::Parser,
        config::Statuses,
        poll::{Polled, Rhythm},
    },
};

/// The pause between polls while the validator speaks for every cluster that has endpoints.
const COVERED: Duration = Duration::from_secs(60);

/// The polls' state. Main thread.
pub(super) struct Poller {
    treat_as_removed: Statuses,
    rhythm: Rhythm,
    polled: Polled,
    failing: bool,
    covered_until: Option<Instant>,
    /// The main thread's processor time when the poll in flight began.
    began: Duration,
}

// === impl Poller ===

impl Poller {
    pub(super) fn new(shortest: Duration, longest: Duration, treat_as_removed: Statuses) -> Self {
        Self {
            treat_as_removed,
            rhythm: Rhythm::new(shortest, longest),
            polled: Polled::default(),
            failing: false,
            covered_until: None,
            began: Duration::ZERO,
        }
    }

    /// Whether to poll now; if so, the poll counts as in flight.
    pub(super) fn start(&mut self, now: Instant) -> bool {
        if self.covered_until.is_some_and(|until| now < until) || !self.rhythm.start(now) {
            return false;
        }
        self.began = processor_time();
        true
    }

    /// Time until a poll is due; none while one is in flight or polls are not needed.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        let idle = !self.rhythm.in_flight() && self.covered_until.is_none_or(|until| until <= now);
        idle.then(|| self.rhythm.wait(now))
    }

    /// Something says that endpoints may have changed.
    pub(super) fn hint(&mut self) {
        self.rhythm.hint();
    }

    /// Envoy has taken up a cluster, new or with another configuration. The validator may not speak for it.
    pub(super) fn cluster_changed(&mut self, cluster: &str) {
        self.polled.renewed(cluster, self.rhythm.in_flight());
        self.covered_until = None;
        self.rhythm.hint();
    }

    /// Takes in the answer of the poll in flight.
    pub(super) fn answered(&mut self, body: &[EnvoyBuffer], now: Instant) {
        let mut parser = Parser::new();
        for chunk in body {
            parser.feed(chunk.as_slice());
        }
        let answer = match parser.finish() {
            Ok(answer) => answer,
            Err(error) => return self.failed(&error.to_string()),
        };
        let (polled, treated_as_removed) = (&mut self.polled, &self.treat_as_removed);
        let mut covered = false;
        let change = shared().watch(Source::Admin, |views, sink| {
            let change = polled.apply(answer, treated_as_removed, views, sink);
            covered = !polled.is_needed() && views.resources(Source::Validator).next().is_some();
            change
        });
        self.covered_until = covered.then(|| now + COVERED);
        self.rhythm.done(change != Change::default(), processor_time().saturating_sub(self.began));
        if std::mem::take(&mut self.failing) {
            envoy_log_info!("stale_guard: watch can poll the admin endpoint again");
        }
        if change.removed > 0 {
            envoy_log_info!("stale_guard: a poll found {} endpoints removed, {} added", change.removed, change.added);
        }
    }

    /// The poll in flight failed, or none could be sent.
    pub(super) fn failed(&mut self, why: &str) {
        shared().admin.errors.fetch_add(1, Ordering::Relaxed);
        self.rhythm.done(false, Duration::ZERO);
        if !std::mem::replace(&mut self.failing, true) {
            envoy_log_warn!(
                "stale_guard: watch cannot poll the admin endpoint ({why}); endpoints that leave are not fenced until it \
                 can. Further failures are only counted."
            );
        }
    }
}

/// What the calling thread has used of the processor. Between the start and the end of a poll the main
/// thread does little else, so the difference is what the poll cost, Envoy's part included.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
