//! Whether the fence hears of removals.

use serde_json::Value;

use super::{Case, tunnel};
use crate::{
    Code, Finding,
    duration::show,
    model::{Address, Part, Status},
    paste,
};

/// Envoy's limit of an answer to a call-out.
const LIMIT: u64 = 32 * 1024 * 1024;
const LIMIT_KEY: &str = "http.async_response_buffer_limit";
/// Envoy counts a connection to the control plane as soon as it tries; the module waits so long.
const SETTLED: std::time::Duration = std::time::Duration::from_secs(10);

/// The statistic that `suspect_after` reads.
pub(super) const CONNECTED: &str = "control_plane.connected_state";

/// Neither way.
pub(super) fn source(case: &Case<'_>) -> Vec<Finding> {
    let has_fence = case.proxy.fences().next().is_some();
    if !has_fence || !case.knows_bootstrap() || tunnel::is_watched(case.proxy) {
        return Vec::new();
    }
    let message = match case.proxy.bootstrap.status.is_empty() {
        true => "There is neither a status extension nor a config validator for endpoints.",
        false => "watch.source is none, and there is no config validator for endpoints.",
    };
    vec![Finding::new(Code::NothingWatches, "bootstrap", message).paste(paste::status())]
}

/// Status extensions that need the admin endpoint's cluster.
fn asking<'a>(case: &'a Case<'_>) -> impl Iterator<Item = &'a Part<Status>> {
    case.proxy.bootstrap.status.iter().filter(|status| status.config.polls || status.config.suspects)
}

/// The cluster that polls go through.
pub(super) fn poll_cluster(case: &Case<'_>) -> Vec<Finding> {
    let admin = case.proxy.bootstrap.admin.as_ref();
    let paste = |name: &str| match admin {
        Some(Address::Tcp(host, port)) => Some(paste::poll_cluster(name, host, *port)),
        Some(Address::Pipe(_)) | None => None,
    };
    asking(case)
        .filter_map(|status| {
            let name = &status.config.cluster;
            let place = format!("bootstrap extension {}", status.name);
            let mut finding = match case.proxy.cluster(name) {
                None if case.knows_clusters() => {
                    Finding::new(Code::PollClusterMissing, place, format!("There is no cluster {name}."))
                }
                Some(cluster) if case.knows_bootstrap() && !cluster.addresses.is_empty() => {
                    let reaches = admin.is_some_and(|admin| cluster.addresses.iter().all(|host| host.reaches(admin)));
                    if reaches {
                        return None;
                    }
                    let message = match admin {
                        Some(admin) => format!(
                            "Cluster {name} leads to {}, the admin endpoint is {}.",
                            cluster.addresses.first().map(shown).unwrap_or_default(),
                            shown(admin)
                        ),
                        None => "The proxy has no admin endpoint.".to_owned(),
                    };
                    Finding::new(Code::PollClusterElsewhere, place, message)
                }
                // A cluster without addresses has them from elsewhere; where, the dump does not say.
                None | Some(_) => return None,
            };
            finding.paste = paste(name);
            Some(finding)
        })
        .collect()
}

fn shown(address: &Address) -> String {
    match address {
        Address::Tcp(host, port) => format!("{host}:{port}"),
        Address::Pipe(path) => path.clone(),
    }
}

/// How large the answer to a poll may be.
pub(super) fn poll_answer(case: &Case<'_>) -> Vec<Finding> {
    let polls = case.proxy.bootstrap.status.iter().any(|status| status.config.polls);
    if !polls || !case.knows_bootstrap() {
        return Vec::new();
    }
    let limit = match case.proxy.bootstrap.runtime.get(LIMIT_KEY) {
        Some(Value::String(text)) => text.parse().ok(),
        Some(value) => value.as_u64().or_else(|| whole(value.as_f64()?)),
        None => None,
    };
    let bytes = case.hosts.and_then(|hosts| hosts.bytes).and_then(|bytes| u64::try_from(bytes).ok());
    let limit_shown = limit.unwrap_or(LIMIT);
    if bytes.is_some_and(|bytes| bytes >= limit_shown) {
        let message = format!("/clusters has {} bytes, the limit is {limit_shown}.", bytes.unwrap_or_default());
        return vec![Finding::new(Code::PollAnswerTooLarge, "runtime", message).paste(paste::poll_limit())];
    }
    match limit {
        Some(_) => Vec::new(),
        None => {
            let message = match bytes {
                Some(bytes) => format!("{LIMIT_KEY} is not set; /clusters has {bytes} bytes now."),
                None => format!("{LIMIT_KEY} is not set."),
            };
            vec![Finding::new(Code::PollAnswerLimit, "runtime", message).paste(paste::poll_limit())]
        }
    }
}

