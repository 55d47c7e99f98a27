//! Reads the text of Envoy's admin endpoint `/clusters` as it arrives, chunk by chunk.
//!
//! A line is `<cluster>::<key>::<value>` or `<cluster>::<host>::<key>::<value>`; the lines of a
//! cluster, and of a host, follow one another. Of the eighteen lines of a host three are read: its
//! counters, which start at zero again when the host was removed and added between two polls, and its
//! health flags. The host of a tunnel is `envoy://<listener>/<ip>:<port>`.
//!
//! Hosts that are plain sockets are read in EDS clusters only. Those of an ORIGINAL_DST cluster come
//! and go with traffic; that is no news of an endpoint.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
};

use memchr::{memchr, memmem, memrchr};

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
    /// The cluster whose lines are being read.
    name: Vec<u8>,
    cluster: Cluster,
    /// The host whose lines are being read, as the text has it, and whether it is wanted.
    subject: Vec<u8>,
    wanted: bool,
    /// The next line may name the cluster's EDS resource.
    resource_next: bool,
    /// The beginning of a line whose end has not arrived.
    partial: Vec<u8>,
    understood: bool,
    too_long: bool,
}

/// What is read of a host.
#[derive(Clone, Copy)]
enum Key {
    Connections,
    Requests,
    Health,
}

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
        if std::mem::take(&mut self.resource_next)
            && let Some(at) = memmem::find(line, RESOURCE)
        {
            let value = line.get(at + RESOURCE.len()..).unwrap_or_default();
            self.cluster.resource = std::str::from_utf8(value).ok().map(str::to_owned);
            return;
        }
        // None of the values that are read has a colon in it.
        let Some(colon) = memrchr(b':', line) else { return };
        let (head, value) = line.split_at(colon);
        let (Some(head), Some(value)) = (head.strip_suffix(b":"), value.get(1..)) else { return };
        if let Some(cluster) = head.strip_suffix(b"::added_via_api") {
            // Every cluster has this line, with or without hosts.
            self.understood = true;
            self.enter(cluster);
            self.resource_next = true;
            return;
        }
        let Some((subject, key)) = Key::of(head) else { return };
        self.understood = true;
        if subject != self.subject {
            self.meet(subject);
        }
        if self.wanted
            && let Some((_, host)) = self.cluster.hosts.last_mut()
        {
            host.read(key, value);
        }
    }

    /// The lines of another host begin.
    fn meet(&mut self, subject: &[u8]) {
        self.subject.clear();
        self.subject.extend_from_slice(subject);
        self.wanted = false;
        let Some((cluster, host, tunnel)) = std::str::from_utf8(subject).ok().and_then(split_host) else { return };
        if cluster.as_bytes() != self.name {
            self.enter(cluster.as_bytes());
        }
        if tunnel || self.cluster.resource.is_some() {
            self.cluster.hosts.push((host, Host::default()));
            self.wanted = true;
        }
    }

    /// The lines of another cluster begin.
    fn enter(&mut self, cluster: &[u8]) {
        self.leave();
        self.name.extend_from_slice(cluster);
        if let Some(known) = std::str::from_utf8(cluster).ok().and_then(|name| self.clusters.remove(name)) {
            self.cluster = known;
        }
    }

    fn leave(&mut self) {
        let (name, cluster) = (std::mem::take(&mut self.name), std::mem::take(&mut self.cluster));
        if let Ok(name) = String::from_utf8(name)
            && !name.is_empty()
        {
            self.clusters.insert(name, cluster);
        }
    }
}

const RESOURCE: &[u8] = b"::eds_service_name::";

// === impl Key ===

impl Key {
    fn of(head: &[u8]) -> Option<(&[u8], Self)> {
        // The last bytes tell most of the other keys apart at once.
        match head.last()? {
            b'l' => {
                let connections = head.strip_suffix(b"::cx_total").map(|subject| (subject, Self::Connections));
                connections.or_else(|| head.strip_suffix(b"::rq_total").map(|subject| (subject, Self::Requests)))
            }
            b's' => head.strip_suffix(b"::health_flags").map(|subject| (subject, Self::Health)),
            _ => None,
        }
    }
}

// === impl Host ===

impl Host {
    fn read(&mut self, key: Key, value: &[u8]) {
        let value = std::str::from_utf8(value).unwrap_or_default();
        match key {
            Key::Connections => self.cx_total = value.parse().unwrap_or_default(),
            Key::Requests => self.rq_total = value.parse().unwrap_or_default(),
            Key::Health => {
                for flag in value.split('/') {
                    self.draining |= flag == "eds_status_draining";
                    self.unhealthy |= flag == "failed_eds_health";
                    self.degraded |= flag == "degraded_eds_health";
                }
            }
        }
    }
}

/// Splits `<cluster>::<host>`; says whether the host is behind an internal listener.
fn split_host(subject: &str) -> Option<(&str, SocketAddr, bool)> {
    if let Some((cluster, internal)) = subject.rsplit_once("::envoy://") {
        let (_, id) = internal.split_once('/')?;
        return Some((cluster, address(id)?, true));
    }
    let v4 =
        subject.rsplit_once("::").and_then(|(cluster, host)| Some((cluster, canonical(host.parse().ok()?), false)));
    v4.or_else(|| {
        let at = subject.rfind("::[")?;
        Some((subject.get(..at)?, canonical(subject.get(at + 2..)?.parse().ok()?), false))
    })
}

fn address(id: &str) -> Option<SocketAddr> {
    let address = id.parse().or_else(|_| id.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 0))).ok()?;
    Some(canonical(address))
}

/// An IPv4 address that is mapped into IPv6 leads to the same pod.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
