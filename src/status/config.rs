//! Configuration of the bootstrap extension `status`.

use serde::Deserialize;

use crate::{
    config::{self, ConfigError, Object, Span, Whole},
    endpoints::DEFAULT_CAPACITY,
    watch::config::Statuses,
};

/// The name that Envoy's configuration selects this part with.
pub const NAME: &str = "status";

/// Configuration of the `status` extension. Every field has a default.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StatusConfig {
    /// Endpoints that are remembered.
    pub capacity: Whole<64, 1_048_576>,
    /// Path of the admin page; must begin with `/` and be none of Envoy's own.
    pub admin_path: AdminPath,
    /// The poller of Envoy's admin endpoint.
    pub watch: Object<PollConfig>,
    /// How long the control plane may be unreachable before every endpoint is fenced; null: for ever.
    pub suspect_after: Option<Span<1_000, 86_400_000>>,
}

/// Configuration of the polls.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PollConfig {
    /// Whether to poll.
    pub source: PollSource,
    /// The cluster that reaches Envoy's own admin endpoint.
    pub cluster: ClusterName,
    /// The shortest pause between the starts of two polls.
    pub min_interval: Span<50, 60_000>,
    /// The longest pause, in quiet times.
    pub max_interval: Span<50, 3_600_000>,
    /// Health statuses that fence as a removal does. `TIMEOUT` and `UNHEALTHY` look alike here.
    pub treat_as_removed: Statuses,
}

/// Where polls go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PollSource {
    /// Envoy's own admin endpoint.
    Admin,
    /// Nowhere.
    None,
}

/// The name of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ClusterName(String);

/// A path of the admin endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct AdminPath(String);

// === impl StatusConfig ===

impl Default for StatusConfig {
    fn default() -> Self {
        Self {
            capacity: Whole::clamped(u32::try_from(DEFAULT_CAPACITY).unwrap_or(u32::MAX)),
            admin_path: AdminPath("/stale-guard".to_owned()),
            watch: Object::default(),
            suspect_after: Some(Span::clamped_ms(30_000)),
        }
    }
}

impl StatusConfig {
    /// Parses the configuration that Envoy hands over.
    ///
    /// # Errors
    /// See [`config::parse`]; also a `max_interval` that is shorter than the `min_interval`.
    pub fn parse(json: &[u8]) -> Result<Self, ConfigError> {
        let config: Self = config::parse(NAME, json)?;
        let (shortest, longest) = (config.watch.min_interval.get(), config.watch.max_interval.get());
        if longest < shortest {
            return Err(ConfigError::new(
                NAME,
                "watch.max_interval",
                &format!("{longest:?}").into(),
                format!("must be at least watch.min_interval, which is {shortest:?}"),
            ));
        }
        Ok(config)
    }
}

// === impl PollConfig ===

impl Default for PollConfig {
    fn default() -> Self {
        Self {
            source: PollSource::Admin,
            cluster: ClusterName("prometheus_stats".to_owned()),
            min_interval: Span::clamped_ms(250),
            max_interval: Span::clamped_ms(5_000),
            treat_as_removed: Statuses::default(),
        }
    }
}

// === impl ClusterName ===

impl ClusterName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for ClusterName {
    type Error = &'static str;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        if name.is_empty() { Err("must be the name of a cluster") } else { Ok(Self(name)) }
    }
}

// === impl AdminPath ===

impl AdminPath {
    /// The path.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for AdminPath {
    type Error = &'static str;

    fn try_from(path: String) -> Result<Self, Self::Error> {
        let word = path.strip_prefix('/').unwrap_or_default();
        let valid =
            !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_/.".contains(&byte));
        if valid {
            Ok(Self(path))
        } else {
            Err("must be a path such as \"/stale-guard\": a slash, then letters, digits, - _ . or /")
        }
    }
}
