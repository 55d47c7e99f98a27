//! Tells operators what happened and why, and gives the main thread the module's pulse.
//!
//! A bootstrap extension: it sets the registry's capacity, polls Envoy's admin endpoint on behalf of
//! `watch`, closes tunnels whose time after a removal is over, publishes statistics and serves the
//! admin page.

pub mod config;
mod connection;
mod extension;
mod metrics;
mod note;
mod page;
mod poller;
#[cfg(test)]
mod schema_tests;

pub(crate) use self::extension::StatusExtensionConfig;
