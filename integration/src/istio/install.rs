//! What is installed: the manifests as shipped, and pilot-agent's bootstrap.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::Istiod;
use crate::bootstrap::Bootstrap;

/// The waypoint pod's address.
pub const WAYPOINT_IP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 244, 0, 2));

/// A change to the manifests' YAML before they are applied.
pub(super) type Edit = Box<dyn Fn(String) -> String + Send>;

/// The shipped manifests, as kustomize builds them.
pub(super) async fn manifests(istiod: &Istiod, overlay: &Path, edit: &[Edit]) -> Result<String> {
    let built = istiod.kustomize(&folder().join(overlay)).await?;
    Ok(edit.iter().fold(built, |yaml, edit| edit(yaml)))
}

/// The manifests for Istio.
#[must_use]
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../envoy-config/istio")
}

/// The bootstrap override in the manifests, as pilot-agent reads it from the pod.
///
/// # Errors
/// There is none.
pub fn bootstrap_override(manifests: &str) -> Result<Value> {
    for document in manifests.split("\n---\n") {
        let object: Value = serde_saphyr::from_str(document).context("manifest")?;
        let Some(deployment) = object.pointer("/data/deployment").and_then(Value::as_str) else { continue };
        let deployment: Value = serde_saphyr::from_str(deployment).context("overlay of the Deployment")?;
        let text = deployment.pointer("/spec/template/metadata/annotations/stale-guard~1bootstrap");
        let text = text.and_then(Value::as_str).context("the overlay has no bootstrap")?;
        return serde_saphyr::from_str(text).context("bootstrap override");
    }
    bail!("the manifests have no overlay of the Deployment")
}

/// Statistics that the tests read and Istio's proxies do not keep.
pub(super) fn lab_override() -> Value {
    let patterns = ["cluster.", "listener", "http.", "tcp.", "sds."].map(|prefix| json!({ "prefix": prefix }));
    json!({ "stats_config": { "stats_matcher": { "inclusion_list": { "patterns": patterns } } } })
}

/// As Envoy merges `--config-yaml`: fields are set, lists are appended to.
pub(super) fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(from)) => into.extend(from),
        (into, from) => *into = from,
    }
}

/// pilot-agent's bootstrap of a `waypoint` or of a gateway (`router`), with the agent's sockets in `folder`, and
/// without Istio's own bootstrap extension, which upstream's Envoy lacks.
///
/// # Errors
/// istiod-lab does not answer.
pub async fn bootstrap(istiod: &Istiod, folder: &Path, kind: &str, version: &str) -> Result<Bootstrap> {
    let proxy = json!({
        "type": kind, "name": kind, "namespace": "default", "ip": WAYPOINT_IP.to_string(),
        "service_account": kind, "istio_version": version, "config_path": folder,
        "labels": {
            "gateway.networking.k8s.io/gateway-name": kind,
            "gateway.istio.io/managed": "istio.io-mesh-controller",
        },
    });
    let bootstrap = Bootstrap::from_yaml(&istiod.bootstrap(&proxy).await?.to_string())?;
    let extensions = bootstrap.value().pointer("/bootstrap_extensions").and_then(Value::as_array);
    let mut extensions = extensions.context("no bootstrap extensions")?.clone();
    extensions.retain(|extension| extension.get("name") != Some(&json!("metadata_discovery")));
    let sds = format!("{}/load_assignment/endpoints/0/lb_endpoints/0/endpoint", bootstrap.cluster("sds-grpc")?);
    bootstrap
        .patch("/bootstrap_extensions", Value::Array(extensions))?
        .patch(&format!("{sds}/address/pipe/path"), json!(folder.join("SDS")))
}
