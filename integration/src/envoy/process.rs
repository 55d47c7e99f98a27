//! One running Envoy.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::{Admin, Binary, binary};
use crate::bootstrap::{Bootstrap, ExtensionPoint};
use crate::netns::Netns;

/// How much of the log an error quotes.
const TAIL_LINES: usize = 40;
const POLL: Duration = Duration::from_millis(20);
const VALIDATE: Duration = Duration::from_secs(60);

/// How Envoy is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Worker threads.
    pub workers: u32,
    /// `--log-level`.
    pub log_level: String,
    /// `--component-log-level`, as (component, level).
    pub component_log_levels: Vec<(String, String)>,
    /// Which Envoy; by default [`Binary::find`].
    pub binary: Option<Binary>,
    /// Which module; by default [`binary::module`], if the bootstrap uses it.
    pub module: Option<PathBuf>,
    /// More arguments.
    pub args: Vec<String>,
    /// Hand the bootstrap over as `--config-yaml`, not as a file.
    pub config_yaml: bool,
    /// For hot restarts: the base id, which no other Envoy of this machine may have, and the epoch.
    pub hot_restart: Option<(u32, u32)>,
}

/// A running Envoy; dropping it kills the process and waits for its end.
#[derive(Debug)]
pub struct Envoy {
    child: Mutex<Child>,
    admin: Admin,
    netns: Netns,
    /// Configuration, module and logs.
    folder: TempDir,
}

/// What `--mode validate` said.
#[derive(Clone, Debug)]
pub struct Validation {
    /// The exit status.
    pub status: ExitStatus,
    /// All that was logged.
    pub log: String,
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Self {
            workers: 1,
            log_level: "info".to_owned(),
            component_log_levels: Vec::new(),
            binary: None,
            module: None,
            args: Vec::new(),
            config_yaml: false,
            hot_restart: None,
        }
    }
}

impl Options {
    /// The defaults, with so many worker threads.
    pub fn workers(workers: u32) -> Self {
        Self { workers, ..Self::default() }
    }

    /// The same with another log level for a component, e.g. `("pool", "debug")`.
    #[must_use]
    pub fn log(mut self, component: &str, level: &str) -> Self {
        self.component_log_levels.push((component.to_owned(), level.to_owned()));
        self
    }
}

// === impl Envoy ===

