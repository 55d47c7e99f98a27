//! Turns what the control plane says into "endpoint added" and "endpoint removed".
//!
//! Two sources feed one [`Views`]: the config validator, which sees every EDS and CDS response
//! before Envoy applies it (Envoy 1.40 and later), and polls of Envoy's own admin endpoint (any
//! Envoy). Both run on the main thread. Where the validator has spoken of a cluster, it wins.
//!
//! # Invariants
//! - NEVER: an update is rejected. What cannot be read is counted, logged once, and traffic goes on.
//! - ALWAYS: a removal is reported to `endpoints` before the worker threads learn of it, where the
//!   validator is the source.

pub mod admin;
mod eds;
pub mod poll;
mod views;

use std::{
    net::IpAddr,
    sync::atomic::{AtomicU64, Ordering},
};

pub use self::{
    eds::{Assignment, HealthStatus, Ignored, decode_assignment, decode_cluster},
    views::{Change, Source, Views},
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
}

// === impl SourceStats ===

impl SourceStats {
    /// Counts one update with what it changed.
    pub fn count(&self, change: Change) {
        self.updates.fetch_add(1, Ordering::Relaxed);
        self.added.fetch_add(change.added, Ordering::Relaxed);
        self.removed.fetch_add(change.removed, Ordering::Relaxed);
    }
}

/// Where changes go.
pub trait Sink {
    /// `cluster` lists `ip` now and did not before.
    fn added(&mut self, ip: IpAddr, cluster: &str);
    /// `cluster` listed `ip` before and does not now.
    fn removed(&mut self, ip: IpAddr, cluster: &str, still_listed: bool);
}
