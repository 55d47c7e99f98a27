//! The decoder against messages encoded by Envoy's own API.

use envoy_types::pb::envoy::config::{
    cluster::v3::{Cluster, cluster::EdsClusterConfig},
    core::v3::{ConfigSource, HealthStatus as EnvoyHealth, Locality},
    endpoint::v3::{
        ClusterLoadAssignment, Endpoint, LbEndpoint, LedsClusterLocalityConfig, LocalityLbEndpoints,
        cluster_load_assignment::{Policy, policy::DropOverload},
        lb_endpoint::HostIdentifier,
        locality_lb_endpoints::{LbConfig, LbEndpointList},
    },
};
use envoy_types::pb::google::protobuf::UInt32Value;
use prost::Message;
use stale_guard::watch::{Assignment, HealthStatus, Ignored, decode_assignment, decode_cluster};

use crate::shapes::{endpoint, original_dst, socket, tunnel};

fn locality(endpoints: Vec<LbEndpoint>) -> LocalityLbEndpoints {
    LocalityLbEndpoints { lb_endpoints: endpoints, ..Default::default() }
}

fn message(localities: Vec<LocalityLbEndpoints>) -> ClusterLoadAssignment {
    ClusterLoadAssignment { cluster_name: "c".to_owned(), endpoints: localities, ..Default::default() }
}

fn decoded(localities: Vec<LocalityLbEndpoints>) -> Assignment {
    decode_assignment(&message(localities).encode_to_vec()).expect("the API's own encoding")
}

fn ips(assignment: &Assignment) -> Vec<String> {
    assignment.endpoints.iter().map(|(ip, _)| ip.to_string()).collect()
}

#[test]
fn addresses_of_every_kind_are_read() {
    let assignment = decoded(vec![locality(vec![
        endpoint(vec![socket("10.0.0.1")], None),
        endpoint(vec![socket("fd00::1")], None),
        endpoint(vec![tunnel("10.0.0.2:8080")], Some(original_dst(&[("local", "10.0.0.2:8080")]))),
        endpoint(vec![tunnel("[fd00::2]:8080")], None),
        endpoint(vec![tunnel("10.0.0.3")], None),
        endpoint(vec![tunnel("a-pod")], Some(original_dst(&[("local", "10.0.0.4:8080")]))),
        endpoint(vec![tunnel("a-pod")], Some(original_dst(&[("local", "[fd00::4]:8080")]))),
        endpoint(vec![socket("10.0.0.5"), socket("fd00::5"), socket("a-name")], None),
    ])]);
    assert_eq!(assignment.cluster, "c");
    assert_eq!(
        ips(&assignment),
        ["10.0.0.1", "fd00::1", "10.0.0.2", "fd00::2", "10.0.0.3", "10.0.0.4", "fd00::4", "10.0.0.5", "fd00::5"]
    );
    assert_eq!(assignment.ignored, Ignored::default());
}

#[test]
fn what_the_fence_has_no_use_for_is_left_out_and_counted() {
    let nameless = LbEndpoint { host_identifier: None, ..Default::default() };
    let waypoint = original_dst(&[("local", "10.0.0.2:80"), ("waypoint", "10.9.9.9:15008")]);
    let leds = LocalityLbEndpoints {
        lb_config: Some(LbConfig::LedsClusterLocalityConfig(LedsClusterLocalityConfig::default())),
        ..Default::default()
    };
    let assignment = decoded(vec![
        locality(vec![
            endpoint(vec![socket("a-name")], None),
            endpoint(vec![tunnel("a-pod")], None),
            endpoint(vec![tunnel("a-pod")], Some(original_dst(&[("local", "no address")]))),
            endpoint(vec![tunnel("10.0.0.2:80")], Some(waypoint)),
            endpoint(Vec::new(), None),
            nameless,
        ]),
        leds,
    ]);
    assert_eq!(ips(&assignment), Vec::<String>::new());
    assert_eq!(assignment.ignored, Ignored { not_ip: 5, through_waypoint: 1, leds: 1 });
}

