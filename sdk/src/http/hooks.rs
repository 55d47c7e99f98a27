//! The C symbols of the HTTP filter: 20 that Envoy requires, per-route configuration, local reply
//! and configuration events.

use std::ffi::c_void;
use std::ptr;

use super::{
    EnvoyHttpFilterConfigImpl, EnvoyHttpFilterImpl, HttpCalloutResult, HttpFilter, HttpFilterConfig, LocalReplyStatus,
    RequestBodyStatus, RequestHeadersStatus, RequestTrailersStatus, ResponseBodyStatus, ResponseHeadersStatus,
    ResponseTrailersStatus, per_route,
};
use crate::abi::{envoy_dynamic_module_type_envoy_buffer as EB, envoy_dynamic_module_type_envoy_http_header as EH};
use crate::buffer::{self, EnvoyBuffer};
use crate::guard::{drop_guarded, guard};
use crate::init::factories;
use crate::slot::{Handle, Slot};

type Config = Box<dyn HttpFilterConfig<EnvoyHttpFilterImpl>>;
type Filter = dyn HttpFilter<EnvoyHttpFilterImpl>;
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
    body: impl FnOnce(&mut Filter, &mut EnvoyHttpFilterImpl) -> R,
) -> R {
    let with_handle = |filter: &mut Filter, handle: &Handle| {
        // SAFETY: the slot, and the handle in it, outlives the hook.
        body(filter, &mut unsafe { EnvoyHttpFilterImpl::new(handle) })
    };
    // SAFETY: passed on.
    unsafe { FilterSlot::run(hook, filter, envoy, default, with_handle) }
}

/// Exports hooks of one filter: name, further arguments, default answer, body.
macro_rules! filter_hooks {
    ($($name:ident($($arg:ident: $ty:ty),*) $(-> $status:ident)? = |$filter:ident, $envoy:ident| $body:expr;)+) => {$(
        /// Exported hook.
        ///
        /// # Safety
        /// Called by Envoy with the pointers that the ABI promises.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            filter_envoy: *mut c_void,
            filter_module: *const c_void,
            $($arg: $ty),*
        ) $(-> status!($status))? {
            // SAFETY: Envoy's promise.
            unsafe {
                run(stringify!($name), filter_module, filter_envoy, status_default!($($status)?),
                    |$filter, $envoy| status_of!($body $(, $status)?))
            }
        }
    )+};
}
macro_rules! status {
    ($status:ident) => {
        u32
    };
}
macro_rules! status_default {
    () => {
        ()
    };
    ($status:ident) => {
        $status::Continue.as_raw()
    };
}
macro_rules! status_of {
    ($body:expr) => {
        $body
    };
    ($body:expr, $status:ident) => {
        $status::as_raw($body)
    };
}

/// The exported hooks, under a path of their own.
pub mod exported {
    use super::*;

    filter_hooks! {
        envoy_dynamic_module_on_http_filter_request_headers(end_of_stream: bool) -> RequestHeadersStatus =
            |filter, envoy| filter.on_request_headers(envoy, end_of_stream);
        envoy_dynamic_module_on_http_filter_request_body(end_of_stream: bool) -> RequestBodyStatus =
            |filter, envoy| filter.on_request_body(envoy, end_of_stream);
        envoy_dynamic_module_on_http_filter_request_trailers() -> RequestTrailersStatus =
            |filter, envoy| filter.on_request_trailers(envoy);
        envoy_dynamic_module_on_http_filter_response_headers(end_of_stream: bool) -> ResponseHeadersStatus =
            |filter, envoy| filter.on_response_headers(envoy, end_of_stream);
        envoy_dynamic_module_on_http_filter_response_body(end_of_stream: bool) -> ResponseBodyStatus =
            |filter, envoy| filter.on_response_body(envoy, end_of_stream);
        envoy_dynamic_module_on_http_filter_response_trailers() -> ResponseTrailersStatus =
            |filter, envoy| filter.on_response_trailers(envoy);
        envoy_dynamic_module_on_http_filter_stream_complete() =
            |filter, envoy| filter.on_stream_complete(envoy);
        envoy_dynamic_module_on_http_filter_scheduled(event_id: u64) =
            |filter, envoy| filter.on_scheduled(envoy, event_id);
        envoy_dynamic_module_on_http_filter_downstream_above_write_buffer_high_watermark() =
            |filter, envoy| filter.on_downstream_above_write_buffer_high_watermark(envoy);
        envoy_dynamic_module_on_http_filter_downstream_below_write_buffer_low_watermark() =
            |filter, envoy| filter.on_downstream_below_write_buffer_low_watermark(envoy);
        envoy_dynamic_module_on_http_filter_local_reply(response_code: u32, details: EB, reset_imminent: bool) -> LocalReplyStatus =
            |filter, envoy| filter.on_local_reply(envoy, response_code, EnvoyBuffer::from_raw(details), reset_imminent);
        envoy_dynamic_module_on_http_filter_http_callout_done(
            callout_id: u64, result: u32, headers: *const EH, headers_size: usize, chunks: *const EB, chunks_size: usize
        ) = |filter, envoy| {
            let result = HttpCalloutResult::from(result);
            let headers = (!headers.is_null()).then(|| buffer::headers(headers, headers_size));
            let chunks = (!chunks.is_null()).then(|| buffer::buffers(chunks, chunks_size));
            filter.on_http_callout_done(envoy, callout_id, result, headers.as_deref(), chunks.as_deref());
        };
        // Streamed call-outs are outside the subset: nothing starts one, so nothing arrives here.
        envoy_dynamic_module_on_http_filter_http_stream_headers(
            _stream_id: u64, _headers: *const EH, _headers_size: usize, _end_stream: bool
        ) = |_filter, _envoy| ();
        envoy_dynamic_module_on_http_filter_http_stream_data(
            _stream_id: u64, _data: *const EB, _data_count: usize, _end_stream: bool
        ) = |_filter, _envoy| ();
        envoy_dynamic_module_on_http_filter_http_stream_trailers(
            _stream_id: u64, _trailers: *const EH, _trailers_size: usize
        ) = |_filter, _envoy| ();
        envoy_dynamic_module_on_http_filter_http_stream_complete(_stream_id: u64) = |_filter, _envoy| ();
        envoy_dynamic_module_on_http_filter_http_stream_reset(_stream_id: u64, _reason: u32) = |_filter, _envoy| ();
    }

