//! HTTP filter, downstream or upstream (in a cluster's `http_filters`).
//!
//! Configuration objects live on every thread; a filter lives on its stream's worker. Upstream
//! filters get no `on_stream_complete`, no `on_local_reply` and no per-route configuration, and a
//! failed connect shows only as `Drop`.

mod envoy_config;
mod envoy_filter;
mod envoy_filter_impl;
mod filter;
mod hooks;
mod per_route;
#[cfg(test)]
mod tests;

pub use envoy_config::{EnvoyHttpFilterConfig, EnvoyHttpFilterConfigImpl};
pub use envoy_filter::EnvoyHttpFilter;
pub use envoy_filter_impl::EnvoyHttpFilterImpl;
pub use filter::{HttpFilter, HttpFilterConfig, NewHttpFilterConfigFunction, NewHttpFilterPerRouteConfigFunction};
pub use hooks::exported;
pub(crate) use hooks::{FACTORY, PER_ROUTE_FACTORY};
pub use per_route::HttpPerRouteConfig;
