//! The admin page: what is known, as JSON.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    endpoints::{EndpointView, Endpoints, Presence},
    shared::Shared,
    watch::SourceStats,
};

/// Endpoints shown at most, unless `?limit=` asks for another number.
pub(super) const DEFAULT_LIMIT: usize = 1_000;

/// What the page shows beside the endpoints.
pub(super) struct State<'a> {
    endpoints: &'a Endpoints,
    listed: usize,
    suspected: u64,
    /// Whether the control plane is connected, where that can be seen.
    connected: Option<bool>,
    sources: [(&'static str, &'a SourceStats); 2],
}

// === impl State ===

impl<'a> State<'a> {
    pub(super) fn of(shared: &'a Shared) -> Self {
        let control_plane = &shared.control_plane;
        let seen = control_plane.seen.load(Ordering::Relaxed);
        Self {
            endpoints: &shared.endpoints,
            listed: shared.listed(),
            suspected: shared.suspected.load(Ordering::Relaxed),
            connected: seen.then(|| control_plane.connected.load(Ordering::Relaxed)),
            sources: [("validator", &shared.validator), ("admin", &shared.admin)],
        }
    }
}

/// The page for a request to `path`, which may carry a query.
#[must_use]
pub(super) fn render(path: &str, state: &State<'_>, now: Instant) -> String {
    let limit = query(path, "limit").and_then(|limit| limit.parse().ok()).unwrap_or(DEFAULT_LIMIT);
    let totals = state.endpoints.totals();
    let views: Vec<_> = match query(path, "endpoint").and_then(|ip| ip.parse().ok()) {
        Some(ip) => state.endpoints.view(ip, now).into_iter().collect(),
        None => state.endpoints.views(limit, now),
    };
    let sources: serde_json::Map<_, _> =
        state.sources.iter().map(|(name, stats)| ((*name).to_owned(), source(stats, now))).collect();
    let page = json!({
        "totals": {
            "endpoints": totals.endpoints,
            "listed": state.listed,
            "tunnels": totals.tunnels,
            "connections": totals.connections,
        },
        "watch": sources,
        "control_plane": { "connected": state.connected, "suspected": state.suspected },
        "endpoints": views.iter().map(endpoint).collect::<Vec<_>>(),
    });
    format!("{page:#}\n")
}

fn source(stats: &SourceStats, now: Instant) -> Value {
    json!({
        "updates": stats.updates.load(Ordering::Relaxed),
        "added": stats.added.load(Ordering::Relaxed),
        "removed": stats.removed.load(Ordering::Relaxed),
        "errors": stats.errors.load(Ordering::Relaxed),
        "view_age_ms": stats.view_age(now).map(millis),
    })
}

fn endpoint(view: &EndpointView) -> Value {
    json!({
        "ip": view.ip.to_string(),
        "presence": match view.presence {
            Presence::Unknown => "unknown",
            Presence::Present => "present",
            Presence::Gone => "gone",
        },
        "generation": view.generation,
        "fenced": view.fenced,
        "removals": view.removals,
        "since_removal_ms": view.since_removal.map(millis),
        "tunnels": view.tunnels,
        "connections": view.connections.iter().map(|connection| json!({
            "id": connection.id,
            "generation": connection.generation,
            "age_ms": millis(connection.age),
            "idle_ms": millis(connection.idle),
            "tunnels": connection.tunnels,
            "tunnels_total": connection.tunnels_total,
        })).collect::<Vec<_>>(),
        "last_reset": view.last_reset.map(|(class, since)| json!({ "class": class.name(), "since_ms": millis(since) })),
    })
}

fn query<'a>(path: &'a str, key: &str) -> Option<&'a str> {
    let (_, query) = path.split_once('?')?;
    query.split('&').find_map(|pair| pair.split_once('=').filter(|(name, _)| *name == key).map(|(_, value)| value))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
