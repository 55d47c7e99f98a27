//! What a worker keeps: one budget per policy, and when it last warned.
//!
//! Budgets are keyed by the identity of a loaded policy, not by its content: a filter and a route that
//! say the same have a budget each. Those of policies that are gone are dropped when a new one comes.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::{budget::Budget, policy::Policy};

/// How often a worker warns of an exhausted budget, at most.
pub const WARN_EVERY: Duration = Duration::from_secs(10);

/// A policy that is in force somewhere: a filter's, or a route's.
#[derive(Debug)]
pub struct Loaded {
    /// The policy.
    pub policy: Policy,
    id: u64,
}

thread_local! {
    static BUDGETS: RefCell<HashMap<u64, (Weak<Loaded>, Budget)>> = RefCell::new(HashMap::new());
    static WARNED: Cell<Option<Duration>> = const { Cell::new(None) };
    static REFUSED: Cell<u64> = const { Cell::new(0) };
}

// === impl Loaded ===

impl Loaded {
    /// Puts a policy in force.
    #[must_use]
    pub fn new(policy: Policy) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self { policy, id: NEXT.fetch_add(1, Ordering::Relaxed) })
    }

    /// Works on this worker's budget for the policy. `work` must not call into Envoy.
    pub fn budget<T>(self: &Arc<Self>, now: Duration, work: impl FnOnce(&mut Budget) -> T) -> T {
        BUDGETS.with_borrow_mut(|budgets| {
            if !budgets.contains_key(&self.id) {
                budgets.retain(|_, (policy, _)| policy.strong_count() > 0);
            }
            let entry =
                budgets.entry(self.id).or_insert_with(|| (Arc::downgrade(self), Budget::new(&self.policy.budget, now)));
            work(&mut entry.1)
        })
    }
}

/// Time since the first use of this clock, which never runs backwards.
#[must_use]
pub fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

/// Notes that a budget refused a request; `Some(n)` when it is time to warn, of `n` refusals since the
/// last warning.
#[must_use]
pub fn refused(now: Duration) -> Option<u64> {
    REFUSED.set(REFUSED.get().saturating_add(1));
    if WARNED.get().is_some_and(|last| now.saturating_sub(last) < WARN_EVERY) {
        return None;
    }
    WARNED.set(Some(now));
    Some(REFUSED.replace(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded() -> Arc<Loaded> {
        Loaded::new(Policy::parse(b"{}").expect("{} is valid"))
    }

    #[test]
    fn budgets_of_policies_that_are_gone_are_dropped() {
        let first = loaded();
        first.budget(Duration::ZERO, |_| ());
        drop(first);
        let second = loaded();
        second.budget(Duration::ZERO, |_| ());
        assert_eq!(BUDGETS.with_borrow(HashMap::len), 1, "a configuration that is gone must free its budget");
    }

    #[test]
    fn each_policy_has_a_budget_of_its_own() {
        let (first, second) = (loaded(), loaded());
        first.budget(Duration::ZERO, Budget::grant);
        assert_eq!(first.budget(Duration::ZERO, |budget| budget.held()), 1);
        assert_eq!(second.budget(Duration::ZERO, |budget| budget.held()), 0);
    }

    #[test]
    fn a_worker_warns_once_and_then_says_how_much_it_kept_quiet_about() {
        let at = Duration::from_secs;
        assert_eq!(refused(at(1)), Some(1));
        assert_eq!([refused(at(2)), refused(at(10))], [None, None]);
        assert_eq!(refused(at(11)), Some(3));
    }
}
