//! The module as a file: can it be loaded, was it, is it one.

use std::collections::BTreeMap;

use super::{Case, filters::place, tunnel};
use crate::{
    Code, Finding,
    model::{Mode, Module},
};

/// A build without dynamic modules.
pub(super) fn unsupported(case: &Case<'_>) -> Vec<Finding> {
    let extensions = &case.proxy.bootstrap.node.extensions;
    let has = extensions.iter().any(|name| name.contains("filters.network.dynamic_modules"));
    // A dump without the list says nothing; nor does a proxy without tunnels need the module.
    if extensions.is_empty() || has || tunnel::all(case.proxy).is_empty() {
        return Vec::new();
    }
    let message = "The build does not list the extension envoy.filters.network.dynamic_modules.";
    vec![Finding::new(Code::NoDynamicModules, "node", message)]
}

/// Configurations with the module that Envoy refused.
pub(super) fn rejected(case: &Case<'_>) -> Vec<Finding> {
    let ours = case.proxy.rejected.iter().filter(|rejected| rejected.with_module);
    ours.map(|rejected| {
        let state = match rejected.has_older {
            true => "keeps what it had",
            false => "has none now: if tunnels begin here, every one fails",
        };
        let message = format!("Envoy refused it and {state}: {}", rejected.details);
        Finding::new(Code::Rejected, format!("{} {}", rejected.what, rejected.name), message)
    })
    .collect()
}

/// Every part with its place.
fn parts<'a>(case: &'a Case<'_>) -> Vec<(String, &'a Module)> {
    let proxy = case.proxy;
    let fences = proxy
        .fences()
        .map(|(listener, chain, fence)| (format!("{}, filter {}", place(listener, chain), fence.name), &fence.module));
    let retries = proxy.https().flat_map(|(listener, chain, http)| {
        let place = place(listener, chain);
        http.retries().map(move |retry| (format!("{place}, filter {}", retry.name), &retry.module))
    });
    let bootstrap = &proxy.bootstrap;
    let status = bootstrap.status.iter().map(|status| (format!("bootstrap extension {}", status.name), &status.module));
    let validators =
        bootstrap.validators.iter().map(|entry| (format!("config validator {}", entry.name), &entry.module));
    fences.chain(retries).chain(status).chain(validators).collect()
}

/// Parts that Envoy may unload.
pub(super) fn unloadable(case: &Case<'_>) -> Vec<Finding> {
    let loose = parts(case).into_iter().filter(|(_, module)| !module.do_not_close);
    loose
        .map(|(place, module)| {
            let paste = format!("dynamic_module_config: {{ name: {}, do_not_close: true }}", module.source);
            Finding::new(Code::MayBeUnloaded, place, "do_not_close is not set.").paste(paste)
        })
        .collect()
}

/// Parts from different files.
pub(super) fn several_modules(case: &Case<'_>) -> Vec<Finding> {
    let parts = parts(case);
    let mut sources: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, module) in &parts {
        *sources.entry(module.source.as_str()).or_default() += 1;
    }
    // The odd ones out are named: those that are not of the file that most parts are from.
    let Some((main, _)) = sources.iter().max_by_key(|(_, count)| **count) else { return Vec::new() };
    let main = *main;
    let odd = parts.iter().filter(|(_, module)| module.source != main);
    odd.map(|(place, module)| {
        let message = format!("It is of \"{}\", the other parts are of \"{main}\".", module.source);
        Finding::new(Code::SeveralModules, place.clone(), message)
    })
    .collect()
}

/// Parts that do not act.
pub(super) fn modes(case: &Case<'_>) -> Vec<Finding> {
    let finding = |place: String, what: &str, mode: Mode| {
        let message = format!("The mode of {what} is {}.", mode.name());
        (mode != Mode::Enforce).then(|| Finding::new(Code::NotEnforcing, place, message).paste("mode: enforce"))
    };
    let fences = case
        .proxy
        .fences()
        .filter_map(|(listener, chain, fence)| finding(place(listener, chain), "the fence", fence.config.mode));
    let retries = case.proxy.https().flat_map(|(listener, chain, http)| {
        http.retries().filter_map(move |retry| finding(place(listener, chain), "retry", retry.config.mode))
    });
    fences.chain(retries).collect()
}
