//! The C symbols of the HTTP filter: 20 that Envoy requires, per-route configuration, local reply.

use std::ffi::c_void;
use std::ptr;

use super::envoy_config::EnvoyHttpFilterConfigImpl;
use super::envoy_filter::EnvoyHttpFilter;
use super::envoy_filter_impl::EnvoyHttpFilterImpl;
use super::filter::{HttpFilter, HttpFilterConfig, NewHttpFilterConfigFunction, NewHttpFilterPerRouteConfigFunction};
use super::per_route;
use crate::abi::{
    envoy_dynamic_module_type_envoy_buffer as EB, envoy_dynamic_module_type_envoy_http_header as EH,
    envoy_dynamic_module_type_on_http_filter_local_reply_status as LocalReplyStatus,
    envoy_dynamic_module_type_on_http_filter_request_body_status as RequestBodyStatus,
    envoy_dynamic_module_type_on_http_filter_request_headers_status as RequestHeadersStatus,
    envoy_dynamic_module_type_on_http_filter_request_trailers_status as RequestTrailersStatus,
    envoy_dynamic_module_type_on_http_filter_response_body_status as ResponseBodyStatus,
    envoy_dynamic_module_type_on_http_filter_response_headers_status as ResponseHeadersStatus,
    envoy_dynamic_module_type_on_http_filter_response_trailers_status as ResponseTrailersStatus,
};
use crate::buffer::EnvoyBuffer;
use crate::config;
use crate::factory::Factory;
use crate::guard::{drop_guarded, guard};
use crate::slot::{Handle, Occupant, Slot};

type Config = Box<dyn HttpFilterConfig<EnvoyHttpFilterImpl>>;

/// The user's constructor of configurations.
pub(crate) static FACTORY: Factory<NewHttpFilterConfigFunction<EnvoyHttpFilterConfigImpl, EnvoyHttpFilterImpl>> =
    Factory::new();
/// The user's constructor of per-route configurations.
pub(crate) static PER_ROUTE_FACTORY: Factory<NewHttpFilterPerRouteConfigFunction> = Factory::new();

/// One stream's filter, and what its hooks have told Envoy to hold.
struct Stream {
    filter: Box<dyn HttpFilter<EnvoyHttpFilterImpl>>,
    request: Flow,
    response: Flow,
}

/// One direction of a stream.
#[derive(Clone, Copy, PartialEq)]
enum Flow {
    Open,
    /// A hook of this direction runs; after a panic its answer is "continue".
    InHook,
    /// Held until the filter says "continue".
    Held,
}

/// The answer of a request or response hook.
trait Status: Copy {
    fn holds(self) -> bool;
}

macro_rules! statuses {
    ($($status:ident: $($passes:ident)|+;)+) => {$(
        impl Status for $status {
            fn holds(self) -> bool {
                !matches!(self, $(Self::$passes)|+)
            }
        }
    )+};
}

statuses! {
    RequestHeadersStatus: Continue | ContinueAndDontEndStream;
    RequestBodyStatus: Continue;
    RequestTrailersStatus: Continue;
    ResponseHeadersStatus: Continue | ContinueAndDontEndStream;
    ResponseBodyStatus: Continue;
    ResponseTrailersStatus: Continue;
}

// === impl Stream ===

impl Stream {
    fn new(filter: Box<dyn HttpFilter<EnvoyHttpFilterImpl>>) -> Self {
        Self { filter, request: Flow::Open, response: Flow::Open }
    }

    /// Runs a hook of one direction.
    fn pass<S: Status>(
        &mut self,
        direction: fn(&mut Self) -> &mut Flow,
        hook: impl FnOnce(&mut dyn HttpFilter<EnvoyHttpFilterImpl>) -> S,
    ) -> S {
        *direction(self) = Flow::InHook;
        let status = hook(self.filter.as_mut());
        *direction(self) = if status.holds() { Flow::Held } else { Flow::Open };
        status
    }

    /// The stream ends: nothing is to be resumed any more.
    fn ends(&mut self) -> &mut dyn HttpFilter<EnvoyHttpFilterImpl> {
        (self.request, self.response) = (Flow::Open, Flow::Open);
        self.filter.as_mut()
    }
}

