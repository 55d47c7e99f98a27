//! When to poll the admin endpoint, and what a poll's answer changes.

use std::{
    collections::{BTreeMap, HashSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use super::{
    Change, HealthStatus, Sink, Source, Views,
    admin::{Clusters, Host},
};

/// The rhythm of polls. Main thread; one poll at a time.
///
/// Quiet times double the pause up to the longest; a change, or a hint that one is under way,
/// brings it back to the shortest.
#[derive(Debug)]
pub struct Rhythm {
    shortest: Duration,
    longest: Duration,
    pause: Duration,
    last_start: Option<Instant>,
    in_flight: bool,
}

/// What a poll is compared with.
#[derive(Debug, Default)]
pub struct Polled {
    before: Clusters,
}

// === impl Rhythm ===

impl Rhythm {
    /// A rhythm between two pauses.
    #[must_use]
    pub fn new(shortest: Duration, longest: Duration) -> Self {
        let longest = longest.max(shortest);
        Self { shortest, longest, pause: shortest, last_start: None, in_flight: false }
    }

    /// The timer fired, or a hint came: whether to poll now. If not, and no poll is in flight,
    /// [`Rhythm::wait`] says when to ask again.
    pub fn start(&mut self, now: Instant) -> bool {
        if self.in_flight || !self.wait(now).is_zero() {
            return false;
        }
        self.in_flight = true;
        self.last_start = Some(now);
        true
    }

    /// The poll in flight ended; `changed` when its answer differed from the one before.
    pub fn done(&mut self, changed: bool) {
        self.in_flight = false;
        self.pause = if changed { self.shortest } else { (self.pause * 2).min(self.longest) };
    }

    /// Something says that the endpoints may have changed.
    pub fn hint(&mut self) {
        self.pause = self.shortest;
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
        treat_as_removed: &HashSet<HealthStatus>,
        views: &mut Views,
        sink: &mut impl Sink,
    ) -> Change {
        let mut change = Change::default();
        for (cluster, hosts) in &answer {
            if let Some(before) = self.before.get(cluster) {
                for ip in restarted(before, hosts) {
                    change += views.replaced(Source::Admin, cluster, ip, sink);
                }
            }
            let listed =
                hosts.iter().filter(|(_, host)| !is_removed(host, treat_as_removed)).map(|(ip, _)| *ip).collect();
            change += views.update(Source::Admin, cluster, listed, sink);
        }
        let gone: Vec<String> =
            views.clusters(Source::Admin).filter(|name| !answer.contains_key(*name)).map(str::to_owned).collect();
        for cluster in gone {
            change += views.remove(Source::Admin, &cluster, sink);
        }
        self.before = answer;
        change
    }
}

/// Addresses whose counters went down: Envoy made the host anew, so it was away in between.
fn restarted<'a>(
    before: &'a BTreeMap<IpAddr, Host>,
    now: &'a BTreeMap<IpAddr, Host>,
) -> impl Iterator<Item = IpAddr> + 'a {
    now.iter().filter_map(|(ip, now)| {
        let before = before.get(ip)?;
        (now.cx_total < before.cx_total || now.rq_total < before.rq_total).then_some(*ip)
    })
}

fn is_removed(host: &Host, treat_as_removed: &HashSet<HealthStatus>) -> bool {
    (host.draining && treat_as_removed.contains(&HealthStatus::Draining))
        || (host.unhealthy && treat_as_removed.contains(&HealthStatus::Unhealthy))
}

#[cfg(test)]
#[path = "poll_tests.rs"]
mod tests;
