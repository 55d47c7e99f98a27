//! Ids of metrics, and the result type of metric calls.
//!
//! Metrics are defined while a configuration loads and only then (`Frozen` afterwards). Their names
//! in Envoy's stats are `<metrics_namespace>.<name>[.<label>.<value>…]`.

use crate::abi::envoy_dynamic_module_type_metrics_result as MetricsResult;

/// Outcome of a metric call; the error is never `Success`.
pub type MetricResult<T = ()> = Result<T, MetricsResult>;

macro_rules! ids {
    ($($(#[$meta:meta])* $name:ident)+) => {$(
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub usize);
    )+};
}

ids! {
    /// A counter without labels.
    EnvoyCounterId
    /// A counter with labels.
    EnvoyCounterVecId
    /// A gauge without labels.
    EnvoyGaugeId
    /// A gauge with labels.
    EnvoyGaugeVecId
    /// A histogram without labels; values are whole numbers of a unit of the user's choice.
    EnvoyHistogramId
    /// A histogram with labels.
    EnvoyHistogramVecId
}

/// What a metric call answers where the running Envoy, or the test, has no such call.
pub(crate) const ABSENT: u32 = 1;

pub(crate) fn outcome(raw: u32) -> MetricResult {
    match MetricsResult::from(raw) {
        MetricsResult::Success => Ok(()),
        error => Err(error),
    }
}

/// Runs a define call, which gives the id through its out parameter.
pub(crate) fn defined(define: impl FnOnce(&mut usize) -> u32) -> MetricResult<usize> {
    let mut id = 0;
    outcome(define(&mut id))?;
    Ok(id)
}

/// Methods that define metrics with labels, for a trait (`;`) with defaults that know no metric.
macro_rules! metric_definitions {
    (trait plain) => {
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
    };
    (trait labelled) => {
        /// Defines a counter with labels.
        fn define_counter_vec(&mut self, _name: &str, _labels: &[&str]) -> MetricResult<EnvoyCounterVecId> {
            Err(MetricsResult::MetricNotFound)
        }
        /// Defines a gauge with labels.
        fn define_gauge_vec(&mut self, _name: &str, _labels: &[&str]) -> MetricResult<EnvoyGaugeVecId> {
            Err(MetricsResult::MetricNotFound)
        }
        /// Defines a histogram with labels.
        fn define_histogram_vec(&mut self, _name: &str, _labels: &[&str]) -> MetricResult<EnvoyHistogramVecId> {
            Err(MetricsResult::MetricNotFound)
        }
    };
    (impl labelled $counter:ident $gauge:ident $histogram:ident) => {
        fn define_counter(&mut self, name: &str) -> MetricResult<EnvoyCounterId> {
            defined(|id| ask!(self, $counter(name.into(), ptr::null(), 0, id) or ABSENT)).map(EnvoyCounterId)
        }
        fn define_gauge(&mut self, name: &str) -> MetricResult<EnvoyGaugeId> {
            defined(|id| ask!(self, $gauge(name.into(), ptr::null(), 0, id) or ABSENT)).map(EnvoyGaugeId)
        }
        fn define_histogram(&mut self, name: &str) -> MetricResult<EnvoyHistogramId> {
            defined(|id| ask!(self, $histogram(name.into(), ptr::null(), 0, id) or ABSENT)).map(EnvoyHistogramId)
        }
        fn define_counter_vec(&mut self, name: &str, labels: &[&str]) -> MetricResult<EnvoyCounterVecId> {
            let labels = module_buffers(labels);
            defined(|id| ask!(self, $counter(name.into(), labels.as_ptr(), labels.len(), id) or ABSENT)).map(EnvoyCounterVecId)
        }
        fn define_gauge_vec(&mut self, name: &str, labels: &[&str]) -> MetricResult<EnvoyGaugeVecId> {
            let labels = module_buffers(labels);
            defined(|id| ask!(self, $gauge(name.into(), labels.as_ptr(), labels.len(), id) or ABSENT)).map(EnvoyGaugeVecId)
        }
        fn define_histogram_vec(&mut self, name: &str, labels: &[&str]) -> MetricResult<EnvoyHistogramVecId> {
            let labels = module_buffers(labels);
            defined(|id| ask!(self, $histogram(name.into(), labels.as_ptr(), labels.len(), id) or ABSENT)).map(EnvoyHistogramVecId)
        }
    };
    (impl plain $counter:ident $gauge:ident $histogram:ident) => {
        fn define_counter(&mut self, name: &str) -> MetricResult<EnvoyCounterId> {
            defined(|id| ask!(self, $counter(name.into(), id) or ABSENT)).map(EnvoyCounterId)
        }
        fn define_gauge(&mut self, name: &str) -> MetricResult<EnvoyGaugeId> {
            defined(|id| ask!(self, $gauge(name.into(), id) or ABSENT)).map(EnvoyGaugeId)
        }
        fn define_histogram(&mut self, name: &str) -> MetricResult<EnvoyHistogramId> {
            defined(|id| ask!(self, $histogram(name.into(), id) or ABSENT)).map(EnvoyHistogramId)
        }
    };
}

