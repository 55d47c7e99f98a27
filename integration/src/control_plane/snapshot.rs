//! What a push makes visible: every resource with its version.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use envoy_types::pb::google::protobuf::Any;

use super::model::Model;
use super::resources;

/// Type URL of CDS resources.
pub const CLUSTER_TYPE: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
/// Type URL of EDS resources.
pub const ENDPOINT_TYPE: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";

/// One resource as of some push.
#[derive(Clone, Debug)]
pub(super) struct Resource {
    /// The push that last carried a change of it.
    pub(super) changed_in: u64,
    pub(super) body: Arc<Any>,
}

/// The state of the world as of one push.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    /// Which control-plane life made it: versions of two lives must not compare equal.
    pub(super) life: u64,
    /// Counts pushes from 1 within one life; 0 is the empty world before the first.
    pub(super) number: u64,
    pub(super) clusters: BTreeMap<String, Resource>,
    pub(super) assignments: BTreeMap<String, Resource>,
    /// Clusters whose endpoints are being withheld: asking for them stays without an answer.
    pub(super) withheld: BTreeSet<String>,
    /// Clusters that do not ask for their endpoints on the ADS stream.
    pub(super) own_source: BTreeSet<String>,
}

// === impl Snapshot ===

impl Snapshot {
    /// The next snapshot, with all that is dirty in `model`, which is clean afterwards.
    pub(super) fn next(&self, model: &mut Model) -> Snapshot {
        let mut next = self.clone();
        next.number += 1;
        for name in std::mem::take(&mut model.dirty_clusters) {
            let body = model.services.get(&name).map(resources::cluster);
            next.put(CLUSTER_TYPE, name, body);
        }
        // What is withheld stays dirty: it goes out with the first push after it is delivered again.
        let (withheld, dirty) =
            std::mem::take(&mut model.dirty_endpoints).into_iter().partition(|name| model.withheld.contains(name));
        model.dirty_endpoints = withheld;
        let dirty: BTreeSet<String> = dirty;
        for name in dirty {
            let body = match (model.services.get(&name), model.raw.get(&name)) {
                (None, _) => None,
                (Some(_), _) if model.vanished.contains(&name) => None,
                (Some(_), Some(raw)) => Some(raw.to_any()),
                (Some(service), None) => Some(resources::assignment(service)),
            };
            next.put(ENDPOINT_TYPE, name, body);
        }
        next.withheld.clone_from(&model.withheld);
        let own = model.services.iter().filter(|(_, service)| service.eds_config.is_some());
        next.own_source = own.map(|(name, _)| name.clone()).collect();
        next
    }

    fn put(&mut self, type_url: &str, name: String, body: Option<Any>) {
        let number = self.number;
        let resources = match type_url {
            CLUSTER_TYPE => &mut self.clusters,
            _ => &mut self.assignments,
        };
        match body {
            Some(body) => {
                resources.insert(name, Resource { changed_in: number, body: Arc::new(body) });
            }
            None => {
                resources.remove(&name);
            }
        }
    }

    /// The resources of a type; none for a type that is not served.
    pub(super) fn resources(&self, type_url: &str) -> Option<&BTreeMap<String, Resource>> {
        match type_url {
            CLUSTER_TYPE => Some(&self.clusters),
            ENDPOINT_TYPE => Some(&self.assignments),
            _ => None,
        }
    }

    /// A push's number as the version string on the wire.
    pub(super) fn version(&self, number: u64) -> String {
        format!("{}/{number}", self.life)
    }
}
