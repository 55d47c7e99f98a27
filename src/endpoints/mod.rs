//! The heart: what is known of each endpoint, and which generation its next tunnel belongs to.
//!
//! An endpoint is a pod's IP address. Its *generation* is part of the key of Envoy's connection pool
//! for the outer connections to it, so a new generation means a new pool, hence a new connection.
//!
//! # Invariants
//! - ALWAYS: a tunnel opened after [`Endpoints::removed`] returned shares no generation with one
//!   opened before the call; the same holds for the [`Endpoints::added`] that follows a removal.
//! - ALWAYS: generations come from one counter of the process; once an endpoint has moved on from a
//!   generation it never gets that value again, not even after its entry was evicted.
//! - ALWAYS: memory is bounded by the capacity; an entry's lists have bounds of their own.
//! - NEVER: a call into Envoy, a clock, or a lock held for longer than one entry's change.
//!
//! # Eviction
//! Each shard has a *floor*: the generation of every endpoint it does not know. Evicting an entry
//! whose generation has passed the floor raises the floor to a value that no endpoint ever had, so
//! that forgetting an endpoint fences it (and, rarely, others of that shard: the price is one
//! handshake each). An entry that is no further than the floor is forgotten without a trace.
//!
//! # The benign race
//! A worker may read a generation just before a removal is observed and open its connection just
//! after. That tunnel was *opened* before the removal; its pool carries the old generation, which no
//! later tunnel gets.

mod breaks;
mod close_deadlines;
mod connection;
mod entry;
mod pools;
mod reset;
mod tunnel;

use std::{
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash},
    net::IpAddr,
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use lru::LruCache;

use crate::sync::{Arc, AtomicU64, Mutex, MutexGuard, Ordering, PoisonError};

use self::entry::Entry;
pub use self::{
    breaks::Break,
    close_deadlines::{Close, CloseAfter},
    connection::ConnectionAge,
    entry::{EndpointView, Presence},
    pools::Pool,
    reset::{End, Refusal, Reset, ResetClass, ResetEvidence},
    tunnel::Tunnel,
};

/// Entries kept by default; the `capacity` of the `status` extension changes it.
pub const DEFAULT_CAPACITY: usize = 65_536;

/// Locks that the registry is spread over. Workers meet only when they open tunnels to endpoints of
/// one shard in the same instant.
pub(crate) const SHARDS: usize = 64;

type Hasher = BuildHasherDefault<DefaultHasher>;

/// The name of a cluster, as a number: one listing of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cluster(u64);

/// A value of the pool key. Larger is newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Generation(u64);

/// When new tunnels leave a connection that has become old.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotation {
    /// The greatest age at which a generation still gets new tunnels.
    pub max_age: Duration,
    /// The share of `max_age`, 0 to 1, over which endpoints are spread, so that they do not renew
    /// their connections all at once.
    pub jitter: f64,
}

/// Every endpoint that is known, shared by all threads.
pub struct Endpoints {
    shards: Box<[Mutex<Shard>]>,
    counter: AtomicU64,
    live: tunnel::Live,
    breaks: breaks::Breaks,
    /// Pools that are over, until the main thread takes them.
    ended: Mutex<Vec<Arc<Pool>>>,
}

struct Shard {
    entries: LruCache<IpAddr, Entry, Hasher>,
    /// The pools that new tunnels may join.
    pools: pools::Pools,
    /// Tunnels that are to be closed after a removal.
    closing: close_deadlines::CloseDeadlines,
    /// The generation of endpoints without an entry.
    floor: Generation,
    /// Entries below it are fenced, whatever they say themselves.
    suspect_below: Generation,
    /// Whether an endpoint without an entry may have had one.
    forgetful: bool,
}

/// Counts over all endpoints, for gauges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Endpoints with an entry.
    pub endpoints: usize,
    /// Tunnels open now.
    pub tunnels: u64,
    /// Outer connections that carry at least one tunnel now.
    pub connections: u64,
}

/// What the registry keeps beside its entries.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Kept {
    pub(crate) connections: usize,
    pub(crate) closing: usize,
    pub(crate) breaks: usize,
}

// === impl Cluster ===

impl Cluster {
    /// The cluster, or EDS resource, of this name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self(Hasher::default().hash_one(name))
    }
}

// === impl Generation ===

