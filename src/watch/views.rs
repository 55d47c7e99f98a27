//! What each cluster lists, and what an update changes.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

use super::Sink;

/// Who says so. A later variant wins over an earlier one, cluster by cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// A poll of Envoy's admin endpoint: what Envoy has applied.
    Admin,
    /// The config validator: what Envoy is about to apply.
    Validator,
}

/// How many listings an update changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Change {
    /// Endpoints that a cluster listed anew.
    pub added: u64,
    /// Endpoints that a cluster no longer listed.
    pub removed: u64,
}

/// The listings of every cluster. Main thread.
#[derive(Debug, Default)]
pub struct Views {
    clusters: HashMap<String, View>,
    /// In how many clusters an address is listed.
    listings: HashMap<IpAddr, u32>,
}

#[derive(Debug)]
struct View {
    source: Source,
    endpoints: HashSet<IpAddr>,
}

// === impl Views ===

impl Views {
    /// `cluster` lists exactly `endpoints` now.
    pub fn update(
        &mut self,
        source: Source,
        cluster: &str,
        endpoints: HashSet<IpAddr>,
        sink: &mut impl Sink,
    ) -> Change {
        let Some(view) = self.clusters.get_mut(cluster) else {
            for ip in &endpoints {
                *self.listings.entry(*ip).or_default() += 1;
                sink.added(*ip, cluster);
            }
            let added = endpoints.len() as u64;
            self.clusters.insert(cluster.to_owned(), View { source, endpoints });
            return Change { added, removed: 0 };
        };
        if source < view.source {
            return Change::default();
        }
        view.source = source;
        let before = std::mem::replace(&mut view.endpoints, endpoints);
        let mut change = Change::default();
        for ip in before.difference(&view.endpoints) {
            sink.removed(*ip, cluster, unlist(&mut self.listings, *ip));
            change.removed += 1;
        }
        for ip in view.endpoints.difference(&before) {
            *self.listings.entry(*ip).or_default() += 1;
            sink.added(*ip, cluster);
            change.added += 1;
        }
        change
    }

    /// `cluster`'s endpoint is another one now, at the same address: a removal and a return that came
    /// too close together to be seen apart.
    pub fn replaced(&mut self, source: Source, cluster: &str, ip: IpAddr, sink: &mut impl Sink) -> Change {
        let known =
            self.clusters.get(cluster).is_some_and(|view| view.source <= source && view.endpoints.contains(&ip));
        if !known {
            return Change::default();
        }
        let still_listed = self.listings.get(&ip).is_some_and(|listings| *listings > 1);
        sink.removed(ip, cluster, still_listed);
        sink.added(ip, cluster);
        Change { added: 1, removed: 1 }
    }

    /// `cluster`, or its EDS resource, is gone, and its endpoints with it.
    pub fn remove(&mut self, source: Source, cluster: &str, sink: &mut impl Sink) -> Change {
        if self.clusters.get(cluster).is_none_or(|view| view.source > source) {
            return Change::default();
        }
        let Some(view) = self.clusters.remove(cluster) else { return Change::default() };
        for ip in &view.endpoints {
            sink.removed(*ip, cluster, unlist(&mut self.listings, *ip));
        }
        Change { added: 0, removed: view.endpoints.len() as u64 }
    }

    /// The clusters that `source` has the word on.
    pub fn clusters(&self, source: Source) -> impl Iterator<Item = &str> {
        self.clusters.iter().filter(move |(_, view)| view.source == source).map(|(name, _)| name.as_str())
    }

    /// Addresses listed by at least one cluster.
    #[must_use]
    pub fn endpoints(&self) -> usize {
        self.listings.len()
    }
}

// === impl Change ===

impl std::ops::AddAssign for Change {
    fn add_assign(&mut self, other: Self) {
        self.added += other.added;
        self.removed += other.removed;
    }
}

/// Takes one listing of `ip` away; says whether another one remains.
fn unlist(listings: &mut HashMap<IpAddr, u32>, ip: IpAddr) -> bool {
    let Some(count) = listings.get_mut(&ip) else { return false };
    *count = count.saturating_sub(1);
    if *count == 0 {
        listings.remove(&ip);
        return false;
    }
    true
}

#[cfg(test)]
#[path = "views_tests.rs"]
mod tests;
