//! Network filter on downstream connections, internal ones included.

mod envoy_config;
mod envoy_filter;
mod envoy_filter_impl;
mod filter;
mod hooks;
#[cfg(test)]
mod tests;

pub use envoy_config::{EnvoyNetworkFilterConfig, EnvoyNetworkFilterConfigImpl};
pub use envoy_filter::EnvoyNetworkFilter;
pub use envoy_filter_impl::EnvoyNetworkFilterImpl;
pub use filter::{NetworkFilter, NetworkFilterConfig, NewNetworkFilterConfigFunction};
pub(crate) use hooks::FACTORY;
pub use hooks::exported;