impl Generation {
    /// The number that goes into the pool key.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

// === impl Endpoints ===

impl Endpoints {
    /// A registry for about `capacity` endpoints.
    #[must_use]
    pub fn new(capacity: usize) -> Arc<Self> {
        let per_shard = per_shard(capacity);
        Arc::new(Self {
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::new(per_shard))).collect(),
            counter: AtomicU64::new(0),
            live: tunnel::Live::default(),
            breaks: breaks::Breaks::new(),
            ended: Mutex::new(Vec::new()),
        })
    }

    /// Changes the capacity; entries beyond it are evicted.
    pub fn set_capacity(&self, capacity: usize) {
        let per_shard = per_shard(capacity);
        for mut shard in self.each_shard() {
            let mut ended = Vec::new();
            while shard.entries.len() > per_shard.get() {
                ended.extend(shard.evict(&self.counter));
            }
            shard.entries.resize(per_shard);
            drop(shard);
            self.leave_behind(ended);
        }
    }

    /// `cluster` lists `ip` now and did not before.
    pub fn added(&self, ip: IpAddr, cluster: Cluster) {
        let mut shard = self.shard(ip);
        shard.closing.set_gone(ip, None);
        // An endpoint that is unknown, in a shard that never forgot one, has had no tunnel: nothing to fence.
        if shard.forgetful || shard.entries.contains(&ip) {
            let mut ended = shard.make_room(ip, &self.counter);
            shard.entry(ip).added(cluster);
            ended.extend(shard.end_fenced(ip));
            drop(shard);
            self.leave_behind(ended);
        }
    }

    /// `cluster` listed `ip` before and does not now; `still_listed` says whether another one does.
    pub fn removed(&self, ip: IpAddr, cluster: Cluster, still_listed: bool, now: Instant) {
        let mut shard = self.shard(ip);
        let mut ended = shard.make_room(ip, &self.counter);
        shard.entry(ip).removed(cluster, still_listed, now);
        shard.closing.set_gone(ip, (!still_listed).then_some(now));
        ended.extend(shard.end_fenced(ip));
        drop(shard);
        self.leave_behind(ended);
    }

    /// Closes the tunnels of endpoints that have been gone for as long as their `fence` allows. Main thread.
    pub fn close_removed(&self, now: Instant) {
        if self.live.closers() == 0 {
            return;
        }
        for shard in &self.shards {
            let due = locked(shard).closing.due(now);
            due.iter().for_each(|close| close());
        }
    }

    /// Fences every endpoint, known or not. Lazy: only the next tunnel of each pays a handshake.
    pub fn suspect_all(&self) {
        for mut shard in self.each_shard() {
            shard.suspect_below = next(&self.counter);
            shard.floor = shard.suspect_below;
            let pools = std::mem::take(&mut shard.pools);
            drop(shard);
            self.leave_behind(pools.end_all());
        }
    }

    /// A tunnel to `ip` opens now: the generation it belongs to, and the guard that closes it.
    #[must_use]
    pub fn open(self: &Arc<Self>, ip: IpAddr, rotation: Option<Rotation>, now: Instant) -> Tunnel {
        self.open_in(None, ip, rotation, now)
    }

    /// The same for a tunnel on `worker` (Envoy's index) whose outer connection is to be closed once its
    /// generation is over and carries nothing more: see [`Endpoints::take_ended_pools`].
    #[must_use]
    pub fn open_pooled(self: &Arc<Self>, worker: u32, ip: IpAddr, rotation: Option<Rotation>, now: Instant) -> Tunnel {
        self.open_in(Some(worker), ip, rotation, now)
    }

    fn open_in(self: &Arc<Self>, pool_on: Option<u32>, ip: IpAddr, rotation: Option<Rotation>, now: Instant) -> Tunnel {
        let mut shard = self.shard(ip);
        let mut ended = shard.make_room(ip, &self.counter);
        let suspect_below = shard.suspect_below;
        let (generation, fresh, place) = shard.entry(ip).open(ip, suspect_below, rotation, &self.counter, now);
        if fresh {
            ended.extend(shard.pools.end(ip));
        }
        let member = pool_on.map(|worker| shard.pools.join(ip, generation, worker));
        drop(shard);
        self.leave_behind(ended);
        Tunnel::new(Arc::clone(self), ip, (generation, fresh), place, member, now)
    }

    /// Pools that no tunnel can join any more, each once. Main thread.
    #[must_use]
    pub fn take_ended_pools(&self) -> Vec<Arc<Pool>> {
        std::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What is known of `ip`.
    #[must_use]
    pub fn view(&self, ip: IpAddr, now: Instant) -> Option<EndpointView> {
        self.shard(ip).entries.peek(&ip).map(|entry| entry.view(ip, now))
    }

    /// The last tunnel to `ip` that ended badly on `worker`, if that was no longer ago than `within`. For a
    /// request of that worker whose connection has just broken.
    #[must_use]
    pub fn last_break(&self, ip: IpAddr, worker: u32, within: Duration, now: Instant) -> Option<Break> {
        self.breaks.last(ip, worker, within, now)
    }

    /// The last tunnel under which a request may have broken on `worker` since `start`; none where several did,
    /// for different reasons. For a request of that worker that was retried and answered.
    #[must_use]
    pub fn break_since(&self, start: Instant, worker: u32) -> Option<Break> {
        self.breaks.since(start, worker)
    }

    /// What is known of every endpoint, most recently used first within a shard, at most `limit`, of
    /// each shard its share.
    #[must_use]
    pub fn views(&self, limit: usize, now: Instant) -> Vec<EndpointView> {
        let mut sizes: Vec<usize> = self.each_shard().map(|shard| shard.entries.len()).collect();
        sizes.sort_unstable();
        // Shards that have less than an equal share leave the rest of it to the others.
        let (mut room, mut share) = (limit, 0);
        for (index, size) in sizes.iter().enumerate() {
            share = share.max(room.div_ceil(sizes.len() - index));
            room = room.saturating_sub(share.min(*size));
        }
        let mut views = Vec::new();
        for shard in self.each_shard() {
            let room = share.min(limit.saturating_sub(views.len()));
            views.extend(shard.entries.iter().take(room).map(|(ip, entry)| entry.view(*ip, now)));
        }
        views
    }

    /// Counts over all endpoints.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals {
            endpoints: self.each_shard().map(|shard| shard.entries.len()).sum(),
            tunnels: self.live.tunnels(),
            connections: self.live.connections(),
        }
    }

    fn leave_behind(&self, pools: Vec<Arc<Pool>>) {
        if !pools.is_empty() {
            self.ended.lock().unwrap_or_else(PoisonError::into_inner).extend(pools);
        }
    }

    /// How much is kept, for tests of its bounds.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> Kept {
        let mut kept = Kept { breaks: self.breaks.len(), ..Kept::default() };
        for shard in self.each_shard() {
            kept.connections += shard.entries.iter().map(|(_, entry)| entry.connections.len()).sum::<usize>();
            kept.closing += shard.closing.len();
        }
        kept
    }

    fn shard(&self, ip: IpAddr) -> MutexGuard<'_, Shard> {
        // The upper half: the map inside the shard takes its buckets from the lower one.
        let index = (Hasher::default().hash_one(ip) >> 32) as usize % SHARDS;
        #[expect(clippy::indexing_slicing, reason = "there are SHARDS shards")]
        locked(&self.shards[index])
    }

    fn each_shard(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        self.shards.iter().map(locked)
    }
}

