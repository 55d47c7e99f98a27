//! A module with every extension point of this crate: it logs each hook's first run. It shows that
//! the hooks are exported from a dependent cdylib, and in which order Envoy runs them.

use std::any::Any;
use std::sync::Mutex;
use std::time::Duration;

use envoy_proxy_dynamic_modules_rust_sdk::abi::{
    envoy_dynamic_module_type_attribute_id as AttributeId,
    envoy_dynamic_module_type_network_connection_event as ConnectionEvent,
    envoy_dynamic_module_type_on_http_filter_local_reply_status as LocalReplyStatus,
    envoy_dynamic_module_type_on_http_filter_request_headers_status as RequestHeadersStatus,
    envoy_dynamic_module_type_on_http_filter_response_headers_status as ResponseHeadersStatus,
    envoy_dynamic_module_type_on_network_filter_data_status as DataStatus,
    envoy_dynamic_module_type_socket_option_state as SocketOptionState,
};
use envoy_proxy_dynamic_modules_rust_sdk::{
    BootstrapExtension, BootstrapExtensionConfig, CompletionCallback, ConfigValidatorConfig, ConfigValidatorContext,
    ConfigValidatorResource, EnvoyBootstrapExtension, EnvoyBootstrapExtensionConfig, EnvoyBootstrapExtensionTimer,
    EnvoyBuffer, EnvoyCounterId, EnvoyCounterVecId, EnvoyHttpFilter, EnvoyHttpFilterConfig, EnvoyHttpFilterScheduler,
    EnvoyNetworkFilter, EnvoyNetworkFilterConfig, EnvoyNetworkFilterConfigScheduler, HttpFilter, HttpFilterConfig,
    HttpPerRouteConfig, NetworkFilter, NetworkFilterConfig, declare_all_init_functions, envoy_log_info,
    get_server_concurrency, is_validation_mode, panics_caught,
};

declare_all_init_functions!(
    init,
    config_validator: new_validator,
    bootstrap: new_bootstrap,
    network: new_network,
    http: new_http,
    http_per_route: new_per_route,
);

fn init() -> bool {
    envoy_log_info!("smoke init concurrency={} validation={}", get_server_concurrency(), is_validation_mode());
    true
}

fn text(config: &[u8]) -> String {
    String::from_utf8_lossy(config).into_owned()
}

#[expect(clippy::panic, reason = "it shows that a panic does not stop the request")]
fn panics_on_purpose() -> RequestHeadersStatus {
    panic!("smoke panics on request")
}

// === HTTP filter ===

struct Http {
    requests: Option<EnvoyCounterVecId>,
}

struct HttpStream {
    requests: Option<EnvoyCounterVecId>,
}

fn new_http<EC: EnvoyHttpFilterConfig, EHF: EnvoyHttpFilter>(
    envoy: &mut EC,
    name: &str,
    config: &[u8],
) -> Option<Box<dyn HttpFilterConfig<EHF>>> {
    let requests = envoy.define_counter_vec("smoke_requests", &["method"]);
    let plain = envoy.define_counter("smoke_http_configs");
    let counted = plain.map(|id| envoy.increment_counter(id, 1));
    envoy_log_info!("smoke http_config_new {name} {} {requests:?} config-level {counted:?}", text(config));
    envoy.new_scheduler().commit(7);
    (config != b"reject").then(|| Box::new(Http { requests: requests.ok() }) as _)
}

fn new_per_route(name: &str, config: &[u8]) -> Option<Box<HttpPerRouteConfig>> {
    envoy_log_info!("smoke per_route_new {name} {}", text(config));
    Some(Box::new(text(config)))
}

impl<EHF: EnvoyHttpFilter> HttpFilterConfig<EHF> for Http {
    fn new_http_filter(&self, _envoy: &mut EHF) -> Box<dyn HttpFilter<EHF>> {
        Box::new(HttpStream { requests: self.requests })
    }

    fn on_scheduled(&self, event_id: u64) {
        envoy_log_info!("smoke http_config_scheduled {event_id}");
    }
}

impl Drop for HttpStream {
    fn drop(&mut self) {
        envoy_log_info!("smoke stream dropped");
    }
}

