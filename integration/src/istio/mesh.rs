//! A waypoint on what istiod generates, with pods behind it and a client in front.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::install::{Edit, WAYPOINT_IP, bootstrap, bootstrap_override, lab_override, manifests, merge};
use super::objects::{self, UPSTREAM_ENVOY};
use super::{Agent, AgentPath, Istiod, Outbound, Sds, Settings};
use crate::bootstrap::Bootstrap;
use crate::certs::{Authority, spiffe_id};
use crate::envoy::{Envoy, Options, module};
use crate::netns::{Fabric, Link, Netns};
use crate::pod::{Pod, PodSpec};
use crate::ztunnel::HBONE_PORT;

const CLIENT_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 244, 0, 3));
/// What the waypoint's Envoy says it is; the manifests' `proxyVersion` looks at it.
const ISTIO_VERSION: &str = "1.31.0";
const POLL: Duration = Duration::from_millis(20);
const WITHIN: Duration = Duration::from_secs(30);

/// What of Stale Guard is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Nothing.
    Stock,
    /// `envoy-config/istio/waypoint/overlays/observe`.
    Observe,
    /// `envoy-config/istio/waypoint/overlays/enforce`.
    Enforce,
}

/// What a mesh is started with.
pub struct Setup {
    guard: Guard,
    settings: Settings,
    options: Options,
    validator: bool,
    istio_version: String,
    manifests: Option<PathBuf>,
    objects: Vec<String>,
    edit: Vec<Edit>,
}

/// The whole; everything ends with it.
pub struct IstioMesh {
    /// istiod.
    pub istiod: Istiod,
    /// The waypoint's Envoy.
    pub envoy: Envoy,
    /// pilot-agent's way to istiod.
    pub agent: Agent,
    /// pilot-agent's certificates.
    pub sds: Sds,
    /// The network.
    pub fabric: Fabric,
    /// The mesh's certificate authority.
    pub authority: Authority,
    guard: Guard,
    manifests: Option<String>,
    pub(super) client: Netns,
    proxy: Netns,
    settings: Settings,
    pub(super) outbounds: BTreeMap<String, Outbound>,
    pub(super) next_id: AtomicUsize,
    _links: [Link; 2],
    _folder: TempDir,
}

/// The name of the EDS cluster that istiod makes for a service's port.
#[must_use]
pub fn inbound_cluster(service: &str, port: u16) -> String {
    format!("inbound-vip|{port}|http|{service}.default.svc.cluster.local")
}

// === impl Guard ===

impl Guard {
    fn overlay(self) -> Result<&'static str> {
        match self {
            Self::Stock => bail!("nothing is installed"),
            Self::Observe => Ok("observe"),
            Self::Enforce => Ok("enforce"),
        }
    }
}

// === impl Setup ===

impl Setup {
    /// istiod as installed, one worker, the service `echo` on 10.96.1.1.
    #[must_use]
    pub fn new(guard: Guard) -> Self {
        let echo = objects::Service::new("echo", IpAddr::V4(Ipv4Addr::new(10, 96, 1, 1)));
        Self {
            guard,
            settings: Settings::default(),
            options: Options::default(),
            validator: false,
            istio_version: ISTIO_VERSION.to_owned(),
            manifests: None,
            objects: vec![echo.yaml()],
            edit: Vec::new(),
        }
    }

    /// How istiod is run.
    #[must_use]
    pub fn istiod(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// How Envoy is run.
    #[must_use]
    pub fn envoy(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.options);
        self
    }

    /// With the config validators of the standalone configuration, which no build of Istio has and Envoy 1.40
    /// does.
    #[must_use]
    pub fn validator(mut self) -> Self {
        self.validator = true;
        self
    }

    /// What the waypoint says its Istio is; the manifests' `proxyVersion` looks at it.
    #[must_use]
    pub fn istio_version(mut self, version: &str) -> Self {
        version.clone_into(&mut self.istio_version);
        self
    }

    /// Another folder of manifests below `envoy-config/istio`.
    #[must_use]
    pub fn overlay(mut self, folder: &str) -> Self {
        self.manifests = Some(folder.into());
        self
    }

