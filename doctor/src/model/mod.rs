//! What the checks look at: a proxy's configuration, reduced to what matters for stale connections.
//!
//! Reading never fails: a part that is damaged is noted and read as absent, and [`Coverage`] says so, because
//! "there is no fence" must not be concluded from a dump that lost its listeners.

mod bootstrap;
mod cluster;
mod listener;
mod part;
mod route;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

pub use bootstrap::{Address, Bootstrap, Kind, Matcher, Node, StatsMatcher, Validator};
pub use cluster::Cluster;
pub use listener::{
    Chain, Http, HttpFilter, HttpKind, Listener, NetworkFilter, NetworkKind, Rejected, Sharing, State, StateObject,
    TcpProxy,
};
pub use part::{Fence, Mode, Module, Part, Retry, Status};
pub use route::{RetryPolicy, Route, RouteConfig, VirtualHost};

use crate::{
    Unread, Unreadable,
    json::{At, Notes, Parsed},
};

/// How much of a section of the dump could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Seen {
    /// The dump does not have it.
    #[default]
    Missing,
    /// Something in it could not be read, or the dump ends within it: what is absent may be there.
    Partial,
    /// All of it.
    Whole,
}

/// How much of each section could be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Coverage {
    /// Node, admin endpoint, extensions.
    pub bootstrap: Seen,
    /// Listeners with their filters.
    pub listeners: Seen,
    /// Clusters.
    pub clusters: Seen,
    /// Routes.
    pub routes: Seen,
}

/// A proxy's configuration.
#[derive(Debug, Clone, Default)]
pub struct Proxy {
    /// What could be read.
    pub coverage: Coverage,
    /// Who it is, its extensions, its control plane.
    pub bootstrap: Bootstrap,
    /// Listeners in force, and those that warm up or drain.
    pub listeners: Vec<Listener>,
    /// What Envoy refused.
    pub rejected: Vec<Rejected>,
    /// Clusters in force, or warming up, by name.
    pub clusters: BTreeMap<String, Cluster>,
    /// Route configurations by name, those within connection managers too.
    pub routes: BTreeMap<String, RouteConfig>,
}

/// Filter configurations that come by ECDS, by name.
pub(crate) type Discovered<'a> = BTreeMap<String, At<'a>>;

/// A section of the dump.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Bootstrap,
    Listeners,
    Clusters,
    Routes,
    Ecds,
}

// === impl Section ===

impl Section {
    /// By the type of the dump's entry.
    fn of(message: &str) -> Option<Self> {
        match message {
            "BootstrapConfigDump" => Some(Self::Bootstrap),
            "ListenersConfigDump" => Some(Self::Listeners),
            "ClustersConfigDump" => Some(Self::Clusters),
            "RoutesConfigDump" => Some(Self::Routes),
            "EcdsConfigDump" => Some(Self::Ecds),
            _ => None,
        }
    }
}

// === impl Proxy ===

impl Proxy {
    /// Reads a `config_dump`, and says what of it could not be read.
    ///
    /// # Errors
    /// If it is no `config_dump` at all.
    pub(crate) fn read(parsed: &Parsed) -> Result<(Self, Vec<Unread>), Unreadable> {
        let configs = configs(&parsed.value)?;
        let mut proxy = Self::default();
        let mut unread = Vec::new();
        if let Some((used, length)) = parsed.cut {
            let problem = format!("cut off after {used} of {length} bytes that could be read");
            unread.push(Unread { place: "config_dump".to_owned(), problem });
        }
        let all = Notes::default();
        let ecds = discovered(configs, &all);
        for (index, config) in configs.iter().enumerate() {
            let notes = Notes::default();
            let at = At::new(config, &format!("config_dump.configs[{index}]"), &notes);
            let section = Section::of(crate::json::last_part(&at.type_url()));
            match section {
                Some(Section::Bootstrap) => proxy.bootstrap = Bootstrap::read(&at),
                Some(Section::Listeners) => listener::read(&at, &ecds, &mut proxy.listeners, &mut proxy.rejected),
                Some(Section::Clusters) => cluster::read(&at, &mut proxy.clusters, &mut proxy.rejected),
                Some(Section::Routes) => route::read(&at, &mut proxy.routes),
                Some(Section::Ecds) | None => {}
            }
            // A dump that was cut off ends within its last entry.
            let cut = parsed.cut.is_some() && index + 1 == configs.len();
            let seen = if cut || !notes.is_empty() { Seen::Partial } else { Seen::Whole };
            match section {
                Some(Section::Bootstrap) => proxy.coverage.bootstrap = seen,
                Some(Section::Listeners) => proxy.coverage.listeners = seen,
                Some(Section::Clusters) => proxy.coverage.clusters = seen,
                Some(Section::Routes) => proxy.coverage.routes = seen,
                Some(Section::Ecds) | None => {}
            }
            unread.extend(notes.into_unread());
        }
        if !all.is_empty() {
            // A filter may be configured by what could not be read.
            proxy.coverage.listeners = proxy.coverage.listeners.min_partial();
        }
        unread.extend(all.into_unread());
        proxy.join_rejected();
        Ok((proxy, unread))
    }

