//! Dumps made from bootstraps, in the shape in which Envoy dumps them. That Envoy's own have this shape, and
//! lead to the same findings, is tested on real Envoy in `integration/tests/doctor`.

#![allow(dead_code, reason = "each test binary uses some of it")]

use std::sync::LazyLock;

use serde_json::{Value, json};
use stale_guard_doctor::{Code, Input, Report, examine};

pub(crate) const SHIPPED: &str = include_str!("../../../envoy-config/standalone/waypoint.yaml");
pub(crate) const ISTIOD: &str = include_str!("../data/istiod-waypoint.yaml");

const MODULES: &[&str] = &["envoy.bootstrap.dynamic_modules", "envoy.filters.network.dynamic_modules"];
const VALIDATORS: &str = "envoy.config.validators.dynamic_modules";

/// A `config_dump` of what a bootstrap configures, as Envoy 1.40.0 has it.
#[derive(Debug, Clone)]
pub(crate) struct Dump(pub(crate) Value);

impl Dump {
    /// The configuration that is shipped.
    pub(crate) fn shipped() -> Self {
        static DUMP: LazyLock<Dump> = LazyLock::new(|| Dump::of(SHIPPED));
        DUMP.clone()
    }

    /// istiod's waypoint.
    pub(crate) fn istiod() -> Self {
        static DUMP: LazyLock<Dump> = LazyLock::new(|| Dump::of(ISTIOD));
        DUMP.clone()
    }

    pub(crate) fn of(yaml: &str) -> Self {
        let mut bootstrap: Value = serde_saphyr::from_str(yaml).unwrap();
        let node = bootstrap.pointer_mut("/node").unwrap().as_object_mut().unwrap();
        let names = MODULES.iter().chain([&VALIDATORS]);
        node.insert("extensions".to_owned(), names.map(|name| json!({ "name": name })).collect());
        let version = json!({ "version": { "major_number": 1, "minor_number": 40 } });
        node.insert("user_agent_build_version".to_owned(), version);
        let part = |name: &str| bootstrap.pointer(&format!("/static_resources/{name}")).unwrap().as_array().unwrap();
        let wrapped = |name: &str, key: &str| -> Value { part(name).iter().map(|one| json!({ key: one })).collect() };
        let (listeners, clusters) = (wrapped("listeners", "listener"), wrapped("clusters", "cluster"));
        let mut routes = Vec::new();
        find(&listeners, "route_config", &mut routes);
        let section = |name: &str, key: &str, value: Value| json!({ "@type": format!("type.googleapis.com/envoy.admin.v3.{name}ConfigDump"), key: value });
        Self(json!({ "configs": [
            section("Bootstrap", "bootstrap", bootstrap.clone()),
            section("Clusters", "static_clusters", clusters),
            section("Listeners", "static_listeners", listeners),
            section("Routes", "static_route_configs", routes.into_iter().map(|one| json!({ "route_config": one })).collect()),
        ] }))
    }

    pub(crate) fn text(&self) -> String {
        self.0.to_string()
    }

    pub(crate) fn examine(&self) -> Report {
        self.examine_with(None, None)
    }

    pub(crate) fn examine_with(&self, clusters: Option<&str>, stats: Option<&str>) -> Report {
        examine(Input { config_dump: &self.text(), clusters, stats }).unwrap()
    }

    // --- places ---

    pub(crate) fn at(&mut self, pointer: &str) -> &mut Value {
        self.0.pointer_mut(pointer).unwrap_or_else(|| panic!("the dump has nothing at {pointer}"))
    }

    pub(crate) fn bootstrap(&mut self) -> &mut Value {
        self.at("/configs/0/bootstrap")
    }

    pub(crate) fn cluster(&mut self, name: &str) -> &mut Value {
        named(self.at("/configs/1/static_clusters"), "cluster", name)
    }

    pub(crate) fn listener(&mut self, name: &str) -> &mut Value {
        named(self.at("/configs/2/static_listeners"), "listener", name)
    }

    /// The network filters of the listener's first chain.
    pub(crate) fn filters(&mut self, listener: &str) -> &mut Vec<Value> {
        self.listener(listener).pointer_mut("/filter_chains/0/filters").unwrap().as_array_mut().unwrap()
    }

