//! What is repeated, and what it repeats.

use std::collections::{BTreeMap, BTreeSet};

use super::{Case, filters::place, tunnel};
use crate::{
    Code, Finding,
    model::{Http, Mode, Part, Proxy, Retry, RetryPolicy, Route, RouteConfig, VirtualHost},
    paste,
};

/// Conditions that include a reset after the request was sent, for every method. Envoy takes "any 5xx" and
/// "any gateway error" to include a request without an answer.
const RESETS: &[&str] = &["reset", "5xx", "gateway-error"];
/// gRPC statuses by which an answered call is repeated.
const GRPC: &[&str] = &["cancelled", "deadline-exceeded", "internal", "resource-exhausted", "unavailable"];

/// Routes to upstreams that are not for CONNECT, with their place.
fn routes(proxy: &Proxy) -> impl Iterator<Item = (&RouteConfig, &VirtualHost, &Route, String)> {
    proxy.routes.values().flat_map(|config| {
        config.routes().filter(|(_, route)| !route.connect).map(move |(host, route)| {
            let place = format!("routes {}, virtual host {}, route {}", config.name, host.name, route.name);
            (config, host, route, place)
        })
    })
}

/// Policies that repeat what may have been executed.
pub(super) fn blind_retries(case: &Case<'_>) -> Vec<Finding> {
    let node = &case.proxy.bootstrap.node;
    let mut findings = Vec::new();
    for (_, _, route, place) in routes(case.proxy) {
        let Some(policy) = route.retry.as_ref().filter(|policy| policy.num_retries > 0 && !policy.by_method) else {
            continue;
        };
        let resets = policy.among(RESETS);
        if !resets.is_empty() {
            let message = format!(
                "retry_on: {} repeats any request that meets a reset up to {} times, POST and gRPC too, whether or not a \
                 pod has executed it.",
                resets.join(","),
                policy.num_retries
            );
            findings.push(Finding::new(Code::BlindResetRetry, &*place, message).paste(paste::retry_on(node)));
        }
        let statuses = policy.among(GRPC);
        if !statuses.is_empty() {
            let message = format!(
                "retry_on: {} repeats a gRPC call that is answered so before its first message, executed or not.",
                statuses.join(",")
            );
            findings.push(Finding::new(Code::GrpcStatusRetry, &*place, message).paste(paste::retry_on(node)));
        }
        if !policy.among(&["retriable-status-codes"]).is_empty() && !policy.status_codes.is_empty() {
            let codes: Vec<String> = policy.status_codes.iter().map(u64::to_string).collect();
            let message =
                format!("Requests that are answered {} are repeated, POST too, executed or not.", codes.join(", "));
            findings.push(Finding::new(Code::StatusCodeRetry, &*place, message));
        }
    }
    findings
}

/// Routes that hedge.
pub(super) fn hedging(case: &Case<'_>) -> Vec<Finding> {
    let filters = filters_by_routes(case.proxy);
    let hedged = routes(case.proxy).filter(|(_, _, route, _)| route.hedges);
    hedged
        .filter_map(|(config, _, route, place)| {
            let filter = filters.get(config.name.as_str()).map(|filter| &filter.config);
            let retry = route.module.as_ref().or(filter).filter(|retry| retry.mode == Mode::Enforce);
            let policy = route.retry.as_ref();
            let timed =
                policy.is_some_and(|policy| policy.per_try_timeout) || retry.is_some_and(|retry| retry.per_try_timeout);
            let conditions = policy.is_some_and(|policy| !policy.on.is_empty() && policy.num_retries > 0);
            if !timed {
                return None;
            }
            let (message, paste) = if retry.is_some_and(|retry| retry.unprocessed) {
                let message = "It hedges, and retry gives every request a condition: Envoy executes a slow POST twice.";
                (message, Some("unprocessed: false".to_owned()))
            } else if conditions {
                let message =
                    "It hedges, and its own policy gives every request a condition: Envoy executes a slow POST twice.";
                (message, Some("hedge_policy: { hedge_on_per_try_timeout: false }".to_owned()))
            } else {
                return None;
            };
            let mut finding = Finding::new(Code::HedgedReplay, place, message);
            finding.paste = paste;
            Some(finding)
        })
        .collect()
}

