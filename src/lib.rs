//! Stale Guard: an Envoy dynamic module that fences the pooled connections of removed endpoints and
//! retries what is safe to retry.

pub mod config;
pub mod retry;

use envoy_proxy_dynamic_modules_rust_sdk::{
    EnvoyHttpFilterConfigImpl, EnvoyHttpFilterImpl, HttpFilterConfig, HttpPerRouteConfig, declare_all_init_functions,
    envoy_log_error,
};

declare_all_init_functions!(|| true, http: new_http_filter_config, http_per_route: new_http_per_route);

fn new_http_filter_config(
    envoy: &mut EnvoyHttpFilterConfigImpl,
    name: &str,
    json: &[u8],
) -> Option<Box<dyn HttpFilterConfig<EnvoyHttpFilterImpl>>> {
    if name != retry::PART {
        envoy_log_error!("stale_guard: unknown filter_name \"{name}\" of an HTTP filter: must be \"retry\"");
        return None;
    }
    match retry::filter::RetryConfig::new(json, envoy, std::sync::Arc::new(retry::explain::Silent)) {
        Ok(config) => Some(Box::new(config)),
        Err(error) => {
            envoy_log_error!("stale_guard: {error}");
            None
        }
    }
}

fn new_http_per_route(name: &str, json: &[u8]) -> Option<Box<HttpPerRouteConfig>> {
    if name != retry::PART {
        envoy_log_error!("stale_guard: unknown per_route_config_name \"{name}\": must be \"retry\"");
        return None;
    }
    retry::filter::new_per_route(json).map_err(|error| envoy_log_error!("stale_guard: {error}")).ok()
}
