//! `/clusters`: the hosts that Envoy has, and their connections.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;

use crate::json::{At, Notes};

/// What `/clusters` shows.
#[derive(Debug, Clone, Default)]
pub struct Hosts {
    /// How long the answer is as text; unknown for the JSON form, which is several times longer.
    pub bytes: Option<usize>,
    /// The hosts of each cluster.
    pub clusters: BTreeMap<String, Vec<Host>>,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// `10.1.2.3:8080`, or `envoy://connect_originate/10.1.2.3:8080`.
    pub address: String,
    /// Its connections now.
    pub connections: u64,
}

/// What stands between a cluster's name and a host's address, and between that and a value.
const BETWEEN: &str = "::";

// === impl Hosts ===

impl Hosts {
    /// Reads either form.
    ///
    /// # Errors
    /// If it is neither.
    pub fn read(text: &str) -> Result<Self, String> {
        let hosts = if text.trim_start().starts_with('{') { Self::read_json(text)? } else { Self::read_text(text) };
        match hosts.clusters.is_empty() {
            true => Err("no cluster is in it".to_owned()),
            false => Ok(hosts),
        }
    }

    fn read_text(text: &str) -> Self {
        let mut hosts = Self { bytes: Some(text.len()), ..Self::default() };
        for line in text.lines() {
            // "<cluster>::added_via_api::false": every cluster has it.
            if let Some((cluster, _)) = line.rsplit_once("::added_via_api::") {
                hosts.clusters.entry(cluster.to_owned()).or_default();
                continue;
            }
            // "<cluster>::<address>::cx_active::<number>": every host has it.
            let Some((head, count)) = line.rsplit_once("::cx_active::") else { continue };
            // An IPv6 address in brackets may have "::" in it, an internal one has "://".
            let bracket = head.rfind("::[").filter(|_| head.contains("]:"));
            let Some(at) = bracket.or_else(|| head.rfind(BETWEEN)) else { continue };
            let (cluster, address) = head.split_at(at);
            let address = address.get(BETWEEN.len()..).unwrap_or_default().to_owned();
            let host = Host { address, connections: count.parse().unwrap_or(0) };
            hosts.clusters.entry(cluster.to_owned()).or_default().push(host);
        }
        hosts
    }

    fn read_json(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let notes = Notes::default();
        let mut hosts = Self::default();
        for cluster in At::new(&value, "clusters", &notes).list("cluster_statuses") {
            let all = cluster.list("host_statuses");
            let all = all.iter().filter_map(|host| {
                let active = host.list("stats").into_iter().find(|stat| stat.text("name") == Some("cx_active"));
                let connections = active.and_then(|stat| stat.number("value")).unwrap_or(0);
                Some(Host { address: address(&host.get("address")?)?, connections })
            });
            hosts.clusters.insert(cluster.string("name"), all.collect());
        }
        match notes.into_unread().first() {
            Some(unread) => Err(format!("{}: {}", unread.place, unread.problem)),
            None => Ok(hosts),
        }
    }
}

fn address(at: &At<'_>) -> Option<String> {
    if let Some(internal) = at.get("envoy_internal_address") {
        let (listener, id) = (internal.string("server_listener_name"), internal.string("endpoint_id"));
        return Some(format!("envoy://{listener}/{id}"));
    }
    let socket = at.get("socket_address")?;
    let (host, port) = (socket.string("address"), socket.number("port_value").unwrap_or(0));
    Some(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

// === impl Host ===

impl Host {
    /// The internal listener that it is reached through.
    #[must_use]
    pub fn listener(&self) -> Option<&str> {
        Some(self.address.strip_prefix("envoy://")?.split_once('/')?.0)
    }

    /// Its IP address, of an internal address the one behind it.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        let end = self.address.rsplit('/').next()?;
        let ip = end.rsplit_once(':')?.0.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok()?;
        Some(ip.to_canonical())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
inbound-vip|80|http|echo::observability_name::inbound-vip|80|http|echo;\n\
inbound-vip|80|http|echo::default_priority::max_connections::4294967295\n\
inbound-vip|80|http|echo::added_via_api::true\n\
inbound-vip|80|http|echo::envoy://connect_originate/10.244.1.1:8080::cx_active::2\n\
inbound-vip|80|http|echo::[fd00::1]:8080::cx_active::0\n\
connect_originate::added_via_api::true\n\
connect_originate::10.244.1.1:15008::cx_active::1\n\
connect_originate::10.244.1.1:15008::health_flags::healthy\n";

    #[test]
    fn hosts_are_read_from_the_text() {
        let hosts = Hosts::read(TEXT).unwrap();
        assert_eq!(hosts.bytes, Some(TEXT.len()));
        let echo = hosts.clusters.get("inbound-vip|80|http|echo").unwrap();
        assert_eq!(echo[0].listener(), Some("connect_originate"));
        let ips: Vec<_> = echo.iter().map(|host| host.ip().unwrap().to_string()).collect();
        assert_eq!(ips, ["10.244.1.1", "fd00::1"]);
        assert_eq!(hosts.clusters.get("connect_originate").unwrap()[0].connections, 1);
    }

    #[test]
    fn the_json_form_says_the_same() {
        let json = r#"{"cluster_statuses":[{"name":"c","host_statuses":[
            {"address":{"envoy_internal_address":{"server_listener_name":"connect_originate","endpoint_id":"10.244.1.1:8080"}},
             "stats":[{"value":"3","name":"cx_active","type":"GAUGE"}]},
            {"address":{"socket_address":{"address":"fd00::1","port_value":80}},"stats":[{"name":"cx_active"}]}]}]}"#;
        let hosts = Hosts::read(json).unwrap();
        let host = |address: &str, connections| Host { address: address.to_owned(), connections };
        assert_eq!(
            hosts.clusters.get("c").unwrap(),
            &[host("envoy://connect_originate/10.244.1.1:8080", 3), host("[fd00::1]:80", 0)]
        );
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "{", "{}", r#"{"cluster_statuses":5}"#, "<html>", "upstream connect error"] {
            assert!(Hosts::read(text).is_err(), "{text:?}");
        }
    }
}
