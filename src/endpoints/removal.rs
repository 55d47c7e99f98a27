//! Tunnels that are to be closed some time after the removal of their endpoint.

use std::{
    collections::BTreeMap,
    fmt,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Closes one tunnel, on its own worker; called on the main thread.
pub type Close = Arc<dyn Fn() + Send + Sync>;

/// The tunnels of one endpoint that are to be closed, by a number that is never used twice.
#[derive(Default)]
pub(super) struct Closers(BTreeMap<u64, (Duration, Close)>);

/// When to look after which endpoint. A deadline whose endpoint came back is found empty then.
#[derive(Debug, Default)]
pub(super) struct Removals(Mutex<BTreeMap<Instant, Vec<IpAddr>>>);

// === impl Closers ===

impl Closers {
    pub(super) fn add(&mut self, after: Duration, close: Close) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.0.insert(number, (after, close));
        number
    }

    pub(super) fn remove(&mut self, number: u64) {
        self.0.remove(&number);
    }

    /// The moments at which tunnels are due if the endpoint is removed now.
    pub(super) fn deadlines(&self, now: Instant) -> Vec<Instant> {
        let mut deadlines: Vec<_> = self.0.values().map(|(after, _)| now + *after).collect();
        deadlines.sort_unstable();
        deadlines.dedup();
        deadlines
    }

    /// Takes out what is due of an endpoint that was removed at `removed_at`.
    pub(super) fn due(&mut self, removed_at: Instant, now: Instant) -> Vec<Close> {
        self.0.extract_if(.., |_, (after, _)| removed_at + *after <= now).map(|(_, (_, close))| close).collect()
    }
}

impl fmt::Debug for Closers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Closers({})", self.0.len())
    }
}

// === impl Removals ===

impl Removals {
    pub(super) fn expect(&self, ip: IpAddr, deadlines: Vec<Instant>) {
        if deadlines.is_empty() {
            return;
        }
        let mut expected = self.locked();
        for deadline in deadlines {
            expected.entry(deadline).or_default().push(ip);
        }
    }

    pub(super) fn due(&self, now: Instant) -> Vec<IpAddr> {
        let mut expected = self.locked();
        expected.extract_if(..=now, |_, _| true).flat_map(|(_, ips)| ips).collect()
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.locked().first_key_value().map(|(deadline, _)| *deadline)
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<Instant, Vec<IpAddr>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