impl<EHF: EnvoyHttpFilter> HttpFilter<EHF> for HttpStream {
    fn on_request_headers(&mut self, envoy: &mut EHF, end_of_stream: bool) -> RequestHeadersStatus {
        let method =
            envoy.get_request_header_value(":method").map(|m| m.to_str_lossy().into_owned()).unwrap_or_default();
        let path = envoy.get_request_header_value(":path").map(|p| p.to_str_lossy().into_owned()).unwrap_or_default();
        let route = envoy.get_most_specific_route_config();
        let route = route.as_deref().map(|r: &(dyn Any + Send + Sync)| r.downcast_ref::<String>().cloned());
        let counted = self.requests.map(|id| envoy.increment_counter_vec(id, &[&method], 1));
        envoy_log_info!(
            "smoke request {method} {path} end={end_of_stream} route={route:?} counted={counted:?} headers={} cluster={:?} hosts={:?} limit={} worker={} conn={:?}",
            envoy.get_request_headers().len(),
            envoy.get_cluster_name(),
            envoy.get_cluster_host_count(0),
            envoy.get_buffer_limit(),
            envoy.get_worker_index(),
            envoy.get_attribute_int(AttributeId::ConnectionId),
        );
        envoy.set_dynamic_metadata_string("smoke", "decision", "seen");
        envoy.set_dynamic_metadata_number("smoke", "n", 3.0);
        envoy.set_dynamic_metadata_bool("smoke", "b", true);
        envoy.set_request_header("x-smoke", b"1");
        envoy.add_custom_flag("SMOKE");
        envoy.new_scheduler().commit(11);
        match path.as_str() {
            "/local" => {
                envoy.send_response(418, &[("x-by", b"smoke")], Some(b"teapot\n"), Some("smoke_local"));
                RequestHeadersStatus::StopIteration
            }
            "/panic" => panics_on_purpose(),
            "/reset" => {
                envoy.reset_stream(
                    envoy_proxy_dynamic_modules_rust_sdk::abi::envoy_dynamic_module_type_http_filter_stream_reset_reason::LocalReset,
                    "smoke_reset",
                );
                // Envoy up to 1.39 has destroyed the stream by now: this must be answered, not crash.
                envoy_log_info!("smoke after reset headers={}", envoy.get_request_headers().len());
                RequestHeadersStatus::StopIteration
            }
            _ => RequestHeadersStatus::Continue,
        }
    }

    fn on_response_headers(&mut self, envoy: &mut EHF, _end: bool) -> ResponseHeadersStatus {
        envoy_log_info!(
            "smoke response {:?} upstream={:?} connection={:?}",
            envoy.get_response_header_value(":status"),
            envoy.get_attribute_string(AttributeId::UpstreamAddress),
            envoy.get_upstream_connection_id()
        );
        let path = envoy.get_request_header_value(":path");
        let first = envoy.get_request_header_value("x-again").is_none();
        if first && path.is_some_and(|path| path.as_slice() == b"/recreate") {
            envoy.set_request_header("x-again", b"1");
            // Envoy up to 1.39 destroys this filter before the call returns.
            let recreated = envoy.recreate_stream(None);
            envoy_log_info!("smoke recreated={recreated} headers={}", envoy.get_request_headers().len());
            return ResponseHeadersStatus::StopIteration;
        }
        ResponseHeadersStatus::Continue
    }

    fn on_local_reply(&mut self, _envoy: &mut EHF, code: u32, details: EnvoyBuffer, _reset: bool) -> LocalReplyStatus {
        envoy_log_info!("smoke local_reply {code} {details:?}");
        LocalReplyStatus::Continue
    }

    fn on_scheduled(&mut self, _envoy: &mut EHF, event_id: u64) {
        envoy_log_info!("smoke http_scheduled {event_id}");
    }

    fn on_stream_complete(&mut self, envoy: &mut EHF) {
        envoy_log_info!("smoke stream_complete code={:?}", envoy.get_attribute_int(AttributeId::ResponseCode));
    }
}

// === network filter ===

