//! Turns what the control plane says into "endpoint added" and "endpoint removed".
//!
//! Two sources feed one [`Watch`]: the config validator, which sees every EDS and CDS response
//! before Envoy applies it (Envoy 1.40 and later), and polls of Envoy's own admin endpoint (any
//! Envoy). Both run on the main thread. Where the validator has reported an EDS resource, it wins.
//!
//! # Invariants
//! - NEVER: an update is rejected. What cannot be read is counted, logged once, and traffic goes on.
//! - ALWAYS: a removal is reported to `endpoints` before the worker threads learn of it, where the
//!   validator is the source.
//! - NEVER: a call into Envoy. Lines for the log are returned as [`Note`]s.

pub mod admin;
pub mod config;
pub mod control_plane;
mod eds;
mod listings;
mod once;
pub mod polled;
pub mod polls;
mod validator;
mod xds;

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

pub(crate) use self::validator::Validator;
use self::{
    admin::{Clusters, Parser},
    config::Statuses,
    control_plane::{ControlPlane, Event},
    once::Once,
    polled::Polled,
    polls::Answer,
};
pub use self::{
    eds::{Assignment, HealthStatus, Ignored, decode_assignment, decode_cluster},
    listings::{Change, Listings, Sink, Source},
    xds::{Removed, Resource, Response},
};
use crate::{
    endpoints::{Cluster, Endpoints},
    note::Note,
};

/// What is known of the control plane and of what it lists: the one owner of both. Main thread, behind one lock
/// that only the main thread takes.
pub struct Watch {
    endpoints: Arc<Endpoints>,
    listings: Listings,
    polled: Polled,
    control_plane: Option<ControlPlane>,
    validator: Counts,
    admin: Counts,
    fences: u64,
    once: Once,
}

/// What one source has reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Responses, or polls, that were read.
    pub updates: u64,
    /// Endpoints that a resource listed anew.
    pub added: u64,
    /// Endpoints that a resource no longer listed.
    pub removed: u64,
    /// Resources, or polls, that could not be read.
    pub errors: u64,
    /// Time of the main thread while polls were in flight, Envoy's part included.
    pub main_thread: Duration,
    /// When the last update came.
    pub updated_at: Option<Instant>,
}

/// The registry as the end of the line for what a source reports.
struct ToEndpoints<'a> {
    endpoints: &'a Endpoints,
    now: Instant,
}

// === impl Watch ===

impl Watch {
    /// Nothing is known yet. Without [`Watch::suspect_after`] no absence of the control plane is too long.
    #[must_use]
    pub fn new(endpoints: Arc<Endpoints>) -> Self {
        Self {
            endpoints,
            listings: Listings::default(),
            polled: Polled::default(),
            control_plane: None,
            validator: Counts::default(),
            admin: Counts::default(),
            fences: 0,
            once: Once::default(),
        }
    }

    /// Fences every endpoint when the control plane has been away for `after` or longer; never, if none.
    pub fn suspect_after(&mut self, after: Option<Duration>) {
        self.control_plane = after.map(ControlPlane::new);
    }

    /// The validator has seen an EDS response, which Envoy is about to apply.
    pub fn eds(&mut self, response: &Response<'_>, treat_as_removed: &Statuses, now: Instant) -> (Change, Vec<Note>) {
        let mut notes = Vec::new();
        // Before the listings change: replacements may be listed as if nothing had happened.
        notes.extend(self.control_plane(Event::News, now));
        let mut sink = ToEndpoints { endpoints: &self.endpoints, now };
        let read = xds::eds(response, treat_as_removed, &mut self.listings, &mut sink);
        notes.extend(self.once.missing_clusters());
        (self.validated(read, now, &mut notes), notes)
    }

    /// The validator has seen a CDS response, which Envoy is about to apply. It says nothing of replacements.
    pub fn cds(&mut self, response: &Response<'_>, now: Instant) -> (Change, Vec<Note>) {
        let mut notes = Vec::new();
        self.once.clusters_seen();
        let mut sink = ToEndpoints { endpoints: &self.endpoints, now };
        let read = xds::cds(response, &mut self.listings, &mut sink);
        (self.validated(read, now, &mut notes), notes)
    }

    /// The validator has seen resources of another type.
    pub fn other(&mut self, type_url: &str) -> Option<Note> {
        self.once.unexpected_type(type_url)
    }

