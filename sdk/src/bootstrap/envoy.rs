//! Envoy's side of the bootstrap extension.

use std::ffi::c_void;
use std::panic::resume_unwind;
use std::ptr;

use super::timer::{EnvoyBootstrapExtensionTimer, Timer};
use crate::abi::{
    StatVisitor, ask, envoy_dynamic_module_type_envoy_buffer as EB,
    envoy_dynamic_module_type_http_callout_init_result as CalloutInitResult,
    envoy_dynamic_module_type_metrics_result as MetricsResult,
};
use crate::buffer::{EnvoyBuffer, module_buffers, module_headers};
use crate::metrics::{
    ABSENT, EnvoyCounterId, EnvoyCounterVecId, EnvoyGaugeId, EnvoyGaugeVecId, EnvoyHistogramId, EnvoyHistogramVecId,
    MetricResult, defined, metric_definitions, metric_updates, outcome,
};
use crate::scheduler::{Detached, EnvoyBootstrapExtensionConfigScheduler, EnvoyBootstrapExtensionConfigSchedulerImpl};
use crate::slot::Handle;

/// What the extension's configuration may ask of Envoy. Main thread, inside a hook.
#[allow(unused_variables, reason = "the names document what an implementation receives")]
pub trait EnvoyBootstrapExtensionConfig {
    metric_definitions!(trait plain);
    metric_definitions!(trait labelled);
    metric_updates!(trait plain);
    metric_updates!(trait labelled);

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
    /// Watches a file; `false` if it does not exist. Works in the constructor.
    fn add_file_watch(&self, path: &str, events: u32) -> bool {
        false
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
    /// Removes a removable page.
    fn remove_admin_handler(&self, path_prefix: &str) -> bool {
        false
    }
    /// Asks for cluster events, once, from `on_server_initialized` on; clusters there are not replayed.
    /// Measured: with it, Envoy 1.40.0 aborts at the end of its exit when it was hot-restarted.
    fn enable_cluster_lifecycle(&self) -> bool {
        false
    }
    /// Asks for listener events, as above.
    fn enable_listener_lifecycle(&self) -> bool {
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
    /// Count and sum of a histogram since the server's start.
    fn get_histogram_summary(&self, name: &str) -> Option<(u64, f64)> {
        None
    }
    /// Visits all counters until the visitor says `false`. The visitor must only collect: it may
    /// run under a lock of the stats store.
    fn iterate_counters(&self, callback: &mut dyn FnMut(&str, u64) -> bool) {}
    /// Visits all gauges, as above.
    fn iterate_gauges(&self, callback: &mut dyn FnMut(&str, u64) -> bool) {}
}

/// The real configuration.
pub(crate) struct EnvoyBootstrapExtensionConfigImpl {
    raw: *mut c_void,
}

/// The real extension.
pub(crate) struct EnvoyBootstrapExtensionImpl<'a> {
    handle: &'a Handle,
}

/// A visitor, whether it has had enough, and the panic that it ended with: no panic may cross Envoy's frames.
struct Visit<'a> {
    callback: &'a mut dyn FnMut(&str, u64) -> bool,
    /// Envoy 1.38 and 1.39 go on after a "stop"; so the module stops by itself.
    stopped: bool,
    panic: Option<Box<dyn std::any::Any + Send>>,
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
    metric_definitions!(impl labelled
        bootstrap_extension_config_define_counter
        bootstrap_extension_config_define_gauge
        bootstrap_extension_config_define_histogram);
    metric_updates!(impl labelled
        bootstrap_extension_config_increment_counter
        bootstrap_extension_config_increment_gauge
        bootstrap_extension_config_decrement_gauge
        bootstrap_extension_config_set_gauge
        bootstrap_extension_config_record_histogram_value);

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
        // 2 is ClusterNotFound: without Envoy there is none.
        let result = ask!(self, bootstrap_extension_http_callout(
            &raw mut id, cluster_name.into(), raw_headers.as_ptr(), raw_headers.len(), body.into(), timeout_milliseconds
        ) or 2);
        (result.into(), id)
    }
    fn add_file_watch(&self, path: &str, events: u32) -> bool {
        ask!(self, bootstrap_extension_file_watcher_add_watch(path.into(), events) or false)
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
    fn remove_admin_handler(&self, path_prefix: &str) -> bool {
        ask!(self, bootstrap_extension_remove_admin_handler(path_prefix.into()) or false)
    }
    fn enable_cluster_lifecycle(&self) -> bool {
        ask!(self, bootstrap_extension_enable_cluster_lifecycle() or false)
    }
    fn enable_listener_lifecycle(&self) -> bool {
        ask!(self, bootstrap_extension_enable_listener_lifecycle() or false)
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
    fn get_histogram_summary(&self, name: &str) -> Option<(u64, f64)> {
        let (mut count, mut sum) = (0, 0.0);
        ask!(self, bootstrap_extension_get_histogram_summary(name.into(), &raw mut count, &raw mut sum) or false)
            .then_some((count, sum))
    }
    fn iterate_counters(&self, callback: &mut dyn FnMut(&str, u64) -> bool) {
        visit(callback, |visitor, user| ask!(self, bootstrap_extension_iterate_counters(visitor, user) or ()));
    }
    fn iterate_gauges(&self, callback: &mut dyn FnMut(&str, u64) -> bool) {
        visit(callback, |visitor, user| ask!(self, bootstrap_extension_iterate_gauges(visitor, user) or ()));
    }
}

// === free functions ===

/// Carries a closure over the ABI; a panic in it goes on where the module called.
fn visit(callback: &mut dyn FnMut(&str, u64) -> bool, iterate: impl FnOnce(StatVisitor, *mut c_void)) {
    let mut visit = Visit { callback, stopped: false, panic: None };
    iterate(visitor, (&raw mut visit).cast());
    if let Some(payload) = visit.panic {
        resume_unwind(payload);
    }
}

/// # Safety
/// `user` is the `Visit` of the call in progress, and `name` lives as long as this call.
unsafe extern "C" fn visitor(name: EB, value: u64, user: *mut c_void) -> u32 {
    // SAFETY: `visit` passed it and touches it only after the iteration.
    let visit = unsafe { &mut *user.cast::<Visit<'_>>() };
    if visit.stopped {
        return 1;
    }
    let call = std::panic::AssertUnwindSafe(|| {
        // SAFETY: the buffer lives as long as this call.
        let name = unsafe { EnvoyBuffer::from_raw(name) };
        (visit.callback)(&name.to_str_lossy(), value)
    });
    let go_on = std::panic::catch_unwind(call).unwrap_or_else(|payload| {
        visit.panic = Some(payload);
        false
    });
    visit.stopped = !go_on;
    u32::from(visit.stopped)
}
