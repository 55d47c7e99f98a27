//! Which pools' connections are to be closed, and when to look for them.
//!
//! # Invariants
//! - NEVER: a pool is due while a tunnel is on it, or could still join it. Only pools that are over come here,
//!   and of these only those without a tunnel are searched for.
//! - ALWAYS: searches are rare: at most one in [`Settings::pause`], or in that of [`Settings::hurry`] where many
//!   pools are due.
//! - ALWAYS: memory is bounded: a pool is forgotten when nothing more of it can be found, and beyond
//!   [`Plan::MAX`] the oldest is given up, to Envoy's idle timeout.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::endpoints::Pool;

/// Which endpoint, generation and worker a connection belongs to.
type Key = (IpAddr, u64, u32);

/// How patient the plan is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How long a pool must have been empty. Envoy closes streams after the filter of a tunnel is gone.
    pub grace: Duration,
    /// The shortest time between two searches.
    pub pause: Duration,
    /// The same while so many pools are due that they are worth a search each turn of the timer: in a storm of
    /// flaps descriptors could run out within a second.
    pub hurry: (usize, Duration),
    /// How long after the last tunnel a connection may still come up: Envoy's connect timeout and a
    /// margin. A socket that is not connected has no peer, so a search passes it over.
    pub connecting: Duration,
}

/// The pools that are over, and what was found of each. Main thread.
#[derive(Debug)]
pub struct Plan {
    settings: Settings,
    waiting: VecDeque<Waiting>,
    searched_at: Option<Instant>,
    given_up: u64,
}

/// What a search came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Searched {
    /// Connections that were closed.
    pub closed: u64,
    /// Pools that are done with, and of which no connection was ever found: Envoy or the peer had closed
    /// it first, or it never came up.
    pub not_found: u64,
}

/// One pool that is over.
#[derive(Debug)]
struct Waiting {
    pool: Arc<Pool>,
    /// When it was first seen without a tunnel.
    empty_since: Option<Instant>,
    /// When to search for its connections next.
    next: Option<Instant>,
    found: u64,
    /// Whether it was searched for.
    searched: bool,
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self {
            grace: Duration::from_millis(100),
            pause: Duration::from_secs(1),
            hurry: (16, Duration::from_millis(100)),
            connecting: Duration::from_secs(20),
        }
    }
}

// === impl Plan ===

impl Plan {
    /// Pools remembered. One has about 100 bytes.
    pub const MAX: usize = 65_536;

    /// A plan without a pool.
    #[must_use]
    pub const fn new(settings: Settings) -> Self {
        Self { settings, waiting: VecDeque::new(), searched_at: None, given_up: 0 }
    }

    /// Pools that are over from now on.
    pub fn add(&mut self, pools: impl IntoIterator<Item = Arc<Pool>>) {
        for pool in pools {
            if self.waiting.len() >= Self::MAX {
                self.waiting.pop_front();
                self.given_up += 1;
            }
            self.waiting.push_back(Waiting { pool, empty_since: None, next: None, found: 0, searched: false });
        }
    }

    /// The pools whose connections are to be searched for now; none if nothing is due.
    pub fn due(&mut self, now: Instant) -> Option<Due> {
        let Settings { grace, pause, hurry, .. } = self.settings;
        for waiting in &mut self.waiting {
            if waiting.empty_since.is_none() && waiting.pool.tunnels() == 0 {
                waiting.empty_since = Some(now);
                waiting.next = Some(now + grace);
            }
        }
        let is_due = |waiting: &&Waiting| waiting.next.is_some_and(|next| next <= now);
        let many = self.waiting.iter().filter(is_due).nth(hurry.0.saturating_sub(1)).is_some();
        let pause = if many { hurry.1 } else { pause };
        if self.searched_at.is_some_and(|at| now.saturating_duration_since(at) < pause) {
            return None;
        }
        let due: HashMap<Key, u64> = self.waiting.iter().filter(is_due).map(|waiting| (waiting.key(), 0)).collect();
        (!due.is_empty()).then_some(Due(due))
    }

    /// A search for `due` is over.
    pub fn searched(&mut self, due: Due, now: Instant) -> Searched {
        self.searched_at = Some(now);
        let connecting = self.settings.connecting;
        let mut searched = Searched { closed: 0, not_found: std::mem::take(&mut self.given_up) };
        self.waiting.retain_mut(|waiting| {
            let Some((closed, since)) = due.0.get(&waiting.key()).zip(waiting.empty_since) else { return true };
            searched.closed += closed;
            waiting.found += closed;
            waiting.searched = true;
            // The gaps double: what is not there at once comes up late, or never.
            let age = now.saturating_duration_since(since);
            waiting.next = Some((now + age.max(Duration::from_millis(1))).min(since + connecting));
            // What was found once needs one more look, for a second connection.
            let goes_on = age < connecting && !(waiting.found > 0 && *closed == 0);
            searched.not_found += u64::from(!goes_on && waiting.found == 0);
            goes_on
        });
        searched
    }

    /// Pools that still carry a tunnel, or were not searched for yet.
    #[must_use]
    pub fn left_behind(&self) -> usize {
        self.waiting.iter().filter(|waiting| !waiting.searched).count()
    }

    /// The first of these: a request holds the tunnel, or a stream that hangs.
    #[cfg(test)]
    fn carrying(&self) -> usize {
        self.waiting.iter().filter(|waiting| waiting.empty_since.is_none()).count()
    }

    /// The others.
    #[cfg(test)]
    fn to_close(&self) -> usize {
        self.waiting.iter().filter(|waiting| waiting.empty_since.is_some() && !waiting.searched).count()
    }
}

/// What one search is for.
#[derive(Debug)]
pub struct Due(HashMap<Key, u64>);

// === impl Due ===

impl Due {
    /// Whether a connection to `peer` with this generation and worker is to be closed; counts it.
    pub fn take(&mut self, peer: IpAddr, generation: u64, worker: u32) -> bool {
        self.0.get_mut(&(peer, generation, worker)).is_some_and(|closed| {
            *closed += 1;
            true
        })
    }
}

// === impl Waiting ===

impl Waiting {
    fn key(&self) -> Key {
        (self.pool.ip(), self.pool.generation().get(), self.pool.worker())
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
