//! The real Envoy: finding the binary, running it in a namespace, talking to its admin endpoint.

mod admin;
mod binary;
mod freshness;
mod process;
mod sockets;

pub use admin::Admin;
pub use binary::{Binary, module};
pub use process::{Envoy, Options, Validation};
pub use sockets::TcpLiveness;