impl Occupant for Stream {
    /// The stream is complete.
    type Event = ();

    fn deliver(&mut self, handle: &Handle, (): ()) {
        // SAFETY: the slot, and the handle in it, outlives the hook.
        self.ends().on_stream_complete(&mut unsafe { EnvoyHttpFilterImpl::new(handle) });
    }

    /// A stream that an earlier hook held would wait for a filter that runs no more.
    fn after_panic(&mut self, handle: &Handle) {
        // SAFETY: as above.
        let mut envoy = unsafe { EnvoyHttpFilterImpl::new(handle) };
        if self.request == Flow::Held {
            envoy.continue_decoding();
        }
        if self.response == Flow::Held {
            envoy.continue_encoding();
        }
    }
}

/// Runs a filter's hook with an Envoy handle of its own.
///
/// # Safety
/// As for [`Slot::run`].
unsafe fn run<R>(
    hook: &'static str,
    filter: *const c_void,
    envoy: *mut c_void,
    default: R,
    body: impl FnOnce(&mut Stream, &mut EnvoyHttpFilterImpl) -> R,
) -> R {
    let with_handle = |stream: &mut Stream, handle: &Handle| {
        // SAFETY: the slot, and the handle in it, outlives the hook.
        body(stream, &mut unsafe { EnvoyHttpFilterImpl::new(handle) })
    };
    // SAFETY: passed on.
    unsafe { Slot::<Stream>::run(hook, filter, envoy, default, with_handle) }
}

/// Exports the hooks of one direction: name, further arguments, type of the answer, body.
macro_rules! data_hooks {
    ($($direction:ident: $name:ident($($arg:ident: $ty:ty)?) -> $status:ident = $method:ident;)+) => {$(
        /// Exported hook.
        ///
        /// # Safety
        /// Called by Envoy with the pointers that the ABI promises.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            filter_envoy: *mut c_void,
            filter_module: *const c_void,
            $($arg: $ty)?
        ) -> u32 {
            // SAFETY: Envoy's promise.
            let status = unsafe {
                run(stringify!($name), filter_module, filter_envoy, $status::Continue, |stream, envoy| {
                    stream.pass(|stream| &mut stream.$direction, |filter| filter.$method(envoy $(, $arg)?))
                })
            };
            status.as_raw()
        }
    )+};
}

/// Exports hooks that Envoy requires, for what this crate cannot start and so never hears of.
macro_rules! unused_hooks {
    ($($name:ident($($arg:ident: $ty:ty),*);)+) => {$(
        /// Exported hook; does nothing.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(_filter_envoy: *mut c_void, _filter_module: *const c_void, $($arg: $ty),*) {}
    )+};
}

/// The exported hooks, under a path of their own.
pub mod exported {
    use super::*;

    data_hooks! {
        request: envoy_dynamic_module_on_http_filter_request_headers(end_of_stream: bool) -> RequestHeadersStatus =
            on_request_headers;
        request: envoy_dynamic_module_on_http_filter_request_body(end_of_stream: bool) -> RequestBodyStatus =
            on_request_body;
        request: envoy_dynamic_module_on_http_filter_request_trailers() -> RequestTrailersStatus =
            on_request_trailers;
        response: envoy_dynamic_module_on_http_filter_response_headers(end_of_stream: bool) -> ResponseHeadersStatus =
            on_response_headers;
        response: envoy_dynamic_module_on_http_filter_response_body(end_of_stream: bool) -> ResponseBodyStatus =
            on_response_body;
        response: envoy_dynamic_module_on_http_filter_response_trailers() -> ResponseTrailersStatus =
            on_response_trailers;
    }

