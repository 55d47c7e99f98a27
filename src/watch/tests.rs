use std::net::Ipv4Addr;

use prost::Message as _;

use super::*;

/// `ClusterLoadAssignment` with internal addresses, as istiod sends it; only what is read of it.
#[derive(Clone, PartialEq, prost::Message)]
struct Assigned {
    #[prost(string, tag = "1")]
    cluster_name: String,
    #[prost(message, repeated, tag = "2")]
    endpoints: Vec<Locality>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Locality {
    #[prost(message, repeated, tag = "2")]
    lb_endpoints: Vec<LbEndpoint>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LbEndpoint {
    #[prost(message, optional, tag = "1")]
    endpoint: Option<Endpoint>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Endpoint {
    #[prost(message, optional, tag = "1")]
    address: Option<Address>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Address {
    #[prost(message, optional, tag = "1")]
    socket_address: Option<SocketAddress>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SocketAddress {
    #[prost(string, tag = "2")]
    address: String,
}

/// `Cluster`; only what is read of it.
#[derive(Clone, PartialEq, prost::Message)]
struct ClusterBytes {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "3")]
    eds_cluster_config: Option<EdsConfig>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct EdsConfig {}

fn address(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 244, 0, number))
}

fn assignment(name: &str, numbers: &[u8]) -> Vec<u8> {
    let endpoint = |number: &u8| {
        let socket_address = Some(SocketAddress { address: address(*number).to_string() });
        LbEndpoint { endpoint: Some(Endpoint { address: Some(Address { socket_address }) }) }
    };
    let lb_endpoints = numbers.iter().map(endpoint).collect();
    Assigned { cluster_name: name.to_owned(), endpoints: vec![Locality { lb_endpoints }] }.encode_to_vec()
}

fn cluster(name: &str) -> Vec<u8> {
    ClusterBytes { name: name.to_owned(), eds_cluster_config: Some(EdsConfig {}) }.encode_to_vec()
}

struct Scene {
    endpoints: Arc<Endpoints>,
    watch: Watch,
    start: Instant,
}

impl Scene {
    fn new() -> Self {
        let endpoints = Endpoints::new(64);
        let mut watch = Watch::new(Arc::clone(&endpoints));
        watch.suspect_after(Some(Duration::from_secs(30)));
        Self { endpoints, watch, start: Instant::now() }
    }

    fn at(&self, second: u64) -> Instant {
        self.start + Duration::from_secs(second)
    }

    fn eds(&mut self, resources: &[(&str, Option<&[u8]>)], removed: Removed<'_>, second: u64) -> Vec<Note> {
        let resources: Vec<_> = resources.iter().map(|(name, body)| Resource { name, body: *body }).collect();
        let now = self.at(second);
        self.watch.eds(&Response { resources: &resources, removed }, &Statuses::default(), now).1
    }

    fn lists(&mut self, name: &str, numbers: &[u8], second: u64) -> Vec<Note> {
        let body = assignment(name, numbers);
        self.eds(&[(name, Some(&body))], Removed::Named(&[]), second)
    }

    fn cds(&mut self, names: &[&str], removed: Removed<'_>) {
        let bodies: Vec<_> = names.iter().map(|name| cluster(name)).collect();
        let resources: Vec<_> =
            names.iter().zip(&bodies).map(|(name, body)| Resource { name, body: Some(body) }).collect();
        self.watch.cds(&Response { resources: &resources, removed }, self.start);
    }

    /// The generation that a tunnel opened now gets: it moves where the endpoint was fenced since the last.
    fn generation(&self, number: u8) -> u64 {
        self.endpoints.open(address(number), None, self.start).generation().get()
    }

    fn listed(&self, number: u8) -> usize {
        self.watch.listings().listing(address(number)).count()
    }
}

#[test]
fn a_removal_that_the_validator_sees_fences_the_endpoint() {
    let mut scene = Scene::new();
    scene.lists("a", &[1, 2], 0);
    let before = (scene.generation(1), scene.generation(2));
    scene.lists("a", &[2], 1);
    assert!(scene.generation(1) > before.0);
    assert_eq!(scene.generation(2), before.1);
    assert_eq!(scene.watch.validator().removed, 1);
}

#[test]
fn an_eds_response_of_the_state_of_the_world_need_not_list_every_resource() {
    let mut scene = Scene::new();
    scene.lists("a", &[1], 0);
    let body = assignment("b", &[2]);
    scene.eds(&[("b", Some(&body))], Removed::AllOthers, 1);
    assert_eq!((scene.listed(1), scene.listed(2)), (1, 1));
}

#[test]
fn a_cds_response_of_the_state_of_the_world_takes_away_what_it_does_not_list() {
    let mut scene = Scene::new();
    scene.cds(&["a", "b"], Removed::AllOthers);
    scene.lists("a", &[1], 0);
    scene.lists("b", &[2], 0);
    scene.cds(&["b"], Removed::AllOthers);
    assert_eq!((scene.listed(1), scene.listed(2)), (0, 1));
    scene.cds(&[], Removed::Named(&["b"]));
    assert_eq!(scene.listed(2), 0, "delta names them");
}

#[test]
fn a_resource_without_a_body_is_a_renewed_time_to_live_and_changes_nothing() {
    let mut scene = Scene::new();
    scene.lists("a", &[1], 0);
    scene.eds(&[("a", None)], Removed::Named(&[]), 1);
    assert_eq!(scene.listed(1), 1);
}

#[test]
fn a_delta_removal_empties_the_resource_and_a_poll_does_not_fill_it_again() {
    let mut scene = Scene::new();
    scene.lists("a", &[1], 0);
    scene.eds(&[], Removed::Named(&["a"]), 1);
    assert_eq!(scene.listed(1), 0);
    let text = b"a::added_via_api::true\na::envoy://connect_originate/10.244.0.1:80::cx_total::1\n";
    scene.watch.poll_answer([&text[..]].into_iter(), &Statuses::default(), scene.start);
    assert_eq!(scene.listed(1), 0, "Envoy keeps the hosts that it has; they are removed all the same");
}

#[test]
fn what_cannot_be_read_is_counted_and_logged_once_and_the_rest_is_read() {
    let mut scene = Scene::new();
    let good = assignment("b", &[2]);
    let notes = scene.eds(&[("a", Some(b"\xff\xff")), ("b", Some(&good))], Removed::Named(&[]), 0);
    assert!(notes.iter().any(|note| note.text().contains("\"a\"")), "{notes:?}");
    assert_eq!((scene.watch.validator().errors, scene.listed(2)), (1, 1));
    let again = scene.eds(&[("a", Some(b"\xff\xff"))], Removed::Named(&[]), 1);
    assert!(!again.iter().any(|note| note.text().contains("cannot be read")), "{again:?}");
    assert_eq!(scene.watch.validator().errors, 2);
}

/// The headline of `suspect_after`: the list is the same after the outage, and every pod may be another.
#[test]
fn the_first_endpoints_after_a_long_absence_fence_all_though_they_are_the_same() {
    let mut scene = Scene::new();
    scene.lists("a", &[1], 0);
    scene.watch.look(Some(true), scene.at(1));
    let before = scene.generation(1);
    assert!(scene.watch.look(Some(false), scene.at(20)).is_none());
    assert!(scene.watch.look(Some(false), scene.at(31)).is_some(), "it is logged");
    let during = scene.generation(1);
    let notes = scene.lists("a", &[1], 90);
    assert!(!notes.is_empty(), "and once more");
    let after = scene.generation(1);
    assert!(before < during && during < after, "{before} {during} {after}");
    assert_eq!(scene.watch.fences(), 2);
}

/// B1 as the owner sees it, with polls as the only source.
#[test]
fn an_outage_after_a_brief_return_is_fenced_at_its_end() {
    let mut scene = Scene::new();
    let poll = |scene: &mut Scene, number: u8, second| {
        let text = format!("a::added_via_api::true\na::envoy://l/{}:80::cx_total::0\n", address(number));
        let now = scene.at(second);
        scene.watch.poll_answer([text.as_bytes()].into_iter(), &Statuses::default(), now);
    };
    poll(&mut scene, 1, 0);
    scene.watch.look(Some(true), scene.at(0));
    scene.watch.look(Some(false), scene.at(31));
    poll(&mut scene, 2, 62);
    scene.watch.look(Some(false), scene.at(65));
    let before = scene.generation(2);
    poll(&mut scene, 3, 3_602);
    assert_eq!(scene.watch.fences(), 3);
    assert!(scene.generation(2) > before, "also what the poll found unchanged");
}

#[test]
fn without_suspect_after_no_absence_is_too_long() {
    let mut scene = Scene::new();
    scene.watch.suspect_after(None);
    scene.watch.look(Some(true), scene.at(0));
    scene.watch.look(Some(false), scene.at(10_000));
    assert_eq!((scene.watch.fences(), scene.watch.pause_between_looks()), (0, None));
}

#[test]
fn a_poll_that_fails_is_logged_as_harmful_only_where_it_is() {
    let mut scene = Scene::new();
    let harmful = scene.watch.poll_failed("no cluster").expect("the first is logged");
    assert!(matches!(&harmful, Note::Warn(text) if text.contains("not fenced")), "{harmful:?}");
    assert_eq!(scene.watch.poll_failed("no cluster"), None);
    scene.cds(&["a"], Removed::AllOthers);
    scene.lists("a", &[1], 0);
    assert!(scene.watch.is_covered());
    let text = b"a::added_via_api::true\n";
    let (_, notes) = scene.watch.poll_answer([&text[..]].into_iter(), &Statuses::default(), scene.start);
    assert!(matches!(&notes[..], [Note::Info(_)]), "polls work again: {notes:?}");
    let harmless = scene.watch.poll_failed("no cluster").expect("logged");
    assert!(matches!(harmless, Note::Info(_)), "the validator reports every cluster");
    assert_eq!(scene.watch.admin().errors, 3);
}

#[test]
fn a_missing_validator_for_clusters_is_noticed_once() {
    let mut scene = Scene::new();
    let mut notes = Vec::new();
    for second in 0..10 {
        notes.extend(scene.lists("a", &[1], second));
    }
    assert_eq!(notes.iter().filter(|note| note.text().contains("not for clusters")).count(), 1, "{notes:?}");
}
