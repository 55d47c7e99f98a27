//! Tunnels that are to be closed some time after the removal of their endpoint.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    net::IpAddr,
    time::{Duration, Instant},
};

use crate::sync::{Arc, Mutex, PoisonError};

/// Closes one tunnel, on its own worker; called on the main thread, and again if that was for nothing.
pub type Close = Arc<dyn Fn() + Send + Sync>;

/// The tunnels of one endpoint that are to be closed, by a number that is never used twice.
#[derive(Default)]
pub(super) struct Closers(BTreeMap<u64, (Duration, Close)>);

/// When to look after which endpoint: the earliest deadline of each, no more than one.
#[derive(Debug, Default)]
pub(super) struct Removals(Mutex<Expected>);

#[derive(Debug, Default)]
struct Expected {
    by_time: BTreeSet<(Instant, IpAddr)>,
    by_endpoint: HashMap<IpAddr, Instant>,
}

// === impl Closers ===

impl Closers {
    pub(super) fn add(&mut self, number: u64, after: Duration, close: Close) {
        self.0.insert(number, (after, close));
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Close> {
        self.0.remove(&number).map(|(_, close)| close)
    }

    /// The first moment at which a tunnel is due if the endpoint was removed at `removed_at`.
    pub(super) fn first(&self, removed_at: Instant) -> Option<Instant> {
        self.0.values().map(|(after, _)| removed_at + *after).min()
    }

    /// The first such moment after `now`.
    pub(super) fn next(&self, removed_at: Instant, now: Instant) -> Option<Instant> {
        self.0.values().map(|(after, _)| removed_at + *after).filter(|deadline| *deadline > now).min()
    }

    /// What is due of an endpoint that was removed at `removed_at`. A closer stays until its tunnel is
    /// over: an endpoint that comes back and leaves again before the tunnel's worker acts needs it anew.
    pub(super) fn due(&self, removed_at: Instant, now: Instant) -> Vec<Close> {
        let due = self.0.values().filter(|(after, _)| removed_at + *after <= now);
        due.map(|(_, close)| Arc::clone(close)).collect()
    }
}

impl fmt::Debug for Closers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Closers({})", self.0.len())
    }
}

// === impl Removals ===

impl Removals {
    /// Notes that the endpoint is to be looked after at `deadline`, if not sooner.
    pub(super) fn plan(&self, ip: IpAddr, deadline: Option<Instant>) {
        let Some(deadline) = deadline else { return };
        self.with(|expected| {
            match expected.by_endpoint.insert(ip, deadline) {
                Some(sooner) if sooner <= deadline => {
                    expected.by_endpoint.insert(ip, sooner);
                    return;
                }
                Some(later) => {
                    expected.by_time.remove(&(later, ip));
                }
                None => {}
            }
            expected.by_time.insert((deadline, ip));
        });
    }

    /// Takes out the endpoints whose deadline is over.
    pub(super) fn due(&self, now: Instant) -> Vec<IpAddr> {
        self.with(|expected| {
            let mut due = Vec::new();
            while let Some((deadline, ip)) = expected.by_time.first().copied().filter(|(deadline, _)| *deadline <= now)
            {
                expected.by_time.remove(&(deadline, ip));
                expected.by_endpoint.remove(&ip);
                due.push(ip);
            }
            due
        })
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.with(|expected| expected.by_time.first().map(|(deadline, _)| *deadline))
    }

    fn with<R>(&self, act: impl FnOnce(&mut Expected) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
