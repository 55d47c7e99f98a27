//! The guard of one tunnel: registered when it opens, deregistered when it is dropped.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use super::{
    Endpoints, Generation,
    breaks::Break,
    close_deadlines::{Close, CloseAfter},
    connection::{Connection, ConnectionAge, Connections, Unattributed},
    pools::Member,
    reset::{Reset, ResetEvidence},
};
use crate::sync::{Arc, AtomicU64, Ordering};

/// A tunnel to an endpoint, from the moment its generation was taken until it is dropped.
///
/// Used on the tunnel's worker. Envoy may drop a filter, and the guard with it, on another thread: on the one
/// that commits an event to it.
pub struct Tunnel {
    endpoints: Arc<Endpoints>,
    ip: IpAddr,
    generation: Generation,
    fresh: bool,
    opened_at: Instant,
    place: Place,
    /// Its place in its connection pool, if that is to be closed once it is over.
    #[expect(dead_code, reason = "held for its drop")]
    member: Option<Member>,
    /// Its number among the endpoint's tunnels that are to be closed some time after a removal.
    closer: Option<u64>,
}

/// Where the tunnel is counted.
enum Place {
    /// Its connection is not known.
    Unattributed(#[expect(dead_code, reason = "held for its drop")] Unattributed),
    On(Arc<Connection>),
}

/// Counts that outlive entries.
#[derive(Debug, Default)]
pub(super) struct Live {
    tunnels: AtomicU64,
    connections: AtomicU64,
    /// Tunnels that are to be closed after a removal.
    closers: AtomicU64,
    /// The last number given to one of them.
    closer: AtomicU64,
}

// === impl Live ===

impl Live {
    pub(super) fn tunnels(&self) -> u64 {
        self.tunnels.load(Ordering::Relaxed)
    }

    pub(super) fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    pub(super) fn closers(&self) -> u64 {
        self.closers.load(Ordering::Relaxed)
    }
}

// === impl Tunnel ===

impl Tunnel {
    pub(super) fn new(
        endpoints: Arc<Endpoints>,
        ip: IpAddr,
        (generation, fresh): (Generation, bool),
        place: Unattributed,
        member: Option<Member>,
        now: Instant,
    ) -> Self {
        endpoints.live.tunnels.fetch_add(1, Ordering::Relaxed);
        Self {
            endpoints,
            ip,
            generation,
            fresh,
            opened_at: now,
            place: Place::Unattributed(place),
            member,
            closer: None,
        }
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
        self.known().map(|connection| connection.age(now))
    }

    /// Whether the outer connection is known.
    #[must_use]
    pub const fn is_attributed(&self) -> bool {
        self.known().is_some()
    }

    /// The tunnel turns out to be on outer connection `id`. Returns whether nobody saw it before.
    ///
    /// It belongs to the first connection that it was found on: Envoy never moves a tunnel.
    pub fn on_connection(&mut self, id: u64, now: Instant) -> bool {
        if self.is_attributed() {
            return false;
        }
        let mut shard = self.endpoints.shard(self.ip);
        let (connection, first) = match shard.entries.peek_mut(&self.ip) {
            Some(entry) => entry.connections.seen(id, self.generation, now),
            // The entry was evicted: the tunnel remembers its connection alone.
            None => Connections::default().seen(id, self.generation, now),
        };
        drop(shard);
        if connection.join() {
            self.endpoints.live.connections.fetch_add(1, Ordering::Relaxed);
        }
        self.place = Place::On(connection);
        first
    }

    /// Bytes came from the endpoint.
    pub fn heard(&self, now: Instant) {
        if let Some(connection) = self.known() {
            connection.heard(now);
        }
    }

    /// How long the endpoint has been silent on the tunnel's connection.
    #[must_use]
    pub fn silent(&self, now: Instant) -> Option<Duration> {
        self.connection(now).map(|connection| connection.idle)
    }

    /// Has `close` called, on the main thread, once the endpoint has been gone, and the tunnel open, for so long.
    pub fn close_after_removal(&mut self, after: CloseAfter, close: Close) {
        let live = &self.endpoints.live;
        let number = live.closer.fetch_add(1, Ordering::Relaxed) + 1;
        live.closers.fetch_add(1, Ordering::Relaxed);
        let mut shard = self.endpoints.shard(self.ip);
        // The worker that opens the tunnel may not have applied the removal yet.
        let gone_since = shard.entries.peek(&self.ip).and_then(super::Entry::gone_since);
        shard.closing.add((self.ip, number), self.opened_at, gone_since, after, close);
        drop(shard);
        self.closer = Some(number);
    }

    /// Whether it is to be closed now: its endpoint is still gone, and has been for long enough.
    #[must_use]
    pub fn is_due(&self, now: Instant) -> bool {
        self.closer.is_some_and(|number| self.endpoints.shard(self.ip).closing.is_due(self.ip, number, now))
    }

    /// The tunnel ended on `worker`, and not by its client's wish: explains it, and remembers it for the worker's
    /// requests and for the endpoint.
    #[must_use]
    pub fn ended(&self, evidence: &ResetEvidence, worker: u32, now: Instant) -> Reset {
        // Without an id (Envoy 1.38) the tunnel's own generation stands for its connection's.
        let generation = self.known().map_or(self.generation, |connection| connection.generation);
        let left = {
            let shard = self.endpoints.shard(self.ip);
            shard.entries.peek(&self.ip).is_some_and(|entry| entry.has_left(generation))
        };
        let reset = Reset {
            class: evidence.classify(left),
            connection_age: self.connection(now).map(|connection| connection.age),
            idle: evidence.idle,
            waited: evidence.waited,
            others_at_once: 0,
        };
        let id = self.known().map(|connection| connection.id);
        let reset = self.endpoints.breaks.note(Break::new((self.ip, worker), evidence, reset, id, now));
        if evidence.is_reset()
            && let Some(entry) = self.endpoints.shard(self.ip).entries.peek_mut(&self.ip)
        {
            entry.last_reset = Some((reset, now));
        }
        reset
    }

    const fn known(&self) -> Option<&Arc<Connection>> {
        match &self.place {
            Place::Unattributed(_) => None,
            Place::On(connection) => Some(connection),
        }
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        let live = &self.endpoints.live;
        live.tunnels.fetch_sub(1, Ordering::Relaxed);
        if self.known().is_some_and(|connection| connection.leave()) {
            live.connections.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(number) = self.closer {
            live.closers.fetch_sub(1, Ordering::Relaxed);
            let closer = self.endpoints.shard(self.ip).closing.remove(self.ip, number);
            // It holds a scheduler of Envoy's, so it goes after the lock.
            drop(closer);
        }
    }
}
