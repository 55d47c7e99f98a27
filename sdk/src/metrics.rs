//! Ids of metrics, and the outcome of metric calls.
//!
//! Metrics are defined while a configuration loads and only then (`Frozen` afterwards). Their names
//! in Envoy's stats are `<metrics_namespace>.<name>`.

use crate::abi::envoy_dynamic_module_type_metrics_result as MetricsResult;

/// Outcome of a metric call; the error is never `Success`.
pub type MetricResult<T = ()> = Result<T, MetricsResult>;

macro_rules! ids {
    ($($(#[$meta:meta])* $name:ident)+) => {$(
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(pub usize);
    )+};
}

ids! {
    /// A counter without labels.
    EnvoyCounterId
    /// A gauge without labels.
    EnvoyGaugeId
    /// A histogram without labels; values are whole numbers of a unit of the user's choice.
    EnvoyHistogramId
}

/// What a metric call answers where the running Envoy, or the test, has no such call.
pub(crate) const ABSENT: u32 = 1;

pub(crate) fn outcome(raw: u32) -> MetricResult {
    match MetricsResult::from_raw(raw) {
        Some(MetricsResult::Success) => Ok(()),
        Some(error) => Err(error),
        // A reason that a later Envoy adds: no count was made, which is all that callers act on.
        None => Err(MetricsResult::MetricNotFound),
    }
}

/// Runs a define call, which gives the id through its out parameter.
pub(crate) fn defined<I>(id: fn(usize) -> I, define: impl FnOnce(&mut usize) -> u32) -> MetricResult<I> {
    let mut raw = 0;
    outcome(define(&mut raw))?;
    Ok(id(raw))
}
