//! What each variant goes through: steady load, while every pod is replaced three times.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use lab::{
    bootstrap::Variant,
    history::{History, ServerRecord, Vanish},
    load::{HeldStream, Load, Plan, RequestClass, StreamSpec, hold_one_per_pod},
    mesh::{ECHO, Mesh, Setup},
    pod::Pod,
};

use crate::report::VariantResult;

/// The scale and the times of the scenario; the same for every variant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scenario {
    /// Requests per second: 70 % GET, 30 % POST.
    pub(crate) rate: f64,
    pub(crate) workers: u32,
    pub(crate) pods: u8,
    /// How often each pod is replaced.
    pub(crate) replacements: u8,
    /// From EDS removal to the pod's end: Kubernetes gives a pod that long at least to terminate.
    pub(crate) terminating: Duration,
    /// From the pod's end until its address goes to another pod (the CNI's IP cool-down).
    pub(crate) cool_down: Duration,
    /// From a replacement to the next one.
    pub(crate) settle: Duration,
}

/// One variant's mesh under load.
struct Stage {
    scenario: Scenario,
    mesh: Mesh,
    pods: Vec<Pod>,
    streams: Vec<HeldStream>,
    executions: Vec<ServerRecord>,
    vanished: Vec<Vanish>,
    reused: Vec<(Instant, String)>,
}

// === impl Scenario ===

impl Default for Scenario {
    fn default() -> Self {
        Self {
            rate: 250.0,
            workers: 2,
            pods: 4,
            replacements: 3,
            terminating: Duration::from_secs(1),
            cool_down: Duration::from_millis(1_500),
            settle: Duration::from_millis(400),
        }
    }
}

impl Scenario {
    /// The variants that are compared, in order.
    pub(crate) fn variants(&self) -> [Variant; 6] {
        [
            Variant::Stock,
            Variant::RetryOnReset,
            // What Istio's documentation advises: half of the IP's cool-down.
            Variant::HboneIdleTimeout(self.cool_down / 2),
            Variant::MaxConnectAttempts(3),
            Variant::FenceOnly,
            Variant::StaleGuard,
        ]
    }

    /// Pairs of a pod instance and a worker: so many connections are needed at the least, where both
    /// workers get requests for each pod.
    pub(crate) fn pairs(&self) -> u64 {
        u64::from(self.pods) * (1 + u64::from(self.replacements)) * u64::from(self.workers)
    }

    /// Runs one variant.
    pub(crate) async fn run(self, variant: Variant) -> Result<VariantResult> {
        let setup = Setup::new(variant).workers(self.workers);
        let setup = setup.bootstrap(|bootstrap| bootstrap.with_route_timeout(Duration::from_secs(10)));
        let mut stage = Stage::start(self, setup.start().await?).await?;
        let load = Load::start(self.plan(), stage.mesh.connector()).await?;
        tokio::time::sleep(self.settle).await;
        for round in 1..=self.replacements {
            for slot in 0..self.pods {
                stage.replace(slot, round).await?;
                tokio::time::sleep(self.settle).await;
            }
        }
        let report = load.stop(Duration::from_secs(15)).await?;
        stage.finish(variant, report).await
    }

    fn plan(&self) -> Plan {
        let classes =
            vec![RequestClass::get(ECHO, "/").weight(70), RequestClass::post(ECHO, "/", "one order").weight(30)];
        Plan { connections: 32, ..Plan::new("load", self.rate, classes) }
    }
}

// === impl Stage ===

impl Stage {
    async fn start(scenario: Scenario, mesh: Mesh) -> Result<Self> {
        let mut stage = Self {
            scenario,
            mesh,
            pods: Vec::new(),
            streams: Vec::new(),
            executions: Vec::new(),
            vanished: Vec::new(),
            reused: Vec::new(),
        };
        for slot in 0..scenario.pods {
            let pod = stage.mesh.pod(&name(slot, 0), address(slot)).await?;
            stage.mesh.list(ECHO, pod.addr()).await?;
            stage.pods.push(pod);
        }
        let names: Vec<String> = stage.pods.iter().map(|pod| pod.name().to_owned()).collect();
        let held = hold_one_per_pod(&stage.mesh.connector(), &hang(), "stream", &names, 64).await?;
        stage.streams.extend(held.into_values());
        Ok(stage)
    }

    /// EDS removal; a while later the pod vanishes without FIN; a while later its address goes to a
    /// new pod, and EDS lists it. The new pod gets a long-lived stream, too.
    async fn replace(&mut self, slot: u8, instance: u8) -> Result<()> {
        let old = self.pods.remove(0);
        let addr = old.addr();
        self.mesh.unlist(ECHO, addr).await?;
        tokio::time::sleep(self.scenario.terminating).await;
        let executions = old.executions().clone();
        let (gone, from) = (old.name().to_owned(), Instant::now());
        old.vanish().await?;
        self.vanished.push(Vanish { pod: gone, from, until: Instant::now() });
        self.executions.extend(executions.snapshot().into_iter().map(ServerRecord::from));
        tokio::time::sleep(self.scenario.cool_down).await;
        let new = self.mesh.pod(&name(slot, instance), address(slot)).await?;
        self.reused.push((Instant::now(), new.name().to_owned()));
        self.mesh.list(ECHO, addr).await?;
        // The stream comes once each worker has reached the new pod for the load: whatever a worker has
        // to find out first, a request of the load finds out, and counts.
        let workers = self.scenario.workers as usize;
        new.ztunnel()?
            .connections()
            .log()
            .wait_for("each worker's connection", |seen| (seen.len() >= workers).then_some(()))
            .await?;
        let held = hold_one_per_pod(&self.mesh.connector(), &hang(), new.name(), &[new.name().to_owned()], 64).await?;
        self.streams.extend(held.into_values());
        self.pods.push(new);
        Ok(())
    }

    async fn finish(mut self, variant: Variant, report: lab::load::Report) -> Result<VariantResult> {
        self.mesh.envoy.assert_alive().context("Envoy did not survive")?;
        let admin = self.mesh.envoy.admin();
        let cluster = lab::control_plane::cluster_name(ECHO, 80);
        let retries = admin.try_stat(&format!("cluster.{cluster}.upstream_rq_retry")).await?.unwrap_or(0);
        let handshakes = admin.stat("cluster.connect_originate.ssl.handshake").await?;
        for pod in &self.pods {
            self.executions.extend(pod.executions().snapshot().into_iter().map(ServerRecord::from));
        }
        let loaded = |execution: &ServerRecord| execution.id.starts_with("load-");
        let (load, others): (Vec<_>, Vec<_>) = self.executions.drain(..).partition(loaded);
        let other_ids: BTreeMap<String, ()> = others.into_iter().map(|other| (other.id, ())).collect();
        let history = History::new(report, load, other_ids.into_keys());
        VariantResult::measure(&variant.name(), &history, &self.vanished, &self.reused, retries, handshakes)
    }
}

fn name(slot: u8, instance: u8) -> String {
    format!("pod-{slot}-{instance}")
}

fn address(slot: u8) -> u8 {
    slot + 1
}

/// Answers with headers, and a body that stays open.
fn hang() -> StreamSpec {
    StreamSpec::get(ECHO, "/?hang=body")
}
