//! Listeners, their filter chains, and the filters that matter.

use std::time::Duration;

use super::{
    Discovered,
    part::{Fence, Part, Retry},
};
use crate::json::{At, last_part};

/// Whether a listener takes connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It does.
    Active,
    /// Not yet.
    Warming,
    /// No longer: what it has may end.
    Draining,
}

/// A listener.
#[derive(Debug, Clone)]
pub struct Listener {
    /// Its name.
    pub name: String,
    /// Whether it takes connections.
    pub state: State,
    /// Its filter chains, the default one last.
    pub chains: Vec<Chain>,
}

/// Something that Envoy refused.
#[derive(Debug, Clone)]
pub struct Rejected {
    /// `listener` or `cluster`.
    pub what: &'static str,
    /// Its name.
    pub name: String,
    /// Why, in Envoy's words.
    pub details: String,
    /// Whether an older configuration of it is in force.
    pub has_older: bool,
    /// Whether the module is in it.
    pub with_module: bool,
}

/// A filter chain.
#[derive(Debug, Clone)]
pub struct Chain {
    /// Its name, or its number.
    pub name: String,
    /// Its network filters, in order.
    pub filters: Vec<NetworkFilter>,
}

/// A network filter.
#[derive(Debug, Clone)]
pub struct NetworkFilter {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: NetworkKind,
}

/// What a network filter is.
#[derive(Debug, Clone)]
pub enum NetworkKind {
    /// The module's.
    Fence(Part<Fence>),
    /// Sets filter state objects.
    SetFilterState(Vec<StateObject>),
    /// Forwards a connection.
    TcpProxy(TcpProxy),
    /// The HTTP connection manager.
    Http(Http),
    /// Another one.
    Other,
}

/// With whom a filter state object is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// With nobody.
    None,
    /// With the upstream connection.
    Once,
    /// With that and what follows it.
    Transitive,
}

/// A filter state object that is set.
#[derive(Debug, Clone)]
pub struct StateObject {
    /// The field that has it, which says when it is set: `on_new_connection`, ...
    pub event: &'static str,
    /// Its name.
    pub key: String,
    /// What makes it; the key if empty.
    pub factory: String,
    /// Its value's format.
    pub format: String,
    /// With whom it is shared.
    pub shared: Sharing,
    /// Whether a part of the format without a value is left out, instead of being `-`.
    pub omits_empty: bool,
    /// Whether nothing is set if the value is empty.
    pub skips_empty: bool,
}

/// `tcp_proxy`.
#[derive(Debug, Clone)]
pub struct TcpProxy {
    /// The cluster, if it is one.
    pub cluster: String,
    /// Whether it opens CONNECT tunnels.
    pub tunnels: bool,
    /// How often it tries to connect.
    pub max_connect_attempts: u64,
    /// How long it keeps a silent connection.
    pub idle_timeout: Option<Duration>,
}

/// The HTTP connection manager.
#[derive(Debug, Clone)]
pub struct Http {
    /// The name of its route configuration, in line or by RDS.
    pub routes: Option<String>,
    /// Its filters, in order.
    pub filters: Vec<HttpFilter>,
}

/// An HTTP filter.
#[derive(Debug, Clone)]
pub struct HttpFilter {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: HttpKind,
}

/// What an HTTP filter is.
#[derive(Debug, Clone)]
pub enum HttpKind {
    /// The module's.
    Retry(Part<Retry>),
    /// Envoy's router.
    Router,
    /// Another one.
    Other,
}

pub(super) fn read(section: &At<'_>, ecds: &Discovered<'_>, all: &mut Vec<Listener>, refused: &mut Vec<Rejected>) {
    for entry in section.list("static_listeners") {
        all.extend(entry.get("listener").map(|listener| Listener::read(&listener, "", State::Active, ecds)));
    }
    for entry in section.list("dynamic_listeners") {
        let name = entry.string("name");
        for (field, state) in
            [("active_state", State::Active), ("warming_state", State::Warming), ("draining_state", State::Draining)]
        {
            let listener = entry.path(&[field, "listener"]);
            all.extend(listener.map(|listener| Listener::read(&listener, &name, state, ecds)));
        }
        refused.extend(rejected(&entry, "listener", entry.get("active_state").is_some()));
    }
}

/// The error of an entry of the dump, if it has one.
pub(super) fn rejected(entry: &At<'_>, what: &'static str, has_older: bool) -> Option<Rejected> {
    let error = entry.get("error_state")?;
    let failed = error.get("failed_configuration");
    let text = failed.as_ref().map(|failed| failed.value().to_string()).unwrap_or_default();
    let details = error.string("details");
    let named = failed.as_ref().map(|failed| failed.string("name")).filter(|name| !name.is_empty());
    let ours = |text: &str| text.contains("stale_guard") || text.contains("stale-guard");
    let with_module = ours(&text) || ours(&details);
    Some(Rejected { what, name: named.unwrap_or_else(|| entry.string("name")), details, has_older, with_module })
}

// === impl Listener ===

impl Listener {
    fn read(at: &At<'_>, fallback: &str, state: State, ecds: &Discovered<'_>) -> Self {
        let chains = at.list("filter_chains").into_iter().enumerate();
        let chains = chains.map(|(index, chain)| Chain::read(&chain, &format!("number {index}"), ecds));
        let default = at.get("default_filter_chain").map(|chain| Chain::read(&chain, "default", ecds));
        let name = at.text("name").unwrap_or(fallback);
        Self { name: name.to_owned(), state, chains: chains.chain(default).collect() }
    }
}

// === impl Chain ===

