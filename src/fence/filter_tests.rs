//! The filter of one tunnel, with a connection that is only played.

use std::{cell::RefCell, collections::BTreeMap, sync::atomic::AtomicUsize};

use envoy_proxy_dynamic_modules_rust_sdk::{EnvoyBuffer, EnvoyCounterId, extra::MetricResult};

use super::*;
use crate::endpoints::{CloseAfter, Cluster};

/// Envoy while the configuration loads: counters are numbered, and named.
#[derive(Default)]
struct Loading(Vec<String>);

impl EnvoyNetworkFilterConfig for Loading {
    fn define_counter(&mut self, name: &str) -> MetricResult<EnvoyCounterId> {
        self.0.push(name.to_owned());
        Ok(EnvoyCounterId(self.0.len() - 1))
    }
}

/// Envoy's side of one inner connection.
#[derive(Default)]
struct Inner {
    /// The outer connection, once there is one.
    outer: Option<u64>,
    flags: Option<i64>,
    reason: &'static str,
    options: Vec<i64>,
    metadata: BTreeMap<String, String>,
    counts: RefCell<BTreeMap<usize, u64>>,
    closed_with: Option<String>,
}

impl EnvoyNetworkFilter for Inner {
    fn get_local_address(&self) -> (String, u32) {
        ("10.244.1.7".to_owned(), 8080)
    }

    fn get_upstream_connection_id(&self) -> u64 {
        self.outer.unwrap_or(0)
    }

    fn get_attribute_int(&self, id: Attribute) -> Option<i64> {
        self.flags.filter(|_| id == Attribute::ResponseFlags)
    }

    fn get_attribute_string(&self, _id: Attribute) -> Option<EnvoyBuffer<'_>> {
        Some(EnvoyBuffer::new(self.reason.as_bytes()))
    }

    fn set_dynamic_metadata_string(&mut self, _namespace: &str, key: &str, value: &str) {
        self.metadata.insert(key.to_owned(), value.to_owned());
    }

    fn set_dynamic_metadata_number(&mut self, _namespace: &str, key: &str, value: f64) {
        self.metadata.insert(key.to_owned(), value.to_string());
    }

    fn set_socket_option_int(&mut self, _level: i64, name: i64, _state: SocketOptionState, _value: i64) {
        self.options.push(name);
    }

    fn increment_counter(&self, id: EnvoyCounterId, value: u64) -> MetricResult {
        *self.counts.borrow_mut().entry(id.0).or_default() += value;
        Ok(())
    }

    fn close_with_details(&mut self, _close_type: CloseType, details: &str) {
        self.closed_with = Some(details.to_owned());
    }
}

/// A filter with a registry of its own, and the names of its counters.
struct Scene {
    filter: FenceFilter,
    inner: Inner,
    counters: Vec<String>,
    endpoints: Arc<Endpoints>,
}

impl Scene {
    fn new(config: &str) -> Self {
        let mut loading = Loading::default();
        let config = FenceConfig::parse(config.as_bytes()).expect("a valid configuration");
        let endpoints = Endpoints::new(64);
        let options = config.tcp.socket_options();
        let metrics = Metrics::define(&mut loading);
        let settings =
            Arc::new(Settings { config, options, metrics, endpoints: Arc::clone(&endpoints), closes_fenced: false });
        let filter = FenceFilter { settings, tunnel: None, progress: Progress::default() };
        Self { filter, inner: Inner::default(), counters: loading.0, endpoints }
    }

    fn opened(config: &str) -> Self {
        let mut scene = Self::new(config);
        scene.filter.on_new_connection(&mut scene.inner);
        scene
    }

    fn established(config: &str) -> Self {
        let mut scene = Self::opened(config);
        scene.inner.flags = Some(0);
        scene.inner.outer = Some(77);
        scene.filter.on_read(&mut scene.inner, 128, false);
        scene
    }

    fn event(&mut self, event: ConnectionEvent) {
        self.filter.on_event(&mut self.inner, event);
    }

    fn count(&self, name: &str) -> u64 {
        let place = self.counters.iter().position(|known| known == name).expect("a counter of the fence");
        self.inner.counts.borrow().get(&place).copied().unwrap_or(0)
    }

    fn said(&self, key: &str) -> Option<&str> {
        self.inner.metadata.get(key).map(String::as_str)
    }

    fn resets(&self) -> u64 {
        ["stale", "tunnel_refused", "broken"].iter().map(|class| self.count(&format!("fence_reset_{class}"))).sum()
    }
}

