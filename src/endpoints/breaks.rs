//! Tunnels that ended badly a moment ago, by worker.
//!
//! A request that fails, or that is answered after a retry, asks for the tunnel that broke under it. Both
//! live on one worker: the connections of an internal listener belong to the worker of the request that uses
//! them, and Envoy tells the tunnel's filter of its end before it tells the request's.

use std::{
    collections::VecDeque,
    net::IpAddr,
    time::{Duration, Instant},
};

use super::{
    Reset,
    reset::{End, ResetClass, ResetEvidence},
};
use crate::sync::{Mutex, MutexGuard, PoisonError};

/// A tunnel that ended badly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Break {
    /// When.
    pub at: Instant,
    /// The endpoint.
    pub ip: IpAddr,
    /// Why.
    pub reset: Reset,
    /// The worker.
    worker: u32,
    /// Bytes, or a CONNECT, had no answer: a request may have been harmed.
    asked: bool,
    /// The outer connection that broke; none if the connection is not known to have broken.
    connection: Option<Connection>,
}

/// A connection that broke, as far as it is known which it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Connection {
    ip: IpAddr,
    /// None before Envoy 1.39.
    id: Option<u64>,
}

/// The last breaks of every worker. A worker takes its own lock only, and only when a tunnel ends badly or
/// a request asks.
pub(super) struct Breaks(Box<[Mutex<VecDeque<Break>>]>);

// === impl Break ===

impl Break {
    pub(super) fn new(
        (ip, worker): (IpAddr, u32),
        evidence: &ResetEvidence,
        reset: Reset,
        id: Option<u64>,
        at: Instant,
    ) -> Self {
        let refused = matches!(evidence.end, End::Refused(_));
        let broke = evidence.end == End::Broken || (refused && id.is_some());
        let connection = broke.then_some(Connection { ip, id });
        Self { at, ip, reset, worker, asked: refused || evidence.waited.is_some(), connection }
    }
}

// === impl Connection ===

impl Connection {
    /// Whether the two are certainly not the same.
    fn differs(self, other: Self) -> bool {
        self.ip != other.ip || self.id.zip(other.id).is_some_and(|(one, other)| one != other)
    }
}

// === impl Breaks ===

impl Breaks {
    /// Workers beyond it share a list; each still sees its own breaks only.
    const LISTS: usize = 64;
    /// Breaks that a list remembers, and for how long: a retry follows within Envoy's back-off (25 ms, at most
    /// 250 ms by default), and what is forgotten is merely left unexplained.
    const MAX: usize = 64;
    const KEPT: Duration = Duration::from_secs(60);

    pub(super) fn new() -> Self {
        Self((0..Self::LISTS).map(|_| Mutex::default()).collect())
    }

    /// Remembers a break, with the number of other connections of its worker that broke at the same time.
    pub(super) fn note(&self, mut one: Break) -> Reset {
        let mut breaks = self.of(one.worker);
        breaks.retain(|known| one.at.saturating_duration_since(known.at) <= Self::KEPT);
        if let Some(connection) = one.connection {
            let mut others: Vec<Connection> = Vec::new();
            let at_once = |known: &&Break| one.at.saturating_duration_since(known.at) <= ResetEvidence::AT_ONCE;
            for known in breaks.iter().filter(at_once).filter(|known| known.worker == one.worker) {
                // Several tunnels of one connection break together: that is one break.
                let new = |other: &Connection| {
                    connection.differs(*other) && others.iter().all(|counted| counted.differs(*other))
                };
                others.extend(known.connection.filter(new));
            }
            one.reset.others_at_once = others.len();
        }
        if breaks.len() >= Self::MAX {
            breaks.pop_front();
        }
        breaks.push_back(one);
        one.reset
    }

    /// The last break of `ip` on `worker` that is no older than `within`.
    pub(super) fn last(&self, ip: IpAddr, worker: u32, within: Duration, now: Instant) -> Option<Break> {
        let breaks = self.of(worker);
        let mut own = breaks.iter().rev().filter(|one| one.worker == worker && one.ip == ip);
        own.next().filter(|one| now.saturating_duration_since(one.at) <= within).copied()
    }

    /// The last break on `worker` since `start` that may have harmed a request, if all of them have one class.
    ///
    /// Other requests' breaks may be among them; where they differ in class, none is named.
    pub(super) fn since(&self, start: Instant, worker: u32) -> Option<Break> {
        let breaks = self.of(worker);
        let mut since = breaks.iter().rev().filter(|one| one.worker == worker && one.at >= start && one.asked);
        let last = *since.next()?;
        let class: ResetClass = last.reset.class;
        since.all(|one| one.reset.class == class).then_some(last)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|list| list.lock().unwrap_or_else(PoisonError::into_inner).len()).sum()
    }

    fn of(&self, worker: u32) -> MutexGuard<'_, VecDeque<Break>> {
        #[expect(clippy::indexing_slicing, reason = "there are LISTS lists")]
        let list = &self.0[worker as usize % Self::LISTS];
        list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
