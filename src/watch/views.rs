//! What each cluster lists, and what an update changes.

use std::{collections::HashMap, net::IpAddr};

use super::Sink;

/// Who says so. A later variant wins over an earlier one, EDS resource by EDS resource.
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

/// The listings of every EDS resource. Main thread.
///
/// A resource usually has its cluster's name. Where it has not, both sources speak of the resource,
/// so that they mean the same listing.
#[derive(Debug, Default)]
pub struct Views {
    views: HashMap<String, View>,
    /// In how many resources an address is listed.
    listings: HashMap<IpAddr, u32>,
    /// EDS resources of clusters that go by another name.
    resources: HashMap<String, String>,
    /// The clusters that CDS lists, with the names of their EDS resources; none before the validator has
    /// seen a CDS response.
    clusters: Option<HashMap<String, Option<String>>>,
}

#[derive(Debug)]
struct View {
    source: Source,
    /// Sorted, each once.
    endpoints: Vec<IpAddr>,
}

// === impl Views ===

impl Views {
    /// `resource` lists exactly `endpoints` now, in any order, each once or more often.
    pub fn update(
        &mut self,
        source: Source,
        resource: &str,
        mut endpoints: Vec<IpAddr>,
        sink: &mut impl Sink,
    ) -> Change {
        if !self.heeds(source, resource) {
            return Change::default();
        }
        endpoints.sort_unstable();
        endpoints.dedup();
        if !self.views.contains_key(resource) {
            self.views.insert(resource.to_owned(), View { source, endpoints: Vec::new() });
        }
        let Some(view) = self.views.get_mut(resource) else { return Change::default() };
        view.source = source;
        let before = std::mem::replace(&mut view.endpoints, endpoints);
        let mut change = Change::default();
        for ip in without(&before, &view.endpoints) {
            sink.removed(ip, resource, unlist(&mut self.listings, ip));
            change.removed += 1;
        }
        for ip in without(&view.endpoints, &before) {
            *self.listings.entry(ip).or_default() += 1;
            sink.added(ip, resource);
            change.added += 1;
        }
        change
    }

    /// The endpoint at `ip` is another one now: a removal and a return that came too close together to
    /// be seen apart.
    pub fn replaced(&mut self, source: Source, resource: &str, ip: IpAddr, sink: &mut impl Sink) -> Change {
        let known = self
            .views
            .get(resource)
            .is_some_and(|view| view.source <= source && view.endpoints.binary_search(&ip).is_ok());
        if !known {
            return Change::default();
        }
        let still_listed = self.listings.get(&ip).is_some_and(|listings| *listings > 1);
        sink.removed(ip, resource, still_listed);
        sink.added(ip, resource);
        Change { added: 1, removed: 1 }
    }

    /// `resource` is gone for `source`, and its endpoints with it.
    pub fn remove(&mut self, source: Source, resource: &str, sink: &mut impl Sink) -> Change {
        if !self.heeds(source, resource) {
            return Change::default();
        }
        let Some(view) = self.views.remove(resource) else { return Change::default() };
        for ip in &view.endpoints {
            sink.removed(*ip, resource, unlist(&mut self.listings, *ip));
        }
        Change { added: 0, removed: view.endpoints.len() as u64 }
    }

    /// The name of the EDS resource of `cluster` is `resource`.
    pub fn name(&mut self, cluster: &str, resource: &str) {
        if cluster == resource {
            self.resources.remove(cluster);
        } else if self.resources.get(cluster).is_none_or(|known| known != resource) {
            self.resources.insert(cluster.to_owned(), resource.to_owned());
        }
    }

    /// CDS lists `cluster`, whose EDS resource is `resource`. A resource that it had before and that no
    /// cluster reads any more is gone.
    pub fn cluster(&mut self, cluster: &str, resource: Option<String>, sink: &mut impl Sink) -> Change {
        self.name(cluster, resource.as_deref().unwrap_or(cluster));
        let clusters = self.clusters.get_or_insert_default();
        let before = clusters.insert(cluster.to_owned(), resource).flatten();
        before.map_or_else(Change::default, |before| self.unread(&before, sink))
    }

    /// CDS lists `cluster` no longer.
    pub fn cluster_removed(&mut self, cluster: &str, sink: &mut impl Sink) -> Change {
        let resource = self.clusters.get_or_insert_default().remove(cluster).flatten();
        self.resources.remove(cluster);
        resource.map_or_else(Change::default, |resource| self.unread(&resource, sink))
    }

    /// The clusters that CDS lists, as far as the validator has seen.
    pub fn clusters(&self) -> impl Iterator<Item = &str> {
        self.clusters.iter().flat_map(HashMap::keys).map(String::as_str)
    }

    /// Envoy has `cluster` no longer: its EDS resource has no reader any more, unless another cluster
    /// shares it. This ends the word of either source on it.
    pub fn cluster_gone(&mut self, cluster: &str, sink: &mut impl Sink) -> Change {
        let resource = self.resources.remove(cluster).unwrap_or_else(|| cluster.to_owned());
        match self.views.get(&resource) {
            Some(view) if !self.is_read(&resource) => self.remove(view.source, &resource, sink),
            Some(_) | None => Change::default(),
        }
    }

    fn unread(&mut self, resource: &str, sink: &mut impl Sink) -> Change {
        if self.is_read(resource) { Change::default() } else { self.remove(Source::Validator, resource, sink) }
    }

    /// Whether a cluster is known to read `resource`.
    fn is_read(&self, resource: &str) -> bool {
        self.resources.values().any(|read| read == resource)
            || self.clusters.iter().flat_map(HashMap::values).flatten().any(|read| read == resource)
    }

    /// Whether the validator has the word on every EDS resource that CDS names.
    #[must_use]
    pub fn is_covered(&self) -> bool {
        let Some(clusters) = &self.clusters else { return false };
        let mut resources = clusters.values().flatten().peekable();
        resources.peek().is_some()
            && resources.all(|resource| self.views.get(resource).is_some_and(|view| view.source == Source::Validator))
    }

    /// Whether `source` has a say in `resource`.
    #[must_use]
    pub fn heeds(&self, source: Source, resource: &str) -> bool {
        self.views.get(resource).is_none_or(|view| view.source <= source)
    }

    /// The resources that `source` has the word on.
    pub fn resources(&self, source: Source) -> impl Iterator<Item = &str> {
        self.views.iter().filter(move |(_, view)| view.source == source).map(|(name, _)| name.as_str())
    }

    /// Addresses listed by at least one resource.
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

/// What is in `these` and not in `others`; both are sorted.
fn without(these: &[IpAddr], others: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    let mut others = others.iter().peekable();
    these.iter().copied().filter(move |ip| {
        while others.next_if(|other| *other < ip).is_some() {}
        others.peek() != Some(&ip)
    })
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
