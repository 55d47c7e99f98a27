//! What the control plane knows: services and their endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::ConfigSource;
use envoy_types::pb::google::protobuf::Any;

/// The name that istiod gives to a waypoint's cluster of a service port, and to its EDS resource.
pub fn cluster_name(host: &str, port: u16) -> String {
    format!("inbound-vip|{port}|http|{host}")
}

/// One port of a service.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// Fully qualified host name, e.g. `echo.default.svc.cluster.local`.
    pub host: String,
    /// The service's port, which names the cluster; endpoints carry their own.
    pub port: u16,
    /// Its endpoints, in the order in which they are served.
    pub endpoints: Vec<Endpoint>,
    /// The cluster's own `eds_config`, where it does not take its endpoints from the ADS stream; it must
    /// lead to this control plane. As of the time when the service is first set.
    pub eds_config: Option<ConfigSource>,
    /// Anything, put into the cluster's metadata: another note is another configuration of the cluster.
    pub note: String,
    /// Whether its endpoints speak HTTP/2 (h2c), as `appProtocol: http2` or `grpc` has it; else HTTP/1.1.
    pub http2: bool,
    /// How long the cluster keeps an idle connection (DestinationRule `connectionPool.http.idleTimeout`); none:
    /// Envoy's hour. For HTTP/1.1.
    pub idle_timeout: Option<Duration>,
    /// The circuit breaker's limit on retries that run at once; none: no limit, as in Istio.
    pub max_retries: Option<u32>,
}

/// How an endpoint's health is told to the proxy (`envoy.config.core.v3.HealthStatus`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "Envoy's own words")]
pub enum Health {
    Unknown,
    #[default]
    Healthy,
    Unhealthy,
    Draining,
    Timeout,
    Degraded,
}

/// How an endpoint is addressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// As istiod does on a waypoint: the internal listener `connect_originate`, with the pod's address as
    /// `endpoint_id` and in the metadata `envoy.filters.listener.original_dst`.
    #[default]
    Tunnel,
    /// The pod's address itself: a plain socket address, as on a gateway without ambient mode. A service
    /// with a plain endpoint at the time it is set gets a cluster without the internal transport socket;
    /// do not mix kinds within one service.
    Plain,
}

/// Where an endpoint runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "Envoy's own words")]
pub struct Locality {
    pub region: String,
    pub zone: String,
    pub sub_zone: String,
}

/// One endpoint of a service.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    /// The pod's IP address.
    pub ip: IpAddr,
    /// The application's port in the pod.
    pub port: u16,
    /// The owner workload's name. As in Istio it does not tell pods of one Deployment apart.
    pub workload: String,
    /// Told health.
    pub health: Health,
    /// How it is addressed.
    pub kind: Kind,
    /// Load-balancing weight, 1 or more.
    pub weight: u32,
    /// Priority, 0 first; Envoy wants them without gaps.
    pub priority: u32,
    /// Where it runs.
    pub locality: Locality,
}

/// Bytes served in place of a service's EDS resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw {
    /// The type URL inside the resource's `Any`.
    pub type_url: String,
    /// Its bytes, sent as they are.
    pub value: Vec<u8>,
}

/// All services by cluster name, and what differs from the plain rule for some of them.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) services: BTreeMap<String, Service>,
    pub(super) raw: BTreeMap<String, Raw>,
    /// Clusters whose endpoint changes are kept back for now.
    pub(super) withheld: BTreeSet<String>,
    /// Clusters that exist without an EDS resource.
    pub(super) vanished: BTreeSet<String>,
    /// Clusters changed (or removed) since the last push.
    pub(super) dirty_clusters: BTreeSet<String>,
    /// Endpoint sets touched since the last push, whether or not they differ from what was sent.
    pub(super) dirty_endpoints: BTreeSet<String>,
}

// === impl Service ===

