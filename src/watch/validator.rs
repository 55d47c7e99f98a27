//! The config validator: thin glue between Envoy's xDS responses and [`super::Watch`].

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

use envoy_proxy_dynamic_modules_rust_sdk::{
    ConfigValidatorConfig, ConfigValidatorContext, ConfigValidatorResource, envoy_log_debug,
};

use super::{Removed, Resource, Response, Watch, config::WatchConfig};
use crate::note::log;

/// Type of EDS resources.
const CLUSTER_LOAD_ASSIGNMENT: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
/// Type of CDS resources.
const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";

/// The validator of one resource type. It only looks: every update is accepted.
pub(crate) struct Validator {
    config: WatchConfig,
    watch: &'static Mutex<Watch>,
}

// === impl Validator ===

impl Validator {
    pub(crate) const fn new(config: WatchConfig, watch: &'static Mutex<Watch>) -> Self {
        Self { config, watch }
    }

    fn see(&self, type_url: &str, resources: &[ConfigValidatorResource], removed: Removed<'_>) {
        let now = Instant::now();
        let resources: Vec<_> =
            resources.iter().map(|resource| Resource { name: &resource.name, body: resource.resource }).collect();
        let response = Response { resources: &resources, removed };
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let (change, notes) = match type_url {
            CLUSTER_LOAD_ASSIGNMENT => watch.eds(&response, &self.config.treat_as_removed, now),
            CLUSTER => watch.cds(&response, now),
            _ => {
                let note = watch.other(type_url);
                drop(watch);
                return log(note);
            }
        };
        drop(watch);
        log(notes);
        envoy_log_debug!(
            "stale_guard: the validator saw {} of {type_url}: {} endpoints added, {} removed",
            resources.len(),
            change.added,
            change.removed
        );
    }
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