    /// Makes a configuration object; null rejects the configuration.
    ///
    /// # Safety
    /// Called by Envoy with the pointers that the ABI promises.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_new(
        config_envoy: *mut c_void,
        name: EB,
        config: EB,
    ) -> *const c_void {
        guard("http_filter_config_new", || {
            // SAFETY: Envoy's buffers live as long as the hook.
            let (name, config) = unsafe { (EnvoyBuffer::from_raw(name), EnvoyBuffer::from_raw(config)) };
            let Some(make) = factories().http else {
                crate::envoy_log_error!("this module has no HTTP filter");
                return None;
            };
            let mut envoy = EnvoyHttpFilterConfigImpl::new(config_envoy);
            make(&mut envoy, &name.to_str_lossy(), config.as_slice())
        })
        .flatten()
        .map_or(ptr::null(), |config: Config| Box::into_raw(Box::new(config)).cast_const().cast())
    }

    /// Frees a configuration object, on any thread.
    ///
    /// # Safety
    /// Called by Envoy, once per object.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_destroy(config_module: *const c_void) {
        if !config_module.is_null() {
            // SAFETY: made by `config_new`; Envoy gives it up.
            let config = unsafe { Box::from_raw(config_module.cast_mut().cast::<Config>()) };
            drop_guarded("http_filter_config_destroy", config);
        }
    }

    /// Makes a stream's filter; an inert one after a panic, never null: Envoy up to 1.39 would call
    /// hooks on the null pointer.
    ///
    /// # Safety
    /// Called by Envoy with the pointers that the ABI promises.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_new(
        config_module: *const c_void,
        filter_envoy: *mut c_void,
    ) -> *const c_void {
        FilterSlot::create("http_filter_new", filter_envoy, |handle| {
            // SAFETY: made by `config_new`; Envoy keeps it alive while filters of it are made.
            let config = unsafe { config_module.cast::<Config>().as_ref() }?;
            // SAFETY: the slot outlives this call.
            Some(config.new_http_filter(&mut unsafe { EnvoyHttpFilterImpl::new(handle) }))
        })
    }

    /// Frees a stream's filter; if one of its hooks is running, when that has returned.
    ///
    /// # Safety
    /// Called by Envoy, once per filter.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_destroy(filter_module: *const c_void) {
        // SAFETY: Envoy's promise.
        unsafe { FilterSlot::destroy("http_filter_destroy", filter_module) };
    }

    /// Makes a route's configuration object; null rejects the configuration.
    ///
    /// # Safety
    /// Called by Envoy with the pointers that the ABI promises.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_per_route_config_new(
        name: EB,
        config: EB,
    ) -> *const c_void {
        guard("http_filter_per_route_config_new", || {
            // SAFETY: Envoy's buffers live as long as the hook.
            let (name, config) = unsafe { (EnvoyBuffer::from_raw(name), EnvoyBuffer::from_raw(config)) };
            let Some(make) = factories().http_per_route else {
                crate::envoy_log_error!("this module has no per-route configuration");
                return None;
            };
            make(&name.to_str_lossy(), config.as_slice())
        })
        .flatten()
        .map_or(ptr::null(), per_route::insert)
    }

    /// Frees a route's configuration object, on any thread.
    ///
    /// # Safety
    /// Called by Envoy, once per object.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_per_route_config_destroy(
        config_module: *const c_void,
    ) {
        if let Some(config) = per_route::remove(config_module) {
            drop_guarded("http_filter_per_route_config_destroy", config);
        }
    }

    /// Delivers a commit of a configuration's scheduler.
    ///
    /// # Safety
    /// Called by Envoy with the pointers that the ABI promises.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_scheduled(
        _config_envoy: *mut c_void,
        config_module: *const c_void,
        event_id: u64,
    ) {
        let _ = guard("http_filter_config_scheduled", || {
            // SAFETY: made by `config_new` and still alive.
            if let Some(config) = unsafe { config_module.cast::<Config>().as_ref() } {
                config.on_scheduled(event_id);
            }
        });
    }
}
