//! Configuration of the config validator `watch`.

use serde::Deserialize;

use super::HealthStatus;
use crate::config::{self, ConfigError};

/// The name that Envoy's configuration selects this part with.
pub const NAME: &str = "watch";

/// Configuration of the `watch`. Every field has a default.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WatchConfig {
    /// Health statuses that fence as a removal does.
    pub treat_as_removed: Statuses,
}

/// Health statuses that count as a removal: any but those of an endpoint that is well.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<HealthStatus>")]
pub struct Statuses(Vec<HealthStatus>);

// === impl WatchConfig ===

impl WatchConfig {
    /// Parses the configuration that Envoy hands over.
    ///
    /// # Errors
    /// See [`config::parse`].
    pub fn parse(json: &[u8]) -> Result<Self, ConfigError> {
        config::parse(NAME, json)
    }
}

// === impl Statuses ===

impl Statuses {
    /// Whether `status` counts as a removal.
    #[must_use]
    pub fn contains(&self, status: HealthStatus) -> bool {
        self.0.contains(&status)
    }
}

impl Default for Statuses {
    /// How control planes tell of a pod that ends or is not ready. Between one of these and health the
    /// pod may be replaced without a word; where it was not, the price is a handshake.
    fn default() -> Self {
        Self(vec![HealthStatus::Draining, HealthStatus::Unhealthy])
    }
}

impl TryFrom<Vec<HealthStatus>> for Statuses {
    type Error = &'static str;

    fn try_from(statuses: Vec<HealthStatus>) -> Result<Self, Self::Error> {
        let well = |status: &HealthStatus| matches!(status, HealthStatus::Unknown | HealthStatus::Healthy);
        if statuses.iter().any(well) {
            return Err("must be a list of UNHEALTHY, DRAINING, TIMEOUT and DEGRADED");
        }
        Ok(Self(statuses))
    }
}
