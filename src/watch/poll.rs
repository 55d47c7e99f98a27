//! When to poll the admin endpoint, and what a poll's answer changes.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use super::{
    Change, HealthStatus, Sink, Source, Views,
    admin::{Clusters, Host},
    config::Statuses,
};

/// The rhythm of polls. Main thread; one poll at a time.
///
/// Quiet times double the pause up to the longest; a change, or a hint that one is under way,
/// brings it back to the shortest. Whatever happens, polls take no more than one [`Rhythm::SHARE`]th
/// of the main thread's time, unless the longest pause demands it.
#[derive(Debug)]
pub struct Rhythm {
    shortest: Duration,
    longest: Duration,
    /// The shortest pause that the cost of the last poll allows.
    affordable: Duration,
    pause: Duration,
    last_start: Option<Instant>,
    in_flight: bool,
    /// A hint came while a poll was in flight, whose answer may be older than what it hints at.
    hinted: bool,
}

/// What a poll is compared with.
#[derive(Debug, Default)]
pub struct Polled {
    before: HashMap<String, Vec<(SocketAddr, Host)>>,
    /// Clusters that an answer has named, and how many answers in a row have left them out since.
    known: HashMap<String, u8>,
}

// === impl Rhythm ===

impl Rhythm {
    /// The part of the main thread's time that polls may take is one in so many.
    pub const SHARE: u32 = 100;

    /// A rhythm between two pauses.
    #[must_use]
    pub fn new(shortest: Duration, longest: Duration) -> Self {
        let longest = longest.max(shortest);
        Self {
            shortest,
            longest,
            affordable: shortest,
            pause: shortest,
            last_start: None,
            in_flight: false,
            hinted: false,
        }
    }

    /// The timer fired, or a hint came: whether to poll now. If not, and no poll is in flight,
    /// [`Rhythm::wait`] says when to ask again.
    pub fn start(&mut self, now: Instant) -> bool {
        if self.in_flight || !self.wait(now).is_zero() {
            return false;
        }
        self.in_flight = true;
        self.hinted = false;
        self.last_start = Some(now);
        true
    }

    /// The poll in flight ended; `changed` when its answer differed from the one before. `cost` is the
    /// time that it took of the main thread.
    pub fn done(&mut self, changed: bool, cost: Duration) {
        self.in_flight = false;
        self.affordable = (cost * Self::SHARE).clamp(self.shortest, self.longest);
        let quiet = !changed && !std::mem::take(&mut self.hinted);
        self.pause = if quiet { (self.pause * 2).clamp(self.affordable, self.longest) } else { self.affordable };
    }

    /// Something says that the endpoints may have changed.
    pub fn hint(&mut self) {
        self.hinted = self.in_flight;
        self.pause = self.affordable;
    }

    /// Time until the next poll is due.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Duration {
        self.last_start.map_or(Duration::ZERO, |start| (start + self.pause).saturating_duration_since(now))
    }

    /// Whether a poll is in flight.
    #[must_use]
    pub const fn in_flight(&self) -> bool {
        self.in_flight
    }
}

// === impl Polled ===

impl Polled {
    /// Compares an answer with the one before and with what is known from elsewhere.
    pub fn apply(
        &mut self,
        answer: Clusters,
        treat_as_removed: &Statuses,
        views: &mut Views,
        sink: &mut impl Sink,
    ) -> Change {
        let mut change = Change::default();
        // Clusters that share an EDS resource share its listing.
        let mut listings: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
        let mut before = std::mem::take(&mut self.before);
        change += self.forget_missing(&answer, views, sink);
        for (name, cluster) in answer {
            let resource = cluster.resource.filter(|resource| !resource.is_empty()).unwrap_or_else(|| name.clone());
            views.name(&name, &resource);
            if !views.heeds(Source::Admin, &resource) {
                continue;
            }
            for ip in restarted(&before.remove(&name).unwrap_or_default(), &cluster.hosts) {
                change += views.replaced(Source::Admin, &resource, ip, sink);
            }
            let listed = cluster.hosts.iter().filter(|(_, host)| !is_removed(host, treat_as_removed));
            listings.entry(resource).or_default().extend(listed.map(|(address, _)| address.ip()));
            self.before.insert(name, cluster.hosts);
        }
        let gone: Vec<String> =
            views.resources(Source::Admin).filter(|name| !listings.contains_key(*name)).map(str::to_owned).collect();
        for (resource, listed) in listings {
            change += views.update(Source::Admin, &resource, listed, sink);
        }
        for resource in gone {
            change += views.remove(Source::Admin, &resource, sink);
        }
        change
    }

    /// Whether polls had to fill in for another source: some cluster with hosts has no other.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        self.before.values().any(|hosts| !hosts.is_empty())
    }

    /// Clusters that two answers in a row leave out are gone, also where the validator had the word on
    /// their endpoints: it is not told of clusters unless it is configured for them. One answer may be
    /// older than the cluster.
    fn forget_missing(&mut self, answer: &Clusters, views: &mut Views, sink: &mut impl Sink) -> Change {
        let mut change = Change::default();
        for (cluster, left_out) in &mut self.known {
            *left_out = if answer.contains_key(cluster) { 0 } else { *left_out + 1 };
        }
        for (cluster, _) in self.known.extract_if(|_, left_out| *left_out > 1) {
            change += views.cluster_gone(&cluster, sink);
        }
        for cluster in answer.keys() {
            if !self.known.contains_key(cluster) {
                self.known.insert(cluster.clone(), 0);
            }
        }
        change
    }
}

/// Addresses with a host whose counters went down: Envoy made it anew, so it was away in between.
///
/// Envoy also makes the hosts of a cluster anew when it takes up another configuration of it. Then the
/// counters of all go down at once, which pods do not do that are replaced one after the other: where
/// several hosts had been in use and all began anew, none is reported. A cluster with one such host is
/// taken for a return, the safe side: it costs each worker one handshake. Both lists are sorted.
fn restarted(before: &[(SocketAddr, Host)], now: &[(SocketAddr, Host)]) -> Vec<IpAddr> {
    let mut before = before.iter().peekable();
    let (mut used, mut restarted) = (0, Vec::new());
    for (address, now) in now {
        while before.next_if(|(other, _)| other < address).is_some() {}
        let Some((_, before)) = before.next_if(|(other, _)| other == address) else { continue };
        used += usize::from(before.cx_total > 0 || before.rq_total > 0);
        if now.cx_total < before.cx_total || now.rq_total < before.rq_total {
            restarted.push(address.ip());
        }
    }
    if used > 1 && restarted.len() == used { Vec::new() } else { restarted }
}

fn is_removed(host: &Host, treat_as_removed: &Statuses) -> bool {
    (host.draining && treat_as_removed.contains(HealthStatus::Draining))
        || (host.degraded && treat_as_removed.contains(HealthStatus::Degraded))
        || (host.unhealthy
            && (treat_as_removed.contains(HealthStatus::Unhealthy) || treat_as_removed.contains(HealthStatus::Timeout)))
}

#[cfg(test)]
#[path = "poll_tests.rs"]
mod tests;