struct Network {
    connections: Option<EnvoyCounterId>,
}

struct Connection {
    connections: Option<EnvoyCounterId>,
}

fn new_network<EC: EnvoyNetworkFilterConfig, ENF: EnvoyNetworkFilter>(
    envoy: &mut EC,
    name: &str,
    config: &[u8],
) -> Option<Box<dyn NetworkFilterConfig<ENF>>> {
    let connections = envoy.define_counter("smoke_connections");
    envoy_log_info!("smoke network_config_new {name} {} {connections:?}", text(config));
    envoy.new_config_scheduler().commit(5);
    Some(Box::new(Network { connections: connections.ok() }))
}

impl<ENF: EnvoyNetworkFilter> NetworkFilterConfig<ENF> for Network {
    fn new_network_filter(&self, _envoy: &mut ENF) -> Box<dyn NetworkFilter<ENF>> {
        Box::new(Connection { connections: self.connections })
    }

    fn on_config_scheduled(&self, event_id: u64) {
        envoy_log_info!("smoke network_config_scheduled {event_id}");
    }
}

impl<ENF: EnvoyNetworkFilter> NetworkFilter<ENF> for Connection {
    fn on_new_connection(&mut self, envoy: &mut ENF) -> DataStatus {
        let counted = self.connections.map(|id| envoy.increment_counter(id, 1));
        envoy.set_dynamic_metadata_string("smoke", "generation", "1");
        envoy.set_socket_option_int(6, 18, SocketOptionState::Prebind, 3000);
        envoy_log_info!(
            "smoke new_connection id={} local={:?} remote={:?} counted={counted:?} metadata={:?} option={:?}",
            envoy.get_connection_id(),
            envoy.get_local_address(),
            envoy.get_remote_address(),
            envoy.get_dynamic_metadata_string("smoke", "generation"),
            envoy.get_socket_option_int(6, 18, SocketOptionState::Prebind),
        );
        DataStatus::Continue
    }

    fn on_event(&mut self, envoy: &mut ENF, event: ConnectionEvent) {
        envoy_log_info!("smoke event {event:?} state={:?}", envoy.get_connection_state());
    }

    fn on_destroy(&mut self, _envoy: &mut ENF) {
        envoy_log_info!("smoke connection destroyed");
    }
}

// === bootstrap extension ===

struct Bootstrap {
    timer: Mutex<Option<Box<dyn EnvoyBootstrapExtensionTimer>>>,
}

struct Server;

fn new_bootstrap(
    envoy: &mut dyn EnvoyBootstrapExtensionConfig,
    name: &str,
    config: &[u8],
) -> Option<Box<dyn BootstrapExtensionConfig>> {
    let counter = envoy.define_counter("smoke_bootstrap");
    let counted = counter.map(|id| envoy.increment_counter(id, 1));
    let admin = envoy.register_admin_handler("/smoke", "smoke page", true, false);
    let timer = envoy.new_timer();
    timer.enable(Duration::from_millis(300));
    envoy.new_scheduler().commit(3);
    envoy.signal_init_complete();
    envoy_log_info!("smoke bootstrap_config_new {name} {} counted={counted:?} admin={admin}", text(config));
    Some(Box::new(Bootstrap { timer: Mutex::new(Some(timer)) }))
}

impl BootstrapExtensionConfig for Bootstrap {
    fn new_bootstrap_extension(&self, _envoy: &mut dyn EnvoyBootstrapExtension) -> Box<dyn BootstrapExtension> {
        envoy_log_info!("smoke bootstrap_new");
        Box::new(Server)
    }

    fn on_scheduled(&self, _envoy: &mut dyn EnvoyBootstrapExtensionConfig, event_id: u64) {
        envoy_log_info!("smoke bootstrap_scheduled {event_id}");
    }

