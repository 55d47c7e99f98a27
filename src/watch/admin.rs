//! Reads the text of Envoy's admin endpoint `/clusters` as it arrives, chunk by chunk.
//!
//! A line is `<cluster>::<key>::<value>` or `<cluster>::<host>::<key>::<value>`; the lines of a
//! cluster, and of a host, follow one another. Of the eighteen lines of a host three are read: its
//! counters, which start at zero again when the host was removed and added between two polls, and its
//! health flags. The host of a tunnel is `envoy://<listener>/<ip>:<port>`.
//!
//! Names and values may hold `::` themselves, so a line is read from its left: the cluster's name is known from
//! its line `added_via_api`, which comes before its hosts, and a host is the shortest text that is an address.
//!
//! Hosts that are plain sockets are read in EDS clusters only. Those of an ORIGINAL_DST cluster come
//! and go with traffic; that is no news of an endpoint.

use std::{collections::HashMap, net::SocketAddr};

use memchr::{memchr, memmem};

use crate::address;

/// What one poll saw of a host: one port of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Host {
    /// Connections ever opened to it by the cluster.
    pub cx_total: u64,
    /// Requests ever sent to it by the cluster.
    pub rq_total: u64,
    /// Whether EDS says that it is draining.
    pub draining: bool,
    /// Whether EDS says that it is unhealthy (or timed out, which looks alike).
    pub unhealthy: bool,
    /// Whether EDS says that it is degraded.
    pub degraded: bool,
}

/// What one poll saw of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cluster {
    /// The name of its EDS resource, where it has one.
    pub resource: Option<String>,
    /// Its hosts, sorted by address. Of a socket address the port is a host's own; of an endpoint id
    /// without a port it is 0.
    pub hosts: Vec<(SocketAddr, Host)>,
}

/// What one poll saw.
pub type Clusters = HashMap<String, Cluster>;

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
    /// `<cluster>::` of the cluster whose lines are being read.
    name: Vec<u8>,
    cluster: Cluster,
    /// `<cluster>::<host>::` of the host whose lines are being read, and whether it is wanted.
    subject: Vec<u8>,
    wanted: bool,
    /// The next line may name the cluster's EDS resource.
    resource_next: bool,
    /// The beginning of a line whose end has not arrived.
    partial: Vec<u8>,
    understood: bool,
    too_long: bool,
}

const SEPARATOR: &[u8] = b"::";
const ADDED_VIA_API: &[u8] = b"::added_via_api::";
const EDS_SERVICE_NAME: &[u8] = b"eds_service_name::";
const INTERNAL: &str = "envoy://";

// === impl Parser ===

impl Parser {
    /// The longest line accepted, in bytes.
    pub const MAX_LINE: usize = 64 * 1024;