    /// The network filter of that name where tunnels begin.
    pub(crate) fn tunnel_filter(&mut self, name: &str) -> &mut Value {
        let filters = self.filters("connect_originate").iter_mut();
        filters.into_iter().find(|filter| filter["name"] == name).unwrap()
    }

    pub(crate) fn fence(&mut self) -> &mut Value {
        self.tunnel_filter("stale_guard.fence").pointer_mut("/typed_config").unwrap()
    }

    pub(crate) fn fence_config(&mut self) -> &mut Value {
        self.fence().pointer_mut("/filter_config/value").unwrap()
    }

    /// The object that holds the generation.
    pub(crate) fn generation(&mut self) -> &mut Value {
        let filter = self.tunnel_filter("envoy.filters.network.set_filter_state");
        filter.pointer_mut("/typed_config/on_new_connection/0").unwrap()
    }

    pub(crate) fn tcp_proxy(&mut self) -> &mut Value {
        self.tunnel_filter("envoy.filters.network.tcp_proxy").pointer_mut("/typed_config").unwrap()
    }

    /// The HTTP filters of the shipped service listener.
    pub(crate) fn http_filters(&mut self) -> &mut Vec<Value> {
        let manager = self.filters("service").first_mut().unwrap();
        manager.pointer_mut("/typed_config/http_filters").unwrap().as_array_mut().unwrap()
    }

    pub(crate) fn retry_config(&mut self) -> &mut Value {
        self.http_filters().first_mut().unwrap().pointer_mut("/typed_config/filter_config/value").unwrap()
    }

    /// The first virtual host of the shipped routes.
    pub(crate) fn virtual_host(&mut self) -> &mut Value {
        self.at("/configs/3/static_route_configs/0/route_config/virtual_hosts/0")
    }

    pub(crate) fn route(&mut self) -> &mut Value {
        self.virtual_host().pointer_mut("/routes/0/route").unwrap()
    }

    pub(crate) fn status(&mut self) -> &mut Value {
        self.bootstrap().pointer_mut("/bootstrap_extensions/1/typed_config").unwrap()
    }

    pub(crate) fn status_config(&mut self) -> &mut Value {
        self.status().pointer_mut("/extension_config/value").unwrap()
    }

    pub(crate) fn without_validators(&mut self) {
        self.bootstrap()
            .pointer_mut("/dynamic_resources/ads_config")
            .unwrap()
            .as_object_mut()
            .unwrap()
            .remove("config_validators");
        // As in Envoy 1.39, which has none.
        let extensions = self.bootstrap().pointer_mut("/node/extensions").unwrap().as_array_mut().unwrap();
        extensions.retain(|extension| extension["name"] != VALIDATORS);
    }

    /// Makes a static listener one that came by LDS.
    pub(crate) fn by_lds(&mut self, name: &str) {
        let section = self.at("/configs/2").as_object_mut().unwrap();
        let list = section.get_mut("static_listeners").unwrap().as_array_mut().unwrap();
        let index = list.iter().position(|entry| entry["listener"]["name"] == name).unwrap();
        let listener = list.remove(index);
        let dynamic = section.entry("dynamic_listeners").or_insert_with(|| json!([])).as_array_mut().unwrap();
        dynamic
            .push(json!({ "name": name, "active_state": { "version_info": "1", "listener": listener["listener"] } }));
    }
}

/// The codes of a report, each once, in order.
pub(crate) fn codes(report: &Report) -> Vec<Code> {
    let mut codes: Vec<Code> = report.findings.iter().map(|finding| finding.code).collect();
    codes.sort_unstable();
    codes.dedup();
    codes
}

pub(crate) fn code(id: &str) -> Code {
    id.parse().unwrap()
}

fn named<'a>(list: &'a mut Value, key: &str, name: &str) -> &'a mut Value {
    let entries = list.as_array_mut().unwrap().iter_mut();
    entries.into_iter().find_map(|entry| entry.get_mut(key).filter(|one| one["name"] == name)).unwrap()
}

fn find(value: &Value, key: &str, found: &mut Vec<Value>) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                if name == key { found.push(value.clone()) } else { find(value, key, found) }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| find(value, key, found)),
        _ => {}
    }
}
