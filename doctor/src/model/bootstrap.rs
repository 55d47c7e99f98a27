//! The bootstrap: who the proxy is, its extensions, its control plane.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde_json::Value;

use super::part::{Module, Part, Status};
use crate::json::{At, last_part};

/// What Istio runs the proxy as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// A waypoint.
    Waypoint,
    /// A gateway ("router").
    Gateway,
    /// A sidecar.
    Sidecar,
    /// Not Istio's, as far as the dump shows.
    #[default]
    Plain,
}

/// Who the proxy is.
#[derive(Debug, Clone, Default)]
pub struct Node {
    /// Its id.
    pub id: String,
    /// What Istio runs it as.
    pub kind: Kind,
    /// Envoy's version.
    pub envoy: Option<(u64, u64, u64)>,
    /// Istio's version.
    pub istio: Option<String>,
    /// The namespace and the Gateway that it belongs to, if it is Istio's.
    pub namespace: Option<String>,
    /// The name of its Gateway.
    pub gateway: Option<String>,
    /// The extensions that the build has; empty if the dump does not list them.
    pub extensions: BTreeSet<String>,
}

/// Where something listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// TCP: a host, mostly an IP address, and a port.
    Tcp(String, u64),
    /// A Unix domain socket.
    Pipe(String),
}

/// How statistics are kept out.
#[derive(Debug, Clone, Default)]
pub enum StatsMatcher {
    /// All are kept.
    #[default]
    All,
    /// None is.
    None,
    /// Only these.
    Only(Vec<Matcher>),
    /// All but these.
    Except(Vec<Matcher>),
}

/// A `StringMatcher`.
#[derive(Debug, Clone)]
pub enum Matcher {
    /// The whole string.
    Exact(String),
    /// Its beginning.
    Prefix(String),
    /// Its end.
    Suffix(String),
    /// A part of it.
    Contains(String),
    /// A regular expression over the whole string.
    Regex(String),
    /// One that the doctor does not know: it may match anything.
    Unknown,
}

/// A config validator of the module.
#[derive(Debug, Clone)]
pub struct Validator {
    /// Its name.
    pub name: String,
    /// The module.
    pub module: Module,
    /// The resource types that it sees.
    pub type_urls: Vec<String>,
}

/// What matters of the bootstrap.
#[derive(Debug, Clone, Default)]
pub struct Bootstrap {
    /// Who the proxy is.
    pub node: Node,
    /// The admin endpoint.
    pub admin: Option<Address>,
    /// Runtime keys of the static layers; a later layer wins.
    pub runtime: BTreeMap<String, Value>,
    /// Which statistics are kept.
    pub stats: StatsMatcher,
    /// The module's bootstrap extensions.
    pub status: Vec<Part<Status>>,
    /// The module's config validators on the ADS source.
    pub validators: Vec<Validator>,
    /// The clusters that the control plane is reached through.
    pub control_planes: Vec<String>,
}

// === impl Bootstrap ===

impl Bootstrap {
    pub(super) fn read(section: &At<'_>) -> Self {
        let Some(at) = section.get("bootstrap") else {
            section.note("it has no \"bootstrap\"");
            return Self::default();
        };
        let ads = at.path(&["dynamic_resources", "ads_config"]);
        Self {
            node: at.get("node").map(|node| Node::read(&node)).unwrap_or_default(),
            admin: at.path(&["admin", "address"]).and_then(|address| Address::read(&address)),
            runtime: runtime(&at),
            stats: at.path(&["stats_config", "stats_matcher"]).map(|at| StatsMatcher::read(&at)).unwrap_or_default(),
            status: at.list("bootstrap_extensions").iter().filter_map(status).collect(),
            validators: ads.as_ref().map(validators).unwrap_or_default(),
            control_planes: ads.as_ref().map(control_planes).unwrap_or_default(),
        }
    }
}