    /// More objects, applied before Envoy starts.
    #[must_use]
    pub fn objects(mut self, yaml: impl Into<String>) -> Self {
        self.objects.push(yaml.into());
        self
    }

    /// A change to the manifests, as an operator makes it.
    #[must_use]
    pub fn manifests(mut self, edit: impl Fn(String) -> String + Send + 'static) -> Self {
        self.edit.push(Box::new(edit));
        self
    }

    /// Starts everything but pods.
    ///
    /// # Errors
    /// Something is missing or refused; Envoy's log is part of the error.
    pub async fn start(self) -> Result<IstioMesh> {
        let fabric = Fabric::new().await?;
        let (proxy, client) = (Netns::new("waypoint")?, Netns::new("client")?);
        let links = [fabric.attach(&proxy, &[WAYPOINT_IP]).await?, fabric.attach(&client, &[CLIENT_IP]).await?];
        let authority = Authority::new()?;
        let folder = tempfile::Builder::new().prefix("stale-guard-istio-").tempdir()?;
        let istiod = Istiod::start(&proxy, &self.settings).await?;
        istiod.apply(&objects::waypoint(WAYPOINT_IP)).await?;
        istiod.apply(UPSTREAM_ENVOY).await?;
        for objects in &self.objects {
            istiod.apply(objects).await?;
        }
        let mut overrides = lab_override();
        let mut options = self.options;
        let mut installed = None;
        if self.guard != Guard::Stock {
            let overlay = match self.manifests {
                Some(folder) => folder,
                None => Path::new("waypoint/overlays").join(self.guard.overlay()?),
            };
            let manifests = manifests(&istiod, &overlay, &self.edit).await?;
            istiod.apply(&manifests).await?;
            merge(&mut overrides, bootstrap_override(&manifests)?);
            installed = Some(manifests);
            options.module = Some(match options.module {
                Some(module) => module,
                None => module()?,
            });
        }
        if self.validator {
            let standalone = Bootstrap::load()?;
            let place = "/dynamic_resources/ads_config/config_validators";
            let validators = standalone.value().pointer(place).context("no config validators")?;
            merge(
                &mut overrides,
                json!({ "dynamic_resources": { "ads_config": { "config_validators": validators } } }),
            );
        }
        // As pilot-agent runs Envoy.
        options.args.extend(
            ["--drain-time-s", "45", "--drain-strategy", "immediate", "--allow-unknown-static-fields", "--config-yaml"]
                .map(str::to_owned),
        );
        options.args.push(overrides.to_string());
        let bootstrap = bootstrap(&istiod, folder.path(), "waypoint", &self.istio_version).await?;
        let identity = authority.issue(&spiffe_id("default", "waypoint"))?;
        let sds = Sds::start(&folder.path().join("SDS"), &authority, identity)?;
        let agent = Agent::start(&folder.path().join("XDS"), &proxy, istiod.ads())?;
        let envoy = Envoy::start_ready(&proxy, &bootstrap, &options, WITHIN).await?;
        istiod.settled(1, WITHIN).await?;
        let mut mesh = IstioMesh {
            istiod,
            envoy,
            agent,
            sds,
            fabric,
            authority,
            guard: self.guard,
            manifests: installed,
            client,
            proxy,
            settings: self.settings,
            outbounds: BTreeMap::new(),
            next_id: AtomicUsize::new(0),
            _links: links,
            _folder: folder,
        };
        mesh.reach("echo", SocketAddr::from(([10, 96, 1, 1], 80)))?;
        Ok(mesh)
    }
}

// === impl IstioMesh ===

impl IstioMesh {
    /// What of Stale Guard is installed.
    #[must_use]
    pub fn guard(&self) -> Guard {
        self.guard
    }

    /// The manifests as they were applied; none on stock Istio.
    #[must_use]
    pub fn manifests(&self) -> Option<&str> {
        self.manifests.as_deref()
    }

    /// Lets the client reach a service under `name`: its ztunnel sends what goes to `address` to the waypoint.
    ///
    /// # Errors
    /// No certificate, or no port.
    pub fn reach(&mut self, name: &str, address: SocketAddr) -> Result<()> {
        let identity = self.authority.issue(&spiffe_id("default", "client"))?;
        let tls = self.authority.client_config(&identity)?;
        let waypoint = SocketAddr::new(WAYPOINT_IP, HBONE_PORT);
        let outbound = Outbound::start(&self.client, waypoint, address, tls)?;
        self.outbounds.insert(name.to_owned(), outbound);
        Ok(())
    }

