//! Objects of Kubernetes and the Gateway API, as YAML.

use std::fmt::Write as _;
use std::net::IpAddr;

/// Takes what upstream's Envoy lacks out of the configuration of the waypoint. Test only.
pub const UPSTREAM_ENVOY: &str = include_str!("upstream-envoy.yaml");

/// The waypoint as istiod's controllers leave it in the cluster: Gateway with status, Service, Pod.
#[must_use]
pub fn waypoint(ip: IpAddr) -> String {
    format!(
        r#"apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: waypoint
  namespace: default
  labels: {{ istio.io/waypoint-for: service }}
spec:
  gatewayClassName: istio-waypoint
  listeners:
  - {{ name: mesh, port: 15008, protocol: HBONE }}
status:
  addresses:
  - {{ type: Hostname, value: waypoint.default.svc.cluster.local }}
---
apiVersion: v1
kind: Service
metadata:
  name: waypoint
  namespace: default
  labels:
    gateway.istio.io/managed: istio.io-mesh-controller
    gateway.networking.k8s.io/gateway-name: waypoint
spec:
  clusterIP: 10.96.0.2
  ports:
  - {{ name: mesh, port: 15008, protocol: TCP, appProtocol: hbone }}
  selector: {{ gateway.networking.k8s.io/gateway-name: waypoint }}
---
apiVersion: v1
kind: Pod
metadata:
  name: waypoint
  namespace: default
  labels:
    gateway.istio.io/managed: istio.io-mesh-controller
    gateway.networking.k8s.io/gateway-name: waypoint
spec:
  serviceAccountName: waypoint
  containers: []
status:
  phase: Running
  podIP: {ip}
  podIPs: [{{ ip: {ip} }}]
  conditions: [{{ type: Ready, status: "True" }}]
"#
    )
}

/// A Service behind the waypoint that selects Pods by label `app`.
#[derive(Clone, Debug)]
pub struct Service {
    name: String,
    ip: IpAddr,
    ports: Vec<(String, u16, u16)>,
    labels: Vec<(String, String)>,
}

/// A Pod of a Service, in ambient.
#[derive(Clone, Debug)]
pub struct Pod {
    name: String,
    app: String,
    ip: IpAddr,
    ready: bool,
}

// === impl Service ===

impl Service {
    /// Port 80, HTTP, to the Pods' 8080.
    #[must_use]
    pub fn new(name: &str, ip: IpAddr) -> Self {
        let labels = vec![("istio.io/use-waypoint".to_owned(), "waypoint".to_owned())];
        Self { name: name.to_owned(), ip, ports: vec![("http".to_owned(), 80, 8080)], labels }
    }

    /// One more port; its name's beginning tells istiod the protocol.
    #[must_use]
    pub fn port(mut self, name: &str, port: u16, target: u16) -> Self {
        self.ports.push((name.to_owned(), port, target));
        self
    }

    /// One more label.
    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.labels.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The object.
    #[must_use]
    pub fn yaml(&self) -> String {
        let Self { name, ip, .. } = self;
        let mut text =
            format!("apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\n  namespace: default\n  labels:\n");
        for (label, value) in &self.labels {
            let _ = writeln!(text, "    {label}: \"{value}\"");
        }
        let _ = write!(text, "spec:\n  clusterIP: {ip}\n  selector: {{ app: {name} }}\n  ports:\n");
        for (port, number, target) in &self.ports {
            let _ = writeln!(text, "  - {{ name: {port}, port: {number}, targetPort: {target}, protocol: TCP }}");
        }
        text
    }
}

// === impl Pod ===

impl Pod {
    /// A Pod of the Service `app`, ready.
    #[must_use]
    pub fn new(name: &str, app: &str, ip: IpAddr) -> Self {
        Self { name: name.to_owned(), app: app.to_owned(), ip, ready: true }
    }

    /// Before its first readiness probe.
    #[must_use]
    pub fn unready(mut self) -> Self {
        self.ready = false;
        self
    }

    /// The object.
    #[must_use]
    pub fn yaml(&self) -> String {
        let Self { name, app, ip, .. } = self;
        let ready = if self.ready { "True" } else { "False" };
        format!(
            r#"apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: default
  labels: {{ app: {app} }}
  annotations: {{ ambient.istio.io/redirection: enabled }}
spec:
  serviceAccountName: default
  nodeName: node
  containers: []
status:
  phase: Running
  podIP: {ip}
  podIPs: [{{ ip: {ip} }}]
  conditions: [{{ type: Ready, status: "{ready}" }}]
"#
        )
    }
}
