//! Which files are run: Envoy's release binary, and the module as cargo has just built it.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::freshness::newer_source;

/// The release that is used unless `ENVOY_VERSION` says otherwise.
pub const DEFAULT_VERSION: &str = "1.40.0";

const MODULE: &str = "libstale_guard.so";

/// An Envoy executable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binary {
    path: PathBuf,
}

// === impl Binary ===

impl Binary {
    /// The path in `ENVOY`, else what `make envoy` installed for `ENVOY_VERSION` (default
    /// 1.40.0).
    ///
    /// # Errors
    /// If it is not there: the message says what to do.
    pub fn find() -> Result<Self> {
        match env::var_os("ENVOY").filter(|path| !path.is_empty()) {
            Some(path) => {
                let path = PathBuf::from(path);
                if !path.is_file() {
                    bail!("ENVOY names {}, which is no file", path.display());
                }
                Ok(Self { path })
            }
            None => {
                let version = env::var("ENVOY_VERSION").ok().filter(|version| !version.is_empty());
                Self::version(version.as_deref().unwrap_or(DEFAULT_VERSION))
            }
        }
    }

    /// What `make envoy ENVOY_VERSION=<version>` installed, whatever the environment says.
    ///
    /// # Errors
    /// If it is not there: the message says what to do.
    pub fn version(version: &str) -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let path = root.join(".envoy").join(version).join("envoy/_bin/envoy");
        if !path.is_file() {
            bail!("Envoy {version} is not installed: run make envoy ENVOY_VERSION={version}, or set ENVOY to a binary");
        }
        Ok(Self { path })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The module: the file in `STALE_GUARD_MODULE` (`make test` names the release build, which is what we
/// ship), else the one that cargo built for the running program.
///
/// Cargo writes a dependency's `cdylib` to `target/<profile>/deps`. The copy one folder up is renewed
/// only when the module's package itself is built, so it may be older than the sources and is not used.
///
/// # Errors
/// If there is none, or the file named is older than its sources: the message says what to do.
pub fn module() -> Result<PathBuf> {
    if let Some(path) = env::var_os("STALE_GUARD_MODULE").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        if !path.is_file() {
            bail!("STALE_GUARD_MODULE names {}, which is no file", path.display());
        }
        if let Some(source) = newer_source(&path) {
            bail!("{} is older than {}: run make build", path.display(), source.display());
        }
        return Ok(path);
    }
    let program = crate::sandbox::program().context("the running program's path")?;
    let folder = program.parent().context("the running program has no folder")?;
    // Tests run from target/<profile>/deps, binaries from target/<profile>, examples from .../examples.
    let deps = match folder.file_name().and_then(|name| name.to_str()) {
        Some("deps") => folder.to_path_buf(),
        Some("examples") => folder.with_file_name("deps"),
        _ => folder.join("deps"),
    };
    let path = deps.join(MODULE);
    if !path.is_file() {
        bail!("{} is missing: build package stale-guard, or set STALE_GUARD_MODULE", path.display());
    }
    Ok(path)
}
