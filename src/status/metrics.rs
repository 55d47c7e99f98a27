//! Statistics of the process, set on every tick of the main thread.

use std::sync::atomic::{AtomicU64, Ordering};

use envoy_proxy_dynamic_modules_rust_sdk::{
    EnvoyBootstrapExtensionConfig, EnvoyCounterId, EnvoyGaugeId, extra::panics_caught,
};

use crate::{closing::Searched, shared::Shared, watch::Counts};

/// What the extension counts. An id that Envoy refused is `None`.
pub(crate) struct Metrics {
    /// Endpoints that are remembered.
    endpoints: Option<EnvoyGaugeId>,
    /// Endpoints that at least one cluster lists.
    listed: Option<EnvoyGaugeId>,
    /// Tunnels open now.
    tunnels: Option<EnvoyGaugeId>,
    /// Outer connections that carry a tunnel now.
    connections: Option<EnvoyGaugeId>,
    /// Times that every endpoint was fenced because the control plane had been away.
    suspected: Counter,
    /// Panics caught in hooks.
    panics: Counter,
    /// Time of the main thread while polls were in flight.
    polls_us: Counter,
    /// Outer connections of past generations that were closed.
    connections_closed: Counter,
    /// Pools of past generations whose connections were never found.
    connections_not_found: Counter,
    /// Pools of past generations that carry a tunnel still, or are to be closed.
    left_behind: Option<EnvoyGaugeId>,
    sources: [Source; 2],
}

/// A counter of Envoy's that follows a count of ours.
struct Counter {
    id: Option<EnvoyCounterId>,
    published: AtomicU64,
}

struct Source {
    updates: Counter,
    added: Counter,
    removed: Counter,
    errors: Counter,
    view_age: Option<EnvoyGaugeId>,
}

// === impl Metrics ===

impl Metrics {
    pub(crate) fn define(envoy: &mut dyn EnvoyBootstrapExtensionConfig) -> Self {
        Self {
            endpoints: envoy.define_gauge("endpoints").ok(),
            listed: envoy.define_gauge("endpoints_listed").ok(),
            tunnels: envoy.define_gauge("tunnels_open").ok(),
            connections: envoy.define_gauge("connections_open").ok(),
            suspected: Counter::define(envoy, "watch_suspected"),
            panics: Counter::define(envoy, "panics"),
            connections_closed: Counter::define(envoy, "connections_closed"),
            connections_not_found: Counter::define(envoy, "connections_not_found"),
            left_behind: envoy.define_gauge("pools_left_behind").ok(),
            polls_us: Counter::define(envoy, "watch_admin_main_thread_us"),
            sources: ["validator", "admin"].map(|source| Source::define(envoy, source)),
        }
    }

    pub(crate) fn publish(&self, envoy: &dyn EnvoyBootstrapExtensionConfig, shared: &Shared, now: std::time::Instant) {
        let totals = shared.endpoints.totals();
        let set = |id: Option<EnvoyGaugeId>, value: u64| {
            if let Some(id) = id {
                let _ = envoy.set_gauge(id, value);
            }
        };
        set(self.endpoints, totals.endpoints as u64);
        let watch = shared.watch();
        let (listed, fences) = (watch.listings().endpoints(), watch.fences());
        let counts = [*watch.validator(), *watch.admin()];
        drop(watch);
        set(self.listed, listed as u64);
        set(self.tunnels, totals.tunnels);
        set(self.connections, totals.connections);
        self.suspected.publish(envoy, fences);
        self.panics.publish(envoy, panics_caught());
        for (source, counts) in self.sources.iter().zip(&counts) {
            source.publish(envoy, counts);
            self.polls_us.publish(envoy, u64::try_from(counts.main_thread.as_micros()).unwrap_or(u64::MAX));
            let age = counts.view_age(now).unwrap_or_default();
            set(source.view_age, u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
        }
    }

    /// What was closed, and what is left behind.
    pub(crate) fn publish_closing(
        &self,
        envoy: &dyn EnvoyBootstrapExtensionConfig,
        closed: Searched,
        left_behind: usize,
    ) {
        self.connections_closed.publish(envoy, closed.closed);
        self.connections_not_found.publish(envoy, closed.not_found);
        if let Some(id) = self.left_behind {
            let _ = envoy.set_gauge(id, left_behind as u64);
        }
    }
}

// === impl Source ===

impl Source {
    fn define(envoy: &mut dyn EnvoyBootstrapExtensionConfig, source: &str) -> Self {
        let mut counter = |what: &str| Counter::define(envoy, &format!("watch_{source}_{what}"));
        let [updates, added, removed, errors] = ["updates", "added", "removed", "errors"].map(&mut counter);
        let view_age = envoy.define_gauge(&format!("watch_{source}_view_age_ms")).ok();
        Self { updates, added, removed, errors, view_age }
    }

    fn publish(&self, envoy: &dyn EnvoyBootstrapExtensionConfig, counts: &Counts) {
        for (counter, count) in [
            (&self.updates, counts.updates),
            (&self.added, counts.added),
            (&self.removed, counts.removed),
            (&self.errors, counts.errors),
        ] {
            counter.publish(envoy, count);
        }
    }
}

// === impl Counter ===

impl Counter {
    fn define(envoy: &mut dyn EnvoyBootstrapExtensionConfig, name: &str) -> Self {
        Self { id: envoy.define_counter(name).ok(), published: AtomicU64::new(0) }
    }

    fn publish(&self, envoy: &dyn EnvoyBootstrapExtensionConfig, count: u64) {
        let new = count.saturating_sub(self.published.fetch_max(count, Ordering::Relaxed));
        if let Some(id) = self.id
            && new > 0
        {
            let _ = envoy.increment_counter(id, new);
        }
    }
}
