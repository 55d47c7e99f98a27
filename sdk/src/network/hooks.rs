//! The C symbols of the network filter: 8 that Envoy requires, and the optional ones.

use std::ffi::c_void;
use std::ptr;

use super::{
    DataStatus, EnvoyNetworkFilterConfigImpl, EnvoyNetworkFilterImpl, HttpCalloutResult,
    NetworkFilter, NetworkFilterConfig,
};
use crate::abi::{
    envoy_dynamic_module_type_envoy_buffer as EB, envoy_dynamic_module_type_envoy_http_header as EH,
};
use crate::buffer::{self, EnvoyBuffer};
use crate::guard::{drop_guarded, guard};
use crate::init::factories;
use crate::slot::{Handle, Slot};

type Config = Box<dyn NetworkFilterConfig<EnvoyNetworkFilterImpl>>;
type Filter = dyn NetworkFilter<EnvoyNetworkFilterImpl>;
type FilterSlot = Slot<Filter>;

/// Runs a filter's hook with an Envoy handle of its own.
///
/// # Safety
/// As for [`Slot::run`].
unsafe fn run<R>(
    hook: &'static str,
    filter: *const c_void,
    envoy: *mut c_void,
    default: R,
    body: impl FnOnce(&mut Filter, &mut EnvoyNetworkFilterImpl) -> R,
) -> R {
    let with_handle = |filter: &mut Filter, handle: &Handle| {
        // SAFETY: the slot, and the handle in it, outlives the hook.
        body(filter, &mut unsafe { EnvoyNetworkFilterImpl::new(handle) })
    };
    // SAFETY: passed on.
    unsafe { FilterSlot::run(hook, filter, envoy, default, with_handle) }
}

/// Exports hooks of one filter that answer nothing.
macro_rules! event_hooks {
    ($($name:ident($($arg:ident: $ty:ty),*) = |$filter:ident, $envoy:ident| $body:expr;)+) => {$(
        /// Exported hook.
        ///
        /// # Safety
        /// Called by Envoy with the pointers that the ABI promises.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            filter_envoy: *mut c_void,
            filter_module: *const c_void,
            $($arg: $ty),*
        ) {
            // SAFETY: Envoy's promise.
            unsafe { run(stringify!($name), filter_module, filter_envoy, (), |$filter, $envoy| $body) }
        }
    )+};
}

/// Exports hooks of one filter that answer with a data status.
macro_rules! data_hooks {
    ($($name:ident($($arg:ident: $ty:ty),*) = |$filter:ident, $envoy:ident| $body:expr;)+) => {$(
        /// Exported hook.
        ///
        /// # Safety
        /// Called by Envoy with the pointers that the ABI promises.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            filter_envoy: *mut c_void,
            filter_module: *const c_void,
            $($arg: $ty),*
        ) -> u32 {
            // SAFETY: Envoy's promise.
            let status = unsafe {
                run(stringify!($name), filter_module, filter_envoy, DataStatus::Continue, |$filter, $envoy| $body)
            };
            status.as_raw()
        }
    )+};
}

/// The exported hooks, under a path of their own.
pub mod exported {
    use super::*;

    data_hooks! {
        envoy_dynamic_module_on_network_filter_new_connection() =
            |filter, envoy| filter.on_new_connection(envoy);
        envoy_dynamic_module_on_network_filter_read(data_length: usize, end_stream: bool) =
            |filter, envoy| filter.on_read(envoy, data_length, end_stream);
        envoy_dynamic_module_on_network_filter_write(data_length: usize, end_stream: bool) =
            |filter, envoy| filter.on_write(envoy, data_length, end_stream);
    }

