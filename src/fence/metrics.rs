//! Statistics of the fence, defined once when its configuration loads.

use std::time::Instant;

use envoy_proxy_dynamic_modules_rust_sdk::{
    EnvoyCounterId, EnvoyHistogramId, EnvoyNetworkFilter, EnvoyNetworkFilterConfig,
};

use crate::endpoints::{End, Reset, ResetClass, Tunnel};

/// What the fence counts. An id that Envoy refused is `None`: traffic matters more than its counts.
pub(crate) struct Metrics {
    /// Tunnels opened.
    tunnels: Option<EnvoyCounterId>,
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
    /// Tunnels that ended without END_STREAM while nothing waited for an answer: the connection broke, or Envoy
    /// closed them (`tcp_proxy`'s idle timeout, a drained listener).
    closed_quiet: Option<EnvoyCounterId>,
    /// Tunnels that broke, by class. One class is a matter of requests, which the fence does not see.
    resets: [Option<EnvoyCounterId>; ResetClass::ALL.len()],
}

// === impl Metrics ===

impl Metrics {
    pub(crate) fn define(envoy: &mut impl EnvoyNetworkFilterConfig) -> Self {
        Self {
            tunnels: envoy.define_counter("fence_tunnels").ok(),
            tunnels_unfenced: envoy.define_counter("fence_tunnels_unfenced").ok(),
            generations: envoy.define_counter("fence_generations").ok(),
            connections: envoy.define_counter("fence_connections").ok(),
            closed_after_removal: envoy.define_counter("fence_closed_after_removal").ok(),
            age_at_close: envoy.define_histogram("fence_connection_age_at_close_ms").ok(),
            age_at_reset: envoy.define_histogram("fence_connection_age_at_reset_ms").ok(),
            closed_quiet: envoy.define_counter("fence_closed_quiet").ok(),
            resets: ResetClass::ALL.map(|class| match class {
                ResetClass::EndedUnanswered => None,
                ResetClass::Stale | ResetClass::TunnelRefused | ResetClass::Broken => {
                    envoy.define_counter(&format!("fence_reset_{}", class.name())).ok()
                }
            }),
        }
    }

    pub(crate) fn opened(&self, envoy: &mut impl EnvoyNetworkFilter, tunnel: &Tunnel) {
        count(envoy, self.tunnels);
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
        if let (Some(id), Some(connection)) = (self.age_at_close, tunnel.connection(now)) {
            let _ = envoy.record_histogram_value(id, millis(connection.age));
        }
    }

    pub(crate) fn broke(&self, envoy: &mut impl EnvoyNetworkFilter, reset: &Reset) {
        count(envoy, self.resets.get(reset.class.index()).copied().flatten());
        if let (Some(id), Some(age)) = (self.age_at_reset, reset.connection_age) {
            let _ = envoy.record_histogram_value(id, millis(age));
        }
    }

    /// An end that is no reset.
    pub(crate) fn ended(&self, envoy: &mut impl EnvoyNetworkFilter, end: End) {
        match end {
            End::Broken => count(envoy, self.closed_quiet),
            End::Orderly | End::Refused(_) => {}
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
