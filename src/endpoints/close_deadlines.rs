//! Tunnels that are to be closed some time after the removal of their endpoint, and when each is due.
//!
//! Kept beside the entries of a shard, not in them: evicting an entry must not forget that its tunnels are to
//! be closed. There is one for each open tunnel that asked, so they are bounded as tunnels are.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    net::IpAddr,
    time::{Duration, Instant},
};

use super::{Hasher, share};
use crate::sync::Arc;

/// Has one tunnel closed on its own worker. Called on the main thread; once for each removal of the endpoint.
pub type Close = Arc<dyn Fn() + Send + Sync>;

/// How long after a removal a tunnel is closed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CloseAfter {
    /// The least time.
    pub after: Duration,
    /// The share of `after`, 0 to 1, over which the tunnels are spread, so that they are not all cut at once.
    pub jitter: f64,
}

/// The tunnels of one shard's endpoints that are to be closed.
#[derive(Debug, Default)]
pub(super) struct CloseDeadlines(HashMap<IpAddr, Endpoint, Hasher>);

#[derive(Debug, Default)]
struct Endpoint {
    /// When the last cluster gave the endpoint up, if none has listed it since.
    gone_since: Option<Instant>,
    /// By a number that is never used twice.
    tunnels: BTreeMap<u64, Tunnel>,
}

struct Tunnel {
    opened_at: Instant,
    after: Duration,
    close: Close,
    called: bool,
}

// === impl CloseDeadlines ===

impl CloseDeadlines {
    /// A tunnel asks to be closed; its endpoint may be gone already.
    pub(super) fn add(
        &mut self,
        (ip, number): (IpAddr, u64),
        opened_at: Instant,
        gone_since: Option<Instant>,
        CloseAfter { after, jitter }: CloseAfter,
        close: Close,
    ) {
        let after = after.mul_f64(1.0 + jitter * share(number));
        let endpoint = self.0.entry(ip).or_insert_with(|| Endpoint { gone_since, ..Endpoint::default() });
        endpoint.tunnels.insert(number, Tunnel { opened_at, after, close, called: false });
    }

    /// A tunnel is over. What closed it holds a scheduler of Envoy's, and is for the caller to drop after the
    /// lock.
    pub(super) fn remove(&mut self, ip: IpAddr, number: u64) -> Option<Close> {
        let endpoint = self.0.get_mut(&ip)?;
        let tunnel = endpoint.tunnels.remove(&number);
        if endpoint.tunnels.is_empty() {
            self.0.remove(&ip);
        }
        tunnel.map(|tunnel| tunnel.close)
    }

    /// The endpoint is listed, or is not since then.
    pub(super) fn set_gone(&mut self, ip: IpAddr, gone_since: Option<Instant>) {
        if let Some(endpoint) = self.0.get_mut(&ip) {
            endpoint.gone_since = gone_since;
            endpoint.tunnels.values_mut().for_each(|tunnel| tunnel.called = false);
        }
    }

    /// What is due, each once for each removal.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Close> {
        let gone = self.0.values_mut().filter_map(|endpoint| Some((endpoint.gone_since?, &mut endpoint.tunnels)));
        let mut due = Vec::new();
        for (gone_since, tunnels) in gone {
            for tunnel in tunnels.values_mut().filter(|tunnel| !tunnel.called && tunnel.is_due(gone_since, now)) {
                tunnel.called = true;
                due.push(Arc::clone(&tunnel.close));
            }
        }
        due
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.values().map(|endpoint| endpoint.tunnels.len()).sum()
    }

    /// Whether this tunnel is due.
    pub(super) fn is_due(&self, ip: IpAddr, number: u64, now: Instant) -> bool {
        let Some(endpoint) = self.0.get(&ip) else { return false };
        endpoint
            .gone_since
            .zip(endpoint.tunnels.get(&number))
            .is_some_and(|(gone_since, tunnel)| tunnel.is_due(gone_since, now))
    }
}

// === impl Tunnel ===

impl Tunnel {
    /// Envoy opens tunnels to endpoints that are gone (panic mode, a removal that it does not apply). Those count
    /// from their own beginning: what Envoy wants open is not cut as soon as it opens.
    fn is_due(&self, gone_since: Instant, now: Instant) -> bool {
        self.opened_at.max(gone_since) + self.after <= now
    }
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Tunnel").field("after", &self.after).field("called", &self.called).finish_non_exhaustive()
    }
}
