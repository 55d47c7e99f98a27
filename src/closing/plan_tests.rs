use super::*;
use crate::endpoints::{Cluster, Endpoints, Tunnel};

const IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 244, 1, 1));

struct Scene {
    endpoints: Arc<Endpoints>,
    plan: Plan,
    start: Instant,
}

impl Scene {
    fn new() -> Self {
        let plan = Plan::new(Settings::default());
        Self { endpoints: Endpoints::new(64), plan, start: Instant::now() }
    }

    fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    fn open(&self, worker: u32, millis: u64) -> Tunnel {
        self.endpoints.open_pooled(worker, IP, None, self.at(millis))
    }

    /// The endpoint leaves; what is over goes to the plan.
    fn fence(&mut self, millis: u64) {
        self.endpoints.removed(IP, Cluster::named("echo"), false, self.at(millis));
        self.plan.add(self.endpoints.take_ended_pools());
    }

    /// One tick of the main thread; `open` are the connections that are there. Gives those that are closed.
    fn tick(&mut self, open: &[(u64, u32)], millis: u64) -> Option<(Vec<(u64, u32)>, Searched)> {
        let now = self.at(millis);
        let mut due = self.plan.due(now)?;
        let closed = open.iter().copied().filter(|(generation, worker)| due.take(IP, *generation, *worker)).collect();
        Some((closed, self.plan.searched(due, now)))
    }
}

#[test]
fn a_pool_is_searched_for_once_it_is_over_and_has_been_empty_for_the_grace_time() {
    let mut scene = Scene::new();
    let tunnel = scene.open(0, 0);
    assert_eq!(scene.tick(&[(0, 0)], 0), None, "it is not over");
    scene.fence(10);
    assert_eq!(scene.tick(&[(0, 0)], 10_000), None, "it carries a tunnel");
    assert_eq!((scene.plan.carrying(), scene.plan.to_close()), (1, 0));
    drop(tunnel);
    assert_eq!(scene.tick(&[(0, 0)], 10_100), None, "Envoy may not have closed its stream yet");
    assert_eq!((scene.plan.carrying(), scene.plan.to_close()), (0, 1));
    let (closed, searched) = scene.tick(&[(0, 0)], 10_600).expect("it is due");
    assert_eq!((closed, searched), (vec![(0, 0)], Searched { closed: 1, not_found: 0 }));
}

#[test]
fn a_tunnel_that_waits_for_its_connection_counts_too() {
    let mut scene = Scene::new();
    let pending = scene.open(3, 0);
    scene.fence(1);
    assert_eq!(scene.tick(&[], 60_000), None, "it may still join a connection of this pool");
    drop(pending);
}

#[test]
fn only_the_pool_of_that_generation_and_worker_is_closed() {
    let mut scene = Scene::new();
    drop((scene.open(0, 0), scene.open(1, 0)));
    scene.fence(1);
    let held = scene.open(0, 2);
    let present = held.generation().get();
    assert_eq!(scene.tick(&[], 3), None, "the grace time begins");
    let (closed, _) = scene.tick(&[(0, 0), (0, 1), (present, 0), (7, 0)], 600).expect("due");
    assert_eq!(closed, [(0, 0), (0, 1)]);
}

#[test]
fn searches_are_rare_and_what_comes_up_late_is_found() {
    let mut scene = Scene::new();
    drop(scene.open(0, 0));
    scene.fence(0);
    let mut searches = Vec::new();
    for tenth in 0..600 {
        let open: &[(u64, u32)] = if tenth == 170 { &[(0, 0)] } else { &[] };
        if let Some((closed, searched)) = scene.tick(open, tenth * 100) {
            searches.push((tenth * 100, closed.len(), searched.not_found));
        }
    }
    assert!(searches.len() < 8, "{searches:?}");
    assert!(searches.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 1_000), "{searches:?}");
    assert_eq!(searches.iter().map(|(.., not_found)| not_found).sum::<u64>(), 1, "nothing was there at any search");
    assert!(scene.plan.waiting.is_empty(), "and then it is forgotten");
}

#[test]
fn a_pool_with_two_connections_is_closed_whole() {
    let mut scene = Scene::new();
    drop(scene.open(0, 0));
    scene.fence(0);
    assert_eq!(scene.tick(&[], 0), None);
    let (closed, searched) = scene.tick(&[(0, 0), (0, 0)], 1_000).expect("due");
    assert_eq!((closed.len(), searched.closed), (2, 2), "Envoy opens a second one beyond 200 streams");
}

#[test]
fn every_way_in_which_a_generation_ends_gives_its_pools() {
    let rotation = crate::endpoints::Rotation { max_age: Duration::from_secs(1), jitter: 0.0 };
    let scene = Scene::new();
    let pools = |scene: &Scene| scene.endpoints.take_ended_pools().len();
    drop(scene.endpoints.open_pooled(0, IP, Some(rotation), scene.at(0)));
    assert_eq!(pools(&scene), 0);
    drop(scene.endpoints.open_pooled(0, IP, Some(rotation), scene.at(2_000)));
    assert_eq!(pools(&scene), 1, "age");
    scene.endpoints.suspect_all();
    assert_eq!(pools(&scene), 1, "a gap of the control plane");
    drop(scene.open(0, 3_000));
    scene.endpoints.removed(IP, Cluster::named("echo"), true, scene.at(3_000));
    assert_eq!(pools(&scene), 1, "a removal");
    drop(scene.open(0, 3_000));
    scene.endpoints.added(IP, Cluster::named("echo"));
    assert_eq!(pools(&scene), 1, "a return");
    drop(scene.open(0, 3_000));
    for host in 0..=255 {
        drop(scene.endpoints.open(IpAddr::from([10, 0, 0, host]), None, scene.at(3_000)));
        drop(scene.endpoints.open(IpAddr::from([10, 0, 1, host]), None, scene.at(3_000)));
    }
    assert_eq!(pools(&scene), 1, "eviction");
    let again = scene.open(0, 3_000);
    scene.endpoints.set_capacity(1_000);
    assert_eq!((pools(&scene), again.generation().get() > 3), (0, true), "a pool that is over is never joined again");
}

#[test]
fn pools_beyond_the_bound_are_given_up_oldest_first() {
    let mut scene = Scene::new();
    for round in 0..3 {
        drop((0..1_000).map(|worker| scene.open(worker, round)).collect::<Vec<_>>());
        scene.fence(round);
        scene.endpoints.added(IP, Cluster::named("echo"));
    }
    assert_eq!(scene.plan.to_close() + scene.plan.carrying(), 3_000);
    let filler = scene.plan.waiting.front().map(|waiting| Arc::clone(&waiting.pool)).expect("one");
    scene.plan.add(std::iter::repeat_n(filler, Plan::MAX));
    assert_eq!(scene.plan.waiting.len(), Plan::MAX);
}

#[test]
fn many_pools_are_searched_for_sooner() {
    let mut scene = Scene::new();
    for round in 0..40 {
        drop(scene.open(0, round));
        scene.fence(round);
        scene.endpoints.added(IP, Cluster::named("echo"));
    }
    let searches: Vec<_> = (0..10).filter(|tenth| scene.tick(&[], 100 + tenth * 100).is_some()).collect();
    assert!(searches.len() > 2, "a second would be long in a storm: {searches:?}");
}
