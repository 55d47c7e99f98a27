//! Every response that went out, and what the proxy said to it.

use std::collections::HashMap;
use std::time::Instant;

/// What a proxy answered to a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing yet, or the stream ended first.
    Pending,
    /// Accepted, at this time.
    Acked(Instant),
    /// Rejected, at this time, with this message.
    Nacked(Instant, String),
}

/// One discovery response.
#[derive(Clone, Debug)]
pub struct Push {
    /// The stream it went out on, counted from 1 over the control plane's whole life.
    pub stream: u64,
    /// The proxy's node id.
    pub node: String,
    /// [`super::CLUSTER_TYPE`] or [`super::ENDPOINT_TYPE`].
    pub type_url: &'static str,
    /// Unique over all streams.
    pub nonce: String,
    /// The push (see [`super::ControlPlane::version`]) whose state it carries.
    pub version: u64,
    /// The control plane's life, from 1: [`super::ControlPlane::restart`] begins another.
    pub life: u64,
    /// Names of the resources in it.
    pub resources: Vec<String>,
    /// Names told as removed (delta only).
    pub removed: Vec<String>,
    /// Sum of the resources' sizes.
    pub bytes: usize,
    /// When it was handed to the stream.
    pub at: Instant,
    /// What the proxy said.
    pub answer: Answer,
}

/// All pushes, and the index of those without an answer.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    pushes: Vec<Push>,
    outstanding: HashMap<String, usize>,
    next_nonce: u64,
}

// === impl Ledger ===

impl Ledger {
    pub(super) fn nonce(&mut self) -> String {
        self.next_nonce += 1;
        self.next_nonce.to_string()
    }

    pub(super) fn record(&mut self, push: Push) {
        self.outstanding.insert(push.nonce.clone(), self.pushes.len());
        self.pushes.push(push);
    }

    pub(super) fn answer(&mut self, nonce: &str, error: Option<String>) {
        let index = self.outstanding.remove(nonce);
        if let Some(push) = index.and_then(|index| self.pushes.get_mut(index)) {
            push.answer = match error {
                None => Answer::Acked(Instant::now()),
                Some(message) => Answer::Nacked(Instant::now(), message),
            };
        }
    }

    /// Forgets what a closed stream still owed an answer to.
    pub(super) fn stream_closed(&mut self, stream: u64) {
        let pushes = &self.pushes;
        self.outstanding.retain(|_, index| pushes.get(*index).is_some_and(|push| push.stream != stream));
    }

    pub(super) fn is_outstanding(&self, stream: u64) -> bool {
        self.outstanding.values().filter_map(|index| self.pushes.get(*index)).any(|push| push.stream == stream)
    }

    pub(super) fn pushes(&self) -> &[Push] {
        &self.pushes
    }
}
