//! Envoy's side of an HTTP filter's configuration.

use std::ffi::c_void;
use std::ptr;

use crate::abi::{ask, envoy_dynamic_module_type_metrics_result as MetricsResult};
use crate::metrics::{ABSENT, EnvoyCounterId, MetricResult, defined};

/// What a configuration may ask of Envoy while it loads. Main thread.
pub trait EnvoyHttpFilterConfig {
    /// Defines a counter; only while the configuration loads.
    fn define_counter(&mut self, _name: &str) -> MetricResult<EnvoyCounterId> {
        Err(MetricsResult::MetricNotFound)
    }
}

/// The real thing.
pub struct EnvoyHttpFilterConfigImpl {
    raw: *mut c_void,
}

impl EnvoyHttpFilterConfigImpl {
    pub(crate) fn new(raw: *mut c_void) -> Self {
        Self { raw }
    }

    fn raw(&self) -> *mut c_void {
        self.raw
    }
}

impl EnvoyHttpFilterConfig for EnvoyHttpFilterConfigImpl {
    fn define_counter(&mut self, name: &str) -> MetricResult<EnvoyCounterId> {
        defined(
            EnvoyCounterId,
            |id| ask!(self, http_filter_config_define_counter(name.into(), ptr::null(), 0, id) or ABSENT),
        )
    }
}
