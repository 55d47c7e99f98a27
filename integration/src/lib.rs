//! The lab of Stale Guard: real Envoy, real kernel, pods in network namespaces, a ztunnel stand-in
//! and an ADS control plane, all in the process of one test or demo.

pub mod app;
pub mod bootstrap;
pub mod certs;
pub mod control_plane;
pub mod envoy;
mod frames;
pub mod history;
pub mod istio;
pub mod load;
pub mod mesh;
pub mod netns;
pub mod pod;
pub mod scenes;
pub mod tcp;
pub mod ztunnel;

pub use netns::sandbox;
