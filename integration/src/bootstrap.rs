//! The bootstrap that Envoy is started with: the shipped file, changed where a test needs it changed.
//!
//! Changes are made to the parsed structure, never to its text, and a change that no longer finds its
//! place is an error: the file that users run and the one that tests run cannot drift apart unnoticed.

mod extensions;
mod variant;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

pub use extensions::ExtensionPoint;
pub use variant::Variant;

use crate::control_plane::{Protocol, cluster_name};

/// JSON pointers into the shipped file.
mod at {
    pub(super) const ADMIN: &str = "/admin/address/socket_address";
    pub(super) const ADS: &str = "/dynamic_resources/ads_config";
    pub(super) const LISTENERS: &str = "/static_resources/listeners";
    pub(super) const CLUSTERS: &str = "/static_resources/clusters";
    pub(super) const FILTERS: &str = "/filter_chains/0/filters";
    pub(super) const ROUTES: &str = "/typed_config/route_config/virtual_hosts/0/routes";
    pub(super) const HTTP_OPTIONS: &str =
        "/typed_extension_protocol_options/envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    pub(super) const STATIC_ADDRESS: &str =
        "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address";
}

/// A bootstrap configuration under change; every method returns the changed one.
#[derive(Clone, Debug, PartialEq)]
pub struct Bootstrap {
    value: Value,
    /// The text that it was read from, as long as nothing is changed.
    text: Option<String>,
}

/// The proxy's certificate, key and trust anchor, as PEM files.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// The proxy's certificate chain.
    pub chain: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority that its peers must come from.
    pub root: PathBuf,
}

// === impl Bootstrap ===

impl Bootstrap {
    /// The file that is shipped: `envoy-config/standalone/waypoint.yaml`.
    ///
    /// # Errors
    /// If it cannot be read, or is no YAML.
    pub fn load() -> Result<Self> {
        Self::read(&shipped_folder().join("waypoint.yaml"))
    }

