//! Turns what the control plane says into "endpoint added" and "endpoint removed".
//!
//! Two sources feed one [`Views`]: the config validator, which sees every EDS and CDS response
//! before Envoy applies it (Envoy 1.40 and later), and polls of Envoy's own admin endpoint (any
//! Envoy). Both run on the main thread. Where the validator has spoken of an EDS resource, it wins.
//!
//! # Invariants
//! - NEVER: an update is rejected. What cannot be read is counted, logged once, and traffic goes on.
//! - ALWAYS: a removal is reported to `endpoints` before the worker threads learn of it, where the
//!   validator is the source.

pub mod admin;
pub mod config;
mod eds;
pub mod gap;
pub mod poll;
mod validator;
mod views;

use std::{
    net::IpAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

pub use self::{
    eds::{Assignment, HealthStatus, Ignored, decode_assignment, decode_cluster},
    views::{Change, Source, Views},
};
pub(crate) use self::{
    eds::{ORIGINAL_DST, ip},
    validator::Validator,
};

/// Counts of one source, kept for the process; the `status` extension turns them into statistics.
#[derive(Debug, Default)]
pub struct SourceStats {
    /// Responses, or polls, that were read.
    pub updates: AtomicU64,
    /// Endpoints that a cluster listed anew.
    pub added: AtomicU64,
    /// Endpoints that a cluster no longer listed.
    pub removed: AtomicU64,
    /// Resources, or polls, that could not be read.
    pub errors: AtomicU64,
    /// Time of the main thread that it took, in microseconds; polls only, Envoy's part included.
    pub main_thread_us: AtomicU64,
    updated_at: Mutex<Option<Instant>>,
}

// === impl SourceStats ===

impl SourceStats {
    /// Counts one update with what it changed.
    pub fn count(&self, change: Change, now: Instant) {
        *self.updated_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        self.updates.fetch_add(1, Ordering::Relaxed);
        self.add(change);
    }

    /// Counts what changed without an update.
    pub fn add(&self, change: Change) {
        self.added.fetch_add(change.added, Ordering::Relaxed);
        self.removed.fetch_add(change.removed, Ordering::Relaxed);
    }

    /// When the last update came.
    #[must_use]
    pub fn updated_at(&self) -> Option<Instant> {
        *self.updated_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since the last update.
    #[must_use]
    pub fn view_age(&self, now: Instant) -> Option<Duration> {
        self.updated_at().map(|at| now.saturating_duration_since(at))
    }
}

/// Where changes go.
pub trait Sink {
    /// `cluster` lists `ip` now and did not before.
    fn added(&mut self, ip: IpAddr, cluster: &str);
    /// `cluster` listed `ip` before and does not now.
    fn removed(&mut self, ip: IpAddr, cluster: &str, still_listed: bool);
}
