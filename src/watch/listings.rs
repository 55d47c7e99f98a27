//! Which EDS resources list which endpoints, and what an update changes.
//!
//! An EDS resource usually has its cluster's name. Where it has not, both sources report under the name of the
//! resource, so that they mean the same listing.
//!
//! # Invariants
//! - ALWAYS: once the validator has reported a resource, polls change nothing of it: they lag behind.
//! - ALWAYS: a removal is reported for each resource that gives an endpoint up, also where another lists it.
//! - NEVER: an update brings back a resource whose last cluster CDS has taken away. istiod sends the two in this
//!   order: CDS, then an empty assignment of the cluster that is gone.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    sync::Arc,
};

/// Who reports. A later variant wins over an earlier one, EDS resource by EDS resource.
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
    /// Endpoints that a resource listed anew.
    pub added: u64,
    /// Endpoints that a resource no longer listed.
    pub removed: u64,
}

/// Where changes go.
pub trait Sink {
    /// `resource` lists `ip` now and did not before.
    fn added(&mut self, ip: IpAddr, resource: &str);
    /// `resource` listed `ip` before and does not now.
    fn removed(&mut self, ip: IpAddr, resource: &str, still_listed: bool);
}

/// The listings of every EDS resource. Main thread.
#[derive(Debug, Default)]
pub struct Listings {
    resources: HashMap<Arc<str>, Listing>,
    /// The resources that list an address.
    listed_by: HashMap<IpAddr, Vec<Arc<str>>>,
    /// The EDS resource of each cluster that is known to read one.
    clusters: HashMap<String, Cluster>,
    /// How many of these clusters read a resource.
    readers: HashMap<String, u32>,
    /// Resources whose last cluster CDS took away.
    abandoned: HashSet<String>,
}

#[derive(Debug)]
struct Listing {
    source: Source,
    /// Sorted, each once.
    endpoints: Vec<IpAddr>,
}

#[derive(Debug)]
struct Cluster {
    resource: String,
    /// CDS lists it, as far as the validator has seen; else a poll has.
    by_cds: bool,
}

// === impl Listings ===

impl Listings {
    /// Abandoned resources remembered. Forgetting one costs a listing that nobody removes, no fence.
    const ABANDONED: usize = 16_384;

    /// `resource` lists exactly `endpoints` now, in any order, each once or more often.
    pub fn update(
        &mut self,
        source: Source,
        resource: &str,
        mut endpoints: Vec<IpAddr>,
        sink: &mut impl Sink,
    ) -> Change {
        if !self.reports(source, resource) || self.abandoned.contains(resource) {
            return Change::default();
        }
        endpoints.sort_unstable();
        endpoints.dedup();
        let name =
            self.resources.get_key_value(resource).map_or_else(|| Arc::from(resource), |(name, _)| Arc::clone(name));
        let empty = || Listing { source, endpoints: Vec::new() };
        let listing = self.resources.entry(Arc::clone(&name)).or_insert_with(empty);
        listing.source = source;
        let before = std::mem::replace(&mut listing.endpoints, endpoints);
        let mut change = Change::default();
        for ip in without(&before, &listing.endpoints) {
            sink.removed(ip, resource, unlist(&mut self.listed_by, ip, resource));
            change.removed += 1;
        }
        for ip in without(&listing.endpoints, &before) {
            self.listed_by.entry(ip).or_default().push(Arc::clone(&name));
            sink.added(ip, resource);
            change.added += 1;
        }
        change
    }

    /// The endpoint at `ip` is another one now: a removal and a return that came too close together to
    /// be seen apart.
    pub fn replaced(&mut self, source: Source, resource: &str, ip: IpAddr, sink: &mut impl Sink) -> Change {
        let known = self
            .resources
            .get(resource)
            .is_some_and(|listing| listing.source <= source && listing.endpoints.binary_search(&ip).is_ok());
        if !known {
            return Change::default();
        }
        let still_listed = self.listed_by.get(&ip).is_some_and(|resources| resources.len() > 1);
        sink.removed(ip, resource, still_listed);
        sink.added(ip, resource);
        Change { added: 1, removed: 1 }
    }

    /// `source` does not know `resource` any more, so its endpoints are gone.
    pub fn remove(&mut self, source: Source, resource: &str, sink: &mut impl Sink) -> Change {
        if !self.reports(source, resource) {
            return Change::default();
        }
        let Some(listing) = self.resources.remove(resource) else { return Change::default() };
        for ip in &listing.endpoints {
            sink.removed(*ip, resource, unlist(&mut self.listed_by, *ip, resource));
        }
        Change { added: 0, removed: listing.endpoints.len() as u64 }
    }

    /// A poll has seen `cluster`, whose EDS resource is `resource`.
    pub fn seen_by_poll(&mut self, cluster: &str, resource: &str) {
        let by_cds = self.clusters.get(cluster).is_some_and(|known| known.by_cds);
        // Only what a poll finds abandoned is so: Envoy has the cluster.
        self.abandoned.remove(resource);
        self.read(cluster, Some(resource), by_cds);
    }

