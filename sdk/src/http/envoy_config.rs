//! Envoy's side of an HTTP filter's configuration.

use std::ffi::c_void;
use std::ptr;

use crate::abi::{ask, envoy_dynamic_module_type_metrics_result as MetricsResult};
use crate::buffer::module_buffers;
use crate::metrics::{
    ABSENT, EnvoyCounterId, EnvoyCounterVecId, EnvoyGaugeId, EnvoyGaugeVecId, EnvoyHistogramId,
    EnvoyHistogramVecId, MetricResult, defined, metric_definitions, metric_updates, outcome,
};
use crate::scheduler::{
    Detached, EnvoyHttpFilterConfigScheduler, EnvoyHttpFilterConfigSchedulerImpl,
};

/// What a configuration may ask of Envoy while it loads. Main thread.
///
/// The methods that change a metric here, outside of any stream, need Envoy 1.39; before that they
/// answer `MetricNotFound`.
pub trait EnvoyHttpFilterConfig {
    metric_definitions!(trait plain);
    metric_definitions!(trait labelled);
    metric_updates!(trait plain);
    metric_updates!(trait labelled);

    /// A scheduler whose events arrive at the configuration, on the main thread.
    fn new_scheduler(&self) -> Box<dyn EnvoyHttpFilterConfigScheduler> {
        Box::new(Detached)
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
    metric_definitions!(impl labelled
        http_filter_config_define_counter
        http_filter_config_define_gauge
        http_filter_config_define_histogram);
    metric_updates!(impl labelled
        http_filter_config_increment_counter
        http_filter_config_increment_gauge
        http_filter_config_decrement_gauge
        http_filter_config_set_gauge
        http_filter_config_record_histogram_value);

    fn new_scheduler(&self) -> Box<dyn EnvoyHttpFilterConfigScheduler> {
        Box::new(EnvoyHttpFilterConfigSchedulerImpl::new(self.raw))
    }
}