#[test]
#[expect(deprecated, reason = "Envoy still reads the list of endpoints")]
fn priorities_localities_lists_and_named_endpoints_are_read() {
    let mut with_priority = locality(vec![endpoint(vec![socket("10.0.0.1")], None)]);
    with_priority.priority = 1;
    with_priority.locality = Some(Locality { region: "r".to_owned(), zone: "z".to_owned(), sub_zone: "s".to_owned() });
    with_priority.load_balancing_weight = Some(UInt32Value { value: 7 });
    let listed = LocalityLbEndpoints {
        lb_config: Some(LbConfig::LoadBalancerEndpoints(LbEndpointList {
            lb_endpoints: vec![endpoint(vec![socket("10.0.0.2")], None)],
        })),
        ..Default::default()
    };
    let named =
        LbEndpoint { host_identifier: Some(HostIdentifier::EndpointName("n".to_owned())), ..Default::default() };
    let mut message = message(vec![with_priority, listed, locality(vec![named])]);
    message.policy = Some(Policy { drop_overloads: vec![DropOverload::default()], ..Default::default() });
    message.named_endpoints.insert(
        "n".to_owned(),
        Endpoint { address: Some(socket("10.0.0.3")), hostname: "h".to_owned(), ..Default::default() },
    );
    let assignment = decode_assignment(&message.encode_to_vec()).expect("the API's own encoding");
    assert_eq!(ips(&assignment), ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
}

#[test]
fn every_health_status_is_read_and_an_unknown_one_is_not_stated() {
    let statuses = [
        (EnvoyHealth::Unknown.into(), HealthStatus::Unknown),
        (EnvoyHealth::Healthy.into(), HealthStatus::Healthy),
        (EnvoyHealth::Unhealthy.into(), HealthStatus::Unhealthy),
        (EnvoyHealth::Draining.into(), HealthStatus::Draining),
        (EnvoyHealth::Timeout.into(), HealthStatus::Timeout),
        (EnvoyHealth::Degraded.into(), HealthStatus::Degraded),
        (99, HealthStatus::Unknown),
    ];
    for (encoded, status) in statuses {
        let mut one = endpoint(vec![socket("10.0.0.1")], None);
        one.health_status = encoded;
        assert_eq!(decoded(vec![locality(vec![one])]).endpoints[0].1, status, "{encoded}");
    }
}

#[test]
fn unknown_fields_are_passed_over() {
    let mut bytes = message(vec![locality(vec![endpoint(vec![socket("10.0.0.1")], None)])]).encode_to_vec();
    // Field 1000: a number, 64 bits, text, 32 bits.
    bytes.extend([0xc0, 0x3e, 0x05]);
    bytes.extend([0xc1, 0x3e, 1, 2, 3, 4, 5, 6, 7, 8]);
    bytes.extend([0xc2, 0x3e, 3, 0xff, 0xfe, 0xfd]);
    bytes.extend([0xc5, 0x3e, 1, 2, 3, 4]);
    assert_eq!(ips(&decode_assignment(&bytes).expect("unknown fields are no error")), ["10.0.0.1"]);
}

#[test]
fn bytes_that_are_no_such_message_are_errors() {
    let whole = message(vec![locality(vec![endpoint(vec![socket("10.0.0.1")], None)])]).encode_to_vec();
    let cut: Vec<usize> = (1..whole.len()).filter(|cut| decode_assignment(&whole[..*cut]).is_ok()).collect();
    // A message cut between two fields is a shorter message.
    assert_eq!(cut, [3], "cut anywhere else it is an error");
    assert!(decode_assignment(&[0x0a, 2, 0xff, 0xfe]).is_err(), "a name that is not UTF-8");
    assert!(decode_assignment(&[0x10, 1]).is_err(), "the endpoints as a number");
    assert!(decode_assignment(&[0xff; 64]).is_err(), "no field number");
    assert_eq!(decode_assignment(&[]), Ok(Assignment::default()));
}

#[test]
fn metadata_that_cannot_be_read_costs_only_itself() {
    let mut bytes = endpoint(vec![tunnel("10.0.0.1:80")], None).encode_to_vec();
    // Metadata of three bytes that are none, with the exception's word in them or not.
    for metadata in [&b"\xff\xff\xff"[..], &b"waypoint"[..]] {
        bytes.push(0x1a);
        bytes.push(u8::try_from(metadata.len()).unwrap());
        bytes.extend(metadata);
        let one = [vec![0x12, u8::try_from(bytes.len()).unwrap()], bytes.clone()].concat();
        let assignment = [vec![0x12, u8::try_from(one.len()).unwrap()], one].concat();
        assert_eq!(ips(&decode_assignment(&assignment).expect("the endpoint is whole")), ["10.0.0.1"]);
    }
}

#[test]
fn a_huge_message_is_read_whole() {
    let address = |index: u32| std::net::Ipv4Addr::from(0x0a00_0000 + index).to_string();
    let endpoints = (0..100_000).map(|index| endpoint(vec![tunnel(&format!("{}:80", address(index)))], None)).collect();
    let assignment = decoded(vec![locality(endpoints)]);
    assert_eq!(assignment.endpoints.len(), 100_000);
    assert_eq!(assignment.endpoints[99_999].0.to_string(), address(99_999));
}

#[test]
fn clusters_are_read_by_name_and_resource() {
    let cluster = |service_name: Option<&str>| Cluster {
        name: "c".to_owned(),
        eds_cluster_config: service_name
            .map(|name| EdsClusterConfig { eds_config: Some(ConfigSource::default()), service_name: name.to_owned() }),
        ..Default::default()
    };
    let decoded = |name| decode_cluster(&cluster(name).encode_to_vec()).expect("the API's own encoding");
    assert_eq!(decoded(Some("r")), ("c".to_owned(), Some("r".to_owned())));
    assert_eq!(decoded(Some("")), ("c".to_owned(), Some("c".to_owned())), "by default the cluster's own name");
    assert_eq!(decoded(None), ("c".to_owned(), None), "no EDS cluster");
}