impl Chain {
    fn read(at: &At<'_>, fallback: &str, ecds: &Discovered<'_>) -> Self {
        let filters = at.list("filters");
        Self {
            name: at.text("name").unwrap_or(fallback).to_owned(),
            filters: filters.iter().map(|filter| NetworkFilter::read(filter, ecds)).collect(),
        }
    }

    /// Its fences.
    pub fn fences(&self) -> impl Iterator<Item = &Part<Fence>> {
        self.filters.iter().filter_map(|filter| match &filter.kind {
            NetworkKind::Fence(fence) => Some(fence),
            _ => None,
        })
    }

    /// Its connection managers.
    pub fn https(&self) -> impl Iterator<Item = &Http> {
        self.filters.iter().filter_map(|filter| match &filter.kind {
            NetworkKind::Http(http) => Some(http),
            _ => None,
        })
    }

    /// Its `tcp_proxy`, and where it stands.
    #[must_use]
    pub fn tcp_proxy(&self) -> Option<(usize, &TcpProxy)> {
        self.filters.iter().enumerate().find_map(|(index, filter)| match &filter.kind {
            NetworkKind::TcpProxy(proxy) => Some((index, proxy)),
            _ => None,
        })
    }
}

// === impl NetworkFilter ===

impl NetworkFilter {
    fn read(at: &At<'_>, ecds: &Discovered<'_>) -> Self {
        let name = at.string("name");
        let kind = match configured(at, &name, ecds) {
            None => NetworkKind::Other,
            Some((url, config)) => match last_part(&url) {
                "DynamicModuleNetworkFilter" => {
                    Part::read(&name, &config, "fence", Fence::of).map_or(NetworkKind::Other, NetworkKind::Fence)
                }
                "Config" if url.contains(".filters.network.set_filter_state.") => {
                    NetworkKind::SetFilterState(state_objects(&config))
                }
                "TcpProxy" => NetworkKind::TcpProxy(TcpProxy::read(&config)),
                "HttpConnectionManager" => NetworkKind::Http(Http::read(&config, ecds)),
                _ => NetworkKind::Other,
            },
        };
        Self { name, kind }
    }
}

/// A filter's configuration, also if it comes by ECDS.
fn configured<'a>(at: &At<'a>, name: &str, ecds: &Discovered<'a>) -> Option<(String, At<'a>)> {
    match at.get("config_discovery") {
        None => at.typed("typed_config"),
        Some(discovery) => {
            let current = ecds.get(name).and_then(|filter| filter.typed("typed_config"));
            current.or_else(|| discovery.typed("default_config"))
        }
    }
}

fn state_objects(config: &At<'_>) -> Vec<StateObject> {
    let events = ["on_new_connection", "on_downstream_tls_handshake", "on_downstream_data"];
    events
        .into_iter()
        .flat_map(|event| config.list(event).iter().map(|object| StateObject::read(object, event)).collect::<Vec<_>>())
        .collect()
}

// === impl StateObject ===

impl StateObject {
    fn read(at: &At<'_>, event: &'static str) -> Self {
        let format = at.get("format_string");
        // `text_format` is the older name of `text_format_source.inline_string`.
        let inline = format.as_ref().and_then(|format| format.path(&["text_format_source", "inline_string"]));
        let inline = inline.or_else(|| format.as_ref().and_then(|format| format.get("text_format")));
        Self {
            event,
            key: at.string("object_key"),
            factory: at.string("factory_key"),
            format: inline.and_then(|inline| inline.as_text()).unwrap_or_default().to_owned(),
            shared: match at.text("shared_with_upstream") {
                Some("ONCE") => Sharing::Once,
                Some("TRANSITIVE") => Sharing::Transitive,
                Some(_) | None => Sharing::None,
            },
            omits_empty: format.is_some_and(|format| format.flag("omit_empty_values")),
            skips_empty: at.flag("skip_if_empty"),
        }
    }
}

// === impl TcpProxy ===

impl TcpProxy {
    fn read(at: &At<'_>) -> Self {
        Self {
            cluster: at.string("cluster"),
            tunnels: at.get("tunneling_config").is_some(),
            max_connect_attempts: at.number("max_connect_attempts").unwrap_or(1).max(1),
            idle_timeout: at.duration("idle_timeout"),
        }
    }
}

// === impl Http ===

impl Http {
    fn read(at: &At<'_>, ecds: &Discovered<'_>) -> Self {
        let inline = at.get("route_config").map(|config| config.string("name"));
        let filters = at.list("http_filters");
        Self {
            routes: inline.or_else(|| at.get("rds").map(|rds| rds.string("route_config_name"))),
            filters: filters.iter().map(|filter| HttpFilter::read(filter, ecds)).collect(),
        }
    }

    /// The module's filters in it.
    pub fn retries(&self) -> impl Iterator<Item = &Part<Retry>> {
        self.filters.iter().filter_map(|filter| match &filter.kind {
            HttpKind::Retry(retry) => Some(retry),
            _ => None,
        })
    }
}

// === impl HttpFilter ===

impl HttpFilter {
    fn read(at: &At<'_>, ecds: &Discovered<'_>) -> Self {
        let name = at.string("name");
        let kind = match configured(at, &name, ecds) {
            Some((url, config)) if last_part(&url) == "DynamicModuleFilter" => {
                Part::read(&name, &config, "retry", Retry::of).map_or(HttpKind::Other, HttpKind::Retry)
            }
            Some((url, _)) if last_part(&url) == "Router" => HttpKind::Router,
            Some(_) | None => HttpKind::Other,
        };
        Self { name, kind }
    }
}