    /// Every bootstrap that is shipped, by its path.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn shipped() -> Result<Vec<PathBuf>> {
        let folder = shipped_folder();
        let entries = std::fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))?;
        let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
        files.sort();
        Ok(files)
    }

    /// A bootstrap from a file.
    ///
    /// # Errors
    /// If it cannot be read, or is no YAML.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        Self::from_yaml(&text).with_context(|| format!("parse {}", path.display()))
    }

    /// A bootstrap from YAML text.
    ///
    /// # Errors
    /// If it is no YAML.
    pub fn from_yaml(text: &str) -> Result<Self> {
        let value = serde_saphyr::from_str(text).context("not YAML")?;
        Ok(Self { value, text: Some(text.to_owned()) })
    }

    /// The configuration as it is now.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Writes it as YAML, as operators do. Envoy's two readers differ: in a `google.protobuf.Struct` a
    /// fraction of a YAML file becomes a string, one of a JSON file a number.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        std::fs::write(path, self.to_yaml()?).with_context(|| format!("write {}", path.display()))
    }

    /// The configuration as YAML text: byte for byte what was read, where nothing was changed.
    ///
    /// # Errors
    /// If it cannot be written as YAML.
    pub fn to_yaml(&self) -> Result<String> {
        match &self.text {
            Some(text) => Ok(text.clone()),
            None => serde_saphyr::to_string(&self.value).context("write YAML"),
        }
    }

    // --- by place ---

    /// Sets the value at a JSON pointer (RFC 6901). Its parent must exist; the last part may be new in an
    /// object, and `-` appends to an array.
    ///
    /// # Errors
    /// If the parent does not exist.
    pub fn patch(mut self, pointer: &str, value: Value) -> Result<Self> {
        let (parent, key) = split(pointer)?;
        self.text = None;
        match self.value.pointer_mut(parent) {
            Some(Value::Object(map)) => {
                map.insert(key, value);
            }
            Some(Value::Array(list)) if key == "-" => list.push(value),
            Some(Value::Array(list)) => {
                let slot = key.parse().ok().and_then(|index: usize| list.get_mut(index));
                *slot.with_context(|| format!("no such element: {pointer}"))? = value;
            }
            _ => bail!("no such place in the bootstrap: {parent}"),
        }
        Ok(self)
    }

    /// Takes away what is at a JSON pointer.
    ///
    /// # Errors
    /// If nothing is there.
    pub fn remove(mut self, pointer: &str) -> Result<Self> {
        let (parent, key) = split(pointer)?;
        self.text = None;
        let removed = match self.value.pointer_mut(parent) {
            Some(Value::Object(map)) => map.remove(&key).is_some(),
            Some(Value::Array(list)) => match key.parse() {
                Ok(index) if index < list.len() => {
                    list.remove(index);
                    true
                }
                _ => false,
            },
            _ => false,
        };
        match removed {
            true => Ok(self),
            false => bail!("nothing to remove in the bootstrap at {pointer}"),
        }
    }

    // --- addresses ---

    /// Where the admin endpoint listens; `prometheus_stats` follows.
    ///
    /// # Errors
    /// If the file has lost its place.
    pub fn with_admin(self, addr: SocketAddr) -> Result<Self> {
        let cluster = self.cluster("prometheus_stats")?;
        self.patch(at::ADMIN, socket_address(addr))?
            .patch(&format!("{cluster}{}", at::STATIC_ADDRESS), socket_address(addr))
    }

    /// The admin endpoint's address.
    ///
    /// # Errors
    /// If the bootstrap names none.
    pub fn admin(&self) -> Result<SocketAddr> {
        self.socket_address(at::ADMIN)
    }

    /// Where clients reach the services.
    ///
    /// # Errors
    /// If the file has lost its place.
    pub fn with_listener(self, addr: SocketAddr) -> Result<Self> {
        let listener = self.listener("service")?;
        self.patch(&format!("{listener}/address/socket_address"), socket_address(addr))
    }

    /// The listener's address.
    ///
    /// # Errors
    /// If the bootstrap names none.
    pub fn listen(&self) -> Result<SocketAddr> {
        let listener = self.listener("service")?;
        self.socket_address(&format!("{listener}/address/socket_address"))
    }

    /// Where the control plane is, and which protocol to speak with it.
    ///
    /// # Errors
    /// If the file has lost its place.
    pub fn with_ads(self, addr: SocketAddr, protocol: Protocol) -> Result<Self> {
        let cluster = self.cluster("xds-grpc")?;
        let api_type = match protocol {
            Protocol::Sotw => "GRPC",
            Protocol::Delta => "DELTA_GRPC",
        };
        self.patch(&format!("{cluster}{}", at::STATIC_ADDRESS), socket_address(addr))?
            .patch(&format!("{}/api_type", at::ADS), json!(api_type))
    }

    /// How soon Envoy tries again after it lost the control plane; its own default is 500 ms to 30 s,
    /// fully jittered.
    ///
    /// # Errors
    /// If the file has lost its place.
    pub fn with_ads_backoff(self, base: Duration, max: Duration) -> Result<Self> {
        self.patch(
            &format!("{}/grpc_services/0/envoy_grpc/retry_policy", at::ADS),
            json!({ "retry_back_off": { "base_interval": duration(base), "max_interval": duration(max) } }),
        )
    }

    /// The proxy's certificate files.
    ///
    /// # Errors
    /// If the file has lost its place, or a path is not UTF-8.
    pub fn with_certificates(self, files: &CertificateFiles) -> Result<Self> {
        let tls = format!("{}/transport_socket/typed_config/common_tls_context", self.cluster("connect_originate")?);
        let path =
            |path: &Path| -> Result<Value> { Ok(json!({ "filename": path.to_str().context("path is not UTF-8")? })) };
        self.patch(
            &format!("{tls}/tls_certificates"),
            json!([{ "certificate_chain": path(&files.chain)?, "private_key": path(&files.key)? }]),
        )?
        .patch(&format!("{tls}/validation_context/trusted_ca"), path(&files.root)?)
    }

    // --- services ---

    /// One route for each host (port 80), made like the file's example, in this order.
    ///
    /// # Errors
    /// If the file has lost its place.
    pub fn with_services(self, hosts: &[&str]) -> Result<Self> {
        let routes = format!("{}{}", self.hcm()?, at::ROUTES);
        let example =
            self.value.pointer(&format!("{routes}/0")).with_context(|| format!("no example route at {routes}/0"))?;
        let all: Result<Vec<Value>> = hosts
            .iter()
            .map(|host| {
                let route = Bootstrap { value: example.clone(), text: None }
                    .patch("/name", json!(host))?
                    .patch("/match/headers/0/string_match", json!({ "exact": host }))?
                    .patch("/route/cluster", json!(cluster_name(host, 80)))?;
                Ok(route.value)
            })
            .collect();
        self.patch(&routes, Value::Array(all?))
    }

    /// Sets a field of every service's route action, e.g. `("timeout", json!("5s"))`.
    ///
    /// # Errors
    /// If the file has lost its place.
    pub fn with_route_field(self, field: &str, value: &Value) -> Result<Self> {
        let routes = format!("{}{}", self.hcm()?, at::ROUTES);
        let count = self.value.pointer(&routes).and_then(Value::as_array).map_or(0, Vec::len);
        (0..count).try_fold(self, |bootstrap, index| {
            bootstrap.patch(&format!("{routes}/{index}/route/{field}"), value.clone())
        })
    }

    /// How long a request may take in all; zero is no limit.
    ///
    /// # Errors
    /// If the file has lost its place.
    pub fn with_route_timeout(self, timeout: Duration) -> Result<Self> {
        self.with_route_field("timeout", &json!(duration(timeout)))
    }

    /// The `retry_on` of every service's route.
    ///
    /// # Errors
    /// If the file has lost its place.
    pub fn with_retry_on(self, conditions: &str) -> Result<Self> {
        self.with_route_field("retry_policy/retry_on", &json!(conditions))
    }

    // --- tunnels ---

    /// How long an outer connection without a stream is kept.
    ///
    /// # Errors
    /// If the file has lost its place.
    pub fn with_hbone_idle_timeout(self, timeout: Duration) -> Result<Self> {
        let cluster = self.cluster("connect_originate")?;
        self.patch(
            &format!("{cluster}{}/common_http_protocol_options/idle_timeout", at::HTTP_OPTIONS),
            json!(duration(timeout)),
        )
    }

    /// How often a tunnel's CONNECT is tried, 1 being Envoy's default.
    ///
    /// # Errors
    /// If the file has lost its place.
    pub fn with_max_connect_attempts(self, attempts: u32) -> Result<Self> {
        let proxy = self.tunnel_filter("envoy.filters.network.tcp_proxy")?;
        self.patch(&format!("{proxy}/typed_config/max_connect_attempts"), json!(attempts))
    }

    // --- places ---

    /// JSON pointer of the listener of that name.
    ///
    /// # Errors
    /// If there is none.
    pub fn listener(&self, name: &str) -> Result<String> {
        self.named(at::LISTENERS, name)
    }

    /// JSON pointer of the static cluster of that name.
    ///
    /// # Errors
    /// If there is none.
    pub fn cluster(&self, name: &str) -> Result<String> {
        self.named(at::CLUSTERS, name)
    }

    /// JSON pointer of the services' HTTP connection manager.
    ///
    /// # Errors
    /// If there is none.
    pub fn hcm(&self) -> Result<String> {
        let listener = self.listener("service")?;
        self.named(&format!("{listener}{}", at::FILTERS), "envoy.filters.network.http_connection_manager")
    }

    /// JSON pointer of the network filter of that name on `connect_originate`.
    ///
    /// # Errors
    /// If there is none.
    pub fn tunnel_filter(&self, name: &str) -> Result<String> {
        let listener = self.listener("connect_originate")?;
        self.named(&format!("{listener}{}", at::FILTERS), name)
    }

    fn named(&self, list: &str, name: &str) -> Result<String> {
        let position = self
            .value
            .pointer(list)
            .and_then(Value::as_array)
            .and_then(|entries| entries.iter().position(|entry| entry.get("name") == Some(&json!(name))));
        let position = position.with_context(|| format!("the bootstrap has no {name} in {list}"))?;
        Ok(format!("{list}/{position}"))
    }

    fn socket_address(&self, pointer: &str) -> Result<SocketAddr> {
        let place = self.value.pointer(pointer).with_context(|| format!("no address at {pointer}"))?;
        let ip = place.get("address").and_then(Value::as_str).context("address is no string")?;
        let port = place.get("port_value").and_then(Value::as_u64).context("port_value is no number")?;
        Ok(SocketAddr::new(ip.parse()?, u16::try_from(port)?))
    }
}

