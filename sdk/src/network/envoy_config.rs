//! Envoy's side of a network filter's configuration.

use std::ffi::c_void;

use crate::abi::{ask, envoy_dynamic_module_type_metrics_result as MetricsResult};
use crate::metrics::{
    ABSENT, EnvoyCounterId, EnvoyGaugeId, EnvoyHistogramId, MetricResult, defined,
    metric_definitions, metric_updates, outcome,
};
use crate::scheduler::{
    Detached, EnvoyNetworkFilterConfigScheduler, EnvoyNetworkFilterConfigSchedulerImpl,
};

/// What a configuration may ask of Envoy while it loads. Main thread.
///
/// The methods that change a metric here, outside of any connection, need Envoy 1.39; before that they
/// answer `MetricNotFound`.
pub trait EnvoyNetworkFilterConfig {
    metric_definitions!(trait plain);
    metric_updates!(trait plain);

    /// A scheduler whose events arrive at the configuration, on the main thread.
    fn new_config_scheduler(&self) -> impl EnvoyNetworkFilterConfigScheduler + 'static {
        Detached
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
    metric_definitions!(impl plain
        network_filter_config_define_counter
        network_filter_config_define_gauge
        network_filter_config_define_histogram);
    metric_updates!(impl plain
        network_filter_config_increment_counter
        network_filter_config_increment_gauge
        network_filter_config_decrement_gauge
        network_filter_config_set_gauge
        network_filter_config_record_histogram_value);

    fn new_config_scheduler(&self) -> impl EnvoyNetworkFilterConfigScheduler + 'static {
        EnvoyNetworkFilterConfigSchedulerImpl::new(self.raw)
    }
}