    /// A parser at the beginning of the text.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The next bytes.
    pub fn feed(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while let Some(end) = memchr(b'\n', rest) {
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
    pub fn finish(mut self) -> Result<Clusters, Unreadable> {
        self.leave();
        if self.too_long {
            Err(Unreadable::LineTooLong)
        } else if !self.partial.is_empty() {
            Err(Unreadable::Truncated)
        } else if !self.understood {
            // Also an empty text: Envoy lists at least the cluster that the poll went through.
            Err(Unreadable::UnknownFormat)
        } else {
            for cluster in self.clusters.values_mut() {
                cluster.hosts.sort_unstable_by_key(|(address, _)| *address);
            }
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
        if line.len() > Self::MAX_LINE {
            self.too_long = true;
            return;
        }
        // Most lines are of the host of the line before.
        if !self.subject.is_empty()
            && let Some(rest) = line.strip_prefix(self.subject.as_slice())
        {
            self.host_line(rest);
            return;
        }
        let of_cluster = (!self.name.is_empty()).then(|| line.strip_prefix(self.name.as_slice())).flatten();
        let resource_next = std::mem::take(&mut self.resource_next);
        if let Some(rest) = of_cluster {
            if resource_next && let Some(resource) = rest.strip_prefix(EDS_SERVICE_NAME) {
                self.cluster.resource = std::str::from_utf8(resource).ok().map(str::to_owned);
                return;
            }
            if let Some((host, is_tunnel, length)) = host(rest) {
                self.meet(line.get(..line.len() - rest.len() + length).unwrap_or(line), host, is_tunnel);
                self.host_line(rest.get(length..).unwrap_or_default());
                return;
            }
        }
        // Every cluster has this line, with or without hosts. Its value has no `::`.
        if let Some(at) = memmem::rfind(line, ADDED_VIA_API) {
            self.understood = true;
            self.enter(line.get(..at).unwrap_or_default());
            self.resource_next = true;
        }
    }

    /// `<key>::<value>` of the present host.
    fn host_line(&mut self, rest: &[u8]) {
        if !self.wanted {
            return;
        }
        if let Some((_, host)) = self.cluster.hosts.last_mut()
            && let Some(at) = memmem::find(rest, SEPARATOR)
            && let Some((key, value)) = rest.split_at_checked(at)
        {
            host.read(key, value.get(SEPARATOR.len()..).unwrap_or_default());
        }
    }

    /// The lines of another host begin.
    fn meet(&mut self, subject: &[u8], host: SocketAddr, is_tunnel: bool) {
        self.subject.clear();
        self.subject.extend_from_slice(subject);
        self.wanted = is_tunnel || self.cluster.resource.is_some();
        if self.wanted {
            self.cluster.hosts.push((host, Host::default()));
        }
    }

    /// The lines of another cluster begin.
    fn enter(&mut self, cluster: &[u8]) {
        self.leave();
        self.name.extend_from_slice(cluster);
        self.name.extend_from_slice(SEPARATOR);
        if let Some(known) = std::str::from_utf8(cluster).ok().and_then(|name| self.clusters.remove(name)) {
            self.cluster = known;
        }
    }

    fn leave(&mut self) {
        let (name, cluster) = (std::mem::take(&mut self.name), std::mem::take(&mut self.cluster));
        self.subject.clear();
        if let Some(name) = name.strip_suffix(SEPARATOR)
            && let Ok(name) = std::str::from_utf8(name)
        {
            self.clusters.insert(name.to_owned(), cluster);
        }
    }
}

// === impl Host ===

impl Host {
    fn read(&mut self, key: &[u8], value: &[u8]) {
        let value = std::str::from_utf8(value).unwrap_or_default();
        match key {
            b"cx_total" => self.cx_total = value.parse().unwrap_or_default(),
            b"rq_total" => self.rq_total = value.parse().unwrap_or_default(),
            b"health_flags" => {
                for flag in value.split('/') {
                    self.draining |= flag == "eds_status_draining";
                    self.unhealthy |= flag == "failed_eds_health";
                    self.degraded |= flag == "degraded_eds_health";
                }
            }
            _ => {}
        }
    }
}

/// Reads the host that a line of a cluster begins with: its address, whether it is behind an internal listener,
/// and how long it is with the separator. An IPv6 address has `::` in it, so ends are tried one after the other.
fn host(rest: &[u8]) -> Option<(SocketAddr, bool, usize)> {
    // The longest IPv6 address with a port has 47 characters; a listener's name may be long.
    const ENDS: usize = 8;
    memmem::find_iter(rest, SEPARATOR).take(ENDS).find_map(|end| {
        let text = std::str::from_utf8(rest.get(..end)?).ok()?;
        let tunnel = text.strip_prefix(INTERNAL);
        let address = match tunnel {
            Some(internal) => internal.split_once('/')?.1,
            None => text,
        };
        Some((address::socket(address)?, tunnel.is_some(), end + SEPARATOR.len()))
    })
}

#[cfg(test)]
#[path = "admin_tests.rs"]
mod tests;
