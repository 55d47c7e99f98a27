//! A mesh under load, and the faults as they happen to it.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lab::bootstrap::{ExtensionPoint, Variant};
use lab::envoy::Binary;
use lab::history::laws::{Fence, TunnelRecord};
use lab::history::{History, ServerRecord};
use lab::load::{Load, Plan as LoadPlan, RequestClass};
use lab::mesh::{ECHO, Mesh, Setup};
use lab::pod::{Connection, Ending, Log, Pod};
use lab::ztunnel::Tunnel;
use serde_json::json;

use crate::faults::{Fault, Plan, SLOTS, Step};

/// How long a pod that flaps is away: longer than a CONNECT may be on its way, so that a tunnel after its
/// return was begun after its removal.
const AWAY: Duration = Duration::from_millis(300);

/// How the module learns of EDS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Config validators, and polls; Envoy 1.40.
    Validator,
    /// Polls alone, on Envoy 1.39: what Istio has today.
    Polls,
}

/// Something that happened, for people and for excuses.
pub struct Event {
    pub fault: Fault,
    pub pod: String,
    pub from: Instant,
    pub until: Instant,
}

/// All that one run left behind.
pub struct Run {
    pub title: String,
    pub mesh: Mesh,
    pub source: Source,
    pub history: History,
    pub tunnels: Vec<TunnelRecord>,
    pub fences: Vec<Fence>,
    pub events: Vec<Event>,
    pub removed: u64,
    pub added: u64,
}

/// Logs of a pod that may be gone.
struct Logs {
    ip: String,
    executions: Log<lab::app::Execution>,
    connections: Log<Connection>,
    tunnels: Log<Tunnel>,
}

struct Stage {
    mesh: Mesh,
    guarded: bool,
    source: Source,
    pods: Vec<Option<Pod>>,
    logs: Vec<Logs>,
    instances: usize,
    removed: u64,
    added: u64,
    fences: Vec<Fence>,
    events: Vec<Event>,
}

/// Runs the whole plan on one variant.
pub async fn run(plan: &Plan, source: Source, variant: Variant) -> Result<Run> {
    let mut stage = Stage::start(source, variant).await?;
    for slot in 0..SLOTS {
        let pod = stage.successor(slot).await?;
        stage.list(slot, pod).await?;
    }
    let classes = vec![
        RequestClass::get(ECHO, "/?delay_ms=5").weight(60),
        RequestClass::post(ECHO, "/?delay_ms=5", "one order").weight(40),
    ];
    let load = LoadPlan { connections: 24, ..LoadPlan::new("churn", 120.0, classes) };
    let load = Load::start(load, stage.mesh.connector()).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    for step in &plan.steps {
        stage.play(*step).await.with_context(|| format!("{step:?}"))?;
        tokio::time::sleep(step.pause).await;
    }
    let report = load.stop(Duration::from_secs(10)).await?;
    stage.mesh.envoy.assert_alive()?;
    let title = format!("{} ({source:?}), seed {}", variant.name(), plan.seed);
    Ok(stage.finish(title, report))
}

// === impl Stage ===

impl Stage {
    async fn start(source: Source, variant: Variant) -> Result<Self> {
        let version = match source {
            Source::Validator => "1.40.0",
            Source::Polls => "1.39.3",
        };
        let binary = Binary::version(version)?;
        let guarded = variant.has_module();
        let mut setup = Setup::new(variant).workers(2).envoy(|options| options.binary = Some(binary));
        setup = setup.bootstrap(|bootstrap| bootstrap.with_route_timeout(Duration::from_secs(5)));
        if guarded && source == Source::Polls {
            let polls = json!({ "watch": { "source": "admin", "cluster": "prometheus_stats",
                "min_interval": "50ms", "max_interval": "100ms" } });
            setup = setup
                .bootstrap(|bootstrap| bootstrap.without_config_validators())
                .bootstrap(move |bootstrap| bootstrap.with_config_fields(ExtensionPoint::Status, &polls));
        }
        Ok(Self {
            mesh: setup.start().await?,
            guarded,
            source,
            pods: (0..SLOTS).map(|_| None).collect(),
            logs: Vec::new(),
            instances: 0,
            removed: 0,
            added: 0,
            fences: Vec::new(),
            events: Vec::new(),
        })
    }

