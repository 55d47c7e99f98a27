//! What a pod is started with.

use std::net::IpAddr;
use std::time::Duration;

use crate::app::{Behaviour, Script};
use crate::certs::spiffe_id;

/// What a pod is started with.
#[derive(Debug, Clone)]
pub struct PodSpec {
    /// Its name, unique per pod instance: a successor on the same address has another one.
    pub name: String,
    /// Its addresses. The first one decides its MAC.
    pub addrs: Vec<IpAddr>,
    /// The application's ports.
    pub ports: Vec<u16>,
    /// The Kubernetes namespace, for its SPIFFE id.
    pub namespace: String,
    /// The service account, for its SPIFFE id.
    pub service_account: String,
    /// What all requests meet at first.
    pub behaviour: Behaviour,
    /// The application's keep-alive timeout; none: connections stay open.
    pub keep_alive: Option<Duration>,
    /// Whether executions keep all headers.
    pub keep_headers: bool,
    /// What its applications do with requests; none: a script of its own. Pods that share one share its
    /// queue: the next behaviour is met by whichever is reached first.
    pub script: Option<Script>,
    /// Whether there is a ztunnel; without, the application is reached directly.
    pub hbone: bool,
}

// === impl PodSpec ===

impl PodSpec {
    /// A pod with one address and one application port, 8080, and a ztunnel.
    #[must_use]
    pub fn new(name: impl Into<String>, addr: IpAddr) -> Self {
        Self {
            name: name.into(),
            addrs: vec![addr],
            ports: vec![8080],
            namespace: "default".to_owned(),
            service_account: "default".to_owned(),
            behaviour: Behaviour::Normal,
            keep_alive: None,
            keep_headers: false,
            script: None,
            hbone: true,
        }
    }

    /// Its SPIFFE id. As in Istio it names the service account, not the pod.
    #[must_use]
    pub fn spiffe_id(&self) -> String {
        spiffe_id(&self.namespace, &self.service_account)
    }
}