    fn on_timer_fired(&self, envoy: &mut dyn EnvoyBootstrapExtensionConfig, timer: &dyn EnvoyBootstrapExtensionTimer) {
        let own = self.timer.lock().is_ok_and(|t| t.as_ref().is_some_and(|t| t.id() == timer.id()));
        envoy_log_info!("smoke timer");
        let callout = envoy.send_http_callout(
            "backend",
            vec![(":method", b"GET".as_slice()), (":path", b"/from-bootstrap"), ("host", b"backend")],
            None,
            1000,
        );
        let missing = envoy.send_http_callout(
            "no-such-cluster",
            vec![(":method", b"GET".as_slice()), (":path", b"/"), ("host", b"x")],
            None,
            1000,
        );
        envoy_log_info!(
            "smoke timer own={own} callout={callout:?} missing={missing:?} lifecycle={}",
            envoy.enable_cluster_lifecycle()
        );
    }

    fn on_http_callout_done(
        &self,
        _envoy: &mut dyn EnvoyBootstrapExtensionConfig,
        callout_id: u64,
        result: envoy_proxy_dynamic_modules_rust_sdk::abi::envoy_dynamic_module_type_http_callout_result,
        headers: Option<&[(EnvoyBuffer, EnvoyBuffer)]>,
        body: Option<&[EnvoyBuffer]>,
    ) {
        envoy_log_info!(
            "smoke callout_done {callout_id} {result:?} headers={:?} body={body:?}",
            headers.map(<[_]>::len)
        );
    }

    fn on_admin_request(
        &self,
        _envoy: &mut dyn EnvoyBootstrapExtensionConfig,
        method: &str,
        path: &str,
        _body: &[u8],
    ) -> (u32, String) {
        (200, format!("smoke {method} {path} panics={}\n", panics_caught()))
    }

    fn on_cluster_add_or_update(&self, _envoy: &mut dyn EnvoyBootstrapExtensionConfig, cluster_name: &str) {
        envoy_log_info!("smoke cluster_add {cluster_name}");
    }
}

impl BootstrapExtension for Server {
    fn on_server_initialized(&mut self, envoy: &mut dyn EnvoyBootstrapExtension) {
        let mut gauges = 0_u32;
        envoy.iterate_gauges(&mut |_name, _value| {
            gauges = gauges.saturating_add(1);
            true
        });
        let mut counters = 0_u32;
        envoy.iterate_counters(&mut |_name, _value| {
            counters = counters.saturating_add(1);
            counters < 5
        });
        envoy_log_info!(
            "smoke server_initialized gauges={gauges} counters-until-stop={counters} connected_state={:?}",
            envoy.get_gauge_value("control_plane.connected_state")
        );
    }

    fn on_worker_thread_initialized(&mut self, _envoy: &mut dyn EnvoyBootstrapExtension) {
        envoy_log_info!("smoke worker_thread_initialized");
    }

    fn on_shutdown(&mut self, _envoy: &mut dyn EnvoyBootstrapExtension, completion: CompletionCallback) {
        envoy_log_info!("smoke shutdown");
        completion.done();
    }
}

// === config validator ===

struct Validator;

fn new_validator(name: &str, config: &[u8]) -> Option<Box<dyn ConfigValidatorConfig>> {
    envoy_log_info!("smoke validator_config_new {name} {}", text(config));
    Some(Box::new(Validator))
}

fn first(resources: &[ConfigValidatorResource]) -> Option<String> {
    let first = resources.first()?;
    let bytes = first.resource.map(<[u8]>::len);
    Some(format!("{} {} {:?} {:?} {bytes:?}", first.name, first.version, first.aliases, first.ttl))
}

impl ConfigValidatorConfig for Validator {
    fn validate(
        &self,
        context: &ConfigValidatorContext,
        type_url: &str,
        resources: &[ConfigValidatorResource],
    ) -> Result<(), String> {
        envoy_log_info!(
            "smoke validate {type_url} {} clusters={} first={:?}",
            resources.len(),
            context.dynamic_cluster_count(),
            first(resources),
        );
        Ok(())
    }

    fn validate_delta(
        &self,
        _context: &ConfigValidatorContext,
        type_url: &str,
        added: &[ConfigValidatorResource],
        removed: &[&str],
    ) -> Result<(), String> {
        envoy_log_info!("smoke validate_delta {type_url} +{} -{removed:?} first={:?}", added.len(), first(added),);
        Ok(())
    }
}
