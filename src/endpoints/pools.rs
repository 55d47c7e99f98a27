//! Connection pools of one shard's endpoints, and how many tunnels each of them carries.
//!
//! Envoy keeps the outer connections to an endpoint in one pool for each worker and generation. A pool
//! is *over* once no tunnel can join it any more: the endpoint has moved on from its generation. What it
//! leaves behind is a connection that nothing will use again and that Envoy keeps until it has been idle for
//! long.
//!
//! # Invariants
//! - ALWAYS: a tunnel is counted under the lock under which its generation is read. So once a pool is over
//!   its count can only fall, and "over and 0" means that no tunnel can join it, ever.
//! - ALWAYS: a tunnel is counted from the moment its generation was taken, long before Envoy opens or finds a
//!   connection for it, until its guard is dropped.

use std::{collections::HashMap, net::IpAddr};

use super::{Generation, Hasher};
use crate::sync::{Arc, AtomicU32, Ordering};

/// The connections of one endpoint under one generation on one worker.
#[derive(Debug)]
pub struct Pool {
    ip: IpAddr,
    generation: Generation,
    worker: u32,
    tunnels: AtomicU32,
}

/// A tunnel's place in its pool.
#[derive(Debug)]
pub(super) struct Member(Arc<Pool>);

/// The pools that tunnels may still join, by endpoint.
#[derive(Debug, Default)]
pub(super) struct Pools(HashMap<IpAddr, Vec<Arc<Pool>>, Hasher>);

// === impl Pool ===

impl Pool {
    /// The endpoint.
    #[must_use]
    pub const fn ip(&self) -> IpAddr {
        self.ip
    }

    /// The generation that its key carries.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// Envoy's index of the worker that it belongs to.
    #[must_use]
    pub const fn worker(&self) -> u32 {
        self.worker
    }

    /// Tunnels that it carries, or that are about to join it. Once the pool is over, 0 is final.
    #[must_use]
    pub fn tunnels(&self) -> u32 {
        // Acquire: what the last tunnel's worker did before it left has happened.
        self.tunnels.load(Ordering::Acquire)
    }
}

// === impl Member ===

impl Drop for Member {
    fn drop(&mut self) {
        self.0.tunnels.fetch_sub(1, Ordering::Release);
    }
}

// === impl Pools ===

impl Pools {
    /// A tunnel that opens now. Under the lock under which its generation was read.
    pub(super) fn join(&mut self, ip: IpAddr, generation: Generation, worker: u32) -> Member {
        let pools = self.0.entry(ip).or_default();
        let known = pools.iter().find(|pool| pool.worker == worker && pool.generation == generation).cloned();
        let pool = known.unwrap_or_else(|| {
            let pool = Arc::new(Pool { ip, generation, worker, tunnels: AtomicU32::new(0) });
            pools.push(Arc::clone(&pool));
            pool
        });
        pool.tunnels.fetch_add(1, Ordering::Relaxed);
        Member(pool)
    }

    /// The endpoint moves on from its generation: its pools are over.
    pub(super) fn end(&mut self, ip: IpAddr) -> Vec<Arc<Pool>> {
        self.0.remove(&ip).unwrap_or_default()
    }

    /// Every endpoint of the shard has moved on.
    pub(super) fn end_all(self) -> Vec<Arc<Pool>> {
        self.0.into_values().flatten().collect()
    }
}
