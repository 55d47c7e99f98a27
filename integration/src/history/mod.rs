//! The history checker: what clients saw and what servers executed must agree with the laws of safe
//! retries.
//!
//! A [`History`] merges the client's records with the applications' executions. [`laws`] are separate,
//! named checks; each returns every violation with ids and times. [`classify`] counts failures, and
//! sets apart the requests that were in flight on a pod when it vanished, by one rule for every
//! variant.
//!
//! All times are [`Instant`]s of one process: clients, applications and faults share its clock.

pub mod classify;
#[cfg(test)]
mod classify_tests;
pub mod laws;
#[cfg(test)]
mod laws_tests;
#[cfg(test)]
mod sample;
mod violation;

pub use classify::{Fate, Summary, Tally, Vanish};
pub use violation::{Law, Violation};

use crate::app::Execution;
use crate::load::{Issued, Report, RequestRecord};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// One execution of a request by an application, recorded before the application answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRecord {
    /// The request's unique id, from `x-request-id`.
    pub id: String,
    /// Name of the pod instance; unique per instance, also when IP addresses are reused.
    pub pod: String,
    /// When it was executed.
    pub at: Instant,
    /// HTTP method.
    pub method: String,
}

/// Client and server logs of one run.
#[derive(Clone, Debug)]
pub struct History {
    /// Origin of the times in violations and series.
    pub origin: Instant,
    /// Every id that was given out.
    pub issued: Vec<Issued>,
    /// What became of each.
    pub requests: Vec<RequestRecord>,
    /// Every execution by an application.
    pub executions: Vec<ServerRecord>,
    /// Ids of requests outside of the load (long-lived streams, probes) that applications also saw.
    pub other_ids: BTreeSet<String>,
}

// === impl ServerRecord ===

impl From<Execution> for ServerRecord {
    fn from(execution: Execution) -> Self {
        Self { id: execution.id, pod: execution.pod, at: execution.at, method: execution.method }
    }
}

// === impl History ===

impl History {
    /// The history of one load run.
    #[must_use]
    pub fn new<E: Into<ServerRecord>>(
        report: Report,
        executions: impl IntoIterator<Item = E>,
        other_ids: impl IntoIterator<Item = String>,
    ) -> Self {
        Self {
            origin: report.origin,
            issued: report.issued,
            requests: report.records,
            executions: executions.into_iter().map(Into::into).collect(),
            other_ids: other_ids.into_iter().collect(),
        }
    }

    /// Executions by request id, each list in order of time.
    #[must_use]
    pub fn executions_by_id(&self) -> BTreeMap<&str, Vec<&ServerRecord>> {
        let mut by_id: BTreeMap<&str, Vec<&ServerRecord>> = BTreeMap::new();
        for execution in &self.executions {
            by_id.entry(&execution.id).or_default().push(execution);
        }
        for executions in by_id.values_mut() {
            executions.sort_by_key(|execution| execution.at);
        }
        by_id
    }
}
