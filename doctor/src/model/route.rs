//! Routes: what is retried, and hedged.

use std::collections::BTreeMap;
use std::time::Duration;

use super::part::{Module, Retry, document};
use crate::json::At;

/// A route configuration.
#[derive(Debug, Clone, Default)]
pub struct RouteConfig {
    /// Its name.
    pub name: String,
    /// Its virtual hosts.
    pub hosts: Vec<VirtualHost>,
}

/// A virtual host.
#[derive(Debug, Clone, Default)]
pub struct VirtualHost {
    /// Its name.
    pub name: String,
    /// Whether upstreams are told the number of the attempt.
    pub attempt_count: bool,
    /// Its routes.
    pub routes: Vec<Route>,
}

/// A route to clusters. Policies of the virtual host are in it where it has none of its own.
#[derive(Debug, Clone, Default)]
pub struct Route {
    /// Its name, or its number.
    pub name: String,
    /// Whether it is for CONNECT.
    pub connect: bool,
    /// Where it leads, as far as that is fixed.
    pub clusters: Vec<String>,
    /// How long a request may take; Envoy's default is 15 s, zero is for ever.
    pub timeout: Option<Duration>,
    /// What is retried.
    pub retry: Option<RetryPolicy>,
    /// Whether requests are hedged when a try's time is over.
    pub hedges: bool,
    /// The module's own configuration for it.
    pub module: Option<Retry>,
}

/// A retry policy.
#[derive(Debug, Clone, Default)]
pub struct RetryPolicy {
    /// Envoy's words.
    pub on: Vec<String>,
    /// Statuses that are retried where `on` says so.
    pub status_codes: Vec<u64>,
    /// How often.
    pub num_retries: u64,
    /// Whether a try has a timeout.
    pub per_try_timeout: bool,
    /// Whether only some methods are retried.
    pub by_method: bool,
}

pub(super) fn read(section: &At<'_>, routes: &mut BTreeMap<String, RouteConfig>) {
    for list in ["static_route_configs", "dynamic_route_configs"] {
        for entry in section.list(list) {
            // An entry without a configuration is one that has not come yet, or that was refused.
            let config = entry.get("route_config").map(|config| RouteConfig::read(&config));
            routes.extend(config.map(|config| (config.name.clone(), config)));
        }
    }
}

// === impl RouteConfig ===

impl RouteConfig {
    fn read(at: &At<'_>) -> Self {
        Self { name: at.string("name"), hosts: at.list("virtual_hosts").iter().map(VirtualHost::read).collect() }
    }

    /// Its routes, each with its virtual host.
    pub fn routes(&self) -> impl Iterator<Item = (&VirtualHost, &Route)> {
        self.hosts.iter().flat_map(|host| host.routes.iter().map(move |route| (host, route)))
    }
}

// === impl VirtualHost ===

impl VirtualHost {
    fn read(at: &At<'_>) -> Self {
        let inherited = Inherited {
            retry: at.get("retry_policy").map(|policy| RetryPolicy::read(&policy)),
            hedges: at.get("hedge_policy").is_some_and(|policy| policy.flag("hedge_on_per_try_timeout")),
            module: per_route(at),
        };
        let routes = at.list("routes").into_iter().enumerate();
        Self {
            name: at.string("name"),
            attempt_count: at.flag("include_request_attempt_count"),
            routes: routes.filter_map(|(index, route)| Route::read(&route, index, &inherited)).collect(),
        }
    }
}

/// What a route has from its virtual host.
struct Inherited {
    retry: Option<RetryPolicy>,
    hedges: bool,
    module: Option<Retry>,
}

// === impl Route ===

impl Route {
    /// `None` for redirects and direct responses, which have no upstream.
    fn read(at: &At<'_>, index: usize, inherited: &Inherited) -> Option<Self> {
        let name = at.text("name").map_or_else(|| format!("number {index}"), str::to_owned);
        let connect = at.get("match").is_some_and(|matcher| matcher.get("connect_matcher").is_some());
        let action = at.get("route")?;
        let policy = action.get("retry_policy").map(|policy| RetryPolicy::read(&policy));
        let hedge = action.get("hedge_policy").map(|policy| policy.flag("hedge_on_per_try_timeout"));
        let weighted = action.get("weighted_clusters").map(|weighted| weighted.list("clusters")).unwrap_or_default();
        let clusters = action.text("cluster").map(str::to_owned).into_iter();
        Some(Self {
            name,
            connect,
            clusters: clusters.chain(weighted.iter().map(|cluster| cluster.string("name"))).collect(),
            timeout: action.duration("timeout"),
            retry: policy.or_else(|| inherited.retry.clone()),
            hedges: hedge.unwrap_or(inherited.hedges),
            module: per_route(at).or_else(|| inherited.module.clone()),
        })
    }
}

/// The module's configuration in `typed_per_filter_config`.
fn per_route(at: &At<'_>) -> Option<Retry> {
    at.entries("typed_per_filter_config").iter().find_map(|(name, config)| {
        if crate::json::last_part(&config.type_url()) != "DynamicModuleFilterPerRoute" {
            return None;
        }
        Module::read(config, name)?;
        Some(Retry::of(&document(config, "filter_config")))
    })
}

// === impl RetryPolicy ===

impl RetryPolicy {
    fn read(at: &At<'_>) -> Self {
        let words = at.text("retry_on").unwrap_or_default().split(',');
        let headers = at.list("retriable_request_headers");
        let codes = at.list("retriable_status_codes");
        Self {
            on: words.map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect(),
            status_codes: codes.iter().filter_map(|code| code.value().as_u64()).collect(),
            num_retries: at.number("num_retries").unwrap_or(1),
            per_try_timeout: at.get("per_try_timeout").is_some(),
            by_method: headers.iter().any(|header| header.string("name") == ":method"),
        }
    }

    /// Those of its words that are in `words`.
    #[must_use]
    pub fn among(&self, words: &[&str]) -> Vec<&str> {
        self.on.iter().map(String::as_str).filter(|word| words.contains(word)).collect()
    }
}
