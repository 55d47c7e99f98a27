//! Where the module's filters stand, and how many there are.

use super::{
    Case,
    routes::{only_connect, serves_services},
    tunnel,
};
use crate::{
    Code, Finding,
    model::{Chain, Http, HttpKind, Listener, State},
    paste,
};

/// A filter chain, for people.
pub(super) fn place(listener: &Listener, chain: &Chain) -> String {
    match (listener.chains.len(), listener.state) {
        (_, State::Draining) => format!("listener {} (draining), filter chain {}", listener.name, chain.name),
        (1, _) => format!("listener {}", listener.name),
        _ => format!("listener {}, filter chain {}", listener.name, chain.name),
    }
}

/// Fences that are too many, or where no tunnel begins.
pub(super) fn fences(case: &Case<'_>) -> Vec<Finding> {
    let tunnels = tunnel::all(case.proxy);
    let mut findings = Vec::new();
    for listener in case.proxy.serving() {
        for chain in &listener.chains {
            let count = chain.fences().count();
            if count > 1 {
                let message = format!("{count} fences stand in this chain.");
                findings.push(Finding::new(Code::SeveralFences, place(listener, chain), message));
            }
            let begins = tunnels.iter().any(|tunnel| std::ptr::eq(tunnel.chain, chain));
            // A tunnel may not be known as one without its cluster.
            if count > 0 && !begins && case.knows_clusters() {
                let message = "Its chain opens no HBONE tunnel to a pod.";
                findings.push(Finding::new(Code::FenceMisplaced, place(listener, chain), message));
            }
        }
    }
    findings
}

/// Fences that differ.
pub(super) fn configurations(case: &Case<'_>) -> Vec<Finding> {
    let mut different = Vec::new();
    let mut drains = false;
    for (listener, chain, fence) in case.proxy.fences() {
        drains |= listener.state == State::Draining;
        if !different.iter().any(|(raw, _)| *raw == &fence.raw) {
            different.push((&fence.raw, place(listener, chain)));
        }
    }
    if different.len() < 2 {
        return Vec::new();
    }
    let message = format!(
        "{} configurations of the fence are in force{}.",
        different.len(),
        if drains { "; a listener drains, and its tunnels are cut when that ends" } else { "" }
    );
    let mut finding = Finding::new(Code::SeveralConfigurations, "", message);
    finding.places = different.into_iter().map(|(_, place)| place).collect();
    vec![finding]
}

/// Where `retry` stands.
pub(super) fn retry_place(case: &Case<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (listener, chain, http) in case.proxy.https() {
        let count = http.retries().count();
        if count == 0 {
            continue;
        }
        let mut found = |code, message: String| findings.push(Finding::new(code, place(listener, chain), message));
        if count > 1 {
            found(Code::SeveralRetries, format!("{count} retry filters stand in this chain."));
        }
        if listener.name == "connect_terminate" || only_connect(case.proxy, http) {
            found(Code::RetryMisplaced, "This connection manager ends tunnels.".to_owned());
        }
        let between = between(http);
        if !between.is_empty() {
            found(Code::RetryNotLast, format!("Between retry and the router: {}.", between.join(", ")));
        }
    }
    findings
}

/// The filters between the first `retry` and the router.
fn between(http: &Http) -> Vec<&str> {
    let after = http.filters.iter().skip_while(|filter| !matches!(filter.kind, HttpKind::Retry(_)));
    let rest = after.take_while(|filter| !matches!(filter.kind, HttpKind::Router));
    rest.filter(|filter| matches!(filter.kind, HttpKind::Other)).map(|filter| filter.name.as_str()).collect()
}

/// Service chains without `retry`, where others have it.
pub(super) fn retry_missing(case: &Case<'_>) -> Vec<Finding> {
    if !case.knows_listeners() || case.proxy.retries().next().is_none() {
        return Vec::new();
    }
    let without = case
        .proxy
        .https()
        .filter(|(_, _, http)| http.retries().next().is_none() && serves_services(case.proxy, http) == Some(true));
    without
        .map(|(listener, chain, _)| {
            let message = "Other chains have the retry filter, this one has not.";
            let node = &case.proxy.bootstrap.node;
            Finding::new(Code::RetryMissing, place(listener, chain), message).paste(paste::retry(node))
        })
        .collect()
}

/// How many `status` extensions there are.
pub(super) fn status(case: &Case<'_>) -> Vec<Finding> {
    let count = case.proxy.bootstrap.status.len();
    let has_fence = case.proxy.fences().next().is_some();
    if count > 1 {
        let message = format!("{count} status extensions are configured.");
        return vec![Finding::new(Code::SeveralStatus, "bootstrap extensions", message)];
    }
    // Without validators it is worse, and said by another code.
    if count == 0 && has_fence && tunnel::is_watched(case.proxy) && case.knows_bootstrap() {
        let found = Finding::new(Code::StatusMissing, "bootstrap extensions", "No status extension is configured.");
        return vec![found.paste(paste::status())];
    }
    Vec::new()
}
