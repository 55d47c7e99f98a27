//! Bootstrap extension: main thread, one per server.
//!
//! Envoy stays in its initializing state until
//! [`signal_init_complete`](EnvoyBootstrapExtensionConfig::signal_init_complete) is called.

mod completion;
mod envoy;
mod extension;
mod hooks;
#[cfg(test)]
mod tests;
mod timer;

pub use completion::CompletionCallback;
pub use envoy::{EnvoyBootstrapExtension, EnvoyBootstrapExtensionConfig};
pub use extension::{BootstrapExtension, BootstrapExtensionConfig, NewBootstrapExtensionConfigFunction};
pub(crate) use hooks::FACTORY;
pub use hooks::exported;
pub use timer::EnvoyBootstrapExtensionTimer;
