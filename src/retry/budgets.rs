//! The budgets of a worker: one per policy, and when it last warned of it.
//!
//! Budgets are keyed by the identity of a loaded policy, not by its content: a filter and a route that
//! say the same have a budget each. Those of policies that are gone are dropped when a new one comes.

use std::{
    cell::RefCell,
    collections::HashMap,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::{budget::Budget, policy::Policy};

/// How often a worker warns of one exhausted budget, at most.
pub const WARN_EVERY: Duration = Duration::from_secs(10);

/// A policy that is in force somewhere: a filter's, or a route's.
#[derive(Debug)]
pub struct Loaded {
    /// The policy.
    pub policy: Policy,
    id: u64,
}

/// A policy's account on one worker.
struct Account {
    policy: Weak<Loaded>,
    budget: Budget,
    /// When the worker last warned that it is exhausted.
    warned: Option<Duration>,
    /// Requests that it has refused since.
    refused: u64,
}

thread_local! {
    static ACCOUNTS: RefCell<HashMap<u64, Account>> = RefCell::new(HashMap::new());
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
        self.account(now, |account| work(&mut account.budget))
    }

    /// Notes that this worker's budget refused a request; `Some(n)` when it is time to warn, of `n`
    /// refusals since the last warning.
    #[must_use]
    pub fn refused(self: &Arc<Self>, now: Duration) -> Option<u64> {
        self.account(now, |account| {
            account.refused = account.refused.saturating_add(1);
            if account.warned.is_some_and(|last| now.saturating_sub(last) < WARN_EVERY) {
                return None;
            }
            account.warned = Some(now);
            Some(std::mem::take(&mut account.refused))
        })
    }

    fn account<T>(self: &Arc<Self>, now: Duration, work: impl FnOnce(&mut Account) -> T) -> T {
        ACCOUNTS.with_borrow_mut(|accounts| {
            if !accounts.contains_key(&self.id) {
                accounts.retain(|_, account| account.policy.strong_count() > 0);
            }
            work(accounts.entry(self.id).or_insert_with(|| Account {
                policy: Arc::downgrade(self),
                budget: Budget::new(&self.policy.budget, now),
                warned: None,
                refused: 0,
            }))
        })
    }
}

/// Time since the first use of this clock, which never runs backwards.
#[must_use]
pub fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
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
        assert_eq!(ACCOUNTS.with_borrow(HashMap::len), 1, "a configuration that is gone must free its budget");
    }

    #[test]
    fn each_policy_has_a_budget_of_its_own() {
        let (first, second) = (loaded(), loaded());
        let _ = first.budget(Duration::ZERO, |budget| budget.grant(Duration::ZERO));
        assert_eq!(first.budget(Duration::ZERO, |budget| budget.held()), 1);
        assert_eq!(second.budget(Duration::ZERO, |budget| budget.held()), 0);
    }

    #[test]
    fn a_worker_warns_once_of_a_budget_and_then_says_how_much_it_kept_quiet_about() {
        let (at, first, second) = (Duration::from_secs, loaded(), loaded());
        assert_eq!(first.refused(at(1)), Some(1));
        assert_eq!([first.refused(at(2)), first.refused(at(10))], [None, None]);
        assert_eq!(second.refused(at(10)), Some(1), "another budget has its own warning");
        assert_eq!(first.refused(at(11)), Some(3));
    }
}
