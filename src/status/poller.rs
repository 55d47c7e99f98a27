//! Polls of Envoy's admin endpoint, on behalf of `watch`.

use std::{
    fmt,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use envoy_proxy_dynamic_modules_rust_sdk::EnvoyBuffer;

use super::note::Note;
use crate::{
    shared::{News, shared},
    watch::{
        Change,
        admin::Parser,
        config::Statuses,
        poll::{Polled, Rhythm},
    },
};

/// The pause between polls while the validator speaks for every cluster that has endpoints.
const COVERED: Duration = Duration::from_secs(60);
/// The pause after an answer that Envoy did not let through: Envoy has written all of it, and will again.
const TOO_LARGE: Duration = Duration::from_secs(120);

/// The polls' state. Main thread.
pub(super) struct Poller {
    treat_as_removed: Statuses,
    rhythm: Rhythm,
    polled: Polled,
    failing: bool,
    /// Whether the failures were said to be harmful.
    warned: bool,
    covered_until: Option<Instant>,
    too_large_until: Option<Instant>,
    began_at: Option<Instant>,
    /// The main thread's processor time when the poll in flight began.
    began: Duration,
}

/// Why a poll has no answer that can be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The answer is larger than Envoy lets through.
    TooLarge,
    /// Anything else.
    Other(String),
}

// === impl Poller ===

impl Poller {
    pub(super) fn new(shortest: Duration, longest: Duration, treat_as_removed: Statuses) -> Self {
        Self {
            treat_as_removed,
            rhythm: Rhythm::new(shortest, longest),
            polled: Polled::default(),
            failing: false,
            warned: false,
            covered_until: None,
            too_large_until: None,
            began_at: None,
            began: Duration::ZERO,
        }
    }

    /// Whether to poll now; if so, the poll counts as in flight.
    pub(super) fn start(&mut self, now: Instant) -> bool {
        if self.wait(now).is_none_or(|wait| !wait.is_zero()) {
            return false;
        }
        let rare = self.began_at.map(|at| at + COVERED).filter(|until| now < *until);
        if rare.is_some() && self.is_covered() {
            self.covered(rare);
            return false;
        }
        if !self.rhythm.start(now) {
            return false;
        }
        self.began_at = Some(now);
        self.began = processor_time();
        self.covered(None);
        shared().hint.rearm();
        true
    }

    /// Time until a poll is due; none while one is in flight or polls are not wanted.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        let until = |time: Option<Instant>| time.is_none_or(|until| until <= now);
        let idle = !self.rhythm.in_flight() && until(self.covered_until) && until(self.too_large_until);
        idle.then(|| self.rhythm.wait(now))
    }

    /// Something says that endpoints may have changed.
    pub(super) fn hint(&mut self) {
        self.rhythm.hint();
    }

    /// Takes in the answer of the poll in flight.
    pub(super) fn answered(&mut self, body: &[EnvoyBuffer], now: Instant) -> Vec<Note> {
        let mut parser = Parser::new();
        for chunk in body {
            parser.feed(chunk.as_slice());
        }
        let answer = match parser.finish() {
            Ok(answer) => answer,
            Err(error) => return self.failed(&Failure::Other(error.to_string()), now),
        };
        let (polled, treated_as_removed) = (&mut self.polled, &self.treat_as_removed);
        let mut covered = false;
        let change = shared().watch(News::Poll, |views, sink| {
            let change = polled.apply(answer, treated_as_removed, views, sink);
            // Without a validator for clusters, polls are what notices one that goes.
            covered = !polled.is_needed() && views.is_covered();
            change
        });
        self.covered(covered.then(|| now + COVERED));
        self.done(change != Change::default());
        self.warned = false;
        let mut notes = Vec::new();
        if std::mem::take(&mut self.failing) {
            notes.push(Note::Info("watch can poll the admin endpoint again".to_owned()));
        }
        if change.removed > 0 {
            let Change { added, removed } = change;
            notes.push(Note::Info(format!("a poll found {removed} endpoints removed, {added} added")));
        }
        notes
    }

    /// The poll in flight failed, or none could be sent.
    pub(super) fn failed(&mut self, why: &Failure, now: Instant) -> Vec<Note> {
        shared().admin.errors.fetch_add(1, Ordering::Relaxed);
        self.done(false);
        self.too_large_until = (*why == Failure::TooLarge).then(|| now + TOO_LARGE);
        let first = !std::mem::replace(&mut self.failing, true);
        let note = if self.is_covered() {
            first.then(|| {
                Note::Info(format!(
                    "watch cannot poll the admin endpoint ({why}); nothing is missed, since the config validator speaks \
                     for every cluster"
                ))
            })
        } else {
            let first = !std::mem::replace(&mut self.warned, true);
            first.then(|| {
                Note::Warn(format!(
                    "watch cannot poll the admin endpoint ({why}); endpoints that leave are not fenced until it can. \
                     Further failures are only counted."
                ))
            })
        };
        note.into_iter().collect()
    }

    /// Whether polls would find nothing that the validator does not say.
    fn is_covered(&self) -> bool {
        !self.polled.is_needed() && shared().is_covered()
    }

    fn covered(&mut self, until: Option<Instant>) {
        self.covered_until = until;
        shared().hint.want(until.is_none());
    }

    fn done(&mut self, changed: bool) {
        let cost = processor_time().saturating_sub(self.began);
        let cost_us = u64::try_from(cost.as_micros()).unwrap_or(u64::MAX);
        shared().admin.main_thread_us.fetch_add(cost_us, Ordering::Relaxed);
        self.rhythm.done(changed, cost);
    }
}

// === impl Failure ===

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => out.write_str(
                "its answer is larger than the runtime key http.async_response_buffer_limit allows, 32 MiB by default: \
                 raise it, or use the config validator; the next attempt is in two minutes",
            ),
            Self::Other(why) => out.write_str(why),
        }
    }
}

/// What the calling thread has used of the processor. Between the start and the end of a poll the main
/// thread does little else, so the difference is what the poll cost, Envoy's part included.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
