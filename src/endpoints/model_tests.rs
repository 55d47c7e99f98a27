//! The registry against a model that forgets nothing: any order of additions, removals, moves,
//! evictions, openings and closings keeps the rules of generations.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    sync::atomic::AtomicUsize,
    time::{Duration, Instant},
};

use proptest::prelude::*;

use crate::{
    endpoints::{Break, Cluster, DEFAULT_CAPACITY, Endpoints, ResetClass, ResetEvidence, Rotation, SHARDS, Tunnel},
    sync::Arc,
};

#[derive(Debug, Clone)]
enum Step {
    Add(u8, u8),
    Remove(u8, u8),
    Move(u8, u8, u8),
    Open(u8),
    Close(usize),
    SuspectAll,
}

/// All that ever happened to one endpoint.
#[derive(Default)]
struct History {
    listed_by: HashSet<u8>,
    left: HashSet<u8>,
    /// Number of events after which tunnels must be apart.
    barrier: u64,
    /// Generation and barrier of each tunnel, in order.
    opened: Vec<(u64, u64)>,
}

fn step(endpoints: u8, clusters: u8) -> impl Strategy<Value = Step> {
    let ip = 0..endpoints;
    let cluster = 0..clusters;
    prop_oneof![
        3 => (ip.clone(), cluster.clone()).prop_map(|(ip, cluster)| Step::Add(ip, cluster)),
        3 => (ip.clone(), cluster.clone()).prop_map(|(ip, cluster)| Step::Remove(ip, cluster)),
        2 => (ip.clone(), cluster.clone(), cluster).prop_map(|(ip, from, to)| Step::Move(ip, from, to)),
        6 => ip.prop_map(Step::Open),
        3 => any::<usize>().prop_map(Step::Close),
        1 => Just(Step::SuspectAll),
    ]
}

fn address(ip: u8) -> IpAddr {
    IpAddr::from([10, 244, 0, ip])
}

struct Run {
    endpoints: Arc<Endpoints>,
    model: HashMap<u8, History>,
    open: Vec<Tunnel>,
    now: Instant,
}

impl Run {
    fn new(capacity: usize) -> Self {
        Self { endpoints: Endpoints::new(capacity), model: HashMap::new(), open: Vec::new(), now: Instant::now() }
    }

    fn add(&mut self, ip: u8, cluster: u8) {
        let history = self.model.entry(ip).or_default();
        if history.listed_by.insert(cluster) {
            // A return, or an addition while some cluster has removed the address and not listed it again.
            if !history.left.is_empty() {
                history.barrier += 1;
            }
            history.left.remove(&cluster);
            self.endpoints.added(address(ip), Cluster::named(&cluster.to_string()));
        }
    }

    fn remove(&mut self, ip: u8, cluster: u8) {
        let history = self.model.entry(ip).or_default();
        if history.listed_by.remove(&cluster) {
            history.left.insert(cluster);
            history.barrier += 1;
            let still = !history.listed_by.is_empty();
            self.endpoints.removed(address(ip), Cluster::named(&cluster.to_string()), still, self.now);
        }
    }

    fn apply(&mut self, step: &Step) {
        self.now += Duration::from_millis(7);
        match *step {
            Step::Add(ip, cluster) => self.add(ip, cluster),
            Step::Remove(ip, cluster) => self.remove(ip, cluster),
            Step::Move(ip, from, to) => {
                self.remove(ip, from);
                self.add(ip, to);
            }
            Step::Open(ip) => {
                let tunnel = self.endpoints.open(address(ip), None, self.now);
                let history = self.model.entry(ip).or_default();
                history.opened.push((tunnel.generation().get(), history.barrier));
                self.open.push(tunnel);
            }
            Step::Close(which) => {
                if !self.open.is_empty() {
                    let which = which % self.open.len();
                    drop(self.open.swap_remove(which));
                }
            }
            Step::SuspectAll => {
                for history in self.model.values_mut() {
                    history.barrier += 1;
                }
                self.endpoints.suspect_all();
            }
        }
    }
}