fn status(extension: &At<'_>) -> Option<Part<Status>> {
    let (url, config) = extension.typed("typed_config")?;
    if last_part(&url) != "DynamicModuleBootstrapExtension" {
        return None;
    }
    Part::read(&extension.string("name"), &config, "status", Status::of)
}

/// The module's validators of a config source.
pub(super) fn validators(source: &At<'_>) -> Vec<Validator> {
    let validator = |entry: &At<'_>| {
        let (url, config) = entry.typed("typed_config")?;
        let name = entry.string("name");
        if last_part(&url) != "DynamicModuleConfigValidator" || config.text("extension_name")? != "watch" {
            return None;
        }
        let type_urls = config.list("type_urls").iter().filter_map(|url| url.as_text().map(str::to_owned)).collect();
        Some(Validator { module: Module::read(&config, &name)?, name, type_urls })
    };
    source.list("config_validators").iter().filter_map(validator).collect()
}

fn control_planes(ads: &At<'_>) -> Vec<String> {
    let services = ads.list("grpc_services");
    services.iter().filter_map(|service| Some(service.get("envoy_grpc")?.string("cluster_name"))).collect()
}

fn runtime(at: &At<'_>) -> BTreeMap<String, Value> {
    let mut keys = BTreeMap::new();
    for layer in at.get("layered_runtime").map(|runtime| runtime.list("layers")).unwrap_or_default() {
        let Some(values) = layer.get("static_layer") else { continue };
        flatten("", values.value(), &mut keys);
    }
    keys
}

/// A layer may nest: `{ "http": { "async_response_buffer_limit": 1 } }` is the key with a dot.
fn flatten(prefix: &str, value: &Value, keys: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                flatten(&key, value, keys);
            }
        }
        _ => {
            keys.insert(prefix.to_owned(), value.clone());
        }
    }
}

// === impl Node ===

impl Node {
    fn read(at: &At<'_>) -> Self {
        let id = at.string("id");
        let version = at.path(&["user_agent_build_version", "version"]);
        // Absent numbers are zero in protobuf's JSON.
        let number = |version: &At<'_>, name: &str| version.number(name).unwrap_or(0);
        let envoy = version.map(|v| (number(&v, "major_number"), number(&v, "minor_number"), number(&v, "patch")));
        let metadata = at.get("metadata");
        let text = |name: &str| metadata.as_ref()?.text(name).map(str::to_owned);
        let labels = metadata.as_ref().and_then(|metadata| metadata.get("LABELS"));
        let istio = text("ISTIO_VERSION");
        let extensions = at.list("extensions");
        Self {
            kind: Kind::of(&id, istio.is_some()),
            namespace: text("NAMESPACE").or_else(|| namespace(&id)),
            gateway: labels.and_then(|labels| labels.text("gateway.networking.k8s.io/gateway-name").map(str::to_owned)),
            extensions: extensions.iter().map(|extension| extension.string("name")).collect(),
            id,
            envoy,
            istio,
        }
    }
}

impl Node {
    /// Whose objects configure it: an id of Istio's form alone does not make it Istio's.
    #[must_use]
    pub fn managed_as(&self) -> Kind {
        if self.istio.is_some() { self.kind } else { Kind::Plain }
    }
}

/// Istio's ids are `<kind>~<ip>~<pod>.<namespace>~<domain>`.
fn namespace(id: &str) -> Option<String> {
    let pod = id.split('~').nth(2)?;
    Some(pod.rsplit_once('.')?.1.to_owned())
}

// === impl Kind ===

impl Kind {
    fn of(id: &str, istio: bool) -> Self {
        match id.split_once('~') {
            Some(("waypoint", _)) => Self::Waypoint,
            Some(("router", _)) => Self::Gateway,
            Some(("sidecar", _)) => Self::Sidecar,
            Some(_) | None if istio => Self::Sidecar,
            Some(_) | None => Self::Plain,
        }
    }

    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Waypoint => "waypoint",
            Self::Gateway => "gateway",
            Self::Sidecar => "sidecar",
            Self::Plain => "proxy",
        }
    }
}

