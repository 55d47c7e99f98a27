//! The user's side of a bootstrap extension.

use super::completion::CompletionCallback;
use super::envoy::{EnvoyBootstrapExtension, EnvoyBootstrapExtensionConfig};
use super::timer::EnvoyBootstrapExtensionTimer;
use crate::abi::envoy_dynamic_module_type_http_callout_result as HttpCalloutResult;
use crate::buffer::EnvoyBuffer;

/// Makes the configuration object; main thread; `None` rejects the configuration (log why first).
pub type NewBootstrapExtensionConfigFunction =
    fn(&mut dyn EnvoyBootstrapExtensionConfig, &str, &[u8]) -> Option<Box<dyn BootstrapExtensionConfig>>;

/// The extension's configuration: makes the extension, and receives timers, call-outs and admin
/// requests. All hooks run on the main thread.
#[allow(unused_variables, reason = "the names document what an implementation receives")]
pub trait BootstrapExtensionConfig: Send + Sync {
    /// Makes the extension.
    fn new_bootstrap_extension(&self, envoy_extension: &mut dyn EnvoyBootstrapExtension)
    -> Box<dyn BootstrapExtension>;

    /// A commit of the configuration's scheduler arrived.
    fn on_scheduled(&self, envoy_extension_config: &mut dyn EnvoyBootstrapExtensionConfig, event_id: u64) {}
    /// A call-out ended; headers and body are `None` unless it succeeded. May run inside
    /// `send_http_callout`, if the request fails at once.
    fn on_http_callout_done(
        &self,
        envoy_extension_config: &mut dyn EnvoyBootstrapExtensionConfig,
        callout_id: u64,
        result: HttpCalloutResult,
        response_headers: Option<&[(EnvoyBuffer, EnvoyBuffer)]>,
        response_body: Option<&[EnvoyBuffer]>,
    ) {
    }
    /// A timer fired; `timer` refers to it and may arm it again.
    fn on_timer_fired(
        &self,
        envoy_extension_config: &mut dyn EnvoyBootstrapExtensionConfig,
        timer: &dyn EnvoyBootstrapExtensionTimer,
    ) {
    }
    /// A request to the admin handler; answers with HTTP status and body.
    fn on_admin_request(
        &self,
        envoy_extension_config: &mut dyn EnvoyBootstrapExtensionConfig,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> (u32, String) {
        (404, String::new())
    }
}

/// The extension: the server's life.
#[allow(unused_variables, reason = "the names document what an implementation receives")]
pub trait BootstrapExtension: Send + Sync {
    /// The server is ready to serve its configuration; not in `--mode validate`.
    fn on_server_initialized(&mut self, envoy_extension: &mut dyn EnvoyBootstrapExtension) {}
    /// Measured: one call, on the main thread, before `on_server_initialized`.
    fn on_worker_thread_initialized(&mut self, envoy_extension: &mut dyn EnvoyBootstrapExtension) {}
    /// Draining began.
    fn on_drain_started(&mut self, envoy_extension: &mut dyn EnvoyBootstrapExtension) {}
    /// The server ends, once `completion` is done; dropping it does that too.
    fn on_shutdown(&mut self, envoy_extension: &mut dyn EnvoyBootstrapExtension, completion: CompletionCallback) {
        completion.done();
    }
}