    async fn play(&mut self, step: Step) -> Result<()> {
        let Step { fault, slot, .. } = step;
        let pod = self.pods[slot].take().context("the slot is empty")?;
        let (name, from) = (pod.name().to_owned(), Instant::now());
        match fault {
            Fault::Vanish => {
                self.unlist(&pod).await?;
                let successor = self.replace(slot, pod).await?;
                self.list(slot, successor).await?;
            }
            Fault::EndGracefully => {
                self.unlist(&pod).await?;
                pod.end_within(Duration::from_secs(1)).await?;
                let successor = self.successor(slot).await?;
                self.list(slot, successor).await?;
            }
            Fault::Flap => {
                self.unlist(&pod).await?;
                tokio::time::sleep(AWAY).await;
                self.list(slot, pod).await?;
            }
            Fault::ReplaceInTheDark => self.pods[slot] = Some(self.replace(slot, pod).await?),
            Fault::RestartZtunnel => {
                let ztunnel = pod.ztunnel()?;
                ztunnel.refuse().await;
                ztunnel.connections().end_all(Ending::Fin).await?;
                tokio::time::sleep(Duration::from_millis(100)).await;
                ztunnel.listen()?;
                self.pods[slot] = Some(pod);
            }
        }
        self.events.push(Event { fault, pod: name, from, until: Instant::now() });
        Ok(())
    }

    async fn replace(&mut self, slot: usize, pod: Pod) -> Result<Pod> {
        pod.vanish().await?;
        self.successor(slot).await
    }

    async fn successor(&mut self, slot: usize) -> Result<Pod> {
        let name = format!("pod-{slot}-{}", self.instances);
        self.instances += 1;
        let pod = self.mesh.pod(&name, u8::try_from(slot)? + 1).await?;
        let ztunnel = pod.ztunnel()?;
        self.logs.push(Logs {
            ip: pod.ip().to_string(),
            executions: pod.executions().clone(),
            connections: ztunnel.connections().log().clone(),
            tunnels: ztunnel.tunnels().clone(),
        });
        Ok(pod)
    }

    /// EDS lists the pod, and the module knows it.
    async fn list(&mut self, slot: usize, pod: Pod) -> Result<()> {
        let from = Instant::now();
        self.mesh.list(ECHO, pod.addr()).await?;
        self.added += 1;
        self.seen("added", self.added).await?;
        self.fence(&pod, from);
        self.pods[slot] = Some(pod);
        Ok(())
    }

    /// EDS lists the pod no more, the module knows it, and no tunnel to it is open.
    async fn unlist(&mut self, pod: &Pod) -> Result<()> {
        let from = Instant::now();
        self.mesh.unlist(ECHO, pod.addr()).await?;
        self.removed += 1;
        self.seen("removed", self.removed).await?;
        self.fence(pod, from);
        let closed = |all: &[Tunnel]| all.iter().all(|one| one.closed.is_some()).then_some(());
        pod.ztunnel()?.tunnels().wait_for("the end of all tunnels", closed).await
    }

    async fn seen(&self, what: &str, count: u64) -> Result<()> {
        if self.guarded && self.source == Source::Polls {
            self.mesh.wait_stat(&format!("watch_admin_{what}"), |seen| seen >= count).await?;
        }
        Ok(())
    }

    fn fence(&mut self, pod: &Pod, from: Instant) {
        self.fences.push(Fence { endpoint: pod.ip().to_string(), from, until: Instant::now() });
    }

    fn finish(self, title: String, report: lab::load::Report) -> Run {
        let mut executions: Vec<ServerRecord> = Vec::new();
        let mut tunnels = Vec::new();
        for logs in &self.logs {
            executions.extend(logs.executions.snapshot().into_iter().map(ServerRecord::from));
            let connections = logs.connections.snapshot();
            tunnels.extend(logs.tunnels.snapshot().into_iter().map(|tunnel| TunnelRecord {
                connection: tunnel.peer.to_string(),
                endpoint: logs.ip.clone(),
                connection_opened: connections[tunnel.connection].opened,
                opened: tunnel.opened,
            }));
        }
        let history = History::new(report, executions, []);
        let Self { mesh, source, fences, events, removed, added, .. } = self;
        Run { title, mesh, source, history, tunnels, fences, events, removed, added }
    }
}

// === impl Run ===

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requests = self.history.requests.len();
        writeln!(f, "{}: {requests} requests, {} tunnels", self.title, self.tunnels.len())?;
        for event in &self.events {
            let at = |time: Instant| time.saturating_duration_since(self.history.origin).as_secs_f64();
            let (from, until) = (at(event.from), at(event.until));
            writeln!(f, "  +{from:.3}s to +{until:.3}s {:?} of {}", event.fault, event.pod)?;
        }
        for failed in self.history.requests.iter().filter(|request| !request.success()) {
            let at = failed.started.saturating_duration_since(self.history.origin).as_secs_f64();
            writeln!(f, "  +{at:.3}s {} failed: {}", failed.id, failed.outcome)?;
        }
        Ok(())
    }
}
