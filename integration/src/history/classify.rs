//! Failures, and what no proxy could have saved.
//!
//! # In flight when the pod vanished
//!
//! A failed request is set apart as *in flight, lost* if the logs prove that it had reached a pod
//! which then vanished under it, and nothing else can have failed it. All of this must hold for one
//! vanished pod P:
//!
//! 1. the request failed, and no application's answer arrived (an application that answers 500 has
//!    not lost the request);
//! 2. it was handed to a connection before P was gone, and its outcome came no earlier than P began
//!    to vanish: a failure before that has another cause, such as a tunnel cut too early;
//! 3. an application executed it, the *last* execution was on P, and was recorded before P was gone;
//! 4. every attempt is explained: the proxy reports as many attempts as there were executions. If the
//!    outcome carries no report (timeout, broken connection), this holds only for a request that was
//!    executed once, and either is not idempotent or had its response begun (after which no proxy
//!    may try again).
//!
//! Rule 3 is why a stale connection is never excused: whatever is sent on one after P vanished is
//! executed by nobody. Rule 4 is why a retry that met a stale connection is not excused by its first
//! attempt: it was reported but not executed. Where no report exists, an idempotent request counts as
//! failed, since a proxy could have saved it by a retry; one that is not idempotent could not have been
//! saved, because whether P executed it is unknowable to a proxy.
//!
//! The rule leans to one side. A request whose bytes were on their way to P, not yet executed, counts
//! as failed. [`Summary::failed_around_vanish`] says how many failed requests spanned a vanish without
//! being excused, for a reader who wants to look at them; they remain failures.

use super::{History, ServerRecord};
use crate::load::{Outcome, RequestRecord};
use http::Method;
use std::time::{Duration, Instant};

/// A pod instance that was made to vanish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vanish {
    /// Name of the pod instance, as in [`ServerRecord::pod`].
    pub pod: String,
    /// Just before the fault was injected.
    pub from: Instant,
    /// When the pod was gone for certain; from here on nothing can reach it.
    pub until: Instant,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// A complete 2xx answer.
    Succeeded,
    /// In flight on a pod when it vanished; see the [module documentation](self).
    InFlightLost,
    /// Any other outcome.
    Failed,
}

/// Counts of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// All requests.
    pub requests: u64,
    /// Failed GET requests, without the ones lost in flight.
    pub failed_get: u64,
    /// Failed POST requests, without the ones lost in flight.
    pub failed_post: u64,
    /// Failed requests of other methods, without the ones lost in flight.
    pub failed_other: u64,
    /// POST requests without an idempotency key that were executed more than once.
    pub duplicate_posts: u64,
    /// Attempts beyond the first, as far as answers or executions show them.
    pub retries: u64,
    /// Requests that were in flight on a pod when it vanished.
    pub in_flight_lost: u64,
    /// Of the failed ones, those that were in flight at some vanish without proof of having reached
    /// the pod.
    pub failed_around_vanish: u64,
}

/// Failures of one time slice; requests are counted where their intended start lies.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Start of the slice, from the history's origin.
    pub at: Duration,
    /// Failed requests that are not POST, without the ones lost in flight.
    pub failed_get: u64,
    /// Failed POST requests, without the ones lost in flight.
    pub failed_post: u64,
    /// Requests lost in flight.
    pub in_flight_lost: u64,
}

// === impl Vanish ===

impl Vanish {
    /// A vanish that took no time.
    #[must_use]
    pub fn at(pod: &str, at: Instant) -> Self {
        Self { pod: pod.to_owned(), from: at, until: at }
    }

    fn spanned_by(&self, request: &RequestRecord) -> bool {
        request.started < self.until && request.ended >= self.from
    }
}

// === impl Fate ===

impl Fate {
    /// The fate of one request. `executions` are those of its id, in order of time.
    #[must_use]
    pub fn of(request: &RequestRecord, executions: &[&ServerRecord], vanished: &[Vanish]) -> Self {
        if request.success() {
            return Self::Succeeded;
        }
        let answered_by_application = request.pod().is_some();
        let explained = match (&request.outcome, request.attempts()) {
            // The response had begun: no proxy can take it back, and no attempt followed.
            (Outcome::Broken { .. }, _) => executions.len() == 1,
            (_, Some(attempts)) => u64::from(attempts) == executions.len() as u64,
            (_, None) => !request.idempotent && executions.len() == 1,
        };
        let lost_with = |vanish: &Vanish| {
            vanish.spanned_by(request)
                && executions.last().is_some_and(|last| last.pod == vanish.pod && last.at <= vanish.until)
        };
        if !answered_by_application && explained && vanished.iter().any(lost_with) {
            Self::InFlightLost
        } else {
            Self::Failed
        }
    }
}

// === impl History ===

impl History {
    /// Every request with its fate.
    pub fn fates<'a>(&'a self, vanished: &'a [Vanish]) -> impl Iterator<Item = (&'a RequestRecord, Fate)> {
        let executions = self.executions_by_id();
        self.requests.iter().map(move |request| {
            let executed = executions.get(request.id.as_str()).map_or(&[][..], Vec::as_slice);
            (request, Fate::of(request, executed, vanished))
        })
    }

    /// Counts of the whole run.
    #[must_use]
    pub fn summary(&self, vanished: &[Vanish]) -> Summary {
        let executions = self.executions_by_id();
        let mut summary = Summary { requests: self.issued.len() as u64, ..Summary::default() };
        // An id without a record failed, whatever it was.
        summary.failed_other = (self.issued.len() as u64).saturating_sub(self.requests.len() as u64);
        for (request, fate) in self.fates(vanished) {
            let executed = executions.get(request.id.as_str()).map_or(0, Vec::len);
            if request.method == Method::POST && !request.idempotent && executed > 1 {
                summary.duplicate_posts += 1;
            }
            match fate {
                Fate::Succeeded => continue,
                Fate::InFlightLost => {
                    summary.in_flight_lost += 1;
                    continue;
                }
                Fate::Failed if request.method == Method::GET => summary.failed_get += 1,
                Fate::Failed if request.method == Method::POST => summary.failed_post += 1,
                Fate::Failed => summary.failed_other += 1,
            }
            if vanished.iter().any(|vanish| vanish.spanned_by(request)) {
                summary.failed_around_vanish += 1;
            }
        }
        summary.retries = self.attempts().saturating_sub(self.requests.len() as u64);
        summary
    }

    /// Failures per time slice of this width, without gaps, up to the last intended start.
    #[must_use]
    pub fn failures_over_time(&self, vanished: &[Vanish], slice: Duration) -> Vec<Tally> {
        let width = slice.as_nanos().max(1);
        let index = |at: Instant| at.saturating_duration_since(self.origin).as_nanos() / width;
        let last = self.issued.iter().map(|issued| index(issued.intended)).max();
        let count = last.map_or(0, |last| u32::try_from(last).unwrap_or(u32::MAX - 1) + 1);
        let mut tallies: Vec<Tally> = (0..count).map(|slot| Tally { at: slice * slot, ..Tally::default() }).collect();
        for (request, fate) in self.fates(vanished) {
            let slot = usize::try_from(index(request.intended)).ok();
            let Some(tally) = slot.and_then(|slot| tallies.get_mut(slot)) else { continue };
            match fate {
                Fate::Succeeded => {}
                Fate::InFlightLost => tally.in_flight_lost += 1,
                Fate::Failed if request.method == Method::POST => tally.failed_post += 1,
                Fate::Failed => tally.failed_get += 1,
            }
        }
        tallies
    }
}