    /// CDS lists `cluster`, whose EDS resource is `resource` if it has one. A resource that it had before and that
    /// no cluster reads any more is gone.
    pub fn cluster(&mut self, cluster: &str, resource: Option<&str>, sink: &mut impl Sink) -> Change {
        if let Some(resource) = resource {
            self.abandoned.remove(resource);
        }
        let before = self.read(cluster, resource, true);
        before.map_or_else(Change::default, |before| self.abandon(before, sink))
    }

    /// CDS lists `cluster` no longer.
    pub fn cluster_removed(&mut self, cluster: &str, sink: &mut impl Sink) -> Change {
        let before = self.read(cluster, None, true);
        before.map_or_else(Change::default, |before| self.abandon(before, sink))
    }

    /// The EDS clusters that CDS lists, as far as the validator has seen.
    pub fn clusters(&self) -> impl Iterator<Item = &str> {
        self.clusters.iter().filter(|(_, cluster)| cluster.by_cds).map(|(name, _)| name.as_str())
    }

    /// Envoy has `cluster` no longer, as polls have seen: its EDS resource has one reader less. With the last one
    /// the resource is gone, whoever reported it.
    pub fn cluster_gone(&mut self, cluster: &str, sink: &mut impl Sink) -> Change {
        let resource = self.read(cluster, None, false).unwrap_or_else(|| cluster.to_owned());
        self.drop_unread(&resource, sink)
    }

    /// Whether the validator has reported every EDS resource that CDS names.
    #[must_use]
    pub fn is_covered(&self) -> bool {
        let reported = |cluster: &Cluster| {
            self.resources.get(cluster.resource.as_str()).is_some_and(|listing| listing.source == Source::Validator)
        };
        let mut clusters = self.clusters.values().filter(|cluster| cluster.by_cds).peekable();
        clusters.peek().is_some() && clusters.all(reported)
    }

    /// Whether what `source` reports of `resource` counts.
    #[must_use]
    pub fn reports(&self, source: Source, resource: &str) -> bool {
        self.resources.get(resource).is_none_or(|listing| listing.source <= source)
    }

    /// The resources that `source` has reported last.
    pub fn of(&self, source: Source) -> impl Iterator<Item = &str> {
        self.resources.iter().filter(move |(_, listing)| listing.source == source).map(|(name, _)| &**name)
    }

    /// Addresses listed by at least one resource.
    #[must_use]
    pub fn endpoints(&self) -> usize {
        self.listed_by.len()
    }

    /// The resources that list `ip`.
    pub fn listing(&self, ip: IpAddr) -> impl Iterator<Item = &str> {
        self.listed_by.get(&ip).into_iter().flatten().map(|name| &**name)
    }

    /// The resource that `cluster` reads now. Gives the one that it read before, if it was another.
    fn read(&mut self, cluster: &str, resource: Option<&str>, by_cds: bool) -> Option<String> {
        if let Some(known) = self.clusters.get_mut(cluster)
            && Some(known.resource.as_str()) == resource
        {
            known.by_cds |= by_cds;
            return None;
        }
        if let Some(resource) = resource {
            *self.readers.entry(resource.to_owned()).or_default() += 1;
        }
        let before = match resource {
            Some(resource) => {
                self.clusters.insert(cluster.to_owned(), Cluster { resource: resource.to_owned(), by_cds })
            }
            None => self.clusters.remove(cluster),
        };
        let before = before?.resource;
        if let Some(readers) = self.readers.get_mut(&before) {
            *readers = readers.saturating_sub(1);
            if *readers == 0 {
                self.readers.remove(&before);
            }
        }
        Some(before)
    }

    /// CDS took a reader of `resource` away.
    fn abandon(&mut self, resource: String, sink: &mut impl Sink) -> Change {
        let change = self.drop_unread(&resource, sink);
        if !self.readers.contains_key(&resource) {
            if self.abandoned.len() >= Self::ABANDONED {
                self.abandoned.clear();
            }
            self.abandoned.insert(resource);
        }
        change
    }

    fn drop_unread(&mut self, resource: &str, sink: &mut impl Sink) -> Change {
        if self.readers.contains_key(resource) {
            return Change::default();
        }
        self.remove(Source::Validator, resource, sink)
    }
}

// === impl Change ===

impl std::ops::AddAssign for Change {
    fn add_assign(&mut self, other: Self) {
        self.added += other.added;
        self.removed += other.removed;
    }
}

/// What is in `these` and not in `others`; both are sorted.
fn without(these: &[IpAddr], others: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    let mut others = others.iter().peekable();
    these.iter().copied().filter(move |ip| {
        while others.next_if(|other| *other < ip).is_some() {}
        others.peek() != Some(&ip)
    })
}

/// Takes one listing of `ip` away; says whether another one remains.
fn unlist(listed_by: &mut HashMap<IpAddr, Vec<Arc<str>>>, ip: IpAddr, resource: &str) -> bool {
    let Some(resources) = listed_by.get_mut(&ip) else { return false };
    resources.retain(|name| **name != *resource);
    if resources.is_empty() {
        listed_by.remove(&ip);
        return false;
    }
    true
}

#[cfg(test)]
#[path = "listings_tests.rs"]
mod tests;
