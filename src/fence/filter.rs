//! The network filter: thin glue between a tunnel's inner connection and the registry.

use std::{
    net::IpAddr,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use envoy_proxy_dynamic_modules_rust_sdk::{
    EnvoyNetworkFilter, EnvoyNetworkFilterConfig, EnvoyNetworkFilterScheduler, NetworkFilter, NetworkFilterConfig,
    abi::{
        envoy_dynamic_module_type_attribute_id as Attribute,
        envoy_dynamic_module_type_network_connection_close_type as CloseType,
        envoy_dynamic_module_type_network_connection_event as ConnectionEvent,
        envoy_dynamic_module_type_on_network_filter_data_status as DataStatus,
        envoy_dynamic_module_type_socket_option_state as SocketOptionState,
    },
    envoy_log_debug,
    extra::{Feature, SO_SNDTIMEO, SOL_SOCKET, envoy_has},
};

use super::{
    config::{FenceConfig, SocketOption},
    metrics::Metrics,
    progress::{ClosedBy, Progress, refusal},
};
use crate::{
    address::{self, ORIGINAL_DST, WAYPOINT},
    closing,
    config::{ConfigError, Mode},
    endpoints::{End, Endpoints, Refusal, ResetEvidence, Tunnel},
    metadata,
    shared::shared,
};

/// Details of a connection that was closed because its endpoint had been removed; in access logs.
pub const CLOSED_AFTER_REMOVAL: &str = "stale_guard_endpoint_removed";

/// What the filters of one configuration share.
struct Settings {
    config: FenceConfig,
    options: Vec<SocketOption>,
    metrics: Metrics,
    endpoints: Arc<Endpoints>,
    /// Whether the connections of past generations are to be closed: that needs the main thread's timer.
    closes_fenced: bool,
}

/// One configuration of the filter.
pub(crate) struct FenceFilterConfig(Arc<Settings>);

/// The filter of one tunnel. Its hooks run on the tunnel's worker; Envoy may drop it on another thread.
struct FenceFilter {
    settings: Arc<Settings>,
    tunnel: Option<Tunnel>,
    progress: Progress,
}

// === impl Settings ===

impl Settings {
    /// Counts an end, says in the tunnel's access log what is known of it, and remembers it for requests.
    fn explain(&self, envoy: &mut impl EnvoyNetworkFilter, tunnel: &Tunnel, evidence: &ResetEvidence, now: Instant) {
        let (ip, generation) = (tunnel.ip(), tunnel.generation().get());
        let reset = tunnel.ended(evidence, envoy.get_worker_index(), now);
        let mut note = |key, value: Option<Duration>| {
            if let Some(value) = value {
                envoy.set_dynamic_metadata_number(metadata::NAMESPACE, key, metadata::millis(value));
            }
        };
        note(metadata::WAITED, reset.waited);
        note(metadata::IDLE, reset.idle);
        if !evidence.is_reset() {
            self.metrics.ended(envoy, evidence.end);
            return;
        }
        self.metrics.broke(envoy, &reset);
        envoy.set_dynamic_metadata_string(metadata::NAMESPACE, metadata::RESET_CLASS, reset.class.name());
        #[expect(clippy::cast_precision_loss, reason = "there are at most 64")]
        let others = reset.others_at_once as f64;
        envoy.set_dynamic_metadata_number(metadata::NAMESPACE, metadata::OTHERS_AT_ONCE, others);
        if let End::Refused(Some(refusal)) = evidence.end {
            envoy.set_dynamic_metadata_string(metadata::NAMESPACE, metadata::TUNNEL_REFUSAL, &refusal.name());
        }
        envoy_log_debug!("stale_guard: tunnel to {ip} of generation {generation} broke: {reset:?}");
    }
}

// === impl FenceFilterConfig ===

impl FenceFilterConfig {
    /// Parses the configuration, checks it against the running Envoy and defines its counters. Main thread.
    ///
    /// # Errors
    /// A configuration that [`FenceConfig::parse`] or [`FenceConfig::checked`] refuses.
    pub(crate) fn load(json: &[u8], envoy: &mut impl EnvoyNetworkFilterConfig) -> Result<Self, ConfigError> {
        let config = FenceConfig::parse(json)?;
        let takes_commits = envoy_has(Feature::SafeCommitFromOtherThreads);
        let has_timer = shared().ticking.load(Ordering::Relaxed);
        let config = config.checked(has_timer, takes_commits)?;
        let metrics = Metrics::define(envoy);
        let options = config.tcp.socket_options();
        let endpoints = Arc::clone(&shared().endpoints);
        let closes_fenced = config.mode == Mode::Enforce && config.close_fenced && has_timer;
        Ok(Self(Arc::new(Settings { config, options, metrics, endpoints, closes_fenced })))
    }
}

impl<E: EnvoyNetworkFilter> NetworkFilterConfig<E> for FenceFilterConfig {
    fn new_network_filter(&self, _envoy: &mut E) -> Box<dyn NetworkFilter<E>> {
        Box::new(FenceFilter { settings: Arc::clone(&self.0), tunnel: None, progress: Progress::default() })
    }
}

// === impl FenceFilter ===

impl<E: EnvoyNetworkFilter> NetworkFilter<E> for FenceFilter {
    fn on_new_connection(&mut self, envoy: &mut E) -> DataStatus {
        let settings = &self.settings;
        if settings.config.mode == Mode::Off {
            return DataStatus::Continue;
        }
        // A tunnel to a name has no address that EDS could take back: it is left alone.
        let Some(ip) = endpoint(envoy) else {
            settings.metrics.no_endpoint(envoy);
            return DataStatus::Continue;
        };
        let pool_on = settings.closes_fenced.then(|| envoy.get_worker_index());
        let (endpoints, rotation, now) = (&settings.endpoints, settings.config.rotation(), Instant::now());
        let mut tunnel = match pool_on {
            Some(worker) => endpoints.open_pooled(worker, ip, rotation, now),
            None => endpoints.open(ip, rotation, now),
        };
        if settings.config.mode == Mode::Enforce {
            let generation = tunnel.generation().get().to_string();
            envoy.set_dynamic_metadata_string(metadata::NAMESPACE, metadata::GENERATION, &generation);
            for option in &settings.options {
                envoy.set_socket_option_int(option.level, option.name, SocketOptionState::Prebind, option.value);
            }
            if let Some(tag) = pool_on.and_then(|worker| closing::tag(tunnel.generation().get(), worker)) {
                envoy.set_socket_option_bytes(SOL_SOCKET, SO_SNDTIMEO, SocketOptionState::Prebind, &tag.option());
            }
            if let Some(after) = settings.config.close_after() {
                let scheduler = envoy.new_scheduler();
                tunnel.close_after_removal(after, Arc::new(move || scheduler.commit(0)));
            }
        }
        settings.metrics.opened(envoy, &tunnel);
        self.tunnel = Some(tunnel);
        DataStatus::Continue
    }

    fn on_read(&mut self, envoy: &mut E, data_length: usize, end_stream: bool) -> DataStatus {
        if data_length > 0 {
            let now = Instant::now();
            self.attribute(envoy, now);
            if let Some(tunnel) = &self.tunnel {
                self.progress.sent(tunnel.silent(now), now);
            }
        }
        if end_stream && self.tunnel.is_some() && self.progress.pool_ended() {
            shared().hint.raise();
        }
        DataStatus::Continue
    }

    fn on_write(&mut self, envoy: &mut E, data_length: usize, end_stream: bool) -> DataStatus {
        let now = Instant::now();
        self.attribute(envoy, now);
        if let Some(tunnel) = &self.tunnel {
            tunnel.heard(now);
            // Told now: the request's end may come before the close of the inner connection.
            if let Some(evidence) = self.progress.heard(data_length, end_stream, now) {
                self.settings.explain(envoy, tunnel, &evidence, now);
            }
        }
        DataStatus::Continue
    }

    fn on_event(&mut self, envoy: &mut E, event: ConnectionEvent) {
        let by = match event {
            ConnectionEvent::RemoteClose => ClosedBy::Pool,
            ConnectionEvent::LocalClose => {
                ClosedBy::Proxy { flags: envoy.get_attribute_int(Attribute::ResponseFlags).map(i64::cast_unsigned) }
            }
            ConnectionEvent::Connected | ConnectionEvent::ConnectedZeroRtt => return,
        };
        let now = Instant::now();
        // A CONNECT may have been sent on a connection that others had used, and died with it.
        self.attribute(envoy, now);
        let Some(tunnel) = self.tunnel.take() else { return };
        self.settings.metrics.closed(envoy, &tunnel, now);
        annotate(envoy, &tunnel, now);
        if by == ClosedBy::Pool && self.progress.pool_ended() {
            shared().hint.raise();
        }
        let times = (tunnel.age(now), tunnel.silent(now));
        if let Some(evidence) = self.progress.closed(by, || failure(envoy, times.0), times, now) {
            self.settings.explain(envoy, &tunnel, &evidence, now);
        }
    }

    fn on_scheduled(&mut self, envoy: &mut E, _event_id: u64) {
        let now = Instant::now();
        // The endpoint may be back (a readiness flap), or the tunnel over, by the time this runs.
        if let Some(tunnel) = self.tunnel.take_if(|tunnel| tunnel.is_due(now)) {
            // Taken out first: the close's own event comes back here when this hook has returned.
            self.settings.metrics.closed(envoy, &tunnel, now);
            self.settings.metrics.cut(envoy);
            annotate(envoy, &tunnel, now);
            drop(tunnel);
            envoy.close_with_details(CloseType::NoFlush, CLOSED_AFTER_REMOVAL);
        }
    }
}

impl FenceFilter {
    /// Finds out which outer connection the tunnel is on, as soon as Envoy knows (1.39 and later).
    fn attribute(&mut self, envoy: &mut impl EnvoyNetworkFilter, now: Instant) {
        if let Some(tunnel) = &mut self.tunnel
            && !tunnel.is_attributed()
            && let id @ 1.. = envoy.get_upstream_connection_id()
        {
            let first = tunnel.on_connection(id, now);
            self.settings.metrics.connected(envoy, first);
        }
    }
}

/// Says in the tunnel's access log which outer connection it was on.
fn annotate(envoy: &mut impl EnvoyNetworkFilter, tunnel: &Tunnel, now: Instant) {
    if let Some(connection) = tunnel.connection(now) {
        #[expect(clippy::cast_precision_loss, reason = "ids count from 1")]
        envoy.set_dynamic_metadata_number(metadata::NAMESPACE, metadata::CONNECTION_ID, connection.id as f64);
        let age = metadata::millis(connection.age);
        envoy.set_dynamic_metadata_number(metadata::NAMESPACE, metadata::CONNECTION_AGE, age);
    }
}

/// Why `tcp_proxy` could not open the tunnel. Envoy before 1.39 does not say.
fn failure(envoy: &impl EnvoyNetworkFilter, age: Duration) -> Option<Refusal> {
    // The flags tell whether this Envoy answers at all: a tunnel that could not be opened has some.
    envoy.get_attribute_int(Attribute::ResponseFlags)?;
    let reason = envoy.get_attribute_string(Attribute::UpstreamTransportFailureReason);
    Some(refusal(
        &reason.map(|reason| String::from_utf8_lossy(reason.as_slice()).into_owned()).unwrap_or_default(),
        age,
    ))
}

/// The address that the outer connection goes to, port aside: a waypoint on the way where the
/// endpoint names one, else the endpoint itself.
fn endpoint(envoy: &impl EnvoyNetworkFilter) -> Option<IpAddr> {
    if let Some(waypoint) = envoy.get_dynamic_metadata_string(ORIGINAL_DST, WAYPOINT) {
        return address::ip_of_bytes(waypoint.as_slice());
    }
    address::ip(&envoy.get_local_address().0)
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
