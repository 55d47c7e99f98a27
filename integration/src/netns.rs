//! Network namespaces, and the bridge that joins them.

mod fabric;
mod link;
mod namespace;
mod netlink;

pub use fabric::Fabric;
pub use link::{Link, Silence};
pub use namespace::Netns;
pub(crate) use namespace::set_loopback_up;

#[cfg(test)]
mod tests;
