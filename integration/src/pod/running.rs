//! A running pod.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Context as _;

use super::spec::PodSpec;
use crate::app::{App, AppSpec, Behaviour, Execution, Script};
use crate::certs::Authority;
use crate::netns::{Fabric, Link, Netns};
use crate::tcp::{Connections, Ending, Log};
use crate::ztunnel::{HBONE_PORT, Tunnel, Ztunnel};

/// A running pod. Dropping it removes everything it had, without ceremony: RST where the network
/// still carries it.
pub struct Pod {
    spec: PodSpec,
    // Fields are dropped in this order; the link goes last, as when a process is killed.
    apps: Vec<App>,
    ztunnel: Option<Ztunnel>,
    executions: Log<Execution>,
    script: Script,
    ns: Netns,
    link: Link,
}

// === impl Pod ===

impl Pod {
    /// Starts a pod; when this returns, its ports accept connections.
    ///
    /// # Errors
    /// The spec has no address or no port, an address is held by a live pod, or the kernel refuses.
    pub async fn start(fabric: &Fabric, authority: &Authority, spec: PodSpec) -> anyhow::Result<Self> {
        let ns = Netns::new(&spec.name)?;
        let executions = Log::default();
        let script = spec.script.clone().unwrap_or_default();
        if spec.behaviour != Behaviour::Normal {
            script.until_told(spec.behaviour);
        }
        let apps = spec.ports.iter().map(|port| {
            let app = AppSpec {
                pod: spec.name.clone(),
                port: *port,
                keep_alive: spec.keep_alive,
                keep_headers: spec.keep_headers,
            };
            App::start(&ns, app, script.clone(), executions.clone())
        });
        let apps: Vec<_> = apps.collect::<Result<_, _>>()?;
        let ztunnel = if spec.hbone {
            let identity = authority.issue(&spec.spiffe_id())?;
            Some(Ztunnel::start(&ns, authority, &identity)?)
        } else {
            None
        };
        let link = fabric.attach(&ns, &spec.addrs).await.context(format!("pod {}", spec.name))?;
        Ok(Self { spec, apps, ztunnel, executions, script, ns, link })
    }

    /// What it was started with.
    #[must_use]
    pub fn spec(&self) -> &PodSpec {
        &self.spec
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Its first address.
    ///
    /// # Panics
    /// Never: a pod without an address does not start.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        self.spec.addrs.first().copied().unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED))
    }