    unused_hooks! {
        envoy_dynamic_module_on_http_filter_http_callout_done(
            _callout_id: u64, _result: u32, _headers: *const EH, _headers_size: usize, _chunks: *const EB, _chunks_size: usize
        );
        envoy_dynamic_module_on_http_filter_http_stream_headers(
            _stream_id: u64, _headers: *const EH, _headers_size: usize, _end_stream: bool
        );
        envoy_dynamic_module_on_http_filter_http_stream_data(
            _stream_id: u64, _data: *const EB, _data_count: usize, _end_stream: bool
        );
        envoy_dynamic_module_on_http_filter_http_stream_trailers(
            _stream_id: u64, _trailers: *const EH, _trailers_size: usize
        );
        envoy_dynamic_module_on_http_filter_http_stream_complete(_stream_id: u64);
        envoy_dynamic_module_on_http_filter_http_stream_reset(_stream_id: u64, _reason: u32);
        envoy_dynamic_module_on_http_filter_downstream_above_write_buffer_high_watermark();
        envoy_dynamic_module_on_http_filter_downstream_below_write_buffer_low_watermark();
    }

    /// The stream is over.
    ///
    /// # Safety
    /// Called by Envoy with the pointers that the ABI promises.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_stream_complete(
        filter_envoy: *mut c_void,
        filter_module: *const c_void,
    ) {
        // SAFETY: Envoy's promise.
        unsafe { Slot::<Stream>::notify("http_filter_stream_complete", filter_module, filter_envoy, ()) };
    }

    /// Delivers a commit of the stream's scheduler.
    ///
    /// # Safety
    /// Called by Envoy with the pointers that the ABI promises.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_scheduled(
        filter_envoy: *mut c_void,
        filter_module: *const c_void,
        event_id: u64,
    ) {
        // SAFETY: Envoy's promise.
        unsafe {
            run("http_filter_scheduled", filter_module, filter_envoy, (), |stream, envoy| {
                stream.filter.on_scheduled(envoy, event_id);
            });
        }
    }

    /// Envoy is about to reply by itself.
    ///
    /// # Safety
    /// Called by Envoy with the pointers that the ABI promises.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_local_reply(
        filter_envoy: *mut c_void,
        filter_module: *const c_void,
        response_code: u32,
        details: EB,
        reset_imminent: bool,
    ) -> u32 {
        // SAFETY: Envoy's promise; the buffer lives as long as the hook.
        let status = unsafe {
            run("http_filter_local_reply", filter_module, filter_envoy, LocalReplyStatus::Continue, |stream, envoy| {
                let details = EnvoyBuffer::from_raw(details);
                stream.ends().on_local_reply(envoy, response_code, details, reset_imminent)
            })
        };
        status.as_raw()
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
        let make = |name: &str, config: &[u8]| -> Option<Config> {
            FACTORY.get("HTTP filter")?(&mut EnvoyHttpFilterConfigImpl::new(config_envoy), name, config)
        };
        // SAFETY: Envoy's promise.
        unsafe { config::create("http_filter_config_new", name, config, make) }
    }

    /// Frees a configuration object, on any thread.
    ///
    /// # Safety
    /// Called by Envoy, once per object.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_destroy(config_module: *const c_void) {
        // SAFETY: Envoy's promise.
        unsafe { config::destroy::<Config>("http_filter_config_destroy", config_module) };
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
        Slot::create("http_filter_new", filter_envoy, |handle| {
            // SAFETY: made by `config_new`; Envoy keeps it alive while filters of it are made.
            let config = unsafe { config::get::<Config>(config_module) }?;
            // SAFETY: the slot outlives this call.
            Some(Stream::new(config.new_http_filter(&mut unsafe { EnvoyHttpFilterImpl::new(handle) })))
        })
    }

    /// Frees a stream's filter; if one of its hooks is running, when that has returned.
    ///
    /// # Safety
    /// Called by Envoy, once per filter.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_destroy(filter_module: *const c_void) {
        // SAFETY: Envoy's promise.
        unsafe { Slot::<Stream>::destroy("http_filter_destroy", filter_module) };
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
        // SAFETY: Envoy's buffers live as long as the hook.
        let (name, config) = unsafe { (EnvoyBuffer::from_raw(name), EnvoyBuffer::from_raw(config)) };
        guard("http_filter_per_route_config_new", || {
            PER_ROUTE_FACTORY.get("per-route configuration")?(&name.to_str_lossy(), config.as_slice())
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
}
