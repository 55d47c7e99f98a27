//! The config validator: sees every EDS and CDS response before Envoy applies it.

use std::{
    collections::HashSet,
    net::IpAddr,
    sync::{
        Once,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use envoy_proxy_dynamic_modules_rust_sdk::{
    ConfigValidatorConfig, ConfigValidatorContext, ConfigValidatorResource, envoy_log_debug, envoy_log_warn,
};

use super::{Assignment, Change, Sink, Source, Views, config::WatchConfig, decode_assignment, decode_cluster};
use crate::shared::{News, shared};

/// Type of EDS resources.
const CLUSTER_LOAD_ASSIGNMENT: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
/// Type of CDS resources.
const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

/// The validator of one resource type. It only looks: every update is accepted.
pub(crate) struct Validator {
    config: WatchConfig,
}

/// What is to be said of a response, after the listings' lock: a log line is a call into Envoy.
#[derive(Default)]
struct Notes {
    unreadable: Vec<(String, prost::DecodeError)>,
    leds: Option<String>,
    /// Endpoints that the fence has no use for.
    left_out: usize,
}

// === impl Validator ===

impl Validator {
    pub(crate) fn new(config: WatchConfig) -> Self {
        Self { config }
    }

    fn see(&self, type_url: &str, resources: &[ConfigValidatorResource], removed: Removed<'_>) {
        let mut notes = Notes::default();
        let change = match type_url {
            CLUSTER_LOAD_ASSIGNMENT => shared()
                .watch(News::Endpoints, |views, sink| self.endpoints(resources, removed, views, sink, &mut notes)),
            CLUSTER => {
                shared().watch(News::Clusters, |views, sink| clusters(resources, removed, views, sink, &mut notes))
            }
            _ => {
                static ONCE: Once = Once::new();
                ONCE.call_once(|| envoy_log_warn!("stale_guard: watch has no use for resources of type {type_url}"));
                return;
            }
        };
        notes.say();
        note_missing_clusters(type_url == CLUSTER);
        envoy_log_debug!(
            "stale_guard: watch saw {} of {type_url}: {} endpoints added, {} removed, {} left out",
            resources.len(),
            change.added,
            change.removed,
            notes.left_out
        );
    }

    fn endpoints(
        &self,
        resources: &[ConfigValidatorResource],
        removed: Removed<'_>,
        views: &mut Views,
        sink: &mut impl Sink,
        notes: &mut Notes,
    ) -> Change {
        let mut change = Change::default();
        for resource in resources {
            // A resource without a body is a renewed time to live: nothing changes.
            let Some(bytes) = resource.resource else { continue };
            match decode_assignment(bytes) {
                Ok(assignment) => {
                    let listed = self.listed(&assignment);
                    change += views.update(Source::Validator, &assignment.cluster, listed, sink);
                    notes.of(assignment);
                }
                Err(error) => notes.unreadable.push((resource.name.clone().into_owned(), error)),
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

/// Takes in a CDS response.
fn clusters(
    resources: &[ConfigValidatorResource],
    removed: Removed<'_>,
    views: &mut Views,
    sink: &mut impl Sink,
    notes: &mut Notes,
) -> Change {
    let mut change = Change::default();
    let mut seen = HashSet::new();
    for resource in resources {
        match resource.resource.map(decode_cluster) {
            Some(Ok((name, assignment))) => {
                change += views.cluster(&name, assignment, sink);
                seen.insert(name);
            }
            Some(Err(error)) => {
                seen.insert(resource.name.clone().into_owned());
                notes.unreadable.push((resource.name.clone().into_owned(), error));
            }
            None => {
                seen.insert(resource.name.clone().into_owned());
            }
        }
    }
    let gone: Vec<String> = match removed {
        Removed::Named(names) => names.iter().map(|name| (*name).to_owned()).collect(),
        Removed::AllOthers => views.clusters().filter(|name| !seen.contains(*name)).map(str::to_owned).collect(),
    };
    for name in gone {
        change += views.cluster_removed(&name, sink);
    }
    change
}

// === impl Notes ===

impl Notes {
    fn of(&mut self, assignment: Assignment) {
        self.left_out += assignment.ignored.not_ip + assignment.ignored.through_waypoint;
        if assignment.ignored.leds > 0 {
            self.leds = Some(assignment.cluster);
        }
    }

    fn say(&self) {
        shared().validator.errors.fetch_add(self.unreadable.len() as u64, Ordering::Relaxed);
        if let Some((name, error)) = self.unreadable.first() {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| {
                envoy_log_warn!(
                    "stale_guard: watch cannot read the resource \"{name}\" ({error}); it is accepted, and its endpoints \
                     are not fenced. Further ones are only counted."
                );
            });
        }
        if let Some(cluster) = &self.leds {
            static ONCE: Once = Once::new();
            ONCE.call_once(|| {
                envoy_log_warn!(
                    "stale_guard: cluster \"{cluster}\" gets endpoints by LEDS, which watch does not follow: they are not \
                     fenced"
                );
            });
        }
    }
}

/// Says once that the validator entry for clusters is missing: several EDS responses came, and no CDS
/// response.
fn note_missing_clusters(clusters: bool) {
    const ENOUGH: u32 = 3;
    static CLUSTERS: AtomicBool = AtomicBool::new(false);
    static ENDPOINTS: AtomicU32 = AtomicU32::new(0);
    if clusters {
        CLUSTERS.store(true, Ordering::Relaxed);
    } else if ENDPOINTS.fetch_add(1, Ordering::Relaxed) + 1 == ENOUGH && !CLUSTERS.load(Ordering::Relaxed) {
        envoy_log_warn!(
            "stale_guard: watch sees endpoints but no clusters: without a config validator for {CLUSTER}, a cluster that \
             goes away is noticed by the bootstrap extension alone"
        );
    }
}
