//! Statistics of the fence, defined once when its configuration loads.

use std::time::Instant;

use envoy_proxy_dynamic_modules_rust_sdk::{
    EnvoyCounterId, EnvoyGaugeId, EnvoyHistogramId, EnvoyNetworkFilter, EnvoyNetworkFilterConfig,
};

use crate::endpoints::{Closed, ResetClass, Tunnel};

/// What the fence counts. An id that Envoy refused is `None`: traffic matters more than its counts.
pub(crate) struct Metrics {
    /// Tunnels opened.
    tunnels: Option<EnvoyCounterId>,
    /// Tunnels open now.
    tunnels_open: Option<EnvoyGaugeId>,
    /// Tunnels to something that is no IP address, which the fence leaves alone.
    tunnels_unfenced: Option<EnvoyCounterId>,
    /// New generations: a removal, a return, a rotation or a control-plane gap has taken effect.
    generations: Option<EnvoyCounterId>,
    /// Outer connections met for the first time (Envoy 1.39 and later).
    connections: Option<EnvoyCounterId>,
    /// Tunnels that the fence closed because their endpoint had been removed for long enough.
    closed_after_removal: Option<EnvoyCounterId>,
    /// Age of the outer connection when one of its tunnels ended, in milliseconds.
    age_at_close: Option<EnvoyHistogramId>,
    /// Age of the outer connection when one of its tunnels broke, in milliseconds.
    age_at_reset: Option<EnvoyHistogramId>,
    /// Tunnels that broke, by class.
    resets: [Option<EnvoyCounterId>; ResetClass::ALL.len()],
}

// === impl Metrics ===

impl Metrics {
    pub(crate) fn define(envoy: &mut impl EnvoyNetworkFilterConfig) -> Self {
        Self {
            tunnels: envoy.define_counter("fence_tunnels").ok(),
            tunnels_open: envoy.define_gauge("fence_tunnels_open").ok(),
            tunnels_unfenced: envoy.define_counter("fence_tunnels_unfenced").ok(),
            generations: envoy.define_counter("fence_generations").ok(),
            connections: envoy.define_counter("fence_connections").ok(),
            closed_after_removal: envoy.define_counter("fence_closed_after_removal").ok(),
            age_at_close: envoy.define_histogram("fence_connection_age_at_close_ms").ok(),
            age_at_reset: envoy.define_histogram("fence_connection_age_at_reset_ms").ok(),
            resets: ResetClass::ALL.map(|class| envoy.define_counter(&format!("fence_reset_{}", class.name())).ok()),
        }
    }

    pub(crate) fn opened(&self, envoy: &mut impl EnvoyNetworkFilter, tunnel: &Tunnel) {
        count(envoy, self.tunnels);
        if let Some(id) = self.tunnels_open {
            let _ = envoy.increase_gauge(id, 1);
        }
        if tunnel.is_first_of_generation() {
            count(envoy, self.generations);
        }
    }

    pub(crate) fn no_endpoint(&self, envoy: &mut impl EnvoyNetworkFilter) {
        count(envoy, self.tunnels_unfenced);
    }

    pub(crate) fn connected(&self, envoy: &mut impl EnvoyNetworkFilter, first: bool) {
        if first {
            count(envoy, self.connections);
        }
    }

    pub(crate) fn closed(&self, envoy: &mut impl EnvoyNetworkFilter, tunnel: &Tunnel, now: Instant) {
        if let Some(id) = self.tunnels_open {
            let _ = envoy.decrease_gauge(id, 1);
        }
        if let (Some(id), Some(connection)) = (self.age_at_close, tunnel.connection(now)) {
            let _ = envoy.record_histogram_value(id, millis(connection.age));
        }
    }

    pub(crate) fn broke(&self, envoy: &mut impl EnvoyNetworkFilter, closed: &Closed) {
        count(envoy, self.resets.get(closed.class.index()).copied().flatten());
        if let (Some(id), Some(connection)) = (self.age_at_reset, closed.connection) {
            let _ = envoy.record_histogram_value(id, millis(connection.age));
        }
    }

    pub(crate) fn cut(&self, envoy: &mut impl EnvoyNetworkFilter) {
        count(envoy, self.closed_after_removal);
    }
}

fn count(envoy: &mut impl EnvoyNetworkFilter, counter: Option<EnvoyCounterId>) {
    if let Some(counter) = counter {
        let _ = envoy.increment_counter(counter, 1);
    }
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