/// Methods that change metrics.
macro_rules! metric_updates {
    (trait plain) => {
        /// Adds to a counter.
        fn increment_counter(&self, _id: EnvoyCounterId, _value: u64) -> MetricResult {
            Err(MetricsResult::MetricNotFound)
        }
        /// Adds to a gauge.
        fn increase_gauge(&self, _id: EnvoyGaugeId, _value: u64) -> MetricResult {
            Err(MetricsResult::MetricNotFound)
        }
        /// Takes from a gauge.
        fn decrease_gauge(&self, _id: EnvoyGaugeId, _value: u64) -> MetricResult {
            Err(MetricsResult::MetricNotFound)
        }
        /// Sets a gauge.
        fn set_gauge(&self, _id: EnvoyGaugeId, _value: u64) -> MetricResult {
            Err(MetricsResult::MetricNotFound)
        }
        /// Records one value in a histogram.
        fn record_histogram_value(&self, _id: EnvoyHistogramId, _value: u64) -> MetricResult {
            Err(MetricsResult::MetricNotFound)
        }
    };
    (trait labelled) => {
        /// Adds to a counter with labels.
        fn increment_counter_vec(&self, _id: EnvoyCounterVecId, _labels: &[&str], _value: u64) -> MetricResult {
            Err(MetricsResult::MetricNotFound)
        }
        /// Adds to a gauge with labels.
        fn increase_gauge_vec(&self, _id: EnvoyGaugeVecId, _labels: &[&str], _value: u64) -> MetricResult {
            Err(MetricsResult::MetricNotFound)
        }
        /// Takes from a gauge with labels.
        fn decrease_gauge_vec(&self, _id: EnvoyGaugeVecId, _labels: &[&str], _value: u64) -> MetricResult {
            Err(MetricsResult::MetricNotFound)
        }
        /// Sets a gauge with labels.
        fn set_gauge_vec(&self, _id: EnvoyGaugeVecId, _labels: &[&str], _value: u64) -> MetricResult {
            Err(MetricsResult::MetricNotFound)
        }
        /// Records one value in a histogram with labels.
        fn record_histogram_value_vec(&self, _id: EnvoyHistogramVecId, _labels: &[&str], _value: u64) -> MetricResult {
            Err(MetricsResult::MetricNotFound)
        }
    };
    (impl labelled $counter:ident $inc:ident $dec:ident $set:ident $record:ident) => {
        $crate::metrics::metric_updates!(@plain increment_counter(EnvoyCounterId) $counter (ptr::null(), 0,));
        $crate::metrics::metric_updates!(@plain increase_gauge(EnvoyGaugeId) $inc (ptr::null(), 0,));
        $crate::metrics::metric_updates!(@plain decrease_gauge(EnvoyGaugeId) $dec (ptr::null(), 0,));
        $crate::metrics::metric_updates!(@plain set_gauge(EnvoyGaugeId) $set (ptr::null(), 0,));
        $crate::metrics::metric_updates!(@plain record_histogram_value(EnvoyHistogramId) $record (ptr::null(), 0,));
        $crate::metrics::metric_updates!(@vec increment_counter_vec(EnvoyCounterVecId) $counter);
        $crate::metrics::metric_updates!(@vec increase_gauge_vec(EnvoyGaugeVecId) $inc);
        $crate::metrics::metric_updates!(@vec decrease_gauge_vec(EnvoyGaugeVecId) $dec);
        $crate::metrics::metric_updates!(@vec set_gauge_vec(EnvoyGaugeVecId) $set);
        $crate::metrics::metric_updates!(@vec record_histogram_value_vec(EnvoyHistogramVecId) $record);
    };
    (impl plain $counter:ident $inc:ident $dec:ident $set:ident $record:ident) => {
        $crate::metrics::metric_updates!(@plain increment_counter(EnvoyCounterId) $counter ());
        $crate::metrics::metric_updates!(@plain increase_gauge(EnvoyGaugeId) $inc ());
        $crate::metrics::metric_updates!(@plain decrease_gauge(EnvoyGaugeId) $dec ());
        $crate::metrics::metric_updates!(@plain set_gauge(EnvoyGaugeId) $set ());
        $crate::metrics::metric_updates!(@plain record_histogram_value(EnvoyHistogramId) $record ());
    };
    (@plain $method:ident($id:ident) $callback:ident ($($labels:tt)*)) => {
        fn $method(&self, id: $id, value: u64) -> MetricResult {
            outcome(ask!(self, $callback(id.0, $($labels)* value) or ABSENT))
        }
    };
    (@vec $method:ident($id:ident) $callback:ident) => {
        fn $method(&self, id: $id, labels: &[&str], value: u64) -> MetricResult {
            let labels = module_buffers(labels);
            outcome(ask!(self, $callback(id.0, labels.as_ptr(), labels.len(), value) or ABSENT))
        }
    };
}

pub(crate) use {metric_definitions, metric_updates};
