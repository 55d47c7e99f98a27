//! The config validator: sees every EDS and CDS response before Envoy applies it.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    sync::{Mutex, Once, PoisonError, atomic::Ordering},
};

use envoy_proxy_dynamic_modules_rust_sdk::{
    ConfigValidatorConfig, ConfigValidatorContext, ConfigValidatorResource, envoy_log_debug, envoy_log_warn,
};

use super::{Assignment, Change, Sink, Source, Views, config::WatchConfig, decode_assignment, decode_cluster};
use crate::shared::shared;

/// Type of EDS resources.
const CLUSTER_LOAD_ASSIGNMENT: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
/// Type of CDS resources.
const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

/// The validator of one resource type. It only looks: every update is accepted.
pub(crate) struct Validator {
    config: WatchConfig,
    clusters: Mutex<Clusters>,
}

/// Clusters that came by CDS, with the names of their EDS resources.
#[derive(Debug, Default)]
struct Clusters(HashMap<String, Option<String>>);

// === impl Validator ===

impl Validator {
    pub(crate) fn new(config: WatchConfig) -> Self {
        Self { config, clusters: Mutex::default() }
    }

    fn see(&self, type_url: &str, resources: &[ConfigValidatorResource], removed: Removed<'_>) {
        let change = shared().watch(Source::Validator, |views, sink| match type_url {
            CLUSTER_LOAD_ASSIGNMENT => self.endpoints(resources, removed, views, sink),
            CLUSTER => self.clusters(resources, removed, views, sink),
            _ => {
                static ONCE: Once = Once::new();
                ONCE.call_once(|| envoy_log_warn!("stale_guard: watch has no use for resources of type {type_url}"));
                Change::default()
            }
        });
        envoy_log_debug!(
            "stale_guard: watch saw {} of {type_url}: {} endpoints added, {} removed",
            resources.len(),
            change.added,
            change.removed
        );
    }

    fn endpoints(
        &self,
        resources: &[ConfigValidatorResource],
        removed: Removed<'_>,
        views: &mut Views,
        sink: &mut impl Sink,
    ) -> Change {
        let mut change = Change::default();
        for resource in resources {
            // A resource without a body is a renewed time to live: nothing changes.
            let Some(bytes) = resource.resource else { continue };
            match decode_assignment(bytes) {
                Ok(assignment) => {
                    note_ignored(&assignment);
                    let listed = self.listed(&assignment);
                    change += views.update(Source::Validator, &assignment.cluster, listed, sink);
                }
                Err(error) => unreadable(&resource.name, &error),
            }
        }
        if let Removed::Named(names) = removed {
            for name in names {
                // Envoy keeps the hosts; the validator keeps the word, else a poll would list them anew.
                change += views.update(Source::Validator, name, Vec::new(), sink);
            }
        }
        change
    }

    fn clusters(
        &self,
        resources: &[ConfigValidatorResource],
        removed: Removed<'_>,
        views: &mut Views,
        sink: &mut impl Sink,
    ) -> Change {
        let mut known = self.clusters.lock().unwrap_or_else(PoisonError::into_inner);
        let mut seen = HashSet::new();
        for resource in resources {
            match resource.resource.map(decode_cluster) {
                Some(Ok((name, assignment))) => {
                    seen.insert(name.clone());
                    if let Some(assignment) = &assignment {
                        views.name(&name, assignment);
                    }
                    known.0.insert(name, assignment);
                }
                Some(Err(error)) => {
                    seen.insert(resource.name.clone().into_owned());
                    unreadable(&resource.name, &error);
                }
                None => {
                    seen.insert(resource.name.clone().into_owned());
                }
            }
        }
        let gone = match removed {
            Removed::Named(names) => names.iter().map(|name| (*name).to_owned()).collect(),
            Removed::AllOthers => known.others(&seen),
        };
        gone.iter().fold(Change::default(), |mut change, name| {
            if let Some(assignment) = known.remove(name) {
                change += views.remove(Source::Validator, &assignment, sink);
            }
            change
        })
    }

    fn listed(&self, assignment: &Assignment) -> Vec<IpAddr> {
        let treated_as_removed = &self.config.treat_as_removed;
        let endpoints = assignment.endpoints.iter();
        endpoints.filter(|(_, health)| !treated_as_removed.contains(*health)).map(|(ip, _)| *ip).collect()
    }
}

/// What a response takes away.
#[derive(Clone, Copy)]
enum Removed<'a> {
    /// Delta: these resources.
    Named(&'a [&'a str]),
    /// State of the world: for clusters, all that it does not list. An EDS response need not list
    /// every resource ("State of the world" in Envoy's xDS protocol document).
    AllOthers,
}

impl ConfigValidatorConfig for Validator {
    fn validate(
        &self,
        _context: &ConfigValidatorContext,
        type_url: &str,
        resources: &[ConfigValidatorResource],
    ) -> Result<(), String> {
        self.see(type_url, resources, Removed::AllOthers);
        Ok(())
    }

    fn validate_delta(
        &self,
        _context: &ConfigValidatorContext,
        type_url: &str,
        added_resources: &[ConfigValidatorResource],
        removed_resources: &[&str],
    ) -> Result<(), String> {
        self.see(type_url, added_resources, Removed::Named(removed_resources));
        Ok(())
    }
}

// === impl Clusters ===

impl Clusters {
    fn others(&self, seen: &HashSet<String>) -> Vec<String> {
        self.0.keys().filter(|name| !seen.contains(*name)).cloned().collect()
    }

    /// Forgets a cluster; gives its EDS resource, unless another cluster shares it.
    fn remove(&mut self, name: &str) -> Option<String> {
        let assignment = self.0.remove(name)??;
        let shared = self.0.values().flatten().any(|other| *other == assignment);
        (!shared).then_some(assignment)
    }
}

fn unreadable(name: &str, error: &prost::DecodeError) {
    shared().validator.errors.fetch_add(1, Ordering::Relaxed);
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        envoy_log_warn!(
            "stale_guard: watch cannot read the resource \"{name}\" ({error}); it is accepted, and its endpoints are not \
             fenced. Further ones are only counted."
        );
    });
}

fn note_ignored(assignment: &Assignment) {
    if assignment.ignored.leds > 0 {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            envoy_log_warn!(
                "stale_guard: cluster \"{}\" gets endpoints by LEDS, which watch does not follow: they are not fenced",
                assignment.cluster
            );
        });
    }
}