    /// A pod on `10.244.1.<octet>`; istiod does not know it yet.
    ///
    /// # Errors
    /// The namespace could not be made.
    pub async fn pod(&self, name: &str, octet: u8) -> Result<Pod> {
        self.pod_with(PodSpec::new(name, IpAddr::V4(Ipv4Addr::new(10, 244, 1, octet)))).await
    }

    /// A pod as specified; istiod does not know it yet.
    ///
    /// # Errors
    /// The namespace could not be made.
    pub async fn pod_with(&self, spec: PodSpec) -> Result<Pod> {
        Pod::start(&self.fabric, &self.authority, spec).await
    }

    /// The API server has the pod, ready, as one of the service `app`.
    ///
    /// # Errors
    /// It is refused.
    pub async fn announce(&self, pod: &Pod, app: &str) -> Result<()> {
        self.istiod.apply(&objects::Pod::new(pod.name(), app, pod.ip()).yaml()).await.map(drop)
    }

    /// Waits until Envoy's main thread has exactly these endpoints of a service's port 80, whatever their
    /// health.
    ///
    /// # Errors
    /// It does not get them.
    pub async fn listed(&self, service: &str, pods: &[SocketAddr]) -> Result<()> {
        self.envoy.admin().wait_for_endpoints(&inbound_cluster(service, 80), WITHIN, pods).await
    }

    /// Waits until Envoy has a service's endpoint with that EDS health: `HEALTHY`, `UNHEALTHY`, `DRAINING`.
    ///
    /// # Errors
    /// It does not.
    pub async fn health(&self, service: &str, endpoint: SocketAddr, wanted: &str) -> Result<()> {
        let (cluster, endpoint) = (inbound_cluster(service, 80), endpoint.to_string());
        self.eventually(&format!("{endpoint} {wanted}"), async || {
            let clusters = self.envoy.admin().clusters_json().await?;
            let all = clusters.pointer("/cluster_statuses").and_then(Value::as_array).cloned().unwrap_or_default();
            let hosts = all
                .iter()
                .filter(|entry| entry.get("name").and_then(Value::as_str) == Some(&cluster))
                .filter_map(|entry| entry.get("host_statuses").and_then(Value::as_array))
                .flatten();
            let mut hosts = hosts.filter(|host| {
                let id = host.pointer("/address/envoy_internal_address/endpoint_id").and_then(Value::as_str);
                id == Some(&endpoint)
            });
            let health = hosts.next().and_then(|host| host.pointer("/health_status/eds_health_status"));
            // Envoy leaves the default out.
            Ok(health.and_then(Value::as_str).unwrap_or("none") == wanted)
        })
        .await
    }

    /// Waits until the module knows at least so many addresses that are listed. On stock Envoy there is nobody
    /// to wait for.
    ///
    /// # Errors
    /// It does not.
    pub async fn known(&self, addresses: u64) -> Result<()> {
        if self.guard == Guard::Stock {
            return Ok(());
        }
        let listed = |listed| listed >= addresses;
        self.envoy.admin().wait_for_stat("dynamicmodulescustom.endpoints_listed", WITHIN, listed).await.map(drop)
    }

    /// Waits until the module's page says so of an address: `present` or `gone`, and at least so many
    /// removals. On stock Envoy there is nobody to wait for.
    ///
    /// # Errors
    /// It does not.
    pub async fn seen(&self, ip: IpAddr, presence: &str, removals: u64) -> Result<()> {
        if self.guard == Guard::Stock {
            return Ok(());
        }
        let what = format!("{ip} {presence} after {removals} removals");
        let look = self.eventually(&what, async || {
            let page = self.page(ip).await?;
            let is = page.get("presence").and_then(Value::as_str) == Some(presence);
            Ok(is && page.get("removals").and_then(Value::as_u64) >= Some(removals))
        });
        match look.await {
            Ok(()) => Ok(()),
            Err(error) => Err(error.context(self.envoy.admin().get("/stale-guard").await?)),
        }
    }

