//! Reads the text of Envoy's admin endpoint `/clusters` as it arrives, chunk by chunk.
//!
//! A line is `<cluster>::<host>::<key>::<value>`. Of the eighteen lines of a host three are read:
//! its counters, which start at zero again when the host was removed and added between two polls,
//! and its health flags.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
};

/// What one poll saw of an address in one cluster, over all its ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Host {
    /// Connections ever opened to it by the cluster.
    pub cx_total: u64,
    /// Requests ever sent to it by the cluster.
    pub rq_total: u64,
    /// Whether EDS says that it is draining.
    pub draining: bool,
    /// Whether EDS says that it is unhealthy.
    pub unhealthy: bool,
}

/// What one poll saw.
pub type Clusters = HashMap<String, BTreeMap<IpAddr, Host>>;

/// Why a poll could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The text ends within a line.
    #[error("the text ends within a line")]
    Truncated,
    /// A line is longer than any that Envoy writes.
    #[error("a line is longer than {max} bytes", max = Parser::MAX_LINE)]
    LineTooLong,
    /// No line has the expected form.
    #[error("no line has the form cluster::host::key::value")]
    UnknownFormat,
}

/// The state between two chunks.
#[derive(Debug, Default)]
pub struct Parser {
    clusters: Clusters,
    /// The beginning of a line whose end has not arrived.
    partial: Vec<u8>,
    understood: bool,
    empty: bool,
    too_long: bool,
}

// === impl Parser ===

impl Parser {
    /// The longest line accepted, in bytes.
    pub const MAX_LINE: usize = 64 * 1024;

    /// A parser at the beginning of the text.
    #[must_use]
    pub fn new() -> Self {
        Self { empty: true, ..Self::default() }
    }

    /// The next bytes.
    pub fn feed(&mut self, chunk: &[u8]) {
        self.empty &= chunk.is_empty();
        let mut rest = chunk;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end);
            if self.partial.is_empty() {
                self.line(line);
            } else {
                self.keep(line);
                let whole = std::mem::take(&mut self.partial);
                self.line(&whole);
            }
            rest = after.get(1..).unwrap_or_default();
        }
        self.keep(rest);
    }

    /// The end of the text.
    ///
    /// # Errors
    /// See [`Unreadable`].
    pub fn finish(self) -> Result<Clusters, Unreadable> {
        if self.too_long {
            Err(Unreadable::LineTooLong)
        } else if !self.partial.is_empty() {
            Err(Unreadable::Truncated)
        } else if !self.understood && !self.empty {
            Err(Unreadable::UnknownFormat)
        } else {
            Ok(self.clusters)
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.partial.len() + bytes.len() > Self::MAX_LINE {
            self.too_long = true;
        } else {
            self.partial.extend_from_slice(bytes);
        }
    }

    fn line(&mut self, line: &[u8]) {
        let Ok(line) = std::str::from_utf8(line) else { return };
        let Some((head, value)) = line.rsplit_once("::") else { return };
        let Some((subject, key)) = head.rsplit_once("::") else { return };
        self.understood = true;
        if !matches!(key, "cx_total" | "rq_total" | "health_flags") {
            // The first line of a cluster makes it known, with or without hosts.
            if key == "added_via_api" || key == "observability_name" {
                self.clusters.entry(subject.to_owned()).or_default();
            }
            return;
        }
        let Some((cluster, ip)) = split_host(subject) else { return };
        let hosts = match self.clusters.get_mut(cluster) {
            Some(hosts) => hosts,
            None => self.clusters.entry(cluster.to_owned()).or_default(),
        };
        let host = hosts.entry(ip).or_default();
        let number = || value.parse::<u64>().unwrap_or_default();
        match key {
            "cx_total" => host.cx_total = host.cx_total.saturating_add(number()),
            "rq_total" => host.rq_total = host.rq_total.saturating_add(number()),
            _ => {
                let mut flags = value.split('/');
                host.draining |= flags.clone().any(|flag| flag == "eds_status_draining");
                host.unhealthy |= flags.any(|flag| flag == "failed_eds_health");
            }
        }
    }
}

/// Splits `<cluster>::<host>`; the host of a tunnel is `envoy://<listener>/<ip>:<port>`. Other
/// hosts are left out: Envoy itself closes their pools, and those of an ORIGINAL_DST cluster come
/// and go with traffic.
fn split_host(subject: &str) -> Option<(&str, IpAddr)> {
    let (cluster, internal) = subject.rsplit_once("::envoy://")?;
    let (_, id) = internal.split_once('/')?;
    let ip = id.parse::<SocketAddr>().map(|address| address.ip()).or_else(|_| id.parse()).ok()?;
    Some((cluster, ip.to_canonical()))
}
