//! Envoy's side of a network filter's configuration.

use std::ffi::c_void;

use crate::abi::{ask, envoy_dynamic_module_type_metrics_result as MetricsResult};
use crate::metrics::{ABSENT, EnvoyCounterId, EnvoyGaugeId, EnvoyHistogramId, MetricResult, defined};

/// What a configuration may ask of Envoy while it loads. Main thread.
pub trait EnvoyNetworkFilterConfig {
    /// Defines a counter; only while the configuration loads.
    fn define_counter(&mut self, _name: &str) -> MetricResult<EnvoyCounterId> {
        Err(MetricsResult::MetricNotFound)
    }
    /// Defines a gauge; only while the configuration loads.
    fn define_gauge(&mut self, _name: &str) -> MetricResult<EnvoyGaugeId> {
        Err(MetricsResult::MetricNotFound)
    }
    /// Defines a histogram; only while the configuration loads.
    fn define_histogram(&mut self, _name: &str) -> MetricResult<EnvoyHistogramId> {
        Err(MetricsResult::MetricNotFound)
    }
}

/// The real thing.
pub struct EnvoyNetworkFilterConfigImpl {
    raw: *mut c_void,
}

impl EnvoyNetworkFilterConfigImpl {
    pub(crate) fn new(raw: *mut c_void) -> Self {
        Self { raw }
    }

    fn raw(&self) -> *mut c_void {
        self.raw
    }
}

impl EnvoyNetworkFilterConfig for EnvoyNetworkFilterConfigImpl {
    fn define_counter(&mut self, name: &str) -> MetricResult<EnvoyCounterId> {
        defined(EnvoyCounterId, |id| ask!(self, network_filter_config_define_counter(name.into(), id) or ABSENT))
    }
    fn define_gauge(&mut self, name: &str) -> MetricResult<EnvoyGaugeId> {
        defined(EnvoyGaugeId, |id| ask!(self, network_filter_config_define_gauge(name.into(), id) or ABSENT))
    }
    fn define_histogram(&mut self, name: &str) -> MetricResult<EnvoyHistogramId> {
        defined(EnvoyHistogramId, |id| ask!(self, network_filter_config_define_histogram(name.into(), id) or ABSENT))
    }
}