    /// Takes in the answer of a poll, in chunks.
    pub fn poll_answer<'a>(
        &mut self,
        chunks: impl Iterator<Item = &'a [u8]>,
        treat_as_removed: &Statuses,
        now: Instant,
    ) -> (Answer, Vec<Note>) {
        let mut parser = Parser::new();
        chunks.for_each(|chunk| parser.feed(chunk));
        match parser.finish() {
            Ok(answer) => self.polled(answer, treat_as_removed, now),
            Err(error) => (Answer::Failed, self.poll_failed(&error.to_string()).into_iter().collect()),
        }
    }

    /// A poll has no answer, or none could be sent.
    pub fn poll_failed(&mut self, why: &str) -> Option<Note> {
        self.admin.errors += 1;
        let covered = self.is_covered();
        self.once.poll_failed(why, covered)
    }

    /// A poll has ended, in whatever way; the main thread spent `time` meanwhile.
    pub fn poll_took(&mut self, time: Duration) {
        self.admin.main_thread += time;
    }

    /// A look at Envoy's gauge of the control plane's connection has ended; none where it tells nothing.
    pub fn look(&mut self, connected: Option<bool>, now: Instant) -> Option<Note> {
        self.control_plane(Event::Look(connected), now)
    }

    /// Time to the next look; none where nobody asks for looks.
    #[must_use]
    pub fn pause_between_looks(&self) -> Option<Duration> {
        self.control_plane.as_ref().map(ControlPlane::pause)
    }

    /// Whether polls would find nothing that the validator does not report.
    #[must_use]
    pub fn is_covered(&self) -> bool {
        !self.polled.is_needed() && self.listings.is_covered()
    }

    /// Whether the control plane is connected, where that can be seen.
    #[must_use]
    pub fn connected(&self) -> Option<bool> {
        self.control_plane.as_ref()?.connected()
    }

    /// Times that every endpoint was fenced at once.
    #[must_use]
    pub const fn fences(&self) -> u64 {
        self.fences
    }

    /// What the validator has reported.
    #[must_use]
    pub const fn validator(&self) -> &Counts {
        &self.validator
    }

    /// What polls have reported.
    #[must_use]
    pub const fn admin(&self) -> &Counts {
        &self.admin
    }

    /// What is listed where.
    #[must_use]
    pub const fn listings(&self) -> &Listings {
        &self.listings
    }

    fn polled(&mut self, answer: Clusters, treat_as_removed: &Statuses, now: Instant) -> (Answer, Vec<Note>) {
        let mut sink = ToEndpoints { endpoints: &self.endpoints, now };
        let change = self.polled.apply(answer, treat_as_removed, &mut self.listings, &mut sink);
        self.admin.count(change, now);
        let changed = change != Change::default();
        let mut notes: Vec<Note> = self.once.poll_read().into_iter().collect();
        if changed {
            notes.extend(self.control_plane(Event::News, now));
        }
        if change.removed > 0 {
            let Change { added, removed } = change;
            notes.push(Note::Info(format!("a poll found {removed} endpoints removed, {added} added")));
        }
        (Answer::Read { changed, covered: self.is_covered() }, notes)
    }

    fn validated(&mut self, read: xds::Read, now: Instant, notes: &mut Vec<Note>) -> Change {
        self.validator.count(read.change, now);
        self.validator.errors += read.unreadable.len() as u64;
        notes.extend(self.once.read(&read));
        read.change
    }

    fn control_plane(&mut self, event: Event, now: Instant) -> Option<Note> {
        let fence = self.control_plane.as_mut()?.on(event, now)?;
        self.fences += 1;
        self.endpoints.suspect_all();
        Some(Note::Warn(fence.message().to_owned()))
    }
}

// === impl Counts ===

impl Counts {
    /// Time since the last update.
    #[must_use]
    pub fn view_age(&self, now: Instant) -> Option<Duration> {
        self.updated_at.map(|at| now.saturating_duration_since(at))
    }

    fn count(&mut self, change: Change, now: Instant) {
        self.updated_at = Some(now);
        self.updates += 1;
        self.added += change.added;
        self.removed += change.removed;
    }
}

// === impl ToEndpoints ===

impl Sink for ToEndpoints<'_> {
    fn added(&mut self, ip: IpAddr, resource: &str) {
        self.endpoints.added(ip, Cluster::named(resource));
    }

    fn removed(&mut self, ip: IpAddr, resource: &str, still_listed: bool) {
        self.endpoints.removed(ip, Cluster::named(resource), still_listed, self.now);
    }
}

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
