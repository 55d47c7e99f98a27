//! What endpoints look like, and what cannot be read.

use std::net::IpAddr;

use envoy_types::pb::envoy::config::{
    core::v3::{
        Address, AggregatedConfigSource, ApiVersion, ConfigSource, EnvoyInternalAddress, HealthStatus, Metadata, Pipe,
        SocketAddress, address::Address as Kind, config_source::ConfigSourceSpecifier,
        envoy_internal_address::AddressNameSpecifier, socket_address::PortSpecifier,
    },
    endpoint::v3::{
        ClusterLoadAssignment, Endpoint as EnvoyEndpoint, LbEndpoint, LedsClusterLocalityConfig, LocalityLbEndpoints,
        endpoint::AdditionalAddress, lb_endpoint::HostIdentifier, locality_lb_endpoints::LbConfig,
    },
};
use envoy_types::pb::google::protobuf::{Struct, Value, value::Kind as ValueKind};
use http::StatusCode;
use lab::{
    bootstrap::{ExtensionPoint, Variant},
    control_plane::{ENDPOINT_TYPE, Endpoint, Locality, Raw, Service, cluster_name},
    mesh::{ECHO, Mesh, Setup, WITHIN},
};
use prost::Message;
use serde_json::json;

use crate::support::{FEEDS, ip, page, removed, seen, wait_polls};

const PLAIN: &str = "plain.default.svc.cluster.local";

pub fn tunnel(id: &str) -> Address {
    let listener = AddressNameSpecifier::ServerListenerName("connect_originate".to_owned());
    let internal = EnvoyInternalAddress { endpoint_id: id.to_owned(), address_name_specifier: Some(listener) };
    Address { address: Some(Kind::EnvoyInternalAddress(internal)) }
}

pub fn socket(ip: &str) -> Address {
    let socket = SocketAddress {
        address: ip.to_owned(),
        port_specifier: Some(PortSpecifier::PortValue(8080)),
        ..Default::default()
    };
    Address { address: Some(Kind::SocketAddress(socket)) }
}

pub fn original_dst(fields: &[(&str, &str)]) -> Metadata {
    let text = |text: &str| Value { kind: Some(ValueKind::StringValue(text.to_owned())) };
    let fields = fields.iter().map(|(key, value)| ((*key).to_owned(), text(value))).collect();
    let namespace = "envoy.filters.listener.original_dst".to_owned();
    Metadata { filter_metadata: [(namespace, Struct { fields })].into(), ..Default::default() }
}

pub fn endpoint(addresses: Vec<Address>, metadata: Option<Metadata>) -> LbEndpoint {
    let mut addresses = addresses.into_iter();
    let address = addresses.next();
    let additional = addresses.map(|address| AdditionalAddress { address: Some(address) }).collect();
    let endpoint = EnvoyEndpoint { address, additional_addresses: additional, ..Default::default() };
    LbEndpoint {
        health_status: HealthStatus::Healthy.into(),
        metadata,
        host_identifier: Some(HostIdentifier::Endpoint(endpoint)),
        ..Default::default()
    }
}

fn raw(host: &str, endpoints: Vec<LbEndpoint>) -> Raw {
    let locality = LocalityLbEndpoints { lb_endpoints: endpoints, ..Default::default() };
    let message =
        ClusterLoadAssignment { cluster_name: cluster_name(host, 80), endpoints: vec![locality], ..Default::default() };
    Raw { type_url: ENDPOINT_TYPE.to_owned(), value: message.encode_to_vec() }
}

