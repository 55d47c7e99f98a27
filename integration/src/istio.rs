//! Istio in the lab: istiod's own discovery server (`integration/istio`, a Go program), a waypoint that
//! runs on what it generates, and the client's ztunnel in front.
//!
//! What is real: istiod's generator, EnvoyFilter patching, debounce and delta protocol; pilot-agent's
//! bootstrap; Envoy's release binary. What is not: Istio's own C++ filters, which that binary lacks and
//! a test-only `EnvoyFilter` takes away ([`objects::UPSTREAM_ENVOY`]); pilot-agent itself ([`Agent`], [`Sds`]);
//! and the API server, whose part the Go program plays.

mod agent;
mod client;
mod install;
mod istiod;
mod mesh;
pub mod objects;
mod outbound;
mod sds;

pub use agent::{Agent, Path as AgentPath};
pub use client::Reply;
pub use install::{WAYPOINT_IP, bootstrap, bootstrap_override, folder};
pub use istiod::{Debounce, Istiod, Settings};
pub use mesh::{Guard, IstioMesh, Setup, inbound_cluster};
pub use outbound::Outbound;
pub use sds::Sds;
