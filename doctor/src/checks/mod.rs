//! The checks. Each is a pure function from what is known of a proxy to findings.
//!
//! ALWAYS: what is said to be absent was looked for in a section that could be read whole.
//! NEVER: a panic, whatever the dump holds.

mod exposure;
mod filters;
mod generation;
mod hosts;
mod input;
mod module;
mod routes;
mod stats;
mod tunnel;
mod watch;

use crate::{
    Finding, Hosts, Input, Report, StatNames, Unread, Unreadable, json,
    model::{Proxy, Seen},
    report::{self, Identity},
};

/// What is known of a proxy.
pub(crate) struct Case<'a> {
    pub(crate) proxy: &'a Proxy,
    pub(crate) hosts: Option<&'a Hosts>,
    pub(crate) stats: Option<&'a StatNames>,
    pub(crate) unread: &'a [Unread],
}

type Check = fn(&Case<'_>) -> Vec<Finding>;

const CHECKS: &[Check] = &[
    input::damaged,
    input::sections,
    exposure::unfenced,
    exposure::idle_timeout,
    exposure::liveness,
    exposure::slow_connect,
    routes::blind_retries,
    routes::hedging,
    routes::unhandled_resets,
    routes::attempt_count,
    hosts::connections_to_gone,
    hosts::past_the_fence,
    module::unsupported,
    module::rejected,
    module::unloadable,
    module::several_modules,
    module::modes,
    generation::order,
    generation::object,
    filters::fences,
    filters::configurations,
    filters::retry_place,
    filters::retry_missing,
    filters::status,
    watch::source,
    watch::poll_cluster,
    watch::poll_answer,
    watch::validators,
    watch::control_plane,
    stats::hidden,
];

/// Examines a proxy.
///
/// # Errors
/// If the `config_dump` is none; damage to the other inputs is reported, not fatal.
pub fn examine(input: Input<'_>) -> Result<Report, Unreadable> {
    let parsed = json::parse(input.config_dump).map_err(Unreadable::NotJson)?;
    let (proxy, mut unread) = Proxy::read(&parsed)?;
    let mut other = |name: &str, problem: String| unread.push(Unread { place: name.to_owned(), problem });
    let hosts = input.clusters.and_then(|text| Hosts::read(text).map_err(|problem| other("clusters", problem)).ok());
    let stats = input.stats.and_then(|text| StatNames::read(text).map_err(|problem| other("stats", problem)).ok());
    let case = Case { proxy: &proxy, hosts: hosts.as_ref(), stats: stats.as_ref(), unread: &unread };
    let findings = CHECKS.iter().flat_map(|check| check(&case)).collect();
    let exposure = tunnel::exposure(&proxy);
    Ok(Report { proxy: Identity::of(&proxy), exposure, findings: report::ordered(findings), unread })
}

// === impl Case ===

impl Case<'_> {
    /// Whether all listeners are known.
    fn knows_listeners(&self) -> bool {
        self.proxy.coverage.listeners == Seen::Whole
    }

    /// Whether all clusters are known.
    fn knows_clusters(&self) -> bool {
        self.proxy.coverage.clusters == Seen::Whole
    }

    /// Whether all of the bootstrap is known.
    fn knows_bootstrap(&self) -> bool {
        self.proxy.coverage.bootstrap == Seen::Whole
    }

    /// Whether all routes are known.
    fn knows_routes(&self) -> bool {
        self.proxy.coverage.routes == Seen::Whole
    }
}