    /// What the module's page says of an address.
    ///
    /// # Errors
    /// There is no page.
    pub async fn page(&self, ip: IpAddr) -> Result<Value> {
        let page = self.envoy.admin().get(&format!("/stale-guard?endpoint={ip}")).await?;
        let page: Value = serde_json::from_str(&page)?;
        Ok(page.pointer("/endpoints/0").cloned().unwrap_or(Value::Null))
    }

    /// Waits until the last connection of a service's own pool is closed: the workers have applied a removal.
    ///
    /// # Errors
    /// Some stay.
    pub async fn drained(&self, service: &str) -> Result<()> {
        let stat = format!("cluster.{};.upstream_cx_active", inbound_cluster(service, 80));
        self.envoy.admin().wait_for_stat(&stat, WITHIN, |active| active == 0).await.map(drop)
    }

    /// A counter or gauge of Envoy's, by its name; 0 where it was not touched.
    ///
    /// # Errors
    /// The admin endpoint did not answer.
    pub async fn stat(&self, name: &str) -> Result<u64> {
        self.envoy.admin().stat(name).await
    }

    /// Envoy's configuration as it is in force, by `/config_dump`.
    ///
    /// # Errors
    /// The admin endpoint did not answer.
    pub async fn config_dump(&self) -> Result<Value> {
        serde_json::from_str(&self.envoy.admin().get("/config_dump").await?).context("/config_dump is no JSON")
    }

    /// The network filters of each chain of a listener, by name, and the HTTP filters of each chain that has an
    /// HTTP connection manager: (chain's name, network filters, HTTP filters).
    ///
    /// # Errors
    /// There is no such listener.
    pub async fn filters(&self, listener: &str) -> Result<Vec<(String, Vec<String>, Vec<String>)>> {
        let dump = self.config_dump().await?;
        let found = listeners(&dump).find(|one| one.get("name").and_then(Value::as_str) == Some(listener));
        let found = found.with_context(|| format!("no listener {listener}"))?;
        let chains = found.get("filter_chains").and_then(Value::as_array).into_iter().flatten();
        let chains = chains.chain(found.get("default_filter_chain"));
        Ok(chains.map(chain).collect())
    }

    /// istiod ends; streams to it end too, and new ones are refused by the agent.
    pub fn stop_istiod(&self) {
        self.agent.set(AgentPath::Refused);
    }

    /// Another istiod takes its place, with the objects in `yaml`.
    ///
    /// # Errors
    /// It does not start.
    pub async fn replace_istiod(&mut self, yaml: &[String]) -> Result<()> {
        let istiod = Istiod::start(&self.proxy, &self.settings).await?;
        for objects in yaml {
            istiod.apply(objects).await?;
        }
        self.agent.set(AgentPath::Istiod(istiod.ads()));
        self.istiod = istiod;
        Ok(())
    }

    /// Looks again and again until the look is true.
    ///
    /// # Errors
    /// It does not become so.
    pub async fn eventually(&self, what: &str, look: impl AsyncFn() -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + WITHIN;
        while !look().await? {
            ensure!(Instant::now() < deadline, "not within {WITHIN:?}: {what}");
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }
}

/// The listeners of a configuration dump, static and dynamic, in force.
fn listeners(dump: &Value) -> impl Iterator<Item = &Value> {
    let configs = dump.get("configs").and_then(Value::as_array).into_iter().flatten();
    configs.flat_map(|config| {
        let fixed = config.get("static_listeners").and_then(Value::as_array).into_iter().flatten();
        let dynamic = config.get("dynamic_listeners").and_then(Value::as_array).into_iter().flatten();
        let fixed = fixed.filter_map(|one| one.get("listener"));
        fixed.chain(dynamic.filter_map(|one| one.pointer("/active_state/listener")))
    })
}

fn chain(chain: &Value) -> (String, Vec<String>, Vec<String>) {
    let name = |value: &Value| value.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let filters = chain.get("filters").and_then(Value::as_array).cloned().unwrap_or_default();
    let http = filters.iter().filter_map(|filter| filter.pointer("/typed_config/http_filters")?.as_array());
    (name(chain), filters.iter().map(name).collect(), http.flatten().map(name).collect())
}
