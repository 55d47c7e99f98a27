//! What `/clusters` shows: connections of this moment.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::{Case, tunnel};
use crate::{Code, Finding};

/// Connections to addresses that no cluster lists, where no fence keeps new tunnels off them.
pub(super) fn connections_to_gone(case: &Case<'_>) -> Vec<Finding> {
    let Some(hosts) = case.hosts else { return Vec::new() };
    let bare = tunnel::all(case.proxy).into_iter().filter(|tunnel| !tunnel.is_fenced());
    let outer: BTreeSet<&str> = bare.map(|tunnel| tunnel.tcp_proxy.cluster.as_str()).collect();
    let listed: BTreeSet<IpAddr> = hosts
        .clusters
        .iter()
        .filter(|(name, _)| !outer.contains(name.as_str()))
        .flat_map(|(_, hosts)| hosts.iter().filter_map(|host| host.ip()))
        .collect();
    outer
        .into_iter()
        .filter_map(|cluster| {
            let all = hosts.clusters.get(cluster)?;
            let gone = all.iter().filter(|host| host.ip().is_some_and(|ip| !listed.contains(&ip)));
            let (count, connections) = gone.fold((0, 0_u64), |(count, connections), host| match host.connections {
                0 => (count, connections),
                more => (count + 1, connections.saturating_add(more)),
            });
            let message = format!("{connections} connections to {count} addresses that no cluster lists.");
            (count > 0).then(|| Finding::new(Code::ConnectionsToGone, format!("cluster {cluster}"), message))
        })
        .collect()
}

/// Endpoints of services that are not reached through a guarded tunnel.
pub(super) fn past_the_fence(case: &Case<'_>) -> Vec<Finding> {
    let Some(hosts) = case.hosts else { return Vec::new() };
    let tunnels = tunnel::all(case.proxy);
    let guarded: BTreeSet<&str> = tunnels.iter().map(|tunnel| tunnel.listener.name.as_str()).collect();
    if guarded.is_empty() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (name, all) in &hosts.clusters {
        // Services only: a plain address is what the proxy's own helpers have, and the outer connections.
        let service = case.proxy.cluster(name).is_some_and(|cluster| cluster.kind == "EDS");
        if !service {
            continue;
        }
        let plain = all.iter().filter(|host| host.listener().is_none()).count();
        let other =
            all.iter().filter(|host| host.listener().is_some_and(|listener| !guarded.contains(listener))).count();
        for (count, what) in [(plain, "plain addresses"), (other, "addresses behind another internal listener")] {
            if count > 0 {
                let message = format!("{count} of {} endpoints are {what}.", all.len());
                findings.push(Finding::new(Code::PastTheFence, format!("cluster {name}"), message));
            }
        }
    }
    findings
}
