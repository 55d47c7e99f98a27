//! Services and endpoints as istiod writes them for a waypoint.

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType, EdsClusterConfig};
use envoy_types::pb::envoy::config::cluster::v3::{CircuitBreakers, Cluster, circuit_breakers};
use envoy_types::pb::envoy::config::core::v3::address::Address as AddressKind;
use envoy_types::pb::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use envoy_types::pb::envoy::config::core::v3::envoy_internal_address::AddressNameSpecifier;
use envoy_types::pb::envoy::config::core::v3::socket_address::PortSpecifier;
use envoy_types::pb::envoy::config::core::v3::transport_socket::ConfigType;
use envoy_types::pb::envoy::config::core::v3::{
    Address, AggregatedConfigSource, ApiVersion, ConfigSource, EnvoyInternalAddress, HealthStatus,
    Http1ProtocolOptions, Http2ProtocolOptions, HttpProtocolOptions as CommonOptions, Locality as EnvoyLocality,
    Metadata, SocketAddress, TransportSocket,
};
use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint as EnvoyEndpoint, LbEndpoint, LocalityLbEndpoints,
};
use envoy_types::pb::envoy::extensions::transport_sockets::internal_upstream::v3::InternalUpstreamTransport;
use envoy_types::pb::envoy::extensions::transport_sockets::internal_upstream::v3::internal_upstream_transport::MetadataValueSource;
use envoy_types::pb::envoy::extensions::transport_sockets::raw_buffer::v3::RawBuffer;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::HttpProtocolOptions;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::http_protocol_options::explicit_http_config::ProtocolConfig;
use envoy_types::pb::envoy::extensions::upstreams::http::v3::http_protocol_options::{
    ExplicitHttpConfig, UpstreamProtocolOptions,
};
use envoy_types::pb::envoy::r#type::metadata::v3::MetadataKind;
use envoy_types::pb::envoy::r#type::metadata::v3::metadata_kind::{Host, Kind as MetadataSource};
use envoy_types::pb::google::protobuf::value::Kind as ValueKind;
use envoy_types::pb::google::protobuf::{Any, Duration, ListValue, Struct, UInt32Value, Value};
use envoy_types::util::pack_any;

use super::model::{Endpoint, Health, Kind, Service};

const ORIGINAL_DST: &str = "envoy.filters.listener.original_dst";
const ISTIO: &str = "istio";
const TUNNEL_LISTENER: &str = "connect_originate";

/// The EDS cluster of a service (istiod's `cluster_waypoint.go`).
pub(super) fn cluster(service: &Service) -> Any {
    let tunnels = service.endpoints.iter().all(|endpoint| endpoint.kind == Kind::Tunnel);
    pack_any(Cluster {
        name: service.cluster_name(),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into())),
        eds_cluster_config: Some(EdsClusterConfig {
            eds_config: Some(service.eds_config.clone().unwrap_or_else(|| ConfigSource {
                resource_api_version: ApiVersion::V3.into(),
                initial_fetch_timeout: Some(Duration::default()),
                config_source_specifier: Some(ConfigSourceSpecifier::Ads(AggregatedConfigSource::default())),
                ..Default::default()
            })),
            service_name: service.cluster_name(),
        }),
        connect_timeout: Some(Duration { seconds: 10, nanos: 0 }),
        circuit_breakers: Some(limits(service.max_retries)),
        metadata: Some(metadata([(
            ISTIO,
            fields([("services", service_list(&service.host)), ("note", string(service.note.clone()))]),
        )])),
        transport_socket: tunnels.then(internal_upstream),
        typed_extension_protocol_options: protocol_options(service).into_iter().collect(),
        ..Default::default()
    })
}

/// The endpoints of a service (istiod's `endpoint_builder.go`), grouped by priority and locality.
pub(super) fn assignment(service: &Service) -> Any {
    let mut groups: BTreeMap<_, Vec<LbEndpoint>> = BTreeMap::new();
    for endpoint in &service.endpoints {
        groups.entry((endpoint.priority, &endpoint.locality)).or_default().push(lb_endpoint(endpoint));
    }
    let endpoints = groups
        .into_iter()
        .map(|((priority, locality), lb_endpoints)| LocalityLbEndpoints {
            locality: Some(EnvoyLocality {
                region: locality.region.clone(),
                zone: locality.zone.clone(),
                sub_zone: locality.sub_zone.clone(),
            }),
            load_balancing_weight: Some(UInt32Value { value: u32::try_from(lb_endpoints.len()).unwrap_or(u32::MAX) }),
            lb_endpoints,
            priority,
            ..Default::default()
        })
        .collect();
    pack_any(ClusterLoadAssignment { cluster_name: service.cluster_name(), endpoints, ..Default::default() })
}

