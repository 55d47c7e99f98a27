//! Envoy's side of the bootstrap extension.

use std::ffi::c_void;
use std::ptr;

use super::timer::{EnvoyBootstrapExtensionTimer, Timer};
use crate::abi::{
    ask, envoy_dynamic_module_type_http_callout_init_result as CalloutInitResult,
    envoy_dynamic_module_type_metrics_result as MetricsResult,
};
use crate::buffer::module_headers;
use crate::metrics::{ABSENT, EnvoyCounterId, EnvoyGaugeId, MetricResult, defined, outcome};
use crate::scheduler::{Detached, EnvoyBootstrapExtensionConfigScheduler, EnvoyBootstrapExtensionConfigSchedulerImpl};
use crate::slot::Handle;

/// What the extension's configuration may ask of Envoy. Main thread, inside a hook.
#[allow(unused_variables, reason = "the names document what an implementation receives")]
pub trait EnvoyBootstrapExtensionConfig {
    /// Defines a counter; only while the configuration loads.
    fn define_counter(&mut self, name: &str) -> MetricResult<EnvoyCounterId> {
        Err(MetricsResult::MetricNotFound)
    }
    /// Defines a gauge; only while the configuration loads.
    fn define_gauge(&mut self, name: &str) -> MetricResult<EnvoyGaugeId> {
        Err(MetricsResult::MetricNotFound)
    }
    /// Adds to a counter.
    fn increment_counter(&self, id: EnvoyCounterId, value: u64) -> MetricResult {
        Err(MetricsResult::MetricNotFound)
    }
    /// Sets a gauge.
    fn set_gauge(&self, id: EnvoyGaugeId, value: u64) -> MetricResult {
        Err(MetricsResult::MetricNotFound)
    }
    /// A scheduler whose events arrive at the configuration, on the main thread.
    fn new_scheduler(&self) -> Box<dyn EnvoyBootstrapExtensionConfigScheduler> {
        Box::new(Detached)
    }
    /// Lets the server go on initializing; to be called once, in the constructor or later.
    fn signal_init_complete(&self) {}
    /// A timer, not armed; its hook is `on_timer_fired`. Works in the constructor.
    fn new_timer(&self) -> Box<dyn EnvoyBootstrapExtensionTimer> {
        Box::new(Timer::borrowed(ptr::null_mut()))
    }
    /// Sends a request to a cluster; needs `:method`, `:path` and `host`. Gives the call-out's id.
    /// Not before `on_server_initialized`.
    fn send_http_callout(
        &mut self,
        cluster_name: &str,
        headers: Vec<(&str, &[u8])>,
        body: Option<&[u8]>,
        timeout_milliseconds: u64,
    ) -> (CalloutInitResult, u64) {
        (CalloutInitResult::ClusterNotFound, 0)
    }
    /// Adds a page to the admin interface. Works in the constructor. Despite its name the prefix is
    /// the whole path: measured, `/page?x=1` arrives and `/page/x` does not.
    fn register_admin_handler(
        &self,
        path_prefix: &str,
        help_text: &str,
        removable: bool,
        mutates_server_state: bool,
    ) -> bool {
        false
    }
}

/// What the extension may ask of Envoy's stats. Main thread, inside a hook.
#[allow(unused_variables, reason = "the names document what an implementation receives")]
pub trait EnvoyBootstrapExtension {
    /// Value of a counter, by its full name; `None` while it was never touched.
    fn get_counter_value(&self, name: &str) -> Option<u64> {
        None
    }
    /// Value of a gauge, by its full name.
    fn get_gauge_value(&self, name: &str) -> Option<u64> {
        None
    }
}

/// The real configuration.
pub(crate) struct EnvoyBootstrapExtensionConfigImpl {
    raw: *mut c_void,
}

/// The real extension.
pub(crate) struct EnvoyBootstrapExtensionImpl<'a> {
    handle: &'a Handle,
}

// === impl EnvoyBootstrapExtensionConfigImpl ===

