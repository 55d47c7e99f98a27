//! Stale Guard on what istiod generates: the manifests as shipped, istiod's own code, Envoy's release binary.

mod churn;
mod control_plane;
mod loads;
mod manifests;
mod same_ip;
mod scenes;
