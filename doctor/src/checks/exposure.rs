//! What makes a proxy suffer from stale connections.

use std::time::Duration;

use super::{
    Case,
    tunnel::{self, Tunnel},
};
use crate::{Code, Finding, duration::show, paste};

/// Longer, and an idle timeout is reported.
const IDLE: Duration = Duration::from_secs(300);
/// Envoy's idle timeout where none is set.
const IDLE_DEFAULT: Duration = Duration::from_secs(3_600);
const CONNECT_DEFAULT: Duration = Duration::from_secs(5);
/// Longer, and opening a tunnel is reported as slow.
const CONNECT: Duration = Duration::from_secs(10);

/// Tunnels without a fence.
pub(super) fn unfenced(case: &Case<'_>) -> Vec<Finding> {
    if !case.knows_listeners() {
        return Vec::new();
    }
    let node = &case.proxy.bootstrap.node;
    let bare = tunnel::all(case.proxy).into_iter().filter(|tunnel| tunnel.fences().next().is_none());
    bare.map(|tunnel| {
        Finding::new(Code::TunnelsUnfenced, tunnel.place(), unfenced_message(&tunnel)).paste(paste::fence(node))
    })
    .collect()
}

fn unfenced_message(tunnel: &Tunnel<'_>) -> String {
    let mut message = "No fence stands before tcp_proxy. An outer connection outlives its pod, and a new pod with the \
                       same address meets it: its first requests are answered 503 UC."
        .to_owned();
    let idle = tunnel.cluster.map(idle);
    if let Some(Some(idle)) = idle {
        message += &format!(" Idle connections stay for {}", show(idle));
        // Half the cool-down of addresses is what operators use without the module.
        message += if idle <= Duration::from_secs(60) {
            "; that helps quiet connections only: one with a hung stream is never idle."
        } else {
            "."
        };
    }
    if tunnel.tcp_proxy.max_connect_attempts > 1 {
        message += &format!(
            " max_connect_attempts: {} hides it where the reset comes at once, and not where the old address is a black hole.",
            tunnel.tcp_proxy.max_connect_attempts
        );
    }
    message
}

/// How long an idle connection stays; `None`: for ever.
fn idle(cluster: &crate::model::Cluster) -> Option<Duration> {
    let idle = cluster.idle_timeout.unwrap_or(IDLE_DEFAULT);
    (!idle.is_zero()).then_some(idle)
}

/// Idle timeouts of outer connections.
pub(super) fn idle_timeout(case: &Case<'_>) -> Vec<Finding> {
    if !case.knows_clusters() {
        return Vec::new();
    }
    let node = &case.proxy.bootstrap.node;
    let clusters = tunnel::all(case.proxy).into_iter().filter_map(|tunnel| tunnel.cluster);
    let finding = |cluster: &crate::model::Cluster| {
        let what = match (cluster.idle_timeout, idle(cluster)) {
            (_, Some(idle)) if idle <= IDLE => return None,
            (None, _) => "The idle timeout is not set: Envoy keeps idle connections for 1h.".to_owned(),
            (Some(_), None) => "The idle timeout is off: idle connections stay for ever.".to_owned(),
            (Some(_), Some(idle)) => format!("Idle connections stay for {}.", show(idle)),
        };
        let found = Finding::new(Code::IdleTimeoutLong, format!("cluster {}", cluster.name), what);
        Some(found.paste(paste::idle_timeout(node)))
    };
    let mut findings: Vec<Finding> = clusters.filter_map(finding).collect();
    // Several chains may share the cluster.
    findings.dedup();
    findings
}

/// Outer connections whose peer may be gone for ever.
pub(super) fn liveness(case: &Case<'_>) -> Vec<Finding> {
    if !case.knows_listeners() || !case.knows_clusters() {
        return Vec::new();
    }
    let unlimited = case.knows_routes()
        && case
            .proxy
            .routes
            .values()
            .flat_map(|config| config.routes())
            .any(|(_, route)| !route.connect && route.timeout.is_some_and(|timeout| timeout.is_zero()));
    let finding = |tunnel: Tunnel<'_>| {
        let cluster = tunnel.cluster?;
        if cluster.http2_keepalive || tunnel.has_user_timeout() {
            return None;
        }
        let fence_keepalive = tunnel.has_keepalive();
        let mut message = match cluster.tcp_keepalive || fence_keepalive {
            true => {
                "There is TCP keepalive and no user timeout: while data is unacknowledged, keepalive rests, and the \
                     kernel retries for about 15 minutes."
            }
            false => {
                "Neither a user timeout nor HTTP/2 PINGs nor TCP keepalive: a pod that became a black hole is \
                      noticed after about 15 minutes of retransmissions, and never on an idle connection."
            }
        }
        .to_owned();
        if unlimited {
            message += " Routes without a timeout wait as long.";
        }
        Some(Finding::new(Code::NoLiveness, tunnel.place(), message).paste("tcp: { user_timeout: 30s }"))
    };
    tunnel::all(case.proxy).into_iter().filter_map(finding).collect()
}

/// Tunnels that take long to fail.
pub(super) fn slow_connect(case: &Case<'_>) -> Vec<Finding> {
    let finding = |tunnel: Tunnel<'_>| {
        let one = tunnel.cluster?.connect_timeout.unwrap_or(CONNECT_DEFAULT);
        let attempts = tunnel.tcp_proxy.max_connect_attempts;
        let all = one.checked_mul(u32::try_from(attempts).unwrap_or(u32::MAX)).unwrap_or(Duration::MAX);
        let message = format!("{attempts} attempts of {} each.", show(one));
        (all > CONNECT).then(|| Finding::new(Code::SlowConnect, tunnel.place(), message))
    };
    tunnel::all(case.proxy).into_iter().filter_map(finding).collect()
}
