//! Clusters.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Rejected, bootstrap::Address, listener};
use crate::json::{At, last_part};

/// What matters of a cluster.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    /// `EDS`, `ORIGINAL_DST`, `STATIC`, ...; the extension's name for others.
    pub kind: String,
    /// How long connecting may take; Envoy's default is 5 s.
    pub connect_timeout: Option<Duration>,
    /// How long a connection without a stream is kept; Envoy's default is 1 h, zero is for ever.
    pub idle_timeout: Option<Duration>,
    /// Whether HTTP/2 PINGs check its connections.
    pub http2_keepalive: bool,
    /// Whether TCP keepalive does.
    pub tcp_keepalive: bool,
    /// How many requests a connection takes; zero is no limit.
    pub max_requests_per_connection: u64,
    /// Whether it connects to internal listeners.
    pub internal_upstream: bool,
    /// Its endpoints come from a source of their own, not from ADS; and whether the module watches that source.
    pub own_source: Option<bool>,
    /// Addresses that are part of the configuration.
    pub addresses: Vec<Address>,
}

const OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

pub(super) fn read(section: &At<'_>, clusters: &mut BTreeMap<String, Cluster>, rejected: &mut Vec<Rejected>) {
    for (list, dynamic) in
        [("static_clusters", false), ("dynamic_active_clusters", true), ("dynamic_warming_clusters", true)]
    {
        for entry in section.list(list) {
            if let Some(refused) = listener::rejected(&entry, "cluster", !dynamic) {
                rejected.push(refused);
            }
            match entry.get("cluster") {
                Some(cluster) => {
                    let cluster = Cluster::read(&cluster);
                    // One that warms up does not count while an older one is in force.
                    clusters.entry(cluster.name.clone()).or_insert(cluster);
                }
                None => entry.note("it has no \"cluster\""),
            }
        }
    }
}

// === impl Cluster ===

impl Cluster {
    fn read(at: &At<'_>) -> Self {
        let typed = at.get("typed_extension_protocol_options").and_then(|options| options.get(OPTIONS));
        // The options' older place is the cluster itself.
        let common = typed.as_ref().unwrap_or(at).get("common_http_protocol_options");
        let http2 = match &typed {
            Some(options) => ["explicit_http_config", "use_downstream_protocol_config", "auto_config"]
                .iter()
                .find_map(|kind| options.path(&[*kind, "http2_protocol_options"])),
            None => at.get("http2_protocol_options"),
        };
        let custom = at.get("cluster_type").map(|custom| custom.string("name"));
        let kind = custom.or_else(|| at.text("type").map(str::to_owned)).unwrap_or_else(|| "STATIC".to_owned());
        let source = at.path(&["eds_cluster_config", "eds_config"]);
        let own = source.and_then(|source| source.get("api_config_source"));
        let socket = at.get("transport_socket").and_then(|socket| socket.typed("typed_config"));
        Self {
            name: at.string("name"),
            kind,
            connect_timeout: at.duration("connect_timeout"),
            idle_timeout: common.as_ref().and_then(|common| common.duration("idle_timeout")),
            http2_keepalive: http2.and_then(|http2| http2.get("connection_keepalive")).is_some(),
            tcp_keepalive: at.path(&["upstream_connection_options", "tcp_keepalive"]).is_some(),
            max_requests_per_connection: common
                .and_then(|common| common.number("max_requests_per_connection"))
                .unwrap_or(0),
            internal_upstream: socket.is_some_and(|(url, _)| last_part(&url) == "InternalUpstreamTransport"),
            own_source: own.map(|own| !super::bootstrap::validators(&own).is_empty()),
            addresses: addresses(at),
        }
    }
}

fn addresses(at: &At<'_>) -> Vec<Address> {
    let localities = at.get("load_assignment").map(|assignment| assignment.list("endpoints")).unwrap_or_default();
    let hosts = localities.iter().flat_map(|locality| locality.list("lb_endpoints"));
    hosts.filter_map(|host| Address::read(&host.path(&["endpoint", "address"])?)).collect()
}
