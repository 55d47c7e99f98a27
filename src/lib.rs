//! Stale Guard: an Envoy dynamic module that fences the pooled connections of removed endpoints and
//! retries what is safe to retry.
//!
//! Data runs one way: EDS, [`watch`], [`endpoints`], [`fence`], Envoy's connection pool; and
//! [`retry`] reads `endpoints` to explain a reset. Each part has a pure core, which knows no Envoy type, and
//! thin glue to its extension point; this file ties the glue to the names in Envoy's configuration.

mod address;
pub mod closing;
pub mod config;
pub mod endpoints;
pub mod fence;
pub mod metadata;
pub mod note;
pub mod retry;
mod shared;
pub mod status;
mod sync;
pub mod watch;

use std::sync::Arc;

use envoy_proxy_dynamic_modules_rust_sdk::{
    BootstrapExtensionConfig, ConfigValidatorConfig, EnvoyBootstrapExtensionConfig, EnvoyHttpFilterConfigImpl,
    EnvoyHttpFilterImpl, EnvoyNetworkFilterConfigImpl, EnvoyNetworkFilterImpl, HttpFilterConfig, NetworkFilterConfig,
    declare_all_init_functions, envoy_log_error,
    extra::{Feature, HttpPerRouteConfig, envoy_has},
};

use crate::{
    config::ConfigError,
    fence::FenceFilterConfig,
    retry::filter::RetryConfig,
    status::{StatusExtensionConfig, config::StatusConfig},
    watch::{Validator, config::WatchConfig},
};

// Not inside `endpoints`, whose source is compiled once more against a scheduler.
#[cfg(test)]
#[path = "endpoints/breaks_tests.rs"]
mod endpoints_breaks_tests;
#[cfg(test)]
#[path = "endpoints/close_tests.rs"]
mod endpoints_close_tests;
#[cfg(test)]
#[path = "endpoints/memory_tests.rs"]
mod endpoints_memory_tests;
#[cfg(test)]
#[path = "endpoints/model_tests.rs"]
mod endpoints_model_tests;

declare_all_init_functions!(
    init,
    http: http_filter,
    http_per_route: http_per_route,
    network: network_filter,
    bootstrap: bootstrap_extension,
    config_validator: config_validator,
);

fn init() -> bool {
    true
}

fn http_filter(
    envoy: &mut EnvoyHttpFilterConfigImpl,
    name: &str,
    config: &[u8],
) -> Option<Box<dyn HttpFilterConfig<EnvoyHttpFilterImpl>>> {
    let endpoints = Arc::clone(&shared::shared().endpoints);
    let shows_attempts = envoy_has(Feature::FailureAttributes);
    let selected = selected(name, "filter_name", retry::PART);
    let config = accept(selected.and_then(|()| RetryConfig::new(config, envoy, endpoints, shows_attempts)))?;
    Some(Box::new(config))
}

fn http_per_route(name: &str, config: &[u8]) -> Option<Box<HttpPerRouteConfig>> {
    accept(selected(name, "per_route_config_name", retry::PART).and_then(|()| retry::filter::new_per_route(config)))
}

fn network_filter(
    envoy: &mut EnvoyNetworkFilterConfigImpl,
    name: &str,
    config: &[u8],
) -> Option<Box<dyn NetworkFilterConfig<EnvoyNetworkFilterImpl>>> {
    let config = accept(
        selected(name, "filter_name", fence::config::NAME).and_then(|()| FenceFilterConfig::load(config, envoy)),
    )?;
    Some(Box::new(config))
}

fn bootstrap_extension(
    envoy: &mut dyn EnvoyBootstrapExtensionConfig,
    name: &str,
    config: &[u8],
) -> Option<Box<dyn BootstrapExtensionConfig>> {
    let config = accept(
        selected(name, "extension_name", status::config::NAME)
            .and_then(|()| StatusConfig::parse(config))
            .and_then(|config| StatusExtensionConfig::new(config, envoy)),
    )?;
    Some(Box::new(config))
}

fn config_validator(name: &str, config: &[u8]) -> Option<Box<dyn ConfigValidatorConfig>> {
    let config =
        accept(selected(name, "extension_name", watch::config::NAME).and_then(|()| WatchConfig::parse(config)))?;
    Some(Box::new(Validator::new(config, &shared::shared().watch)))
}

/// Whether Envoy's configuration selects the one part that its extension point has.
fn selected(name: &str, field: &'static str, part: &'static str) -> Result<(), ConfigError> {
    if name == part {
        return Ok(());
    }
    Err(ConfigError::new(
        "Envoy's",
        field,
        &name.into(),
        format!("this extension point of Stale Guard has one part, \"{part}\""),
    ))
}

/// Logs what was refused; Envoy then refuses its own configuration.
fn accept<T>(parsed: Result<T, ConfigError>) -> Option<T> {
    parsed.inspect_err(|error| envoy_log_error!("stale_guard: {error}")).ok()
}
