//! The admin page: what is known, as JSON.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    endpoints::{EndpointView, Endpoints, Presence},
    shared::Shared,
    watch::{SourceStats, ip},
};

/// Endpoints shown at most, unless `?limit=` asks for another number.
pub(super) const DEFAULT_LIMIT: usize = 1_000;
/// What `?limit=` may ask for: the page is written on the main thread.
pub(super) const MAX_LIMIT: usize = 10_000;

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
    let limit = query(path, "limit").and_then(|limit| limit.parse().ok()).unwrap_or(DEFAULT_LIMIT).min(MAX_LIMIT);
    let totals = state.endpoints.totals();
    let (views, truncated) = match query(path, "endpoint").and_then(ip) {
        Some(ip) => (state.endpoints.view(ip, now).into_iter().collect(), false),
        None => (state.endpoints.views(limit, now), limit < totals.endpoints),
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
        "truncated": truncated,
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
        "last_reset": view.last_reset.map(|(reset, since)| json!({
            "class": reset.class.name(),
            "since_ms": millis(since),
            "connection_age_ms": reset.connection_age.map(millis),
            "idle_ms": reset.idle.map(millis),
            "waited_ms": reset.waited.map(millis),
            "others_at_once": reset.others_at_once,
        })),
    })
}

fn query<'a>(path: &'a str, key: &str) -> Option<&'a str> {
    let (_, query) = path.split_once('?')?;
    query.split('&').find_map(|pair| pair.split_once('=').filter(|(name, _)| *name == key).map(|(_, value)| value))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, net::IpAddr};

    use super::*;

    fn page(endpoints: &Endpoints, path: &str) -> Value {
        let (validator, admin) = (SourceStats::default(), SourceStats::default());
        let sources = [("validator", &validator), ("admin", &admin)];
        let state = State { endpoints, listed: 0, suspected: 0, connected: None, sources };
        serde_json::from_str(&render(path, &state, Instant::now())).expect("the page is JSON")
    }

    #[test]
    fn the_page_shows_so_many_endpoints_of_all_shards_alike_and_says_that_there_are_more() {
        let endpoints = Endpoints::new(65_536);
        let now = Instant::now();
        for number in 0_u32..12_000 {
            let [_, high, mid, low] = number.to_be_bytes();
            drop(endpoints.open(IpAddr::from([10, high, mid, low]), None, now));
        }
        let shown = |path| {
            let page = page(&endpoints, path);
            let shown: HashSet<_> =
                page["endpoints"].as_array().expect("a list").iter().map(|one| one["ip"].to_string()).collect();
            (shown.len(), page["truncated"].as_bool().expect("a flag"))
        };
        assert_eq!(shown("/stale-guard"), (1_000, true));
        assert_eq!(shown("/stale-guard?limit=64"), (64, true));
        assert_eq!(shown("/stale-guard?limit=0"), (0, true));
        assert_eq!(shown("/stale-guard?limit=4000000000"), (MAX_LIMIT, true), "the page is written on the main thread");
        assert_eq!(endpoints.views(12_000, now).len(), 12_000, "uneven shards leave no room unused");
        assert_eq!(shown("/stale-guard?endpoint=10.0.0.1"), (1, false));
        assert_eq!(shown("/stale-guard?endpoint=::ffff:10.0.0.1"), (1, false), "the same address");
    }
}