// === impl Shard ===

impl Shard {
    fn new(capacity: NonZeroUsize) -> Self {
        Self {
            // `make_room` evicts before `entry` inserts, so that no entry leaves unseen.
            entries: LruCache::with_hasher(capacity, Hasher::default()),
            pools: pools::Pools::default(),
            closing: close_deadlines::CloseDeadlines::default(),
            floor: Generation::default(),
            suspect_below: Generation::default(),
            forgetful: false,
        }
    }

    /// Makes room for an entry of `ip`, if it has none. Gives the pools that are over by that.
    #[must_use]
    fn make_room(&mut self, ip: IpAddr, counter: &AtomicU64) -> Vec<Arc<Pool>> {
        let full = !self.entries.contains(&ip) && self.entries.len() >= self.entries.cap().get();
        if full { self.evict(counter) } else { Vec::new() }
    }

    /// The pools of `ip`, if its next tunnel must get a new generation.
    #[must_use]
    fn end_fenced(&mut self, ip: IpAddr) -> Vec<Arc<Pool>> {
        if self.entries.peek(&ip).is_some_and(Entry::is_fenced) { self.pools.end(ip) } else { Vec::new() }
    }

    /// The entry of `ip`, made when it is missing, and now the most recently used.
    fn entry(&mut self, ip: IpAddr) -> &mut Entry {
        let (floor, forgetful) = (self.floor, self.forgetful);
        self.entries.get_or_insert_mut(ip, || Entry::new(floor, forgetful))
    }

    fn evict(&mut self, counter: &AtomicU64) -> Vec<Arc<Pool>> {
        let Some((ip, entry)) = self.entries.pop_lru() else { return Vec::new() };
        self.forgetful = true;
        let ended = self.pools.end(ip);
        if entry.is_past(self.floor) || !ended.is_empty() {
            self.floor = next(counter);
        }
        ended
    }
}

fn next(counter: &AtomicU64) -> Generation {
    // Relaxed is enough: only uniqueness matters, the shards' locks order everything else.
    Generation(counter.fetch_add(1, Ordering::Relaxed) + 1)
}

/// A share from 0 to 1 that is always the same for the same value.
fn share(of: impl Hash) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a share needs no 64 bits")]
    let share = Hasher::default().hash_one(of) as f64 / u64::MAX as f64;
    share
}

fn per_shard(capacity: usize) -> NonZeroUsize {
    NonZeroUsize::new(capacity.div_ceil(SHARDS)).unwrap_or(NonZeroUsize::MIN)
}

/// A panic while a lock was held left at worst one entry with an old count: still better than none.
fn locked(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}
