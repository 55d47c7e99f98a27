//! Network filter on downstream connections, internal ones included.

mod envoy_config;
mod envoy_filter;
mod envoy_filter_impl;
mod hooks;
#[cfg(test)]
mod tests;

pub use envoy_config::{EnvoyNetworkFilterConfig, EnvoyNetworkFilterConfigImpl};
pub use envoy_filter::EnvoyNetworkFilter;
pub use envoy_filter_impl::EnvoyNetworkFilterImpl;
pub use hooks::exported;

use crate::EnvoyBuffer;
use crate::abi::{
    envoy_dynamic_module_type_http_callout_result as HttpCalloutResult,
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

    /// A commit of the configuration's scheduler arrived; main thread.
    fn on_config_scheduled(&self, _event_id: u64) {}
}

/// One connection's filter. All hooks run on the connection's worker; each default is "continue".
#[allow(
    unused_variables,
    reason = "the names document what an implementation receives"
)]
pub trait NetworkFilter<ENF: EnvoyNetworkFilter> {
    /// The connection is there; no byte was read yet.
    fn on_new_connection(&mut self, envoy_filter: &mut ENF) -> DataStatus {
        DataStatus::Continue
    }
    /// Bytes were read from the downstream; `data_length` is the whole read buffer's.
    fn on_read(
        &mut self,
        envoy_filter: &mut ENF,
        data_length: usize,
        end_stream: bool,
    ) -> DataStatus {
        DataStatus::Continue
    }
    /// Bytes are about to be written to the downstream.
    fn on_write(
        &mut self,
        envoy_filter: &mut ENF,
        data_length: usize,
        end_stream: bool,
    ) -> DataStatus {
        DataStatus::Continue
    }
    /// The connection changed its state; `Connected` arrives after `on_new_connection`.
    fn on_event(&mut self, envoy_filter: &mut ENF, event: ConnectionEvent) {}
    /// A call-out ended; headers and body are empty unless it succeeded.
    fn on_http_callout_done(
        &mut self,
        envoy_filter: &mut ENF,
        callout_id: u64,
        result: HttpCalloutResult,
        headers: Vec<(EnvoyBuffer, EnvoyBuffer)>,
        body_chunks: Vec<EnvoyBuffer>,
    ) {
    }
    /// The connection's filter is about to be dropped. Envoy's side is gone: `envoy_filter` gives
    /// only default answers. Not called if Envoy destroys the filter inside one of its hooks.
    fn on_destroy(&mut self, envoy_filter: &mut ENF) {}
    /// A commit of the connection's scheduler arrived.
    fn on_scheduled(&mut self, envoy_filter: &mut ENF, event_id: u64) {}
    /// The connection's write buffer is full.
    fn on_above_write_buffer_high_watermark(&mut self, envoy_filter: &mut ENF) {}
    /// The connection's write buffer has room again.
    fn on_below_write_buffer_low_watermark(&mut self, envoy_filter: &mut ENF) {}
}
