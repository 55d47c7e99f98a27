//! The user's side of a network filter.

use super::envoy_filter::EnvoyNetworkFilter;
use crate::abi::{
    envoy_dynamic_module_type_network_connection_event as ConnectionEvent,
    envoy_dynamic_module_type_on_network_filter_data_status as DataStatus,
};

/// Makes the configuration object; main thread; `None` rejects the configuration (log why first).
pub type NewNetworkFilterConfigFunction<EC, ENF> =
    fn(&mut EC, &str, &[u8]) -> Option<Box<dyn NetworkFilterConfig<ENF>>>;

/// One configuration of the filter; shared by all its connections. May be dropped on any thread.
pub trait NetworkFilterConfig<ENF: EnvoyNetworkFilter>: Send + Sync {
    /// Makes the filter of one connection; on the connection's worker.
    fn new_network_filter(&self, envoy: &mut ENF) -> Box<dyn NetworkFilter<ENF>>;
}

/// One connection's filter. Hooks run on the connection's worker, and each default is "continue";
/// but `on_destroy` and the drop may run on a thread that commits an event to the filter's
/// scheduler at that moment (measured on Envoy 1.38, 1.39 and 1.40), hence `Send`.
#[allow(unused_variables, reason = "the names document what an implementation receives")]
pub trait NetworkFilter<ENF: EnvoyNetworkFilter>: Send {
    /// The connection is there; no byte was read yet.
    fn on_new_connection(&mut self, envoy_filter: &mut ENF) -> DataStatus {
        DataStatus::Continue
    }
    /// Bytes were read from the downstream; `data_length` is the whole read buffer's.
    fn on_read(&mut self, envoy_filter: &mut ENF, data_length: usize, end_stream: bool) -> DataStatus {
        DataStatus::Continue
    }
    /// Bytes are about to be written to the downstream.
    fn on_write(&mut self, envoy_filter: &mut ENF, data_length: usize, end_stream: bool) -> DataStatus {
        DataStatus::Continue
    }
    /// The connection changed its state; `Connected` arrives after `on_new_connection`. If that
    /// happens inside another hook of this filter (it closed the connection), this runs when that hook
    /// has returned; if Envoy has destroyed the connection by then, `envoy_filter` gives only default
    /// answers.
    fn on_event(&mut self, envoy_filter: &mut ENF, event: ConnectionEvent) {}
    /// The connection's filter is about to be dropped. Envoy's side is gone: `envoy_filter` gives
    /// only default answers. Not called if Envoy destroys the filter inside one of its hooks.
    fn on_destroy(&mut self, envoy_filter: &mut ENF) {}
    /// A commit of the connection's scheduler arrived.
    fn on_scheduled(&mut self, envoy_filter: &mut ENF, event_id: u64) {}
}