async fn listed(mesh: &Mesh) -> u64 {
    page(mesh, "?limit=0").await["totals"]["listed"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_shape_of_endpoint_is_followed_by_both_sources() {
    for feed in FEEDS {
        let mesh = feed.setup().services(&[ECHO]).start().await.unwrap();
        let v6: IpAddr = "fd00:244::99".parse().unwrap();
        let locality = Locality { region: "r".to_owned(), zone: "z".to_owned(), sub_zone: String::new() };
        let endpoints = vec![
            Endpoint::new(ip(10), 8080),
            Endpoint::new(ip(10), 9090),
            Endpoint::new(ip(11), 8080).priority(1).locality(locality),
            Endpoint::new(v6, 8080),
        ];
        mesh.control_plane.set_service(Service::new(ECHO, endpoints.clone()));
        let plain =
            vec![Endpoint::new(ip(20), 8080).plain(), Endpoint::new("fd00:244::98".parse().unwrap(), 80).plain()];
        mesh.control_plane.set_service(Service::new(PLAIN, plain));
        mesh.acked().await.unwrap();
        mesh.wait_stat("endpoints_listed", |listed| listed == 5).await.unwrap();
        // One of two ports: the pod is still there. Then the other.
        mesh.unlist(ECHO, endpoints[0].addr()).await.unwrap();
        if feed.is_admin() {
            wait_polls(&mesh, 2).await;
        }
        assert_eq!((listed(&mesh).await, seen(&mesh, ip(10)).await.removals), (5, 0), "{feed:?}");
        mesh.unlist(ECHO, endpoints[1].addr()).await.unwrap();
        removed(&mesh, ip(10), 1).await;
        mesh.unlist(ECHO, endpoints[3].addr()).await.unwrap();
        removed(&mesh, v6, 1).await;
        mesh.unlist(PLAIN, "10.244.1.20:8080".parse().unwrap()).await.unwrap();
        removed(&mesh, ip(20), 1).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_validator_reads_metadata_and_additional_addresses_and_leaves_waypoints_out() {
    for feed in [FEEDS[0], FEEDS[1]] {
        let mesh = feed.setup().services(&[ECHO, PLAIN]).start().await.unwrap();
        let endpoints = vec![
            endpoint(vec![tunnel("a-pod")], Some(original_dst(&[("local", "10.244.1.30:8080")]))),
            endpoint(
                vec![tunnel("10.244.1.31:8080")],
                Some(original_dst(&[("local", "10.244.1.31:8080"), ("waypoint", "10.244.9.9:15008")])),
            ),
            endpoint(vec![tunnel("nothing-to-read")], None),
            endpoint(vec![Address { address: Some(Kind::Pipe(Pipe { path: "/p".to_owned(), mode: 0 })) }], None),
        ];
        mesh.control_plane.set_raw(&cluster_name(ECHO, 80), Some(raw(ECHO, endpoints)));
        let dual_stack = vec![endpoint(vec![socket("10.244.1.32"), socket("fd00:244::32")], None)];
        mesh.control_plane.set_raw(&cluster_name(PLAIN, 80), Some(raw(PLAIN, dual_stack)));
        mesh.acked().await.unwrap();
        assert_eq!(listed(&mesh).await, 3, "{feed:?}: the one by its metadata, the two of the dual-stack endpoint");
        mesh.control_plane.set_raw(&cluster_name(ECHO, 80), Some(raw(ECHO, Vec::new())));
        mesh.control_plane.set_raw(&cluster_name(PLAIN, 80), Some(raw(PLAIN, Vec::new())));
        mesh.acked().await.unwrap();
        for (address, removals) in [("10.244.1.30", 1), ("10.244.1.31", 0), ("10.244.1.32", 1), ("fd00:244::32", 1)] {
            assert_eq!(seen(&mesh, address.parse().unwrap()).await.removals, removals, "{feed:?}: {address}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_eds_resource_that_vanishes_is_the_removal_of_its_endpoints() {
    // Only the delta protocol has a word for it.
    let mesh = Setup::new(Variant::FenceOnly).start().await.unwrap();
    let pod = mesh.pod("pod", 1).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    mesh.get(ECHO, "/").await.unwrap();
    mesh.control_plane.vanish_endpoints(&cluster_name(ECHO, 80), true);
    let gone = removed(&mesh, ip(1), 1).await;
    assert_eq!((gone.fenced, gone.presence.as_str()), (true, "gone"));
    assert_eq!(mesh.get(ECHO, "/").await.unwrap().status, StatusCode::OK, "Envoy keeps the hosts it has");
    mesh.control_plane.vanish_endpoints(&cluster_name(ECHO, 80), false);
    mesh.acked().await.unwrap();
    let back = crate::support::wait_seen(&mesh, ip(1), |seen| seen.presence == "present").await;
    assert_eq!(back.removals, 1, "polls, which still saw the hosts, did not meddle");
    assert_eq!(page(&mesh, "").await["watch"]["admin"]["added"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resource_that_cannot_be_read_is_accepted_and_counted_and_traffic_flows() {
    for feed in [FEEDS[0], FEEDS[1]] {
        let mesh = feed.setup().start().await.unwrap();
        let pod = mesh.pod("pod", 1).await.unwrap();
        let good = raw(
            ECHO,
            vec![endpoint(
                vec![tunnel(&pod.addr().to_string())],
                Some(original_dst(&[("local", &pod.addr().to_string())])),
            )],
        );
        // Field 2, the endpoints, once more as a number: to Envoy an unknown field, which it keeps; to the
        // validator's decoder an error.
        let bad = Raw { value: [good.value.clone(), vec![0x10, 0x01]].concat(), ..good.clone() };
        for round in 1..=3 {
            mesh.control_plane.set_raw(&cluster_name(ECHO, 80), Some(bad.clone()));
            mesh.acked().await.unwrap();
            let reply = mesh.get(ECHO, "/").await.unwrap();
            assert_eq!((reply.status, reply.pod()), (StatusCode::OK, Some("pod")), "{feed:?}: Envoy applied it");
            let page = page(&mesh, "").await;
            assert_eq!(page["watch"]["validator"]["errors"], round, "{feed:?}: {page:#}");
        }
        mesh.wait_stat("watch_validator_errors", |errors| errors == 3).await.unwrap();
        assert_eq!(mesh.envoy.log().unwrap().matches("cannot be read (").count(), 1, "said once");
        mesh.control_plane.set_raw(&cluster_name(ECHO, 80), Some(good));
        mesh.acked().await.unwrap();
        mesh.unlist_raw(ECHO).await;
        removed(&mesh, ip(1), 1).await;
    }
}

/// The validator comes before Envoy's own check, and is not told what Envoy refuses.
#[tokio::test(flavor = "multi_thread")]
async fn what_envoy_refuses_costs_a_handshake_and_is_listed_until_the_next_good_response() {
    for feed in [FEEDS[0], FEEDS[1]] {
        let mesh = feed.setup().services(&[ECHO, PLAIN]).start().await.unwrap();
        let pod = mesh.pod("pod", 1).await.unwrap();
        mesh.list(ECHO, pod.addr()).await.unwrap();
        assert_eq!(mesh.get(ECHO, "/").await.unwrap().status, StatusCode::OK);
        // In one response: a good resource, and one without the pod, whose second endpoint Envoy cannot apply. (What
        // breaks the rules of the messages themselves Envoy refuses before it asks a validator.)
        let endpoints =
            vec![endpoint(vec![tunnel("10.244.1.50:8080")], None), endpoint(vec![socket("no-address")], None)];
        let bad = raw(ECHO, endpoints);
        mesh.control_plane.hold();
        mesh.control_plane.set_raw(&cluster_name(ECHO, 80), Some(bad));
        let good = raw(PLAIN, vec![endpoint(vec![tunnel("10.244.1.51:8080")], None)]);
        mesh.control_plane.set_raw(&cluster_name(PLAIN, 80), Some(good));
        let version = mesh.control_plane.release();
        let why = mesh.control_plane.wait_nacked(version, WITHIN).await.unwrap();
        assert!(why.contains("no-address"), "{feed:?}: Envoy refuses the bad one: {why}");
        let presence = async || {
            let page = page(&mesh, &format!("?endpoint={}", ip(1))).await;
            (page["endpoints"][0]["presence"].clone(), page["totals"]["listed"].clone())
        };
        // Listed are the two of this response, of which Envoy has one; it still has the pod.
        assert_eq!(presence().await, (json!("gone"), json!(2)), "{feed:?}");
        for _ in 0..3 {
            let reply = mesh.post(ECHO, "/order").await.unwrap();
            assert_eq!((reply.status, reply.pod()), (StatusCode::OK, Some("pod")), "{feed:?}: traffic flows");
        }
        // The next response that Envoy takes sets it right, for the price of another handshake.
        mesh.control_plane.set_raw(&cluster_name(ECHO, 80), None);
        mesh.acked().await.unwrap();
        assert_eq!(presence().await.0, json!("present"), "{feed:?}");
        assert_eq!(mesh.post(ECHO, "/order").await.unwrap().status, StatusCode::OK);
        let handshakes = pod.ztunnel().unwrap().connections().log().len();
        assert!(handshakes <= 3, "{feed:?}: one, one for the refusal, one for its end: {handshakes}");
    }
}

trait Empty {
    async fn unlist_raw(&self, host: &str);
}

impl Empty for Mesh {
    async fn unlist_raw(&self, host: &str) {
        self.control_plane.set_raw(&cluster_name(host, 80), Some(raw(host, Vec::new())));
        self.acked().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_by_leds_are_left_out_and_that_is_said_once() {
    let setup = FEEDS[0]
        .setup()
        .bootstrap(|bootstrap| bootstrap.with_config_fields(ExtensionPoint::Status, &json!({ "suspect_after": null })));
    let mesh = setup.start().await.unwrap();
    let said = || mesh.envoy.log().unwrap().matches("gets endpoints by LEDS, which are not followed").count();
    for version in 1..=2 {
        let leds = LedsClusterLocalityConfig {
            leds_config: Some(ConfigSource {
                resource_api_version: ApiVersion::V3.into(),
                config_source_specifier: Some(ConfigSourceSpecifier::Ads(AggregatedConfigSource {})),
                ..Default::default()
            }),
            leds_collection_name: format!("xdstp://test/envoy.config.endpoint.v3.LbEndpoint/{version}/*"),
        };
        let locality =
            LocalityLbEndpoints { lb_config: Some(LbConfig::LedsClusterLocalityConfig(leds)), ..Default::default() };
        let message = ClusterLoadAssignment {
            cluster_name: cluster_name(ECHO, 80),
            endpoints: vec![locality],
            ..Default::default()
        };
        let raw = Raw { type_url: ENDPOINT_TYPE.to_owned(), value: message.encode_to_vec() };
        mesh.control_plane.set_raw(&cluster_name(ECHO, 80), Some(raw));
        mesh.wait_stat("watch_validator_updates", |updates| updates >= 2 + version).await.unwrap();
    }
    assert_eq!(said(), 1, "{}", mesh.envoy.log_tail());
    mesh.envoy.assert_alive().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_of_tens_of_megabytes_is_read_whole() {
    let mesh = FEEDS[2].setup().start().await.unwrap();
    let endpoints = |count: usize| -> Vec<Endpoint> {
        (0..count)
            .map(|index| {
                let [_, high, mid, low] = u32::try_from(index).unwrap().to_be_bytes();
                Endpoint::new(IpAddr::from([10, 100 + high, mid, low]), 8080)
            })
            .collect()
    };
    mesh.control_plane.set_service(Service::new(ECHO, endpoints(20_000)));
    mesh.acked().await.unwrap();
    let listed = mesh.wait_stat("endpoints_listed", |listed| listed == 20_000).await;
    listed.unwrap_or_else(|error| panic!("{error:#}: {}", mesh.envoy.log_tail()));
    let bytes = mesh.envoy.admin().get("/clusters").await.unwrap().len();
    assert!(bytes > 20_000_000, "the answer had {bytes} bytes");
    mesh.control_plane.set_service(Service::new(ECHO, endpoints(19_999)));
    mesh.acked().await.unwrap();
    removed(&mesh, endpoints(20_000)[19_999].ip, 1).await;
    let page = page(&mesh, "?limit=0").await;
    assert_eq!((&page["watch"]["admin"]["removed"], &page["watch"]["admin"]["errors"]), (&1.into(), &0.into()));
}