impl Envoy {
    /// Starts Envoy in `netns`. It may not be ready yet: see [`Self::wait_ready`].
    ///
    /// # Errors
    /// If the binary or the module is missing, or the process cannot be started.
    pub fn start(netns: &Netns, bootstrap: &Bootstrap, options: &Options) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("stale-guard-envoy-").tempdir().context("folder for Envoy")?;
        let command = command(folder.path(), bootstrap, options)?;
        let admin = Admin::new(netns.clone(), bootstrap.admin()?);
        let child = netns.spawn(command).context("start Envoy")?;
        Ok(Self { child: Mutex::new(child), admin, netns: netns.clone(), folder })
    }

    /// Starts Envoy and waits until it is ready.
    ///
    /// # Errors
    /// As [`Self::start`] and [`Self::wait_ready`].
    pub async fn start_ready(
        netns: &Netns,
        bootstrap: &Bootstrap,
        options: &Options,
        within: Duration,
    ) -> Result<Self> {
        let envoy = Self::start(netns, bootstrap, options)?;
        envoy.wait_ready(within).await?;
        Ok(envoy)
    }

    /// Runs `--mode validate`: extensions are configured, nothing is served.
    ///
    /// # Errors
    /// If Envoy cannot be started, or does not end within a minute.
    pub async fn validate(netns: &Netns, bootstrap: &Bootstrap, options: &Options) -> Result<Validation> {
        let mut options = options.clone();
        options.args.extend(["--mode".to_owned(), "validate".to_owned()]);
        let envoy = Self::start(netns, bootstrap, &options)?;
        let status = envoy.wait_exit(VALIDATE).await?;
        Ok(Validation { status, log: envoy.log()? })
    }

    /// Waits until the admin endpoint says that Envoy is live: the first clusters and endpoints are there.
    ///
    /// # Errors
    /// Envoy ended, or `within` is over; both with the end of its log.
    pub async fn wait_ready(&self, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        loop {
            self.assert_alive()?;
            let state = match self.admin.get("/ready").await {
                Ok(_) => return Ok(()),
                Err(error) => format!("{error:#}"),
            };
            if Instant::now() >= deadline {
                bail!("Envoy is not ready within {within:?}: {state}\n{}", self.log_tail());
            }
            sleep(POLL).await;
        }
    }

    /// The admin endpoint.
    pub fn admin(&self) -> &Admin {
        &self.admin
    }

    /// The namespace that it runs in.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child().id()
    }

    /// Checks that Envoy still runs.
    ///
    /// # Errors
    /// It ended: the message has its exit status and the end of its log.
    pub fn assert_alive(&self) -> Result<()> {
        let ended = self.child().try_wait().context("look at Envoy")?;
        match ended {
            None => Ok(()),
            Some(status) => bail!("Envoy ended with {status}\n{}", self.log_tail()),
        }
    }

    /// Waits for the process to end by itself, or after [`Self::quit`].
    ///
    /// # Errors
    /// `within` is over.
    pub async fn wait_exit(&self, within: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            let ended = self.child().try_wait().context("look at Envoy")?;
            match ended {
                Some(status) => return Ok(status),
                None if Instant::now() >= deadline => {
                    bail!("Envoy has not ended within {within:?}\n{}", self.log_tail())
                }
                None => sleep(POLL).await,
            }
        }
    }

    /// Asks Envoy to end, and waits for it.
    ///
    /// # Errors
    /// If it does not answer, or does not end within the time.
    pub async fn quit(&self, within: Duration) -> Result<ExitStatus> {
        self.admin.post("/quitquitquit").await?;
        self.wait_exit(within).await
    }

    /// Envoy's whole log.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn log(&self) -> Result<String> {
        let bytes = fs::read(self.folder.path().join("envoy.log")).context("read Envoy's log")?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The end of Envoy's log.
    pub fn log_tail(&self) -> String {
        let log = self.log().unwrap_or_else(|error| format!("{error:#}"));
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(TAIL_LINES)..).unwrap_or_default().join("\n")
    }

    /// The access log's entries so far, of requests (`"log": "http"`) and of tunnels that could not be opened
    /// (`"log": "hbone"`). Envoy writes them out with a small delay.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn access_log(&self) -> Result<Vec<Value>> {
        let text = fs::read_to_string(self.folder.path().join("access.log")).context("read the access log")?;
        // The last line may be half written.
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// Waits until an entry of the access log meets the condition, and returns it.
    ///
    /// # Errors
    /// `within` is over.
    pub async fn wait_for_access_log(&self, within: Duration, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        self.admin
            .wait(within, async || {
                let entries = self.access_log()?;
                let seen = entries.len();
                Ok(entries.into_iter().find(|entry| wanted(entry)).ok_or(format!("{seen} entries")))
            })
            .await
            .context("wait for an access log entry")
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let mut child = self.child();
        // Fails only if it has ended already.
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn command(folder: &Path, bootstrap: &Bootstrap, options: &Options) -> Result<Command> {
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => Binary::find()?,
    };
    let mut command = dying_with_parent(binary.path());
    if options.config_yaml {
        command.arg("--config-yaml").arg(bootstrap.to_yaml()?);
    } else {
        let config = folder.join("bootstrap.yaml");
        bootstrap.write(&config)?;
        command.arg("-c").arg(config);
    }
    command
        .args(["--concurrency", &options.workers.to_string()])
        .args(["--log-level", &options.log_level])
        // cargo's would let Envoy find a module that the test did not give it.
        .env_remove("LD_LIBRARY_PATH")
        // Tests read the access log.
        .args(["--file-flush-interval-msec", "50"])
        .args(&options.args)
        .stdin(Stdio::null())
        .stdout(create(folder, "access.log")?)
        .stderr(create(folder, "envoy.log")?);
    match options.hot_restart {
        None => command.arg("--disable-hot-restart"),
        Some((base, epoch)) => command.args(["--base-id", &base.to_string(), "--restart-epoch", &epoch.to_string()]),
    };
    if !options.component_log_levels.is_empty() {
        let levels: Vec<String> =
            options.component_log_levels.iter().map(|(component, level)| format!("{component}:{level}")).collect();
        command.args(["--component-log-level", &levels.join(",")]);
    }
    if options.module.is_some() || ExtensionPoint::ALL.iter().any(|point| !bootstrap.extension(*point).is_empty()) {
        let module = match &options.module {
            Some(module) => module.clone(),
            None => binary::module()?,
        };
        // A copy: another build must not change the file under a running Envoy.
        fs::copy(&module, folder.join("libstale_guard.so")).with_context(|| format!("copy {}", module.display()))?;
        command.env("ENVOY_DYNAMIC_MODULES_SEARCH_PATH", folder);
    }
    Ok(command)
}

/// A killed test process cannot run `Drop`; with util-linux's `setpriv` the kernel ends Envoy with it.
fn dying_with_parent(program: &Path) -> Command {
    let available = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "true"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    match available {
        true => {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "--"]).arg(program);
            command
        }
        false => Command::new(program),
    }
}

fn create(folder: &Path, name: &str) -> Result<File> {
    File::create(folder.join(name)).with_context(|| format!("create {name}"))
}