    event_hooks! {
        envoy_dynamic_module_on_network_filter_event(event: u32) =
            |filter, envoy| filter.on_event(envoy, event.into());
        envoy_dynamic_module_on_network_filter_scheduled(event_id: u64) =
            |filter, envoy| filter.on_scheduled(envoy, event_id);
        envoy_dynamic_module_on_network_filter_above_write_buffer_high_watermark() =
            |filter, envoy| filter.on_above_write_buffer_high_watermark(envoy);
        envoy_dynamic_module_on_network_filter_below_write_buffer_low_watermark() =
            |filter, envoy| filter.on_below_write_buffer_low_watermark(envoy);
        envoy_dynamic_module_on_network_filter_http_callout_done(
            callout_id: u64, result: u32, headers: *const EH, headers_size: usize, chunks: *const EB, chunks_size: usize
        ) = |filter, envoy| {
            let result = HttpCalloutResult::from(result);
            let headers = buffer::headers(headers, headers_size);
            filter.on_http_callout_done(envoy, callout_id, result, headers, buffer::buffers(chunks, chunks_size));
        };
    }

    /// Makes a configuration object; null rejects the configuration.
    ///
    /// # Safety
    /// Called by Envoy with the pointers that the ABI promises.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_network_filter_config_new(
        config_envoy: *mut c_void,
        name: EB,
        config: EB,
    ) -> *const c_void {
        guard("network_filter_config_new", || {
            // SAFETY: Envoy's buffers live as long as the hook.
            let (name, config) =
                unsafe { (EnvoyBuffer::from_raw(name), EnvoyBuffer::from_raw(config)) };
            let Some(make) = factories().network else {
                crate::envoy_log_error!("this module has no network filter");
                return None;
            };
            let mut envoy = EnvoyNetworkFilterConfigImpl::new(config_envoy);
            make(&mut envoy, &name.to_str_lossy(), config.as_slice())
        })
        .flatten()
        .map_or(ptr::null(), |config: Config| {
            Box::into_raw(Box::new(config)).cast_const().cast()
        })
    }

    /// Frees a configuration object, on any thread.
    ///
    /// # Safety
    /// Called by Envoy, once per object.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_network_filter_config_destroy(
        config_module: *const c_void,
    ) {
        if !config_module.is_null() {
            // SAFETY: made by `config_new`; Envoy gives it up.
            let config = unsafe { Box::from_raw(config_module.cast_mut().cast::<Config>()) };
            drop_guarded("network_filter_config_destroy", config);
        }
    }

    /// Makes a connection's filter; an inert one after a panic: null would close the connection.
    ///
    /// # Safety
    /// Called by Envoy with the pointers that the ABI promises.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_network_filter_new(
        config_module: *const c_void,
        filter_envoy: *mut c_void,
    ) -> *const c_void {
        FilterSlot::create("network_filter_new", filter_envoy, |handle| {
            // SAFETY: made by `config_new`; Envoy keeps it alive while filters of it are made.
            let config = unsafe { config_module.cast::<Config>().as_ref() }?;
            // SAFETY: the slot outlives this call.
            Some(config.new_network_filter(&mut unsafe { EnvoyNetworkFilterImpl::new(handle) }))
        })
    }

    /// Frees a connection's filter; if one of its hooks is running, when that has returned.
    ///
    /// # Safety
    /// Called by Envoy, once per filter.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_network_filter_destroy(
        filter_module: *const c_void,
    ) {
        // SAFETY: Envoy's promise. The handle is cleared first: Envoy's side is being destroyed.
        unsafe {
            FilterSlot::retire(filter_module);
            run(
                "network_filter_destroy",
                filter_module,
                ptr::null_mut(),
                (),
                |filter, envoy| filter.on_destroy(envoy),
            );
            FilterSlot::destroy("network_filter_destroy", filter_module);
        }
    }

    /// Delivers a commit of a configuration's scheduler.
    ///
    /// # Safety
    /// Called by Envoy with the pointers that the ABI promises.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_network_filter_config_scheduled(
        config_module: *const c_void,
        event_id: u64,
    ) {
        let _ = guard("network_filter_config_scheduled", || {
            // SAFETY: made by `config_new` and still alive.
            if let Some(config) = unsafe { config_module.cast::<Config>().as_ref() } {
                config.on_config_scheduled(event_id);
            }
        });
    }
}
