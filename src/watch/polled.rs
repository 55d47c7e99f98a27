//! What a poll's answer changes, compared with the answer before and with what the validator has reported.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
};

use super::{
    HealthStatus,
    admin::{Clusters, Host},
    config::Statuses,
    listings::{Change, Listings, Sink, Source},
};

/// What a poll is compared with.
#[derive(Debug, Default)]
pub struct Polled {
    before: HashMap<String, Vec<(SocketAddr, Host)>>,
    /// Clusters that an answer has named, and how many answers in a row have left them out since.
    known: HashMap<String, u8>,
}

// === impl Polled ===

impl Polled {
    /// Compares an answer with the one before and with what is known from elsewhere.
    pub fn apply(
        &mut self,
        answer: Clusters,
        treat_as_removed: &Statuses,
        known: &mut Listings,
        sink: &mut impl Sink,
    ) -> Change {
        let mut change = Change::default();
        // Clusters that share an EDS resource share its listing.
        let mut listed_by: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
        let mut before = std::mem::take(&mut self.before);
        change += self.forget_missing(&answer, known, sink);
        for (name, cluster) in answer {
            let resource = cluster.resource.filter(|resource| !resource.is_empty()).unwrap_or_else(|| name.clone());
            known.seen_by_poll(&name, &resource);
            if !known.reports(Source::Admin, &resource) {
                continue;
            }
            for ip in restarted(&before.remove(&name).unwrap_or_default(), &cluster.hosts) {
                change += known.replaced(Source::Admin, &resource, ip, sink);
            }
            let listed = cluster.hosts.iter().filter(|(_, host)| !is_removed(host, treat_as_removed));
            listed_by.entry(resource).or_default().extend(listed.map(|(address, _)| address.ip()));
            self.before.insert(name, cluster.hosts);
        }
        let gone: Vec<String> =
            known.of(Source::Admin).filter(|name| !listed_by.contains_key(*name)).map(str::to_owned).collect();
        for (resource, listed) in listed_by {
            change += known.update(Source::Admin, &resource, listed, sink);
        }
        for resource in gone {
            change += known.remove(Source::Admin, &resource, sink);
        }
        change
    }

    /// Whether polls had to fill in for another source: some cluster with hosts has no other.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        self.before.values().any(|hosts| !hosts.is_empty())
    }

    /// Clusters that two answers in a row leave out are gone, also where the validator has reported their
    /// endpoints: Envoy does not tell it of clusters unless it is configured for them. One answer may be
    /// older than the cluster.
    fn forget_missing(&mut self, answer: &Clusters, known: &mut Listings, sink: &mut impl Sink) -> Change {
        let mut change = Change::default();
        for (cluster, left_out) in &mut self.known {
            *left_out = if answer.contains_key(cluster) { 0 } else { *left_out + 1 };
        }
        for (cluster, _) in self.known.extract_if(|_, left_out| *left_out > 1) {
            change += known.cluster_gone(&cluster, sink);
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
/// Envoy also makes the hosts of a cluster anew when it takes up another configuration of it. The counters do not
/// tell the two apart, so that is taken for a return as well: it costs each worker one handshake for each
/// endpoint in use, where the other guess would send requests to pods that are gone. Both lists are sorted.
fn restarted(before: &[(SocketAddr, Host)], now: &[(SocketAddr, Host)]) -> Vec<IpAddr> {
    let mut before = before.iter().peekable();
    let mut restarted = Vec::new();
    for (address, now) in now {
        while before.next_if(|(other, _)| other < address).is_some() {}
        let Some((_, before)) = before.next_if(|(other, _)| other == address) else { continue };
        if now.cx_total < before.cx_total || now.rq_total < before.rq_total {
            restarted.push(address.ip());
        }
    }
    restarted
}

fn is_removed(host: &Host, treat_as_removed: &Statuses) -> bool {
    (host.draining && treat_as_removed.contains(HealthStatus::Draining))
        || (host.degraded && treat_as_removed.contains(HealthStatus::Degraded))
        || (host.unhealthy
            && (treat_as_removed.contains(HealthStatus::Unhealthy) || treat_as_removed.contains(HealthStatus::Timeout)))
}

#[cfg(test)]
#[path = "polled_tests.rs"]
mod tests;
