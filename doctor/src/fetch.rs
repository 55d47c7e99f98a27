//! Where the input comes from: files, standard input, an admin endpoint.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Duration;

use ureq::{Agent, config::Config, unversioned::resolver::DefaultResolver};

use crate::unix::UnixConnector;

/// Where an input comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// Standard input.
    Stdin,
    /// A file.
    File(PathBuf),
    /// An admin endpoint: its URL, without a slash at the end.
    Http(String),
    /// An admin endpoint on a Unix domain socket.
    Unix(PathBuf),
}

/// Bounds on what is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes of one input.
    pub(crate) bytes: u64,
    /// Time for one answer of an admin endpoint.
    pub(crate) time: Duration,
}

/// What an admin endpoint shows.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) config_dump: String,
    pub(crate) clusters: String,
    pub(crate) stats: String,
}

/// Why an input is not there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("{what}: {error}")]
    Io { what: String, error: io::Error },
    #[error("{url}: {error}")]
    Http { url: String, error: Box<ureq::Error> },
    #[error("{url}: answered {status}")]
    Status { url: String, status: u16 },
    #[error("{what} is larger than {limit} MiB; see --limit")]
    TooLarge { what: String, limit: u64 },
}

/// The statistics that matter, whatever the prefix of the module's is: `control_plane|fence_|retry_`.
const STATS: &str = "/stats?filter=control_plane%7Cfence_%7Cretry_";
const MIB: u64 = 1024 * 1024;

// === impl Source ===

impl Source {
    /// Reads an argument.
    pub(crate) fn parse(argument: &OsStr) -> Result<Self, String> {
        let text = argument.to_str().unwrap_or_default();
        if text == "-" {
            Ok(Self::Stdin)
        } else if text.starts_with("http://") {
            Ok(Self::Http(text.trim_end_matches('/').to_owned()))
        } else if text.starts_with("https://") {
            Err("an admin endpoint speaks plain HTTP: use http://".to_owned())
        } else if let Some(path) = text.strip_prefix("unix:") {
            // unix:/path and unix:///path
            let path = path.strip_prefix("//").unwrap_or(path);
            Ok(Self::Unix(PathBuf::from(path)))
        } else {
            Ok(Self::File(PathBuf::from(argument)))
        }
    }

    /// Whether it is an admin endpoint, which has all inputs.
    pub(crate) fn is_admin(&self) -> bool {
        matches!(self, Self::Http(_) | Self::Unix(_))
    }

    /// Reads a file or standard input.
    pub(crate) fn read(&self, stdin: &mut dyn Read, limits: Limits) -> Result<String, FetchError> {
        match self {
            Self::Stdin => bounded(stdin, "standard input", limits),
            Self::File(path) => {
                let what = path.display().to_string();
                let mut file = File::open(path).map_err(|error| FetchError::Io { what: what.clone(), error })?;
                bounded(&mut file, &what, limits)
            }
            Self::Http(_) | Self::Unix(_) => self.get("/config_dump", limits),
        }
    }

    /// Asks an admin endpoint. Endpoints are left out of the `config_dump` (`/clusters` has them): with them it
    /// would hold the proxy's main thread for much longer.
    pub(crate) fn ask(&self, limits: Limits) -> Result<Answers, FetchError> {
        Ok(Answers {
            config_dump: self.get("/config_dump", limits)?,
            clusters: self.get("/clusters", limits)?,
            stats: self.get(STATS, limits)?,
        })
    }

    fn get(&self, path: &str, limits: Limits) -> Result<String, FetchError> {
        // Never by way of a proxy that the environment names: this is a local address.
        let config = Config::builder()
            .proxy(None)
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(limits.time))
            .build();
        let (agent, base) = match self {
            Self::Unix(socket) => {
                let connector = UnixConnector(socket.clone());
                (Agent::with_parts(config, connector, DefaultResolver::default()), "http://127.0.0.1")
            }
            Self::Http(base) => (Agent::new_with_config(config), base.as_str()),
            Self::File(_) | Self::Stdin => (Agent::new_with_config(config), ""),
        };
        let url = match self {
            Self::Unix(socket) => format!("unix:{} {path}", socket.display()),
            _ => format!("{base}{path}"),
        };
        let failed = |error: ureq::Error| match error {
            ureq::Error::BodyExceedsLimit(_) => FetchError::TooLarge { what: url.clone(), limit: limits.bytes / MIB },
            error => FetchError::Http { url: url.clone(), error: Box::new(error) },
        };
        let mut response = agent.get(format!("{base}{path}")).call().map_err(failed)?;
        let status = response.status().as_u16();
        if status != 200 {
            return Err(FetchError::Status { url, status });
        }
        let body = response.body_mut().with_config().limit(limits.bytes).read_to_vec().map_err(failed)?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }
}

fn bounded(from: &mut dyn Read, what: &str, limits: Limits) -> Result<String, FetchError> {
    let mut bytes = Vec::new();
    let read = from.take(limits.bytes.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| FetchError::Io { what: what.to_owned(), error })?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > limits.bytes {
        return Err(FetchError::TooLarge { what: what.to_owned(), limit: limits.bytes / MIB });
    }
    // A byte that is no UTF-8 spoils one name, not the dump.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_name_their_source() {
        let parse = |text: &str| Source::parse(OsStr::new(text));
        assert_eq!(parse("-"), Ok(Source::Stdin));
        assert_eq!(parse("dump.json"), Ok(Source::File("dump.json".into())));
        assert_eq!(parse("http://127.0.0.1:15000/"), Ok(Source::Http("http://127.0.0.1:15000".into())));
        assert_eq!(parse("unix:/run/admin.sock"), Ok(Source::Unix("/run/admin.sock".into())));
        assert_eq!(parse("unix:///run/admin.sock"), Ok(Source::Unix("/run/admin.sock".into())));
        assert!(parse("https://127.0.0.1:15000").is_err());
    }

    #[test]
    fn an_input_over_the_limit_is_refused_and_broken_utf8_is_not() {
        let limits = |bytes| Limits { bytes, time: Duration::from_secs(1) };
        let read = |bytes: &[u8], limit| Source::Stdin.read(&mut { bytes }, limits(limit));
        assert_eq!(read(b"abc", 3).unwrap(), "abc");
        assert!(matches!(read(b"abcd", 3), Err(FetchError::TooLarge { .. })));
        assert_eq!(read(b"a\xffc", 3).unwrap(), "a\u{fffd}c");
    }
}