fn lb_endpoint(endpoint: &Endpoint) -> LbEndpoint {
    let target = endpoint.addr().to_string();
    let workload = format!("{0};default;{0};latest;Kubernetes", endpoint.workload.as_str());
    let istio = (ISTIO, fields([("workload", string(workload))]));
    let (address, metadata) = match endpoint.kind {
        Kind::Tunnel => (
            AddressKind::EnvoyInternalAddress(EnvoyInternalAddress {
                endpoint_id: target.clone(),
                address_name_specifier: Some(AddressNameSpecifier::ServerListenerName(TUNNEL_LISTENER.to_owned())),
            }),
            metadata([(ORIGINAL_DST, fields([("local", string(target))])), istio]),
        ),
        Kind::Plain => (
            AddressKind::SocketAddress(SocketAddress {
                address: endpoint.ip.to_string(),
                port_specifier: Some(PortSpecifier::PortValue(endpoint.port.into())),
                ..Default::default()
            }),
            metadata([istio]),
        ),
    };
    LbEndpoint {
        health_status: health_status(endpoint.health).into(),
        metadata: Some(metadata),
        load_balancing_weight: Some(UInt32Value { value: endpoint.weight.max(1) }),
        host_identifier: Some(HostIdentifier::Endpoint(EnvoyEndpoint {
            address: Some(Address { address: Some(address) }),
            ..Default::default()
        })),
    }
}

fn health_status(health: Health) -> HealthStatus {
    match health {
        Health::Unknown => HealthStatus::Unknown,
        Health::Healthy => HealthStatus::Healthy,
        Health::Unhealthy => HealthStatus::Unhealthy,
        Health::Draining => HealthStatus::Draining,
        Health::Timeout => HealthStatus::Timeout,
        Health::Degraded => HealthStatus::Degraded,
    }
}

/// What istiod gives to a service port whose protocol is HTTP/2 (upgrades travel as extended CONNECT, RFC 8441,
/// which Envoy wants allowed), or whose DestinationRule has an idle timeout.
fn protocol_options(service: &Service) -> Option<(String, Any)> {
    let protocol = match (service.http2, service.idle_timeout) {
        (true, _) => {
            ProtocolConfig::Http2ProtocolOptions(Http2ProtocolOptions { allow_connect: true, ..Default::default() })
        }
        (false, Some(_)) => ProtocolConfig::HttpProtocolOptions(Http1ProtocolOptions::default()),
        (false, None) => return None,
    };
    let common = service.idle_timeout.map(|idle| CommonOptions {
        idle_timeout: Some(Duration {
            seconds: i64::try_from(idle.as_secs()).unwrap_or(i64::MAX),
            nanos: i32::try_from(idle.subsec_nanos()).unwrap_or(0),
        }),
        ..Default::default()
    });
    let options = HttpProtocolOptions {
        common_http_protocol_options: common,
        upstream_protocol_options: Some(UpstreamProtocolOptions::ExplicitHttpConfig(ExplicitHttpConfig {
            protocol_config: Some(protocol),
        })),
        ..Default::default()
    };
    Some(("envoy.extensions.upstreams.http.v3.HttpProtocolOptions".to_owned(), pack_any(options)))
}

/// User-space pipe to the internal listener, which sees the endpoint's metadata.
fn internal_upstream() -> TransportSocket {
    let passthrough = [ORIGINAL_DST, ISTIO].map(|name| MetadataValueSource {
        kind: Some(MetadataKind { kind: Some(MetadataSource::Host(Host::default())) }),
        name: name.to_owned(),
    });
    transport_socket(
        "internal_upstream",
        pack_any(InternalUpstreamTransport {
            passthrough_metadata: passthrough.to_vec(),
            transport_socket: Some(transport_socket("raw_buffer", pack_any(RawBuffer::default()))),
        }),
    )
}

fn transport_socket(name: &str, config: Any) -> TransportSocket {
    TransportSocket { name: name.to_owned(), config_type: Some(ConfigType::TypedConfig(config)) }
}

/// Istio sets every threshold to the largest value: nothing is capped unless a DestinationRule asks.
fn limits(max_retries: Option<u32>) -> CircuitBreakers {
    let max = Some(UInt32Value { value: u32::MAX });
    CircuitBreakers {
        thresholds: vec![circuit_breakers::Thresholds {
            max_connections: max,
            max_pending_requests: max,
            max_requests: max,
            max_retries: max_retries.map(|value| UInt32Value { value }).or(max),
            track_remaining: true,
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn service_list(host: &str) -> Value {
    let mut labels = host.split('.');
    let entry = fields([
        ("host", string(host.to_owned())),
        ("name", string(labels.next().unwrap_or_default().to_owned())),
        ("namespace", string(labels.next().unwrap_or_default().to_owned())),
    ]);
    Value {
        kind: Some(ValueKind::ListValue(ListValue {
            values: vec![Value { kind: Some(ValueKind::StructValue(entry)) }],
        })),
    }
}

fn metadata<const N: usize>(entries: [(&str, Struct); N]) -> Metadata {
    Metadata {
        filter_metadata: entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        ..Default::default()
    }
}

fn fields<const N: usize>(entries: [(&str, Value); N]) -> Struct {
    Struct { fields: entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() }
}

fn string(value: String) -> Value {
    Value { kind: Some(ValueKind::StringValue(value)) }
}
