//! One endpoint: where it is listed, its generation, its connections and its last failure.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use super::{
    Cluster, Generation, Rotation,
    connection::{ConnectionAge, Connections, Unattributed},
    next,
    reset::Reset,
    share,
};
use crate::sync::AtomicU64;

/// Whether EDS lists an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// No update that named it was seen since its entry was made.
    Unknown,
    /// At least one cluster lists it.
    Present,
    /// The last cluster that listed it does no longer.
    Gone,
}

/// What is known of an endpoint, at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct EndpointView {
    /// The pod's address.
    pub ip: IpAddr,
    /// Whether EDS lists it.
    pub presence: Presence,
    /// The generation of its newest tunnel.
    pub generation: u64,
    /// Whether its next tunnel will get a new generation.
    pub fenced: bool,
    /// Removals seen, from any cluster.
    pub removals: u64,
    /// Time since the last of them.
    pub since_removal: Option<Duration>,
    /// Tunnels open now, over connections of any generation.
    pub tunnels: usize,
    /// Outer connections that are known, newest last.
    pub connections: Vec<ConnectionAge>,
    /// The last reset, and the time since.
    pub last_reset: Option<(Reset, Duration)>,
}

#[derive(Debug)]
pub(super) struct Entry {
    presence: Presence,
    generation: Generation,
    /// When `generation` was taken; none before the first tunnel.
    taken_at: Option<Instant>,
    /// Whether a tunnel may have been opened under `generation`.
    used: bool,
    /// The next tunnel must get a new generation.
    fenced: bool,
    /// The newest generation that had tunnels when the endpoint left or returned.
    left: Option<Generation>,
    removed_by: RemovedBy,
    removals: u64,
    removed_at: Option<Instant>,
    pub(super) connections: Connections,
    pub(super) last_reset: Option<(Reset, Instant)>,
}

/// Clusters that removed the endpoint and have not listed it again since.
///
/// While there are any, an addition by whichever cluster may be the return of the address in a new
/// pod (the address may have moved between services), so each one fences.
#[derive(Debug, Default)]
struct RemovedBy {
    clusters: Vec<Cluster>,
    more: bool,
}

// === impl RemovedBy ===

impl RemovedBy {
    /// Beyond it, and where an evicted entry may have known more, every addition fences: the price is
    /// a handshake each, and forgetting who removed the address would be the fault itself.
    const MAX: usize = 16;

    fn insert(&mut self, cluster: Cluster) {
        if self.clusters.contains(&cluster) {
            return;
        }
        if self.clusters.len() < Self::MAX {
            self.clusters.push(cluster);
        } else {
            self.more = true;
        }
    }

    fn remove(&mut self, cluster: Cluster) {
        self.clusters.retain(|known| *known != cluster);
    }

    fn is_empty(&self) -> bool {
        self.clusters.is_empty() && !self.more
    }
}

// === impl Entry ===

impl Entry {
    /// An endpoint first met at `floor`; `met_before` when an evicted entry may have been its own.
    pub(super) fn new(floor: Generation, met_before: bool) -> Self {
        Self {
            presence: Presence::Unknown,
            generation: floor,
            taken_at: None,
            used: met_before,
            fenced: false,
            left: None,
            removed_by: RemovedBy { clusters: Vec::new(), more: met_before },
            removals: 0,
            removed_at: None,
            connections: Connections::default(),
            last_reset: None,
        }
    }

    pub(super) fn added(&mut self, cluster: Cluster) {
        if self.presence == Presence::Gone || !self.removed_by.is_empty() {
            self.fence();
        }
        self.removed_by.remove(cluster);
        self.presence = Presence::Present;
    }

    pub(super) fn removed(&mut self, cluster: Cluster, still_listed: bool, now: Instant) {
        self.removed_by.insert(cluster);
        self.presence = if still_listed { Presence::Present } else { Presence::Gone };
        self.removals += 1;
        self.removed_at = Some(now);
        self.fence();
    }

    /// The generation of a tunnel that opens now, whether it is the first of it, and its place among the tunnels
    /// without a connection.
    pub(super) fn open(
        &mut self,
        ip: IpAddr,
        suspect_below: Generation,
        rotation: Option<Rotation>,
        counter: &AtomicU64,
        now: Instant,
    ) -> (Generation, bool, Unattributed) {
        let fresh = self.fenced || self.generation < suspect_below || self.is_old(ip, rotation, now);
        if fresh {
            self.generation = next(counter);
            self.taken_at = None;
            self.fenced = false;
        }
        self.taken_at.get_or_insert(now);
        self.used = true;
        (self.generation, fresh, self.connections.begin())
    }

    /// Whether the next tunnel must get a new generation.
    pub(super) const fn is_fenced(&self) -> bool {
        self.fenced
    }

    /// Whether the endpoint has left this generation, by a removal or a return.
    pub(super) fn has_left(&self, generation: Generation) -> bool {
        self.left.is_some_and(|left| generation <= left)
    }

    /// Whether forgetting the entry must raise the floor, for the endpoint not to return to a
    /// generation that it has had or has been fenced from.
    pub(super) fn is_past(&self, floor: Generation) -> bool {
        self.generation > floor || (self.generation == floor && self.fenced)
    }

    /// When the last cluster gave the endpoint up, if none has listed it since.
    pub(super) fn gone_since(&self) -> Option<Instant> {
        self.removed_at.filter(|_| self.presence == Presence::Gone)
    }

    pub(super) fn view(&self, ip: IpAddr, now: Instant) -> EndpointView {
        EndpointView {
            ip,
            presence: self.presence,
            generation: self.generation.get(),
            fenced: self.fenced,
            removals: self.removals,
            since_removal: self.removed_at.map(|at| now.saturating_duration_since(at)),
            tunnels: self.connections.tunnels(),
            connections: self.connections.ages(now),
            last_reset: self.last_reset.map(|(reset, at)| (reset, now.saturating_duration_since(at))),
        }
    }

    /// Without a tunnel under the present generation there is nothing that a new one could be
    /// confused with, so a removal, its re-add and the other ports of the pod cost one generation.
    fn fence(&mut self) {
        if self.used {
            self.left = Some(self.generation);
        }
        self.fenced |= self.used;
        self.used = false;
    }

    fn is_old(&self, ip: IpAddr, rotation: Option<Rotation>, now: Instant) -> bool {
        let (Some(rotation), Some(taken_at)) = (rotation, self.taken_at) else { return false };
        // The same endpoint and generation always draw the same share, so that workers agree.
        let share = share((ip, self.generation));
        now.saturating_duration_since(taken_at) >= rotation.max_age.mul_f64(1.0 - rotation.jitter * share)
    }
}
