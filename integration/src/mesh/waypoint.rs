//! The waypoint under test, with its control plane and the network that pods join.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::bootstrap::Bootstrap;
use crate::certs::Authority;
use crate::control_plane::{ControlPlane, Endpoint, cluster_name};
use crate::envoy::{Envoy, Options};
use crate::netns::{Fabric, Link};
use crate::pod::{Pod, PodSpec};

/// The service that most scenes need.
pub const ECHO: &str = "echo.default.svc.cluster.local";

/// Bound on everything that is waited for.
pub const WITHIN: Duration = Duration::from_secs(30);

/// A waypoint, its control plane, and the network that pods join. Everything ends with it.
pub struct Mesh {
    /// The control plane; its changes are pushed at once unless the setup says otherwise.
    pub control_plane: ControlPlane,
    /// The waypoint.
    pub envoy: Envoy,
    /// The network.
    pub fabric: Fabric,
    /// The mesh's certificate authority.
    pub authority: Authority,
    pub(super) listener: SocketAddr,
    pub(super) next_id: AtomicUsize,
    pub(super) bootstrap: Bootstrap,
    pub(super) options: Options,
    pub(super) _link: Link,
    pub(super) _folder: TempDir,
}

// === impl Mesh ===

impl Mesh {
    /// A pod on `10.244.1.<octet>`. EDS does not list it yet.
    ///
    /// # Errors
    /// The namespace could not be made.
    pub async fn pod(&self, name: &str, octet: u8) -> Result<Pod> {
        self.pod_with(PodSpec::new(name, IpAddr::V4(Ipv4Addr::new(10, 244, 1, octet)))).await
    }

    /// A pod as specified. EDS does not list it yet.
    ///
    /// # Errors
    /// The namespace could not be made.
    pub async fn pod_with(&self, spec: PodSpec) -> Result<Pod> {
        Pod::start(&self.fabric, &self.authority, spec).await
    }

    /// Ends the waypoint and starts it again, with the same configuration and control plane.
    ///
    /// # Errors
    /// It does not end, or does not start.
    pub async fn restart_envoy(&mut self) -> Result<()> {
        self.envoy.quit(WITHIN).await?;
        self.control_plane.wait_connected(0, WITHIN).await?;
        let netns = self.envoy.netns().clone();
        self.envoy = Envoy::start_ready(&netns, &self.bootstrap, &self.options, WITHIN).await?;
        self.acked().await?;
        self.listener = (Ipv4Addr::LOCALHOST, self.envoy.admin().listener("service").await?.port()).into();
        Ok(())
    }

    /// Starts the waypoint's successor beside it, as a hot restart does; gives back the predecessor, which
    /// ends by itself. The setup must have chosen a base id.
    ///
    /// # Errors
    /// It does not start.
    pub async fn hot_restart_envoy(&mut self) -> Result<Envoy> {
        let (base, epoch) = self.options.hot_restart.context("no base id was chosen")?;
        self.options.hot_restart = Some((base, epoch + 1));
        let netns = self.envoy.netns().clone();
        let successor = Envoy::start(&netns, &self.bootstrap, &self.options)?;
        // Until the successor takes the admin endpoint over, its predecessor answers.
        let deadline = Instant::now() + WITHIN;
        while successor.admin().stat("server.hot_restart_epoch").await.ok() != Some(u64::from(epoch) + 1) {
            successor.assert_alive()?;
            if Instant::now() > deadline {
                bail!("the successor does not take over: {}", successor.log_tail());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        successor.wait_ready(WITHIN).await?;
        let predecessor = std::mem::replace(&mut self.envoy, successor);
        self.acked().await?;
        self.listener = (Ipv4Addr::LOCALHOST, self.envoy.admin().listener("service").await?.port()).into();
        Ok(predecessor)
    }

    /// EDS lists the pod's address under `host`; returns once Envoy has acknowledged it.
    ///
    /// # Errors
    /// Envoy did not.
    pub async fn list(&self, host: &str, pod: SocketAddr) -> Result<()> {
        self.control_plane.add_endpoint(&cluster_name(host, 80), Endpoint::new(pod.ip(), pod.port()))?;
        self.acked().await
    }

    /// EDS lists the pod's address under `host` no longer; returns once Envoy has acknowledged it and
    /// its workers have closed the service's idle connections to it.
    ///
    /// # Errors
    /// Envoy did not.
    pub async fn unlist(&self, host: &str, pod: SocketAddr) -> Result<()> {
        self.control_plane.remove_endpoint(&cluster_name(host, 80), pod)?;
        self.acked().await
    }

    /// Envoy has acknowledged everything that was pushed.
    ///
    /// # Errors
    /// It did not, or it refused something.
    pub async fn acked(&self) -> Result<()> {
        self.control_plane.wait_acked(self.control_plane.version(), WITHIN).await
    }

    /// No connection of `host`'s cluster to its endpoints is left: the workers have applied a removal.
    ///
    /// # Errors
    /// Some are left.
    pub async fn drained(&self, host: &str) -> Result<()> {
        let stat = format!("cluster.{}.upstream_cx_active", cluster_name(host, 80));
        self.envoy.admin().wait_for_stat(&stat, WITHIN, |active| active == 0).await?;
        Ok(())
    }

    /// A counter or gauge of the module's, by its name without the prefix; 0 where it was not touched.
    ///
    /// # Errors
    /// The admin endpoint did not answer.
    pub async fn stat(&self, name: &str) -> Result<u64> {
        Ok(self.envoy.admin().try_stat(&module_stat(name)).await?.unwrap_or(0))
    }

    /// Waits until a counter or gauge of the module's is as wanted.
    ///
    /// # Errors
    /// It did not become so.
    pub async fn wait_stat(&self, name: &str, wanted: impl Fn(u64) -> bool) -> Result<u64> {
        let deadline = Instant::now() + WITHIN;
        loop {
            let value = self.stat(name).await?;
            if wanted(value) {
                return Ok(value);
            }
            if Instant::now() > deadline {
                bail!("{name} is {value}, which is not what was waited for");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn module_stat(name: &str) -> String {
    format!("dynamicmodulescustom.{name}")
}
