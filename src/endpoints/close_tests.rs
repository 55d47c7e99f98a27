//! When tunnels of a removed endpoint are closed.

use std::{
    net::IpAddr,
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use crate::{
    endpoints::{CloseAfter, Cluster, DEFAULT_CAPACITY, Endpoints, Tunnel},
    sync::Arc,
};

const IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 244, 0, 1));

/// A registry whose tunnels are to be closed, and how often one was told so.
struct Scene {
    endpoints: Arc<Endpoints>,
    cluster: Cluster,
    start: Instant,
    calls: Arc<AtomicUsize>,
}

impl Scene {
    fn new(capacity: usize) -> Self {
        let (cluster, start) = (Cluster::named("echo"), Instant::now());
        Self { endpoints: Endpoints::new(capacity), cluster, start, calls: Arc::default() }
    }

    fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    fn open(&self, seconds: u64, jitter: f64, at: u64) -> Tunnel {
        let mut tunnel = self.endpoints.open(IP, None, self.at(at));
        let calls = Arc::clone(&self.calls);
        let close = move || {
            calls.fetch_add(1, Ordering::Relaxed);
        };
        let after = CloseAfter { after: Duration::from_secs(seconds), jitter };
        tunnel.close_after_removal(after, Arc::new(close));
        tunnel
    }

    fn remove(&self, at: u64) {
        self.endpoints.removed(IP, self.cluster, false, self.at(at));
    }

    fn add(&self) {
        self.endpoints.added(IP, self.cluster);
    }

    /// How many were told until then.
    fn told(&self, at: u64) -> usize {
        self.endpoints.close_removed(self.at(at));
        self.calls.load(Ordering::Relaxed)
    }
}

#[test]
fn a_tunnel_opened_after_the_removal_lives_as_long_as_one_opened_before() {
    let scene = Scene::new(DEFAULT_CAPACITY);
    scene.remove(0);
    let tunnel = scene.open(60, 0.0, 61_000);
    assert_eq!(scene.told(61_100), 0, "Envoy has just opened it, to an endpoint that it still uses");
    assert!(!tunnel.is_due(scene.at(61_100)), "the tunnel's worker looks again");
    assert_eq!(scene.told(121_000), 1);
    assert!(tunnel.is_due(scene.at(121_000)));
}

#[test]
fn each_tunnel_has_its_own_time_and_is_told_once_for_each_removal() {
    let scene = Scene::new(DEFAULT_CAPACITY);
    let tunnels: Vec<_> = (60..70).map(|seconds| scene.open(seconds, 0.0, 0)).collect();
    for flap in 0..1_000 {
        scene.remove(flap);
        scene.add();
    }
    assert_eq!(scene.told(100_000), 0, "an endpoint that came back keeps its tunnels");
    scene.remove(100_000);
    assert_eq!(scene.told(159_999), 0);
    assert_eq!(scene.told(160_000), 1);
    assert_eq!(scene.told(160_999), 1, "it was told");
    assert_eq!(scene.told(161_000), 2);
    scene.add();
    assert!(!tunnels[0].is_due(scene.at(161_000)), "it is back by the time that the tunnel's worker acts");
    scene.remove(200_000);
    assert_eq!(scene.told(260_000), 3, "which needs telling anew");
}

#[test]
fn tunnels_of_one_endpoint_are_spread_over_the_share_that_is_set() {
    let scene = Scene::new(DEFAULT_CAPACITY);
    let tunnels: Vec<_> = (0..1_000).map(|_| scene.open(100, 0.1, 0)).collect();
    scene.remove(0);
    let told: Vec<usize> = (100..=110).map(|second| scene.told(second * 1_000 - 1)).collect();
    assert_eq!((told[0], told[10]), (0, 1_000), "none before its time, all at the end of the share");
    assert!(told.windows(2).all(|pair| pair[1] - pair[0] <= 160), "never many at once: {told:?}");
    drop(tunnels);
}

#[test]
fn an_endpoint_that_was_forgotten_is_closed_all_the_same_and_counts_nothing_twice() {
    let scene = Scene::new(1);
    let first = scene.open(60, 0.0, 0);
    // One entry for each shard: everybody else passes by.
    let evict = || {
        for host in 2..=255 {
            drop(scene.endpoints.open(IpAddr::from([10, 244, 0, host]), None, scene.start));
        }
        assert!(scene.endpoints.view(IP, scene.start).is_none(), "forgotten");
    };
    evict();
    let second = [scene.endpoints.open(IP, None, scene.start), scene.endpoints.open(IP, None, scene.start)];
    let tunnels = || scene.endpoints.view(IP, scene.start).map(|view| view.tunnels);
    assert_eq!(tunnels(), Some(2), "those that the entry knows");
    scene.remove(0);
    evict();
    assert_eq!(scene.told(60_000), 1, "though nobody remembers the endpoint");
    assert!(first.is_due(scene.at(60_000)));
    let third = [scene.endpoints.open(IP, None, scene.start), scene.endpoints.open(IP, None, scene.start)];
    drop(first);
    assert_eq!(tunnels(), Some(2), "a tunnel of before takes nothing from the entry of now");
    drop((second, third));
    assert_eq!(scene.endpoints.totals().tunnels, 0);
}