// === impl Address ===

impl Address {
    pub(super) fn read(at: &At<'_>) -> Option<Self> {
        if let Some(socket) = at.get("socket_address") {
            return Some(Self::Tcp(socket.string("address"), socket.number("port_value").unwrap_or(0)));
        }
        Some(Self::Pipe(at.get("pipe")?.string("path")))
    }

    /// Whether a connection to this address reaches what listens at `listener`.
    #[must_use]
    pub fn reaches(&self, listener: &Address) -> bool {
        match (self, listener) {
            (Self::Pipe(ours), Self::Pipe(theirs)) => ours == theirs,
            // Port 0 is any port: which one, the dump does not say.
            (Self::Tcp(..), Self::Tcp(_, 0)) => true,
            (Self::Tcp(host, port), Self::Tcp(listening, listening_port)) => {
                port == listening_port && hosts_agree(host, listening)
            }
            (Self::Pipe(_), Self::Tcp(..)) | (Self::Tcp(..), Self::Pipe(_)) => false,
        }
    }
}

fn hosts_agree(host: &str, listening: &str) -> bool {
    let ip = |text: &str| text.parse::<IpAddr>().ok();
    let loopback = |text: &str| text == "localhost" || ip(text).is_some_and(|ip| ip.is_loopback());
    host == listening
        || ip(listening).is_some_and(|ip| ip.is_unspecified())
        // 127.0.0.2 is another listener than 127.0.0.1; a name is not resolved here.
        || (loopback(host) && loopback(listening) && (host == "localhost" || listening == "localhost"))
}

// === impl StatsMatcher ===

impl StatsMatcher {
    fn read(at: &At<'_>) -> Self {
        let patterns = |list: At<'_>| list.list("patterns").iter().map(Matcher::read).collect();
        if at.flag("reject_all") {
            Self::None
        } else if let Some(list) = at.get("inclusion_list") {
            Self::Only(patterns(list))
        } else if let Some(list) = at.get("exclusion_list") {
            Self::Except(patterns(list))
        } else {
            Self::All
        }
    }

    /// Whether Envoy keeps a statistic of that name; in doubt it does.
    #[must_use]
    pub fn keeps(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Only(patterns) => patterns.iter().any(|pattern| pattern.matches(name) != Some(false)),
            Self::Except(patterns) => !patterns.iter().any(|pattern| pattern.matches(name) == Some(true)),
        }
    }
}

// === impl Matcher ===

impl Matcher {
    fn read(at: &At<'_>) -> Self {
        let text = |name: &str| at.text(name).map(str::to_owned);
        if let Some(text) = text("exact") {
            Self::Exact(text)
        } else if let Some(text) = text("prefix") {
            Self::Prefix(text)
        } else if let Some(text) = text("suffix") {
            Self::Suffix(text)
        } else if let Some(text) = text("contains") {
            Self::Contains(text)
        } else if let Some(text) = at.get("safe_regex").and_then(|regex| regex.text("regex").map(str::to_owned)) {
            Self::Regex(text)
        } else {
            Self::Unknown
        }
    }

    fn matches(&self, name: &str) -> Option<bool> {
        match self {
            Self::Exact(text) => Some(name == text),
            Self::Prefix(text) => Some(name.starts_with(text.as_str())),
            Self::Suffix(text) => Some(name.ends_with(text.as_str())),
            Self::Contains(text) => Some(name.contains(text.as_str())),
            // RE2 and this library agree on what stats matchers use; a dump cannot make it large.
            Self::Regex(text) => {
                let whole = regex::RegexBuilder::new(&format!("^(?:{text})$")).size_limit(1 << 20).build();
                Some(whole.ok()?.is_match(name))
            }
            Self::Unknown => None,
        }
    }
}