impl Service {
    /// A service on port 80.
    pub fn new(host: &str, endpoints: Vec<Endpoint>) -> Self {
        Self {
            host: host.to_owned(),
            port: 80,
            endpoints,
            eds_config: None,
            note: String::new(),
            http2: false,
            idle_timeout: None,
            max_retries: None,
        }
    }

    /// The same with an EDS source of its own.
    pub fn eds_config(self, config: ConfigSource) -> Self {
        Self { eds_config: Some(config), ..self }
    }

    /// The same with endpoints that speak HTTP/2.
    pub fn http2(self) -> Self {
        Self { http2: true, ..self }
    }

    /// The name of its cluster and of its EDS resource.
    pub fn cluster_name(&self) -> String {
        cluster_name(&self.host, self.port)
    }
}

// === impl Endpoint ===

impl Endpoint {
    /// A healthy tunnel endpoint of weight 1, priority 0, without locality.
    pub fn new(ip: IpAddr, port: u16) -> Self {
        Self {
            ip,
            port,
            workload: "workload".to_owned(),
            health: Health::Healthy,
            kind: Kind::Tunnel,
            weight: 1,
            priority: 0,
            locality: Locality::default(),
        }
    }

    /// The same with an owner workload.
    pub fn workload(self, workload: &str) -> Self {
        Self { workload: workload.to_owned(), ..self }
    }

    /// The same with another health.
    pub fn health(self, health: Health) -> Self {
        Self { health, ..self }
    }

    /// The same, addressed by its socket address.
    pub fn plain(self) -> Self {
        Self { kind: Kind::Plain, ..self }
    }

    /// The same with another priority.
    pub fn priority(self, priority: u32) -> Self {
        Self { priority, ..self }
    }

    /// The same in a locality.
    pub fn locality(self, locality: Locality) -> Self {
        Self { locality, ..self }
    }

    /// Its application address.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }
}

// === impl Raw ===

impl Raw {
    pub(super) fn to_any(&self) -> Any {
        Any { type_url: self.type_url.clone(), value: self.value.clone() }
    }
}

// === impl Model ===

impl Model {
    pub(super) fn set_service(&mut self, service: Service) {
        let name = service.cluster_name();
        let had = self.services.insert(name.clone(), service).is_some();
        if !had {
            self.dirty_clusters.insert(name.clone());
        }
        self.dirty_endpoints.insert(name);
    }

    pub(super) fn remove_service(&mut self, cluster: &str) -> bool {
        let had = self.services.remove(cluster).is_some();
        if had {
            self.raw.remove(cluster);
            self.withheld.remove(cluster);
            self.vanished.remove(cluster);
            self.dirty_clusters.insert(cluster.to_owned());
            self.dirty_endpoints.insert(cluster.to_owned());
        }
        had
    }

    /// Runs `edit` on the endpoints of `cluster` and marks them touched; `None` if there is no such cluster.
    pub(super) fn edit_endpoints<T>(&mut self, cluster: &str, edit: impl FnOnce(&mut Vec<Endpoint>) -> T) -> Option<T> {
        let service = self.services.get_mut(cluster)?;
        let result = edit(&mut service.endpoints);
        self.dirty_endpoints.insert(cluster.to_owned());
        Some(result)
    }

    /// Runs `edit` on the service of `cluster`, which is sent again with its endpoints, since Envoy takes
    /// up a changed cluster only with them; `None` if there is none.
    pub(super) fn edit_service<T>(&mut self, cluster: &str, edit: impl FnOnce(&mut Service) -> T) -> Option<T> {
        let result = edit(self.services.get_mut(cluster)?);
        self.dirty_clusters.insert(cluster.to_owned());
        self.dirty_endpoints.insert(cluster.to_owned());
        Some(result)
    }

    pub(super) fn touch_all(&mut self) {
        self.dirty_clusters.extend(self.services.keys().cloned());
        self.dirty_endpoints.extend(self.services.keys().cloned());
    }

    pub(super) fn is_dirty(&self) -> bool {
        !self.dirty_clusters.is_empty() || !self.dirty_endpoints.is_subset(&self.withheld)
    }
}
