//! Reads of EDS and CDS resources only what the fence needs.
//!
//! The messages are declared here with the fields of Envoy's API that matter (field numbers from
//! `envoy/config/endpoint/v3`, `envoy/config/core/v3` and `envoy/config/cluster/v3`); `prost` skips
//! all others without copying them.

use std::{collections::HashMap, net::IpAddr};

use memchr::memmem;
use prost::Message;

use crate::address::{LOCAL, ORIGINAL_DST, WAYPOINT, ip};

/// A cluster's endpoints, as far as they have an IP address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Assignment {
    /// Name of the EDS resource.
    pub cluster: String,
    /// Addresses with their health; an address with several ports appears several times.
    pub endpoints: Vec<(IpAddr, HealthStatus)>,
    /// What was left out.
    pub ignored: Ignored,
}

/// Endpoints that the fence has no use for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ignored {
    /// Endpoints whose address is no IP: hostnames, pipes, internal listeners without an id.
    pub not_ip: usize,
    /// Endpoints that are reached through another waypoint, whose connection is not the pod's.
    pub through_waypoint: usize,
    /// Localities whose endpoints come by LEDS.
    pub leds: usize,
}

/// `envoy.config.core.v3.HealthStatus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Deserialize, prost::Enumeration)]
#[repr(i32)]
#[serde(rename_all = "UPPERCASE")]
pub enum HealthStatus {
    /// Not stated: treated as healthy by Envoy.
    Unknown = 0,
    /// Healthy.
    Healthy = 1,
    /// Failed its health check, or not ready.
    Unhealthy = 2,
    /// Terminating: gets no new requests, answers those it has.
    Draining = 3,
    /// Timed out in health checking.
    Timeout = 4,
    /// Healthy, but worse than others.
    Degraded = 5,
}

#[derive(Clone, PartialEq, Message)]
struct ClusterLoadAssignment {
    #[prost(string, tag = "1")]
    cluster_name: String,
    #[prost(message, repeated, tag = "2")]
    endpoints: Vec<LocalityLbEndpoints>,
    #[prost(map = "string, message", tag = "5")]
    named_endpoints: HashMap<String, Endpoint>,
}

#[derive(Clone, PartialEq, Message)]
struct LocalityLbEndpoints {
    #[prost(message, repeated, tag = "2")]
    lb_endpoints: Vec<LbEndpoint>,
    #[prost(message, optional, tag = "7")]
    load_balancer_endpoints: Option<LbEndpointList>,
    #[prost(message, optional, tag = "8")]
    leds_cluster_locality_config: Option<Present>,
}

#[derive(Clone, PartialEq, Message)]
struct LbEndpointList {
    #[prost(message, repeated, tag = "1")]
    lb_endpoints: Vec<LbEndpoint>,
}

/// A message of which only the presence matters.
#[derive(Clone, PartialEq, Message)]
struct Present {}

#[derive(Clone, PartialEq, Message)]
struct LbEndpoint {
    #[prost(message, optional, tag = "1")]
    endpoint: Option<Endpoint>,
    #[prost(enumeration = "HealthStatus", tag = "2")]
    health_status: i32,
    /// Left undecoded: most endpoints need no look at it.
    #[prost(bytes = "vec", tag = "3")]
    metadata: Vec<u8>,
    #[prost(string, tag = "5")]
    endpoint_name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Endpoint {
    #[prost(message, optional, tag = "1")]
    address: Option<Address>,
    #[prost(message, repeated, tag = "4")]
    additional_addresses: Vec<AdditionalAddress>,
}

#[derive(Clone, PartialEq, Message)]
struct AdditionalAddress {
    #[prost(message, optional, tag = "1")]
    address: Option<Address>,
}

#[derive(Clone, PartialEq, Message)]
struct Address {
    #[prost(message, optional, tag = "1")]
    socket_address: Option<SocketAddressMessage>,
    #[prost(message, optional, tag = "3")]
    envoy_internal_address: Option<EnvoyInternalAddress>,
}

#[derive(Clone, PartialEq, Message)]
struct SocketAddressMessage {
    #[prost(string, tag = "2")]
    address: String,
}

#[derive(Clone, PartialEq, Message)]
struct EnvoyInternalAddress {
    #[prost(string, tag = "2")]
    endpoint_id: String,
}

#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(map = "string, message", tag = "1")]
    filter_metadata: HashMap<String, Struct>,
}

