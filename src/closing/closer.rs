//! The closing of connections on the main thread: thin glue between the plan and the process's sockets.

use std::time::Instant;

use envoy_proxy_dynamic_modules_rust_sdk::{
    envoy_log_debug, envoy_log_warn,
    extra::{Found, SocketTag, TaggedSockets},
};

use super::plan::{Plan, Searched, Settings};
use crate::endpoints::Endpoints;

/// Bits of a tag that name the worker; the rest are the generation.
const WORKER_BITS: u32 = 10;

/// Finds and closes what fenced generations leave behind. Main thread.
pub(crate) struct Closer {
    plan: Plan,
    /// None where the process's descriptors cannot be read: then nothing is closed.
    sockets: Option<TaggedSockets>,
    total: Searched,
    /// Whether a search that failed was logged.
    warned: bool,
}

/// The tag of a connection; none where the numbers do not fit into one, whose connections are then left to
/// Envoy's idle timeout.
pub(crate) fn tag(generation: u64, worker: u32) -> Option<SocketTag> {
    (worker >> WORKER_BITS == 0 && generation.leading_zeros() >= WORKER_BITS)
        .then(|| SocketTag::new(generation << WORKER_BITS | u64::from(worker)))
        .flatten()
}

// === impl Closer ===

impl Closer {
    pub(crate) fn new() -> Self {
        let sockets = TaggedSockets::open().inspect_err(|error| {
            envoy_log_warn!(
                "stale_guard: this process's descriptors cannot be searched ({error}); fenced connections stay open \
                 until Envoy's idle timeout"
            );
        });
        Self { plan: Plan::new(Settings::default()), sockets: sockets.ok(), total: Searched::default(), warned: false }
    }

    /// Takes in the pools that are over, and closes what carries nothing any more.
    pub(crate) fn tick(&mut self, endpoints: &Endpoints, now: Instant) {
        self.plan.add(endpoints.take_ended_pools());
        let Some(mut due) = self.plan.due(now) else { return };
        if let Some(sockets) = &mut self.sockets {
            let searched = sockets.search(&mut |tag, peer| {
                let (generation, worker) = numbers(tag);
                if due.take(peer, generation, worker) { Found::ShutDown } else { Found::Leave }
            });
            if let Err(error) = searched
                && !std::mem::replace(&mut self.warned, true)
            {
                envoy_log_warn!("stale_guard: this process's descriptors could not be searched ({error})");
            }
        }
        let Searched { closed, not_found } = self.plan.searched(due, now);
        self.total.closed += closed;
        self.total.not_found += not_found;
        if closed > 0 {
            envoy_log_debug!("stale_guard: closed {closed} outer connections of past generations");
        }
    }

    /// What all searches came to.
    pub(crate) const fn total(&self) -> Searched {
        self.total
    }

    /// Pools that are over and still carry a tunnel, or were not searched for yet.
    pub(crate) fn left_behind(&self) -> usize {
        self.plan.left_behind()
    }
}

fn numbers(tag: SocketTag) -> (u64, u32) {
    let worker = tag.get() & ((1 << WORKER_BITS) - 1);
    (tag.get() >> WORKER_BITS, u32::try_from(worker).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_gives_back_what_it_was_made_of() {
        for (generation, worker) in [(0, 0), (1, 7), (987_654_321, 1_023)] {
            assert_eq!(tag(generation, worker).map(numbers), Some((generation, worker)));
        }
    }

    #[test]
    fn numbers_that_do_not_fit_have_no_tag() {
        assert_eq!(tag(1, 1 << WORKER_BITS), None);
        assert_eq!(tag(u64::MAX, 1), None);
        assert_eq!(tag(1 << 42, 1), None);
    }
}
