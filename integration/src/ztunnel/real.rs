//! A real ztunnel in the stand-in's place, in its shared mode: one process in a namespace of its own, to
//! which the lab hands pods as istio-cni does.
//!
//! `ZTUNNEL` names the binary, and `ZTUNNEL_TLS` a folder with `root-cert.pem`, `cert-chain.pem` and
//! `key.pem`: what its certificates are signed by, and a client's certificate of the same authority and trust
//! domain. With `FAKE_CA`, as it is run here, a ztunnel signs with the test authority of its own sources.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tempfile::TempDir;

use super::zds::{Listener, Peer, WorkloadInfo};
use crate::netns::Netns;

/// A running ztunnel process; dropping it kills it.
pub struct Process {
    child: Mutex<Child>,
    zds: Arc<Mutex<Peer>>,
    _folder: TempDir,
}

/// A pod, for a ztunnel that has no control plane to ask.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Its name, which is its id too.
    pub name: String,
    /// Its address.
    pub addr: std::net::IpAddr,
    /// Its Kubernetes namespace.
    pub namespace: String,
    /// Its service account.
    pub service_account: String,
}

/// The binary that `ZTUNNEL` names, if it names one.
#[must_use]
pub fn binary() -> Option<PathBuf> {
    std::env::var_os("ZTUNNEL").filter(|path| !path.is_empty()).map(PathBuf::from)
}

// === impl Process ===

impl Process {
    /// Starts `binary` in a namespace of its own; it knows of `workloads`, and serves none yet. Tunnels that
    /// are open when it is told to end are served for `deadline`.
    ///
    /// # Errors
    /// It does not start, or does not connect to the ZDS socket; its log is part of the error.
    pub async fn start(binary: &Path, workloads: &[Workload], deadline: Duration) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("stale-guard-ztunnel-").tempdir()?;
        let (socket, state) = (folder.path().join("ztunnel.sock"), folder.path().join("workloads.json"));
        // YAML, of which JSON is a part.
        std::fs::write(&state, state_of(workloads).to_string())?;
        let listener = Listener::bind(&socket).context("ZDS socket")?;
        let log = std::fs::File::create(folder.path().join("ztunnel.log"))?;
        let mut command = Command::new(binary);
        command
            .env("PROXY_MODE", "shared")
            .env("INPOD_UDS", &socket)
            .env("LOCAL_XDS_PATH", &state)
            .env("FAKE_CA", "true")
            .env("XDS_ADDRESS", "")
            .env("NODE_NAME", "local")
            // Original source needs the routing rules that istio-cni makes in a pod.
            .env("ENABLE_ORIG_SRC", "false")
            // As the Helm chart has it, the process keeps five of these seconds for itself.
            .env("TERMINATION_GRACE_PERIOD_SECONDS", (deadline + Duration::from_secs(5)).as_secs().to_string())
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = Netns::new("ztunnel")?.spawn(command)?;
        let started = tokio::task::spawn_blocking(move || {
            let mut peer = listener.accept()?;
            peer.snapshot_sent()?;
            anyhow::Ok(peer)
        });
        let mut child = Killed(Some(child));
        let peer = started.await?.with_context(|| {
            let log = std::fs::read_to_string(folder.path().join("ztunnel.log"));
            log.unwrap_or_default()
        })?;
        let child = child.0.take().context("the process is gone")?;
        Ok(Self { child: Mutex::new(child), zds: Arc::new(Mutex::new(peer)), _folder: folder })
    }

    /// Hands a pod over; when this returns, ztunnel listens in its namespace.
    ///
    /// # Errors
    /// ztunnel refuses.
    pub async fn add(&self, workload: &Workload, netns: &Netns) -> Result<()> {
        let info = WorkloadInfo {
            name: workload.name.clone(),
            namespace: workload.namespace.clone(),
            service_account: workload.service_account.clone(),
        };
        let (zds, uid, netns) = (Arc::clone(&self.zds), workload.name.clone(), netns.clone());
        let add = move || zds.lock().unwrap_or_else(PoisonError::into_inner).add(&uid, info, netns.handle());
        tokio::task::spawn_blocking(add).await?
    }

    /// Takes a pod away.
    ///
    /// # Errors
    /// ztunnel refuses.
    pub async fn remove(&self, name: &str) -> Result<()> {
        let (zds, uid) = (Arc::clone(&self.zds), name.to_owned());
        let remove = move || zds.lock().unwrap_or_else(PoisonError::into_inner).remove(&uid);
        tokio::task::spawn_blocking(remove).await?
    }

    /// Tells the process to end, and returns when it has.
    ///
    /// # Errors
    /// It cannot be told.
    pub async fn terminate(&self) -> Result<()> {
        let pid = i32::try_from(self.child().id())?;
        kill(Pid::from_raw(pid), Signal::SIGTERM)?;
        while self.child().try_wait()?.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let mut child = self.child();
        // Fails only if it has ended already.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// A child that does not outlive a start that fails.
struct Killed(Option<Child>);

impl Drop for Killed {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// ztunnel's file of local state.
fn state_of(workloads: &[Workload]) -> serde_json::Value {
    let workloads = workloads.iter().map(|one| {
        let Workload { name, addr, namespace, service_account } = one;
        json!({
            "uid": format!("cluster1//v1/Pod/{namespace}/{name}"),
            "name": name,
            "namespace": namespace,
            "serviceAccount": service_account,
            "workloadIps": [addr.to_string()],
            "protocol": "HBONE",
            "node": "local",
            "network": "",
        })
    });
    json!({ "workloads": workloads.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_that_does_not_speak_zds_is_reported_with_its_log() {
        let workload = Workload {
            name: "pod-1".into(),
            addr: "10.244.1.1".parse().unwrap(),
            namespace: "default".into(),
            service_account: "web".into(),
        };
        assert_eq!(state_of(std::slice::from_ref(&workload))["workloads"][0]["workloadIps"][0], "10.244.1.1");
        let missing = Process::start(Path::new("/no/such/ztunnel"), &[workload], Duration::ZERO).await;
        assert!(format!("{:#}", missing.err().unwrap()).contains("/no/such/ztunnel"));
    }
}
