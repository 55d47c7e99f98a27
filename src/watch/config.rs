//! Configuration of the config validator `watch`.

use std::collections::HashSet;

use serde::Deserialize;

use super::HealthStatus;
use crate::config::{self, ConfigError};

/// The name that Envoy's configuration selects this part with.
pub const NAME: &str = "watch";

/// Configuration of the `watch`. Every field has a default.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WatchConfig {
    /// Health statuses that fence as a removal does.
    pub treat_as_removed: HashSet<HealthStatus>,
}

// === impl WatchConfig ===

impl Default for WatchConfig {
    fn default() -> Self {
        Self { treat_as_removed: treat_as_removed() }
    }
}

impl WatchConfig {
    /// Parses the configuration that Envoy hands over.
    ///
    /// # Errors
    /// See [`config::parse`].
    pub fn parse(json: &[u8]) -> Result<Self, ConfigError> {
        config::parse(NAME, json)
    }
}

/// The default of `treat_as_removed`: a terminating endpoint answers what it has and gets no more.
#[must_use]
pub fn treat_as_removed() -> HashSet<HealthStatus> {
    HashSet::from([HealthStatus::Draining])
}
