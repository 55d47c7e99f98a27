//! The guard of one tunnel: registered when it opens, deregistered when it is dropped.

use std::{
    collections::VecDeque,
    net::IpAddr,
    time::{Duration, Instant},
};

use super::{
    Endpoints, Generation, Presence,
    connection::{Connection, ConnectionAge, Connections},
    recent::Break,
    removal::Close,
    reset::{ResetClass, ResetEvidence},
};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, PoisonError};

/// A tunnel to an endpoint, from the moment its generation was taken until it is dropped.
///
/// Used by the worker that owns the tunnel only.
pub struct Tunnel {
    endpoints: Arc<Endpoints>,
    ip: IpAddr,
    generation: Generation,
    fresh: bool,
    opened_at: Instant,
    connection: Option<Arc<Connection>>,
    /// Its place among the endpoint's closers, if it is to be closed some time after a removal.
    closer: Option<u64>,
}

/// How a tunnel that broke was explained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed {
    /// Why it broke.
    pub class: ResetClass,
    /// The outer connection it was on, where that is known.
    pub connection: Option<ConnectionAge>,
}

/// Counts that outlive entries, and the last breaks.
#[derive(Debug, Default)]
pub(super) struct Live {
    tunnels: AtomicU64,
    connections: AtomicU64,
    /// The last number given to a closer.
    closers: AtomicU64,
    breaks: Mutex<VecDeque<(Instant, IpAddr, Option<u64>)>>,
}

// === impl Live ===

impl Live {
    /// Breaks remembered: two different ones within the window are enough for a verdict.
    const BREAKS: usize = 32;

    pub(super) fn tunnels(&self) -> u64 {
        self.tunnels.load(Ordering::Relaxed)
    }

    pub(super) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Remembers a break and gives the endpoints of the other connections that broke at the same time.
    fn broke(&self, ip: IpAddr, connection: Option<u64>, now: Instant) -> Vec<IpAddr> {
        let mut breaks = self.breaks.lock().unwrap_or_else(PoisonError::into_inner);
        breaks.retain(|(at, ..)| now.saturating_duration_since(*at) <= ResetEvidence::AT_ONCE);
        // Several tunnels of one connection break together: that is one break. Where either connection is
        // not known (a tunnel that was never answered, Envoy 1.38) they may be the same one.
        let differ = |id: Option<u64>| id.zip(connection).is_some_and(|(one, other)| one != other);
        let others = breaks.iter().filter(|(_, other, id)| *other != ip || differ(*id));
        let others = others.map(|(_, other, _)| *other).collect();
        if breaks.len() >= Self::BREAKS {
            breaks.pop_front();
        }
        breaks.push_back((now, ip, connection));
        others
    }
}

// === impl Tunnel ===

impl Tunnel {
    pub(super) fn new(
        endpoints: Arc<Endpoints>,
        ip: IpAddr,
        generation: Generation,
        fresh: bool,
        now: Instant,
    ) -> Self {
        endpoints.live.tunnels.fetch_add(1, Ordering::Relaxed);
        Self { endpoints, ip, generation, fresh, opened_at: now, connection: None, closer: None }
    }

    /// The generation that its pool key carries.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// Whether it is the first tunnel of that generation: a removal, a return, a rotation or a
    /// control-plane gap has taken effect with it.
    #[must_use]
    pub const fn is_first_of_generation(&self) -> bool {
        self.fresh
    }

    /// The endpoint.
    #[must_use]
    pub const fn ip(&self) -> IpAddr {
        self.ip
    }

