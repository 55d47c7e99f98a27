//! The control-plane stand-in: an ADS server that speaks the state-of-the-world and the delta protocol
//! on one port, and serves service clusters (CDS) and their endpoints (EDS) in istiod's shapes.
//!
//! ALWAYS:
//! - a change becomes visible to a proxy only by a push; a push carries every change made since the
//!   last one, in one response for each resource type, clusters before endpoints;
//! - pushes reach every stream one by one and in order, also when a proxy is slow;
//! - every response and its answer (ACK, NACK with message) stays in the ledger.
//!
//! NEVER: a resource is re-sent with new content under an old version.

mod ads;
mod changes;
mod faults;
mod handle;
mod ledger;
mod model;
mod params;
mod pushes;
mod resources;
mod server;
mod snapshot;

pub use handle::ControlPlane;
pub use ledger::{Answer, Push};
pub use model::{Endpoint, Health, Kind, Locality, Raw, Service, cluster_name};
pub use params::{Params, Protocol};
pub use snapshot::{CLUSTER_TYPE, ENDPOINT_TYPE};