impl EnvoyBootstrapExtensionConfigImpl {
    pub(crate) fn new(raw: *mut c_void) -> Self {
        Self { raw }
    }

    pub(crate) fn raw(&self) -> *mut c_void {
        self.raw
    }
}

impl EnvoyBootstrapExtensionConfig for EnvoyBootstrapExtensionConfigImpl {
    fn define_counter(&mut self, name: &str) -> MetricResult<EnvoyCounterId> {
        defined(
            EnvoyCounterId,
            |id| ask!(self, bootstrap_extension_config_define_counter(name.into(), ptr::null(), 0, id) or ABSENT),
        )
    }
    fn define_gauge(&mut self, name: &str) -> MetricResult<EnvoyGaugeId> {
        defined(
            EnvoyGaugeId,
            |id| ask!(self, bootstrap_extension_config_define_gauge(name.into(), ptr::null(), 0, id) or ABSENT),
        )
    }
    fn increment_counter(&self, id: EnvoyCounterId, value: u64) -> MetricResult {
        outcome(ask!(self, bootstrap_extension_config_increment_counter(id.0, ptr::null(), 0, value) or ABSENT))
    }
    fn set_gauge(&self, id: EnvoyGaugeId, value: u64) -> MetricResult {
        outcome(ask!(self, bootstrap_extension_config_set_gauge(id.0, ptr::null(), 0, value) or ABSENT))
    }
    fn new_scheduler(&self) -> Box<dyn EnvoyBootstrapExtensionConfigScheduler> {
        Box::new(EnvoyBootstrapExtensionConfigSchedulerImpl::new(self.raw))
    }
    fn signal_init_complete(&self) {
        ask!(self, bootstrap_extension_config_signal_init_complete() or ());
    }
    fn new_timer(&self) -> Box<dyn EnvoyBootstrapExtensionTimer> {
        Box::new(Timer::create(self.raw))
    }
    fn send_http_callout(
        &mut self,
        cluster_name: &str,
        headers: Vec<(&str, &[u8])>,
        body: Option<&[u8]>,
        timeout_milliseconds: u64,
    ) -> (CalloutInitResult, u64) {
        let raw_headers = module_headers(&headers);
        let body = body.unwrap_or_default();
        let mut id = 0;
        // Without Envoy there is no cluster; a refusal of a later Envoy's is one all the same.
        let result = ask!(self, bootstrap_extension_http_callout(
            &raw mut id, cluster_name.into(), raw_headers.as_ptr(), raw_headers.len(), body.into(), timeout_milliseconds
        ) or CalloutInitResult::ClusterNotFound.as_raw());
        (CalloutInitResult::from_raw(result).unwrap_or(CalloutInitResult::CannotCreateRequest), id)
    }
    fn register_admin_handler(
        &self,
        path_prefix: &str,
        help_text: &str,
        removable: bool,
        mutates_server_state: bool,
    ) -> bool {
        ask!(self, bootstrap_extension_register_admin_handler(path_prefix.into(), help_text.into(), removable, mutates_server_state) or false)
    }
}

// === impl EnvoyBootstrapExtensionImpl ===

impl<'a> EnvoyBootstrapExtensionImpl<'a> {
    pub(crate) fn new(handle: &'a Handle) -> Self {
        Self { handle }
    }

    fn raw(&self) -> *mut c_void {
        self.handle.get()
    }
}

impl EnvoyBootstrapExtension for EnvoyBootstrapExtensionImpl<'_> {
    fn get_counter_value(&self, name: &str) -> Option<u64> {
        let mut value = 0;
        ask!(self, bootstrap_extension_get_counter_value(name.into(), &raw mut value) or false).then_some(value)
    }
    fn get_gauge_value(&self, name: &str) -> Option<u64> {
        let mut value = 0;
        ask!(self, bootstrap_extension_get_gauge_value(name.into(), &raw mut value) or false).then_some(value)
    }
}