// === impl CertificateFiles ===

impl CertificateFiles {
    /// Writes PEM texts into `folder`, which must outlive the Envoy that reads them.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(folder: &Path, chain: &str, key: &str, root: &str) -> Result<Self> {
        let write = |name: &str, pem: &str| {
            let path = folder.join(name);
            std::fs::write(&path, pem).with_context(|| format!("write {}", path.display()))?;
            anyhow::Ok(path)
        };
        Ok(Self {
            chain: write("cert-chain.pem", chain)?,
            key: write("key.pem", key)?,
            root: write("root-cert.pem", root)?,
        })
    }
}

fn shipped_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy-config/standalone")
}

/// A length of time as Envoy's JSON writes it.
pub fn duration(duration: Duration) -> String {
    format!("{}.{:09}s", duration.as_secs(), duration.subsec_nanos())
}

fn socket_address(addr: SocketAddr) -> Value {
    json!({ "address": addr.ip().to_string(), "port_value": addr.port() })
}

fn split(pointer: &str) -> Result<(&str, String)> {
    let (parent, key) = pointer.rsplit_once('/').with_context(|| format!("not a JSON pointer: {pointer:?}"))?;
    Ok((parent, key.replace("~1", "/").replace("~0", "~")))
}

#[cfg(test)]
mod tests;
