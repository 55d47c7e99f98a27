//! The process `istiod-lab`, and its commands.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};

use crate::netns::Netns;

const POLL: Duration = Duration::from_millis(20);
const START: Duration = Duration::from_secs(30);
const REQUEST: Duration = Duration::from_secs(30);

/// How istiod collects changes before it pushes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debounce {
    /// `PILOT_DEBOUNCE_AFTER`: a push waits for a quiet time of this length...
    pub after: Duration,
    /// `PILOT_DEBOUNCE_MAX`: ...but not longer than this.
    pub max: Duration,
}

/// What istiod is started with.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Debounce; istiod's own by default.
    pub debounce: Debounce,
    /// YAML that is merged over the mesh configuration as the chart writes it.
    pub mesh: String,
}

/// A running istiod; dropping it kills the process.
#[derive(Debug)]
pub struct Istiod {
    child: Child,
    ads: SocketAddr,
    folder: TempDir,
}

// === impl Debounce ===

impl Default for Debounce {
    fn default() -> Self {
        Self { after: Duration::from_millis(100), max: Duration::from_secs(10) }
    }
}

// === impl Istiod ===

impl Istiod {
    /// Starts it in `netns`, where it serves delta ADS on a loopback port of its choice.
    ///
    /// # Errors
    /// The program is not built, or does not start; the end of its log is in the error.
    pub async fn start(netns: &Netns, settings: &Settings) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("stale-guard-istiod-").tempdir().context("folder for istiod")?;
        let at = |name: &str| folder.path().join(name);
        fs::write(at("mesh.yaml"), &settings.mesh)?;
        let mut command = Command::new(program()?);
        command
            .arg("-api")
            .arg(at("api"))
            .args(["-ads", "tcp:127.0.0.1:0", "-mesh"])
            .arg(at("mesh.yaml"))
            // What the ambient profile sets, and nothing of the caller's.
            .env_clear()
            .env("PILOT_ENABLE_AMBIENT", "true")
            .env("PILOT_DEBOUNCE_AFTER", format!("{}ms", settings.debounce.after.as_millis()))
            .env("PILOT_DEBOUNCE_MAX", format!("{}ms", settings.debounce.max.as_millis()))
            // It ends when this pipe does, hence with this process.
            .stdin(Stdio::piped())
            .stdout(File::create(at("out"))?)
            .stderr(File::create(at("log"))?);
        let child = netns.spawn(command).context("start istiod-lab")?;
        let mut istiod = Self { child, ads: SocketAddr::from(([127, 0, 0, 1], 0)), folder };
        let ready = istiod.wait_ready().await?;
        let ads = ready.get("ads").and_then(Value::as_str).context("istiod-lab names no address")?;
        istiod.ads = ads.parse().context("istiod-lab's address")?;
        Ok(istiod)
    }

    /// Where it serves delta ADS, in its namespace.
    #[must_use]
    pub fn ads(&self) -> SocketAddr {
        self.ads
    }

    /// Creates or replaces objects of Kubernetes, of the Gateway API and of Istio, and returns the warnings
    /// of istiod's webhook. What the CRDs' schemas or the webhook refuse is an error.
    ///
    /// # Errors
    /// It is refused.
    pub async fn apply(&self, yaml: &str) -> Result<Vec<String>> {
        let answer = self.command(Method::POST, "/apply", yaml).await?;
        let warnings = answer.get("warnings").and_then(Value::as_array).into_iter().flatten();
        Ok(warnings.filter_map(|warning| warning.as_str().map(str::to_owned)).collect())
    }

    /// Deletes objects by kind, namespace and name.
    ///
    /// # Errors
    /// One is not there.
    pub async fn delete(&self, yaml: &str) -> Result<()> {
        self.command(Method::POST, "/delete", yaml).await.map(drop)
    }

    /// Whether schemas and webhook accept objects; changes nothing. Returns the number of objects.
    ///
    /// # Errors
    /// They do not.
    pub async fn validate(&self, yaml: &str) -> Result<u64> {
        let answer = self.command(Method::POST, "/validate", yaml).await?;
        answer.get("objects").and_then(Value::as_u64).context("no count")
    }

    /// One step of a Pod in namespace `default`: `unready`, `ready`, `terminate` or `gone`. The
    /// EndpointSlices follow at once.
    ///
    /// # Errors
    /// There is no such Pod.
    pub async fn step(&self, pod: &str, step: &str) -> Result<()> {
        let path = format!("/step?namespace=default&pod={pod}&step={step}");
        self.command(Method::POST, &path, "").await.map(drop)
    }

    /// All steps of a Pod's end and of its successor's beginning in a row: one change for istiod's debounce.
    ///
    /// # Errors
    /// There is no such Pod, or the successor is refused.
    pub async fn replace(&self, pod: &str, successor: &str) -> Result<()> {
        let path = format!("/replace?namespace=default&pod={pod}");
        self.command(Method::POST, &path, successor).await.map(drop)
    }

    /// What `kubectl apply -k` would apply.
    ///
    /// # Errors
    /// The folder is no kustomization, or has an error.
    pub async fn kustomize(&self, folder: &Path) -> Result<String> {
        let folder = folder.to_str().context("path is not UTF-8")?;
        let answer = self.command(Method::POST, &format!("/kustomize?folder={folder}"), "").await?;
        answer.get("yaml").and_then(Value::as_str).map(str::to_owned).context("no YAML")
    }

    /// Envoy's bootstrap as pilot-agent writes it.
    ///
    /// # Errors
    /// The description does not fit.
    pub async fn bootstrap(&self, proxy: &Value) -> Result<Value> {
        self.command(Method::POST, "/bootstrap", &proxy.to_string()).await
    }

    /// The objects that istiod's own controller makes of a Gateway and the ConfigMaps beside it.
    ///
    /// # Errors
    /// It makes none: an overlay does not fit.
    pub async fn render(&self, yaml: &str) -> Result<Vec<Value>> {
        match self.command(Method::POST, "/render", yaml).await? {
            Value::Array(objects) => Ok(objects),
            other => bail!("no list of objects: {other}"),
        }
    }

    /// Counts of changes taken in and pushed, and each proxy's state (istiod's `syncz`).
    ///
    /// # Errors
    /// No answer.
    pub async fn state(&self) -> Result<Value> {
        self.command(Method::GET, "/state", "").await
    }

    /// Waits until `proxies` proxies are connected, every change has been pushed, and each proxy has answered
    /// the last response of each kind, without an error.
    ///
    /// # Errors
    /// `within` is over, or a proxy refused something.
    pub async fn settled(&self, proxies: usize, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        loop {
            let state = self.state().await?;
            let all = state.get("proxies").and_then(Value::as_array).cloned().unwrap_or_default();
            for proxy in &all {
                if let Some((kind, error)) = refused(proxy) {
                    bail!("Envoy refuses {kind}: {error}");
                }
            }
            let pushed = state.get("inbound") == state.get("committed");
            if pushed && all.len() == proxies && all.iter().all(answered) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "not settled within {within:?}: {state:#}");
            sleep(POLL).await;
        }
    }

    /// One of istiod's debug pages.
    ///
    /// # Errors
    /// No answer.
    pub async fn debug(&self, path: &str) -> Result<Value> {
        self.command(Method::GET, path, "").await
    }

    /// The end of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(30)..).unwrap_or_default().join("\n")
    }

    async fn wait_ready(&mut self) -> Result<Value> {
        let deadline = Instant::now() + START;
        loop {
            let out = fs::read_to_string(self.folder.path().join("out"))?;
            // Istio's packages may print warnings first; the last line may be half written.
            let line = out.lines().find(|line| line.starts_with('{'));
            if let Some(ready) = line.and_then(|line| serde_json::from_str(line).ok()) {
                return Ok(ready);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("istiod-lab ended with {status}:\n{}", self.log_tail());
            }
            ensure!(Instant::now() < deadline, "istiod-lab is not ready:\n{}", self.log_tail());
            sleep(POLL).await;
        }
    }

    async fn command(&self, method: Method, path: &str, body: &str) -> Result<Value> {
        let exchange = async {
            let socket = UnixStream::connect(self.folder.path().join("api")).await.context("istiod-lab is gone")?;
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
            // Ends when the sender and the body are gone.
            tokio::spawn(connection);
            let request = Request::builder()
                .method(method)
                .uri(path)
                .header(http::header::HOST, "istiod-lab")
                .body(Full::new(Bytes::copy_from_slice(body.as_bytes())))?;
            let response = sender.send_request(request).await?;
            let status = response.status();
            let text = response.into_body().collect().await?.to_bytes();
            let text = String::from_utf8_lossy(&text).into_owned();
            ensure!(status.is_success(), "istiod-lab {path}: {text}");
            serde_json::from_str(&text).with_context(|| format!("istiod-lab {path} is no JSON: {text}"))
        };
        tokio::time::timeout(REQUEST, exchange)
            .await
            .with_context(|| format!("istiod-lab {path}: no answer within {REQUEST:?}"))?
    }
}

impl Drop for Istiod {
    fn drop(&mut self) {
        // Fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The kind and the error of a response that a proxy refused.
fn refused(proxy: &Value) -> Option<(String, String)> {
    resources(proxy).find_map(|(kind, resource)| {
        let error = resource.get("lastError").and_then(Value::as_str).filter(|error| !error.is_empty())?;
        Some((kind.clone(), error.to_owned()))
    })
}

/// Whether a proxy has answered the last response of each kind.
fn answered(proxy: &Value) -> bool {
    let mut kinds = 0;
    resources(proxy).all(|(_, resource)| {
        kinds += 1;
        resource.get("sent") == resource.get("acked")
    }) && kinds > 0
}

fn resources(proxy: &Value) -> impl Iterator<Item = (&String, &Value)> {
    proxy.get("resources").and_then(Value::as_object).into_iter().flatten()
}

fn program() -> Result<PathBuf> {
    let path = match std::env::var_os("STALE_GUARD_ISTIOD").filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/istio/istiod-lab"),
    };
    ensure!(path.is_file(), "{} is missing: run make test-istio, which builds it", path.display());
    Ok(path)
}