    /// Time since it was opened.
    #[must_use]
    pub fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.opened_at)
    }

    /// The outer connection, once it is known.
    #[must_use]
    pub fn connection(&self, now: Instant) -> Option<ConnectionAge> {
        self.connection.as_ref().map(|connection| connection.age(now))
    }

    /// The tunnel turns out to be on outer connection `id`. Returns whether nobody saw it before.
    ///
    /// It belongs to the first connection that it was found on: Envoy never moves a tunnel.
    pub fn on_connection(&mut self, id: u64, now: Instant) -> bool {
        if self.connection.is_some() {
            return false;
        }
        let Some(mut shard) = self.endpoints.shard(self.ip) else { return false };
        let (connection, first) = match shard.entries.peek_mut(&self.ip) {
            Some(entry) => {
                entry.connections.unattributed = entry.connections.unattributed.saturating_sub(1);
                entry.connections.seen(id, self.generation, now)
            }
            // The entry was evicted: the tunnel remembers its connection alone.
            None => Connections::default().seen(id, self.generation, now),
        };
        drop(shard);
        if connection.join() {
            self.endpoints.live.connections.fetch_add(1, Ordering::Relaxed);
        }
        self.connection = Some(connection);
        first
    }

    /// Bytes came from the endpoint.
    pub fn heard(&self, now: Instant) {
        if let Some(connection) = &self.connection {
            connection.heard(now);
        }
    }

    /// How long the endpoint has been silent on the tunnel's connection.
    #[must_use]
    pub fn silent(&self, now: Instant) -> Option<Duration> {
        self.connection(now).map(|connection| connection.idle)
    }

    /// Has `close` called, on the main thread, once the endpoint has been gone for `after` and the
    /// tunnel is still open.
    pub fn close_after_removal(&mut self, after: Duration, close: Close) {
        let Some(mut shard) = self.endpoints.shard(self.ip) else { return };
        let Some(entry) = shard.entries.peek_mut(&self.ip) else { return };
        let number = self.endpoints.live.closers.fetch_add(1, Ordering::Relaxed) + 1;
        entry.closers.add(number, after, close);
        // The worker that opens the tunnel may not have applied the removal yet.
        let deadline = entry.gone_since().map(|removed_at| removed_at + after);
        drop(shard);
        self.closer = Some(number);
        self.endpoints.removals.plan(self.ip, deadline);
    }

    /// Whether its endpoint is listed nowhere any more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.endpoints
            .shard(self.ip)
            .and_then(|shard| shard.entries.peek(&self.ip).map(super::Entry::presence))
            .is_some_and(|presence| presence == Presence::Gone)
    }

    /// The tunnel broke: explains why, remembers it as the endpoint's last reset, and closes it.
    ///
    /// `evidence` holds what the caller saw; what the registry knows is filled in here.
    #[must_use]
    pub fn broke(self, mut evidence: ResetEvidence, now: Instant) -> Closed {
        let id = self.connection.as_ref().map(|connection| connection.id);
        let live = &self.endpoints.live;
        evidence.reused = self.connection.as_ref().is_some_and(|connection| connection.born < self.opened_at);
        let others = if evidence.is_connection() { live.broke(self.ip, id, now) } else { Vec::new() };
        evidence.others_at_once = others.len();
        let mut shard = self.endpoints.shard(self.ip);
        let entry = shard.as_mut().and_then(|shard| shard.entries.peek_mut(&self.ip));
        let connection = self.connection(now);
        if let Some(entry) = &entry {
            // Without an id (Envoy 1.38) the connection is at least as old as the tunnel.
            let born = self.connection.as_ref().map_or(self.opened_at, |connection| connection.born);
            let older = entry.removed_at().is_some_and(|removed_at| born <= removed_at);
            evidence.older_than_removal = (older || self.connection.is_some()).then_some(older);
        }
        let class = evidence.classify();
        let closed = Closed { class, connection };
        if evidence.waited.is_some() || !evidence.established {
            Break { at: now, ip: self.ip, closed }.note();
        }
        if let Some(entry) = entry {
            entry.last_reset = Some((closed, now));
        }
        drop(shard);
        if class == ResetClass::PeerRestart {
            // The first of them was told alone.
            others.into_iter().for_each(|ip| self.endpoints.joined(ip, now));
        }
        closed
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        let live = &self.endpoints.live;
        live.tunnels.fetch_sub(1, Ordering::Relaxed);
        if self.connection.as_ref().is_some_and(|connection| connection.leave()) {
            live.connections.fetch_sub(1, Ordering::Relaxed);
        }
        if self.connection.is_some() && self.closer.is_none() {
            return;
        }
        // What closes it holds a scheduler of Envoy's, so it goes after the lock.
        let mut closer = None;
        let mut shard = self.endpoints.shard(self.ip);
        if let Some(entry) = shard.as_mut().and_then(|shard| shard.entries.peek_mut(&self.ip)) {
            if self.connection.is_none() {
                entry.connections.unattributed = entry.connections.unattributed.saturating_sub(1);
            }
            closer = self.closer.and_then(|number| entry.closers.remove(number));
        }
        drop(shard);
        drop(closer);
    }
}