    /// Envoy names a refused listener twice: with its name beside the older one, and alone.
    fn join_rejected(&mut self) {
        let mut seen = BTreeSet::new();
        self.rejected.retain(|rejected| seen.insert((rejected.what, rejected.name.clone())));
        for rejected in self.rejected.iter_mut().filter(|rejected| rejected.what == "listener") {
            let older = |listener: &Listener| listener.state == State::Active && listener.name == rejected.name;
            rejected.has_older |= self.listeners.iter().any(older);
        }
    }

    /// The cluster of that name.
    #[must_use]
    pub fn cluster(&self, name: &str) -> Option<&Cluster> {
        self.clusters.get(name)
    }

    /// Listeners that take new connections, or soon will.
    pub fn serving(&self) -> impl Iterator<Item = &Listener> {
        self.listeners.iter().filter(|listener| listener.state != State::Draining)
    }

    /// Every fence, with its listener, those that drain too.
    pub fn fences(&self) -> impl Iterator<Item = (&Listener, &Chain, &Part<Fence>)> {
        self.listeners.iter().flat_map(|listener| {
            listener.chains.iter().flat_map(move |chain| chain.fences().map(move |fence| (listener, chain, fence)))
        })
    }

    /// Every HTTP connection manager of a serving listener.
    pub fn https(&self) -> impl Iterator<Item = (&Listener, &Chain, &Http)> {
        self.serving().flat_map(|listener| {
            listener.chains.iter().flat_map(move |chain| chain.https().map(move |http| (listener, chain, http)))
        })
    }

    /// The route configuration of that name.
    #[must_use]
    pub fn route_config(&self, name: &str) -> Option<&RouteConfig> {
        self.routes.get(name)
    }

    /// Every retry filter of a serving listener.
    pub fn retries(&self) -> impl Iterator<Item = &Part<Retry>> {
        self.https().flat_map(|(_, _, http)| http.retries())
    }

    /// Whether any part of the module is configured.
    #[must_use]
    pub fn is_installed(&self) -> bool {
        self.fences().next().is_some()
            || self.retries().next().is_some()
            || !self.bootstrap.status.is_empty()
            || !self.bootstrap.validators.is_empty()
    }
}

// === impl Seen ===

impl Seen {
    fn min_partial(self) -> Self {
        match self {
            Self::Missing => Self::Missing,
            Self::Partial | Self::Whole => Self::Partial,
        }
    }
}

fn configs(value: &Value) -> Result<&Vec<Value>, Unreadable> {
    let Value::Object(map) = value else { return Err(Unreadable::NotADump("it is no JSON object")) };
    match map.get("configs") {
        Some(Value::Array(configs)) => Ok(configs),
        Some(_) => Err(Unreadable::NotADump("\"configs\" is no list")),
        None if map.contains_key("cluster_statuses") => Err(Unreadable::NotADump("it is the answer of /clusters")),
        None if map.contains_key("static_resources") => {
            Err(Unreadable::NotADump("it is a bootstrap; ask the running proxy for /config_dump"))
        }
        None => Err(Unreadable::NotADump("it has no \"configs\"")),
    }
}

fn discovered<'a>(configs: &'a [Value], notes: &'a Notes) -> Discovered<'a> {
    let mut found = Discovered::new();
    for (index, config) in configs.iter().enumerate() {
        let type_url = config.get("@type").and_then(Value::as_str).unwrap_or_default();
        if Section::of(crate::json::last_part(type_url)) != Some(Section::Ecds) {
            continue;
        }
        let at = At::new(config, &format!("config_dump.configs[{index}]"), notes);
        for filter in at.list("ecds_filters").iter().filter_map(|filter| filter.get("ecds_filter")) {
            // `typed_config` itself is what a filter would have had in its place.
            found.insert(filter.string("name"), filter.clone());
        }
    }
    found
}
