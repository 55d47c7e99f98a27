//! Whether the module can be seen.

use super::Case;
use crate::{Code, Finding, paste};

/// Hidden statistics.
pub(super) fn hidden(case: &Case<'_>) -> Vec<Finding> {
    let bootstrap = &case.proxy.bootstrap;
    let fences = case.proxy.fences().map(|(_, _, fence)| &fence.module);
    let Some(module) = fences.chain(case.proxy.retries().map(|retry| &retry.module)).next() else { return Vec::new() };
    let prefix = &module.namespace;
    // Any of them stands for all: nobody writes a matcher for a part of them by accident.
    let sample = format!("{prefix}.fence_tunnels");
    let (kept, message) = match case.stats {
        Some(stats) => {
            (stats.has_prefix(&format!("{prefix}.")), format!("/stats has nothing that begins with {prefix}."))
        }
        None => (bootstrap.stats.keeps(&sample), format!("The stats matcher hides {prefix}.")),
    };
    if kept {
        return Vec::new();
    }
    let mut finding = Finding::new(Code::StatsHidden, "stats_config", message);
    finding.paste = paste::stats(bootstrap, prefix);
    vec![finding]
}
