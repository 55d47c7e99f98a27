//! The registry against a model that forgets nothing: any order of additions, removals, moves,
//! evictions, openings and closings keeps the rules of generations.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use proptest::prelude::*;

use crate::{
    endpoints::{Cluster, DEFAULT_CAPACITY, End, Endpoints, ResetClass, ResetEvidence, Rotation, SHARDS, Tunnel},
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
fn a_break_is_stale_if_its_endpoint_has_left_or_returned_since_and_only_then() {
    let (endpoints, cluster, start) = (Endpoints::new(DEFAULT_CAPACITY), Cluster::named("echo"), Instant::now());
    let at = |seconds| start + Duration::from_secs(seconds);
    let broken =
        ResetEvidence { end: End::Broken, idle: None, waited: Some(Duration::from_millis(5)), answering: false };
    let refused = ResetEvidence { end: End::Refused(None), ..broken };
    let open = |host, id, seconds| {
        let mut tunnel = endpoints.open(address(host), None, at(seconds));
        tunnel.on_connection(id, at(seconds));
        tunnel
    };
    let class = |tunnel: Tunnel, evidence, seconds| tunnel.ended(&evidence, 0, at(seconds)).class;

    let old = open(2, 1, 0);
    endpoints.removed(address(2), cluster, false, at(5));
    let between = open(2, 2, 6);
    let also_between = open(2, 2, 6);
    assert_eq!(class(also_between, broken, 6), ResetClass::Broken, "nothing has happened since it was opened");
    endpoints.added(address(2), cluster);
    assert_eq!(class(between, broken, 10), ResetClass::Stale, "the address has returned since, maybe in a new pod");
    let new = open(2, 3, 11);
    assert_eq!(class(old, broken, 12), ResetClass::Stale, "opened before the removal");
    assert_eq!(class(new, broken, 20), ResetClass::Broken, "the endpoint has not left since");
    // Observing, Envoy lets a new tunnel use the old connection: the connection's generation decides.
    assert_eq!(class(open(2, 1, 30), refused, 31), ResetClass::Stale);
    assert_eq!(class(endpoints.open(address(2), None, at(30)), refused, 31), ResetClass::TunnelRefused);

    // Without an id (Envoy 1.38) the tunnel's own generation decides.
    let (old, cluster) = (endpoints.open(address(3), None, at(0)), Cluster::named("other"));
    endpoints.removed(address(3), cluster, true, at(1));
    let new = endpoints.open(address(3), None, at(2));
    assert_eq!(class(old, broken, 3), ResetClass::Stale);
    assert_eq!(class(new, broken, 3), ResetClass::Broken);

    // Neither rotation nor a suspicion says that the endpoint has left.
    let rotation = Some(Rotation { max_age: Duration::from_secs(1), jitter: 0.0 });
    let old = endpoints.open(address(4), rotation, at(0));
    drop(endpoints.open(address(4), rotation, at(10)));
    assert_eq!(class(old, broken, 11), ResetClass::Broken);
    let old = endpoints.open(address(5), None, at(0));
    endpoints.suspect_all();
    drop(endpoints.open(address(5), None, at(10)));
    assert_eq!(class(old, broken, 11), ResetClass::Broken);
}

#[test]
fn only_what_counts_as_a_reset_is_the_endpoints_last_one() {
    let (endpoints, now) = (Endpoints::new(DEFAULT_CAPACITY), Instant::now());
    let idle = ResetEvidence { end: End::Broken, idle: None, waited: None, answering: false };
    let last = || endpoints.view(address(1), now).and_then(|view| view.last_reset).map(|(reset, _)| reset.class);
    let _ = endpoints.open(address(1), None, now).ended(&idle, 0, now);
    assert_eq!(last(), None, "it may have been Envoy's idle timeout");
    let _ = endpoints.open(address(1), None, now).ended(&ResetEvidence { end: End::Orderly, ..idle }, 0, now);
    assert_eq!(last(), None);
    let _ = endpoints.open(address(1), None, now).ended(&ResetEvidence { answering: true, ..idle }, 0, now);
    assert_eq!(last(), Some(ResetClass::Broken));
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