#[test]
fn a_tunnel_gets_its_generation_and_options_only_where_the_fence_acts() {
    let enforced = Scene::opened("{}");
    assert_eq!((enforced.said(metadata::GENERATION), enforced.inner.options.len()), (Some("0"), 5));
    for (mode, tunnels) in [(r#"{"mode": "observe"}"#, 1), (r#"{"mode": "off"}"#, 0)] {
        let scene = Scene::opened(mode);
        assert_eq!((scene.said(metadata::GENERATION), scene.inner.options.len()), (None, 0), "{mode}");
        assert_eq!(scene.count("fence_tunnels"), tunnels, "{mode}");
    }
}

#[test]
fn a_tunnel_that_breaks_is_counted_and_told_with_its_numbers() {
    let mut scene = Scene::established("{}");
    scene.event(ConnectionEvent::LocalClose);
    assert_eq!((scene.count("fence_reset_broken"), scene.resets()), (1, 1));
    assert_eq!((scene.said(metadata::RESET_CLASS), scene.said(metadata::CONNECTION_ID)), (Some("broken"), Some("77")));
    for key in [metadata::WAITED, metadata::IDLE, metadata::CONNECTION_AGE, metadata::OTHERS_AT_ONCE] {
        assert!(scene.said(key).is_some(), "{key}");
    }
    let ip = "10.244.1.7".parse().expect("an address");
    let class = scene.endpoints.last_break(ip, 0, Duration::from_secs(1), Instant::now()).map(|one| one.reset.class);
    assert_eq!(class.map(crate::endpoints::ResetClass::name), Some("broken"), "its request may ask");
    assert_eq!(scene.endpoints.totals().tunnels, 0, "and it is over");
}

#[test]
fn a_tunnel_that_is_refused_says_by_what() {
    let mut scene = Scene::opened("{}");
    (scene.inner.flags, scene.inner.reason) = (Some(1 << 5), "tunnel_response:401");
    scene.event(ConnectionEvent::LocalClose);
    assert_eq!(scene.said(metadata::TUNNEL_REFUSAL), Some("answered_401"));
    assert_eq!((scene.count("fence_reset_tunnel_refused"), scene.resets()), (1, 1));
    let mut old = Scene::opened("{}");
    old.event(ConnectionEvent::LocalClose);
    assert_eq!(old.said(metadata::TUNNEL_REFUSAL), None, "Envoy 1.38 does not say");
    assert_eq!(old.count("fence_reset_tunnel_refused"), 1);
}

#[test]
fn ends_that_the_pool_the_endpoint_or_envoy_asked_for_are_no_resets() {
    let mut pool = Scene::established("{}");
    pool.event(ConnectionEvent::RemoteClose);
    let mut older_pool = Scene::established("{}");
    older_pool.filter.on_read(&mut older_pool.inner, 0, true);
    older_pool.filter.on_write(&mut older_pool.inner, 0, true);
    older_pool.event(ConnectionEvent::LocalClose);
    let mut endpoint = Scene::established("{}");
    endpoint.filter.on_write(&mut endpoint.inner, 0, true);
    assert!(endpoint.said(metadata::WAITED).is_some(), "bytes had no answer, which is told");
    endpoint.event(ConnectionEvent::LocalClose);
    let mut aged = Scene::established("{}");
    aged.inner.flags = Some(1 << 22);
    aged.event(ConnectionEvent::LocalClose);
    for scene in [pool, older_pool, endpoint, aged] {
        assert_eq!(
            (scene.resets(), scene.count("fence_closed_quiet"), scene.said(metadata::RESET_CLASS)),
            (0, 0, None)
        );
    }
}

#[test]
fn a_tunnel_whose_time_is_over_is_closed_once_and_not_if_its_endpoint_is_back() {
    let mut scene = Scene::established("{}");
    let (ip, cluster) = ("10.244.1.7".parse().expect("an address"), Cluster::named("echo"));
    let told = Arc::new(AtomicUsize::new(0));
    let calls = Arc::clone(&told);
    let close = move || {
        calls.fetch_add(1, Ordering::Relaxed);
    };
    let tunnel = scene.filter.tunnel.as_mut().expect("it is open");
    tunnel.close_after_removal(CloseAfter { after: Duration::ZERO, jitter: 0.0 }, Arc::new(close));
    scene.endpoints.removed(ip, cluster, false, Instant::now());
    scene.endpoints.added(ip, cluster);
    scene.filter.on_scheduled(&mut scene.inner, 0);
    assert_eq!(scene.inner.closed_with, None, "it is back");
    scene.endpoints.removed(ip, cluster, false, Instant::now());
    scene.endpoints.close_removed(Instant::now());
    assert_eq!(told.load(Ordering::Relaxed), 1);
    scene.filter.on_scheduled(&mut scene.inner, 0);
    assert_eq!(scene.inner.closed_with.as_deref(), Some(CLOSED_AFTER_REMOVAL));
    scene.event(ConnectionEvent::LocalClose);
    assert_eq!((scene.count("fence_closed_after_removal"), scene.resets()), (1, 0), "what we close is no reset");
}
