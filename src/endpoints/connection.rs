//! Outer connections of one endpoint: when each was born, what it carries, when it was last heard.

use std::time::{Duration, Instant};

use super::Generation;
use crate::sync::{Arc, AtomicU32, AtomicU64, Ordering};

/// An outer connection, at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionAge {
    /// Envoy's id of the connection, unique in the process.
    pub id: u64,
    /// The generation of the tunnel that it was first seen under.
    pub generation: u64,
    /// Time since it was first seen, which is when its first tunnel was established.
    pub age: Duration,
    /// Time since the last bytes from the endpoint.
    pub idle: Duration,
    /// Tunnels that it carries.
    pub tunnels: u32,
    /// Tunnels that it has carried.
    pub tunnels_total: u32,
}

/// One outer connection, shared by its tunnels.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) generation: Generation,
    pub(super) born: Instant,
    /// Milliseconds after `born`.
    heard: AtomicU64,
    open: AtomicU32,
    total: AtomicU32,
}

/// The connections of one endpoint that are known, oldest first.
#[derive(Debug, Default)]
pub(super) struct Connections {
    known: Vec<Arc<Connection>>,
    /// Open tunnels whose connection is not known: not established yet, or Envoy 1.38. Each of them holds it, so
    /// that one that outlives its entry counts nowhere else.
    unattributed: Arc<AtomicU32>,
}

/// An open tunnel whose connection is not known, for as long as it is so.
#[derive(Debug)]
pub(super) struct Unattributed(Arc<AtomicU32>);

// === impl Unattributed ===

impl Drop for Unattributed {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Connection ===

impl Connection {
    pub(super) fn heard(&self, now: Instant) {
        let millis = u64::try_from(now.saturating_duration_since(self.born).as_millis()).unwrap_or(u64::MAX);
        self.heard.fetch_max(millis, Ordering::Relaxed);
    }

    /// Whether it now carries its first tunnel at present.
    pub(super) fn join(&self) -> bool {
        self.total.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Whether it now carries no tunnel any more.
    pub(super) fn leave(&self) -> bool {
        self.open.fetch_sub(1, Ordering::Relaxed) == 1
    }

    pub(super) fn age(&self, now: Instant) -> ConnectionAge {
        let age = now.saturating_duration_since(self.born);
        ConnectionAge {
            id: self.id,
            generation: self.generation.get(),
            age,
            idle: age.saturating_sub(Duration::from_millis(self.heard.load(Ordering::Relaxed))),
            tunnels: self.open.load(Ordering::Relaxed),
            tunnels_total: self.total.load(Ordering::Relaxed),
        }
    }
}

// === impl Connections ===

impl Connections {
    /// Connections kept per endpoint: more than one per worker and generation is rare. The oldest idle
    /// one is forgotten first, and a forgotten one that lives on is merely seen as younger.
    const MAX: usize = 64;

    /// A connection without tunnels for this long has met the idle timeout that Istio gives the outer
    /// connection by default (`hboneIdleTimeout`, 1 h).
    const IDLE: Duration = Duration::from_secs(3_600);

    /// The connection `id`, and whether this is its first sight.
    pub(super) fn seen(&mut self, id: u64, generation: Generation, now: Instant) -> (Arc<Connection>, bool) {
        if let Some(known) = self.known.iter().find(|known| known.id == id) {
            return (Arc::clone(known), false);
        }
        // The module is not told when a connection closes; one that no tunnel can join again is dropped.
        self.known.retain(|known| {
            known.open.load(Ordering::Relaxed) > 0
                || (known.generation >= generation && known.age(now).idle < Self::IDLE)
        });
        if self.known.len() >= Self::MAX {
            let idle = self.known.iter().position(|known| known.open.load(Ordering::Relaxed) == 0);
            self.known.remove(idle.unwrap_or(0));
        }
        let born = Arc::new(Connection {
            id,
            generation,
            born: now,
            heard: AtomicU64::new(0),
            open: AtomicU32::new(0),
            total: AtomicU32::new(0),
        });
        self.known.push(Arc::clone(&born));
        (born, true)
    }

    /// A tunnel whose connection is not known yet.
    pub(super) fn begin(&self) -> Unattributed {
        self.unattributed.fetch_add(1, Ordering::Relaxed);
        Unattributed(Arc::clone(&self.unattributed))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    pub(super) fn tunnels(&self) -> usize {
        let attributed: u32 = self.known.iter().map(|known| known.open.load(Ordering::Relaxed)).sum();
        (self.unattributed.load(Ordering::Relaxed) + attributed) as usize
    }

    pub(super) fn ages(&self, now: Instant) -> Vec<ConnectionAge> {
        self.known.iter().map(|known| known.age(now)).collect()
    }
}