    /// Its first address and its first application port.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::new(self.ip(), self.spec.ports.first().copied().unwrap_or_default())
    }

    /// Its first address and ztunnel's port.
    #[must_use]
    pub fn hbone_addr(&self) -> SocketAddr {
        SocketAddr::new(self.ip(), HBONE_PORT)
    }

    /// Its namespace.
    #[must_use]
    pub fn netns(&self) -> &Netns {
        &self.ns
    }

    /// Its link, for black holes.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// What its applications do with the next requests: one script for all ports.
    #[must_use]
    pub fn script(&self) -> &Script {
        &self.script
    }

    /// What its applications executed, on all ports.
    #[must_use]
    pub fn executions(&self) -> &Log<Execution> {
        &self.executions
    }

    /// Its applications, in the order of the spec's ports.
    #[must_use]
    pub fn apps(&self) -> &[App] {
        &self.apps
    }

    /// Its first application.
    ///
    /// # Errors
    /// It has none.
    pub fn app(&self) -> anyhow::Result<&App> {
        self.apps.first().with_context(|| format!("pod {} has no application", self.name()))
    }

    /// Its ztunnel.
    ///
    /// # Errors
    /// The spec asked for none.
    pub fn ztunnel(&self) -> anyhow::Result<&Ztunnel> {
        self.ztunnel.as_ref().with_context(|| format!("pod {} has no ztunnel", self.name()))
    }

    /// How often a request with this id was executed.
    #[must_use]
    pub fn executed(&self, id: &str) -> usize {
        self.executions.with(|all| all.iter().filter(|one| one.id == id).count())
    }

    /// Waits until a request with this id was executed.
    ///
    /// # Errors
    /// It did not happen before the deadline.
    pub async fn wait_for_execution(&self, id: &str) -> anyhow::Result<Execution> {
        let what = format!("execution of {id} on pod {}", self.name());
        self.executions.wait_for(&what, |all| all.iter().find(|one| one.id == id).cloned()).await
    }

    /// Waits until its ztunnel has opened at least `count` tunnels, counting closed ones.
    ///
    /// # Errors
    /// No ztunnel, or it did not happen before the deadline.
    pub async fn wait_for_tunnels(&self, count: usize) -> anyhow::Result<Vec<Tunnel>> {
        self.ztunnel()?.wait_for_tunnels(count).await
    }

    /// The pod is gone from one moment to the next, and nobody is told: the link is cut first, then
    /// the sockets are closed. No FIN and no RST reaches a peer. The address is free afterwards.
    ///
    /// # Errors
    /// Netlink failed, or a socket stayed open.
    pub async fn vanish(self) -> anyhow::Result<()> {
        let Self { apps, ztunnel, link, ns, .. } = self;
        link.cut().await?;
        end_all(&apps, ztunnel.as_ref(), Ending::Rst).await?;
        drop((apps, ztunnel, ns));
        Ok(())
    }

    /// As a pod that has a `preStop` hook and time: it stops accepting, the application finishes
    /// its requests, ztunnel sends GOAWAY and closes with FIN once its tunnels are done; then the
    /// link goes.
    ///
    /// # Errors
    /// Requests or tunnels were still open at the deadline ([`crate::tcp::DEADLINE`]); the pod is gone all the
    /// same.
    pub async fn end_gracefully(self) -> anyhow::Result<()> {
        self.drain().await?;
        self.link.cut().await
    }

    /// As [`Pod::end_gracefully`], but what is still open after `grace` is closed with FIN, as when
    /// Kubernetes kills a pod whose `terminationGracePeriodSeconds` is over. Returns whether
    /// everything was done by itself.
    ///
    /// # Errors
    /// Netlink failed, or a socket stayed open.
    pub async fn end_within(self, grace: Duration) -> anyhow::Result<bool> {
        let drained = tokio::time::timeout(grace, self.drain()).await;
        end_all(&self.apps, self.ztunnel.as_ref(), Ending::Fin).await?;
        self.link.cut().await?;
        Ok(matches!(drained, Ok(Ok(()))))
    }

    async fn drain(&self) -> anyhow::Result<()> {
        let applications = futures::future::try_join_all(self.apps.iter().map(App::drain));
        let tunnels = async {
            match &self.ztunnel {
                Some(ztunnel) => ztunnel.drain().await,
                None => Ok(()),
            }
        };
        tokio::try_join!(applications, tunnels).map(drop)
    }

    /// Everything in the pod dies at once, and its kernel says so: RST on every connection. Then
    /// the link goes.
    ///
    /// # Errors
    /// Netlink failed, or a socket stayed open.
    pub async fn crash(self) -> anyhow::Result<()> {
        end_all(&self.apps, self.ztunnel.as_ref(), Ending::Rst).await?;
        self.link.cut().await
    }

    /// All processes of the pod stand still; its kernel goes on acknowledging and accepting.
    pub fn freeze(&self) {
        self.all_connections().for_each(Connections::freeze);
    }

    /// Undoes [`Pod::freeze`].
    pub fn thaw(&self) {
        self.all_connections().for_each(Connections::thaw);
    }

    fn all_connections(&self) -> impl Iterator<Item = &Connections> {
        let outer = self.ztunnel.iter().map(Ztunnel::connections);
        outer.chain(self.apps.iter().map(App::connections))
    }
}

/// Outer connections first: what a peer sees must be the pod's end, not its application's.
async fn end_all(apps: &[App], ztunnel: Option<&Ztunnel>, ending: Ending) -> anyhow::Result<()> {
    if let Some(ztunnel) = ztunnel {
        ztunnel.refuse().await;
        ztunnel.connections().end_all(ending).await?;
    }
    for app in apps {
        app.refuse().await;
        app.connections().end_all(ending).await?;
    }
    Ok(())
}