/// The retry filter in front of each route configuration.
fn filters_by_routes(proxy: &Proxy) -> BTreeMap<&str, &Part<Retry>> {
    let pairs = proxy.https().filter_map(|(_, _, http)| Some((http.routes.as_deref()?, http.retries().next()?)));
    pairs.collect()
}

/// Service chains where a reset is nobody's business.
pub(super) fn unhandled_resets(case: &Case<'_>) -> Vec<Finding> {
    // Without tunnels a connect failure shows as such, and Envoy closes connections to removed endpoints.
    // Where some chains have the filter, those without have another code.
    let partly = case.proxy.retries().next().is_some();
    if partly || !case.knows_listeners() || !case.knows_routes() || tunnel::all(case.proxy).is_empty() {
        return Vec::new();
    }
    let node = &case.proxy.bootstrap.node;
    case.proxy
        .https()
        .filter_map(|(listener, chain, http)| {
            let config = case.proxy.route_config(http.routes.as_deref()?)?;
            if !serves(case.proxy, config) || config.routes().any(|(_, route)| route.retry.as_ref().is_some_and(covers))
            {
                return None;
            }
            let words: BTreeSet<&str> = config
                .routes()
                .flat_map(|(_, route)| route.retry.iter().flat_map(|policy| policy.on.iter().map(String::as_str)))
                .collect();
            let message = match words.is_empty() {
                true => "No route retries anything: a reset is answered 503, a GET's too.".to_owned(),
                false => format!(
                    "retry_on: {} does not cover a reset: it is answered 503, a GET's too.",
                    words.into_iter().collect::<Vec<_>>().join(",")
                ),
            };
            Some(Finding::new(Code::ResetsUnhandled, place(listener, chain), message).paste(paste::retry(node)))
        })
        .collect()
}

fn covers(policy: &RetryPolicy) -> bool {
    policy.num_retries > 0 && !policy.among(RESETS).is_empty()
}

/// Whether a route configuration leads to services, and not to the proxy's own helpers.
fn serves(proxy: &Proxy, config: &RouteConfig) -> bool {
    let service = |name: &String| match proxy.cluster(name) {
        Some(cluster) => cluster.kind == "EDS" || cluster.internal_upstream,
        // istiod's names of services; the cluster may not have come yet.
        None => name.starts_with("inbound-vip|") || name.starts_with("outbound|"),
    };
    config.routes().any(|(_, route)| !route.connect && route.clusters.iter().any(service))
}

/// Whether a connection manager leads to services; unknown if its routes are.
pub(super) fn serves_services(proxy: &Proxy, http: &Http) -> Option<bool> {
    Some(serves(proxy, proxy.route_config(http.routes.as_deref()?)?))
}

/// Whether a connection manager has routes for nothing but CONNECT.
pub(super) fn only_connect(proxy: &Proxy, http: &Http) -> bool {
    let config = http.routes.as_deref().and_then(|name| proxy.route_config(name));
    config.is_some_and(|config| config.routes().next().is_some() && config.routes().all(|(_, route)| route.connect))
}

/// Envoy 1.38 without the header that has the number of attempts.
pub(super) fn attempt_count(case: &Case<'_>) -> Vec<Finding> {
    if !matches!(case.proxy.bootstrap.node.envoy, Some((1, ..=38, _))) {
        return Vec::new();
    }
    let filters = filters_by_routes(case.proxy);
    let configs = case.proxy.routes.values().filter(|config| filters.contains_key(config.name.as_str()));
    configs
        .flat_map(|config| {
            let silent = config.hosts.iter().filter(|host| !host.attempt_count && !host.routes.is_empty());
            silent.map(move |host| {
                let place = format!("routes {}, virtual host {}", config.name, host.name);
                Finding::new(Code::AttemptsHidden, place, "The number of attempts is not shown.")
                    .paste("include_request_attempt_count: true")
            })
        })
        .collect()
}