/// A runtime value may come as a floating-point number.
fn whole(number: f64) -> Option<u64> {
    format!("{number:.0}").parse().ok()
}

/// The config validators.
pub(super) fn validators(case: &Case<'_>) -> Vec<Finding> {
    let bootstrap = &case.proxy.bootstrap;
    let mut findings = Vec::new();
    let has_fence = case.proxy.fences().next().is_some();
    let sees = |resource: &str| {
        bootstrap.validators.iter().any(|entry| entry.type_urls.iter().any(|url| url.ends_with(resource)))
    };
    match (sees(".ClusterLoadAssignment"), sees(".Cluster")) {
        (true, false) => findings.push(
            Finding::new(
                Code::ValidatorIncomplete,
                "ads_config",
                "It sees no Cluster: one that goes away is noticed by polls alone.",
            )
            .paste(paste::validators()),
        ),
        (false, true) => findings.push(
            Finding::new(
                Code::ValidatorIncomplete,
                "ads_config",
                "It sees no ClusterLoadAssignment, hence no removal.",
            )
            .paste(paste::validators()),
        ),
        (false, false) | (true, true) => {}
    }
    let available = bootstrap.node.extensions.contains("envoy.config.validators.dynamic_modules");
    if has_fence && available && bootstrap.validators.is_empty() && case.knows_bootstrap() {
        let message = "The build has envoy.config.validators.dynamic_modules, and no entry is configured.";
        findings.push(Finding::new(Code::ValidatorPossible, "ads_config", message).paste(paste::validators()));
    }
    let polls = bootstrap.status.iter().any(|status| status.config.polls);
    if has_fence && !polls {
        let unwatched = case.proxy.clusters.values().filter(|cluster| cluster.own_source == Some(false));
        findings.extend(unwatched.map(|cluster| {
            let message = "Its endpoints come from an api_config_source of its own without the module's validator.";
            Finding::new(Code::SourceUnwatched, format!("cluster {}", cluster.name), message).paste(paste::validators())
        }));
    }
    findings
}

/// Whether `suspect_after` can work.
pub(super) fn control_plane(case: &Case<'_>) -> Vec<Finding> {
    let bootstrap = &case.proxy.bootstrap;
    let Some(status) = bootstrap.status.first() else { return Vec::new() };
    let place = format!("bootstrap extension {}", status.name);
    if !status.config.suspects {
        return vec![Finding::new(Code::SuspectOff, place, "suspect_after is null.").paste("suspect_after: 30s")];
    }
    let mut findings = Vec::new();
    let shown = match case.stats {
        // The gauge exists once Envoy has tried to connect.
        Some(stats) if stats.has_prefix(CONNECTED) => true,
        Some(_) | None => bootstrap.stats.keeps(CONNECTED),
    };
    if !shown && !bootstrap.control_planes.is_empty() {
        let message = format!("The stats matcher hides {CONNECTED}.");
        let mut finding = Finding::new(Code::ControlPlaneHidden, "stats_config", message);
        finding.paste = paste::stats(bootstrap, &status.module.namespace);
        findings.push(finding);
    }
    for name in &bootstrap.control_planes {
        let timeout = case.proxy.cluster(name).and_then(|cluster| cluster.connect_timeout);
        if let Some(timeout) = timeout.filter(|timeout| *timeout >= SETTLED) {
            let message = format!("connect_timeout is {}.", show(timeout));
            let finding = Finding::new(Code::ControlPlaneSlow, format!("cluster {name}"), message);
            findings.push(finding.paste("connect_timeout: 5s"));
        }
    }
    findings
}
