//! Tells operators what happened and why, and gives the main thread the module's timer.
//!
//! A bootstrap extension: it sets the registry's capacity, polls Envoy's admin endpoint on behalf of
//! `watch`, closes tunnels whose time after a removal is over, publishes statistics and serves the
//! admin page.

mod calls;
pub mod config;
mod control_plane_probe;
mod extension;
mod metrics;
mod page;
#[cfg(test)]
mod schema_tests;

pub(crate) use self::extension::StatusExtensionConfig;