#[derive(Clone, PartialEq, Message)]
struct Struct {
    #[prost(map = "string, message", tag = "1")]
    fields: HashMap<String, StringValue>,
}

/// `google.protobuf.Value`, when it is a string.
#[derive(Clone, PartialEq, Message)]
struct StringValue {
    #[prost(string, tag = "3")]
    string_value: String,
}

#[derive(Clone, PartialEq, Message)]
struct ClusterMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "3")]
    eds_cluster_config: Option<EdsClusterConfig>,
}

#[derive(Clone, PartialEq, Message)]
struct EdsClusterConfig {
    #[prost(string, tag = "2")]
    service_name: String,
}

/// Reads a `ClusterLoadAssignment`.
///
/// # Errors
/// The bytes are no such message.
pub fn decode_assignment(bytes: &[u8]) -> Result<Assignment, prost::DecodeError> {
    let message = ClusterLoadAssignment::decode(bytes)?;
    let mut assignment = Assignment { cluster: message.cluster_name, ..Assignment::default() };
    for locality in &message.endpoints {
        assignment.ignored.leds += usize::from(locality.leds_cluster_locality_config.is_some());
        let listed = locality.load_balancer_endpoints.iter().flat_map(|list| &list.lb_endpoints);
        for endpoint in locality.lb_endpoints.iter().chain(listed) {
            assignment.read(endpoint, &message.named_endpoints);
        }
    }
    Ok(assignment)
}

/// Reads a `Cluster`: its name, and the name of its EDS resource where it has one.
///
/// # Errors
/// The bytes are no such message.
pub fn decode_cluster(bytes: &[u8]) -> Result<(String, Option<String>), prost::DecodeError> {
    let message = ClusterMessage::decode(bytes)?;
    let resource = message.eds_cluster_config.map(|eds| match eds.service_name {
        name if name.is_empty() => message.name.clone(),
        name => name,
    });
    Ok((message.name, resource))
}

// === impl Assignment ===

impl Assignment {
    fn read(&mut self, lb_endpoint: &LbEndpoint, named: &HashMap<String, Endpoint>) {
        let Some(endpoint) = lb_endpoint.endpoint.as_ref().or_else(|| named.get(&lb_endpoint.endpoint_name)) else {
            self.ignored.not_ip += 1;
            return;
        };
        let additional = endpoint.additional_addresses.iter().map(|additional| additional.address.as_ref());
        let mut ips = [endpoint.address.as_ref()].into_iter().chain(additional).flatten().map(Address::ip).peekable();
        let original_dst = match ips.peek() {
            // The usual case, an address that says it all, costs one search for the exception's word.
            Some(Some(_)) if memmem::find(&lb_endpoint.metadata, WAYPOINT.as_bytes()).is_none() => None,
            _ => original_dst(&lb_endpoint.metadata),
        };
        if original_dst.as_ref().is_some_and(|fields| fields.contains_key(WAYPOINT)) {
            self.ignored.through_waypoint += 1;
            return;
        }
        let local = original_dst.and_then(|mut fields| fields.remove(LOCAL)).and_then(|local| ip(&local.string_value));
        let before = self.endpoints.len();
        let health = lb_endpoint.health_status();
        self.endpoints.extend(local.into_iter().chain(ips.flatten()).map(|ip| (ip, health)));
        self.ignored.not_ip += usize::from(self.endpoints.len() == before);
    }
}

// === impl Address ===

impl Address {
    fn ip(&self) -> Option<IpAddr> {
        if let Some(socket) = &self.socket_address {
            return ip(&socket.address);
        }
        ip(&self.envoy_internal_address.as_ref()?.endpoint_id)
    }
}

fn original_dst(metadata: &[u8]) -> Option<HashMap<String, StringValue>> {
    let mut metadata = Metadata::decode(metadata).ok()?;
    metadata.filter_metadata.remove(ORIGINAL_DST).map(|original_dst| original_dst.fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_mapped_into_ipv6_is_its_own() {
        let v4 = Some(IpAddr::from([10, 0, 0, 1]));
        let socket_address = Some(SocketAddressMessage { address: "::ffff:10.0.0.1".to_owned() });
        assert_eq!(Address { socket_address, envoy_internal_address: None }.ip(), v4);
        let endpoint_id = "[::ffff:10.0.0.1]:80".to_owned();
        let internal = Some(EnvoyInternalAddress { endpoint_id });
        assert_eq!(Address { socket_address: None, envoy_internal_address: internal }.ip(), v4);
    }
}
