//! Network namespaces, and the bridge that joins them.

mod fabric;
mod link;
mod mac;
mod namespace;
mod netlink;
pub mod sandbox;
mod segment;

pub use fabric::Fabric;
pub use link::{Link, Silence};
pub use namespace::Netns;

#[cfg(test)]
mod tests;