fn check(history: &History, exact: bool) -> Result<(), TestCaseError> {
    let mut left_behind = HashSet::new();
    for pair in history.opened.windows(2) {
        let [(before, barrier_before), (after, barrier_after)] = pair else { continue };
        if barrier_before != barrier_after {
            prop_assert_ne!(before, after, "a tunnel shares the pool of one from before a removal or a return");
        } else if exact {
            prop_assert_eq!(
                before,
                after,
                "nothing happened in between: a new generation costs a handshake for nothing"
            );
        }
        if before != after {
            left_behind.insert(*before);
        }
        prop_assert!(!left_behind.contains(after), "a generation that was left came back");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn generations_follow_the_rules_and_change_for_nothing_else(steps in prop::collection::vec(step(4, 3), 1..200)) {
        let mut run = Run::new(DEFAULT_CAPACITY);
        steps.iter().for_each(|step| run.apply(step));
        for history in run.model.values() {
            check(history, true)?;
        }
        prop_assert_eq!(run.endpoints.totals().tunnels, run.open.len() as u64);
    }

    #[test]
    fn generations_follow_the_rules_when_entries_are_evicted(steps in prop::collection::vec(step(250, 3), 1..1_500)) {
        // One entry per shard: nearly every step evicts another endpoint.
        let mut run = Run::new(1);
        steps.iter().for_each(|step| run.apply(step));
        for history in run.model.values() {
            check(history, false)?;
        }
        prop_assert!(run.endpoints.totals().endpoints <= SHARDS, "the capacity bounds the entries");
    }
}

#[test]
fn forgetting_endpoints_to_which_nothing_happened_fences_nobody() {
    let mut run = Run::new(1);
    for _ in 0..3 {
        for ip in 0..=255 {
            run.apply(&Step::Open(ip));
        }
    }
    for (ip, history) in &run.model {
        assert!(
            history.opened.iter().all(|(generation, _)| *generation == 0),
            "endpoint {ip} was fenced: {:?}",
            history.opened
        );
    }
}

#[test]
fn rotation_spreads_a_thousand_endpoints_over_the_jitter_window() {
    let endpoints = Endpoints::new(DEFAULT_CAPACITY);
    let start = Instant::now();
    let rotation = Some(Rotation { max_age: Duration::from_secs(1_000), jitter: 0.1 });
    let ips = || (0..1_000_u32).map(|n| IpAddr::from(std::net::Ipv4Addr::from_bits(0x0af4_0000 + n)));
    let mut first: HashMap<IpAddr, u64> = HashMap::new();
    for ip in ips() {
        first.insert(ip, endpoints.open(ip, rotation, start).generation().get());
    }
    let mut rotated_by_second = Vec::new();
    for second in (880..=1_000).step_by(10) {
        let now = start + Duration::from_secs(second);
        let moved = ips().filter(|ip| endpoints.open(*ip, rotation, now).generation().get() != first[ip]).count();
        rotated_by_second.push((second, moved));
    }
    assert!(
        rotated_by_second.iter().filter(|(second, _)| *second < 900).all(|(_, moved)| *moved == 0),
        "none before the window: {rotated_by_second:?}"
    );
    assert_eq!(rotated_by_second.last(), Some(&(1_000, 1_000)), "all at the end of the window");
    for pair in rotated_by_second.windows(2) {
        let step = pair[1].1 - pair[0].1;
        assert!(
            step <= 160,
            "a tenth of the window rotates about a tenth of the endpoints, never a burst: {rotated_by_second:?}"
        );
    }
}

#[test]
fn an_outer_connection_has_its_age_from_first_sight_and_its_tunnels_counted() {
    let endpoints = Endpoints::new(DEFAULT_CAPACITY);
    let ip = address(1);
    let start = Instant::now();
    let (mut first, mut second) = (endpoints.open(ip, None, start), endpoints.open(ip, None, start));
    assert!(first.on_connection(77, start), "first sight of an id is the birth of the connection");
    assert!(!second.on_connection(77, start + Duration::from_secs(5)), "the same id again is the same connection");
    second.heard(start + Duration::from_secs(8));
    let now = start + Duration::from_secs(10);
    let age = first.connection(now).expect("known by now");
    assert_eq!((age.age, age.idle, age.tunnels), (Duration::from_secs(10), Duration::from_secs(2), 2));
    assert_eq!(endpoints.totals().connections, 1);
    drop((first, second));
    assert_eq!((endpoints.totals().connections, endpoints.totals().tunnels), (0, 0), "paired with the openings");
}

#[test]
fn a_break_is_explained_by_what_happened_to_its_endpoint() {
    let endpoints = Endpoints::new(DEFAULT_CAPACITY);
    let ip = address(2);
    let cluster = Cluster::named("inbound-vip|80|http|echo");
    let start = Instant::now();
    let established = ResetEvidence { established: true, ..ResetEvidence::default() };
    let at = |seconds| start + Duration::from_secs(seconds);

    let mut old = endpoints.open(ip, None, at(0));
    old.on_connection(1, at(0));
    endpoints.removed(ip, cluster, false, at(5));
    endpoints.added(ip, cluster);
    let mut new = endpoints.open(ip, None, at(6));
    new.on_connection(2, at(6));
    assert_eq!(old.broke(established, at(10)).class, ResetClass::Stale);
    assert_eq!(new.broke(established, at(20)).class, ResetClass::Fresh);

    let refused = endpoints.open(ip, None, at(30));
    assert_eq!(refused.broke(ResetEvidence::default(), at(31)).class, ResetClass::TunnelRefused);

    let (mut a, mut b) = (endpoints.open(ip, None, at(40)), endpoints.open(address(3), None, at(40)));
    a.on_connection(3, at(40));
    b.on_connection(4, at(40));
    assert_eq!(a.broke(established, at(50)).class, ResetClass::Fresh);
    assert_eq!(b.broke(established, at(50)).class, ResetClass::PeerRestart, "two endpoints at once");
    for ip in [ip, address(3)] {
        let last = endpoints.view(ip, at(51)).and_then(|view| view.last_reset).map(|(class, _)| class);
        assert_eq!(last, Some(ResetClass::PeerRestart), "the first is seen to be one of them, too");
    }
}

#[test]
fn an_address_that_moves_back_after_its_entry_was_forgotten_is_fenced() {
    let mut run = Run::new(1);
    for step in [Step::Add(1, 0), Step::Open(1), Step::Remove(1, 0)] {
        run.apply(&step);
    }
    // Everybody else passes by, so that the entry, and who removed the address, is forgotten.
    (2..=255).for_each(|ip| run.apply(&Step::Open(ip)));
    for step in [Step::Add(1, 1), Step::Open(1), Step::Add(1, 2), Step::Open(1), Step::Add(1, 0), Step::Open(1)] {
        run.apply(&step);
    }
    check(&run.model[&1], false).expect("cluster 0 removed the address, so every addition until its own is a return");
}

#[test]
fn deadlines_are_bounded_however_often_an_endpoint_flaps() {
    let endpoints = Endpoints::new(DEFAULT_CAPACITY);
    let (cluster, start) = (Cluster::named("echo"), Instant::now());
    let calls = Arc::new(AtomicUsize::new(0));
    let mut tunnels: Vec<_> = (0..10).map(|_| endpoints.open(address(1), None, start)).collect();
    for (seconds, tunnel) in (60..).zip(&mut tunnels) {
        let calls = Arc::clone(&calls);
        let close = move || {
            calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        };
        tunnel.close_after_removal(Duration::from_secs(seconds), Arc::new(close));
    }
    let at = |millis| start + Duration::from_millis(millis);
    for flap in 0..1_000 {
        endpoints.removed(address(1), cluster, false, at(flap));
        endpoints.added(address(1), cluster);
    }
    assert!(endpoints.close_removed(at(50_000)).is_some(), "one deadline waits");
    assert_eq!(endpoints.close_removed(at(100_000)), None, "one only, and it finds the endpoint back");
    assert_eq!(calls.load(std::sync::atomic::Ordering::Relaxed), 0, "an endpoint that came back keeps its tunnels");
    endpoints.removed(address(1), cluster, false, at(100_000));
    assert_eq!(endpoints.close_removed(at(160_000)), Some(at(161_000)), "each tunnel has its own time");
    assert_eq!(calls.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[test]
fn tunnels_that_may_share_a_connection_are_no_restart_of_the_peer() {
    let (endpoints, now) = (Endpoints::new(8), Instant::now());
    let evidence = ResetEvidence {
        established: true,
        waited: Some((Duration::from_millis(5), Duration::from_millis(5))),
        ..ResetEvidence::default()
    };
    let broke = |connection: Option<u64>| {
        let mut tunnel = endpoints.open(IpAddr::from([10, 244, 1, 9]), None, now);
        if let Some(id) = connection {
            tunnel.on_connection(id, now);
        }
        tunnel.broke(evidence, now).class
    };
    assert_eq!([Some(7), None, Some(7)].map(broke), [ResetClass::Fresh; 3], "one connection, as far as is known");
    assert_eq!(broke(Some(8)), ResetClass::PeerRestart, "another one, for certain");
    let last = Break::here_since(now, now).map(|one| one.closed.class);
    assert_eq!(last, None, "and with it the cause of what broke here is in doubt");
}
