//! The admin page: what is known, as JSON.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    address,
    endpoints::{EndpointView, Endpoints, Presence},
    watch::{Counts, Listings, Watch},
};

/// Endpoints shown at most, unless `?limit=` asks for another number.
pub(super) const DEFAULT_LIMIT: usize = 1_000;
/// What `?limit=` may ask for: the page is written on the main thread.
pub(super) const MAX_LIMIT: usize = 10_000;

/// The answer to a request of `path`, which may carry a query: a status and the page, or what is wrong with the query.
#[must_use]
pub(super) fn respond(path: &str, endpoints: &Endpoints, watch: &Watch, now: Instant) -> (u32, String) {
    match Query::parse(path) {
        Ok(query) => (200, render(&query, endpoints, watch, now)),
        Err(refused) => (400, format!("{refused}\n")),
    }
}

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
struct Query {
    endpoint: Option<IpAddr>,
    limit: usize,
}

// === impl Query ===

impl Query {
    fn parse(path: &str) -> Result<Self, String> {
        let mut query = Self { endpoint: None, limit: DEFAULT_LIMIT };
        let (_, text) = path.split_once('?').unwrap_or((path, ""));
        for (key, value) in form_urlencoded::parse(text.as_bytes()) {
            match &*key {
                "endpoint" => {
                    query.endpoint = Some(address::ip(&value).ok_or_else(|| refuse(&key, &value, "an IP address"))?)
                }
                "limit" => query.limit = value.parse().map_err(|_| refuse(&key, &value, "a whole number"))?,
                _ => return Err(refuse(&key, &value, "left out: the page knows endpoint and limit")),
            }
        }
        query.limit = query.limit.min(MAX_LIMIT);
        Ok(query)
    }
}

fn refuse(key: &str, value: &str, allowed: &str) -> String {
    format!("query parameter {key:?}, value {value:?}: must be {allowed}")
}

fn render(query: &Query, endpoints: &Endpoints, watch: &Watch, now: Instant) -> String {
    let totals = endpoints.totals();
    let (views, truncated) = match query.endpoint {
        Some(ip) => (endpoints.view(ip, now).into_iter().collect(), false),
        None => (endpoints.views(query.limit, now), query.limit < totals.endpoints),
    };
    let sources = [("validator", watch.validator()), ("admin", watch.admin())];
    let sources: serde_json::Map<_, _> =
        sources.into_iter().map(|(name, counts)| (name.to_owned(), source(counts, now))).collect();
    let page = json!({
        "totals": {
            "endpoints": totals.endpoints,
            "listed": watch.listings().endpoints(),
            "tunnels": totals.tunnels,
            "connections": totals.connections,
        },
        "watch": sources,
        "control_plane": { "connected": watch.connected(), "suspected": watch.fences() },
        "truncated": truncated,
        "endpoints": views.iter().map(|view| endpoint(view, watch.listings())).collect::<Vec<_>>(),
    });
    format!("{page:#}\n")
}

fn source(counts: &Counts, now: Instant) -> Value {
    json!({
        "updates": counts.updates,
        "added": counts.added,
        "removed": counts.removed,
        "errors": counts.errors,
        "view_age_ms": counts.view_age(now).map(millis),
    })
}

fn endpoint(view: &EndpointView, listings: &Listings) -> Value {
    let listed_by: Vec<&str> = listings.listing(view.ip).collect();
    let presence = match view.presence {
        // What no source has ever named is not gone: nobody lists it, as a workload that is no service's.
        Presence::Unknown if listed_by.is_empty() => "unlisted",
        _ if listed_by.is_empty() => "gone",
        _ => "present",
    };
    json!({
        "ip": view.ip.to_string(),
        "presence": presence,
        "listed_by": listed_by,
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

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn page(endpoints: &Endpoints, path: &str) -> Value {
        let watch = Watch::new(Endpoints::new(64));
        let (status, page) = respond(path, endpoints, &watch, Instant::now());
        assert_eq!(status, 200, "{page}");
        serde_json::from_str(&page).expect("the page is JSON")
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

    #[test]
    fn a_query_that_cannot_be_read_is_an_error_and_never_the_whole_page() {
        let endpoints = Endpoints::new(64);
        let watch = Watch::new(Endpoints::new(64));
        for (query, named) in [
            ("endpoint=10.0.0", "\"10.0.0\""),
            ("endpoint=", "endpoint"),
            ("limit=many", "a whole number"),
            ("limit=-1", "-1"),
            ("ednpoint=10.0.0.1", "ednpoint"),
        ] {
            let (status, text) = respond(&format!("/stale-guard?{query}"), &endpoints, &watch, Instant::now());
            assert_eq!(status, 400, "{query}");
            assert!(text.contains(named), "{text}");
        }
        let query = Query::parse("/stale-guard?endpoint=%5Bfd00%3A%3A1%5D%3A80&limit=3").expect("encoded");
        assert_eq!(query, Query { endpoint: "fd00::1".parse().ok(), limit: 3 });
    }
}
