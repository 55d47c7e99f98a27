//! The C symbols of the network filter: 8 that Envoy requires, and that of the scheduler.

use std::ffi::c_void;
use std::ptr;

use super::envoy_config::EnvoyNetworkFilterConfigImpl;
use super::envoy_filter::EnvoyNetworkFilter;
use super::envoy_filter_impl::EnvoyNetworkFilterImpl;
use super::filter::{NetworkFilter, NetworkFilterConfig, NewNetworkFilterConfigFunction};
use crate::abi::{
    envoy_dynamic_module_type_envoy_buffer as EB,
    envoy_dynamic_module_type_network_connection_event as ConnectionEvent,
    envoy_dynamic_module_type_on_network_filter_data_status as DataStatus,
};
use crate::config;
use crate::factory::Factory;
use crate::slot::{Handle, Occupant, Slot};

type Config = Box<dyn NetworkFilterConfig<EnvoyNetworkFilterImpl>>;

/// The user's constructor of configurations.
pub(crate) static FACTORY: Factory<
    NewNetworkFilterConfigFunction<EnvoyNetworkFilterConfigImpl, EnvoyNetworkFilterImpl>,
> = Factory::new();

/// One connection's filter, and whether it has told Envoy to stop reading.
struct Connection {
    filter: Box<dyn NetworkFilter<EnvoyNetworkFilterImpl>>,
    held: bool,
}

// Envoy may destroy a connection's filter on a thread that commits an event to it.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Connection>();
};

impl Occupant for Connection {
    type Event = ConnectionEvent;

    fn deliver(&mut self, handle: &Handle, event: ConnectionEvent) {
        // SAFETY: the slot, and the handle in it, outlives the hook.
        self.filter.on_event(&mut unsafe { EnvoyNetworkFilterImpl::new(handle) }, event);
    }

    /// A connection that an earlier hook stopped would wait for a filter that runs no more.
    fn after_panic(&mut self, handle: &Handle) {
        if self.held {
            // SAFETY: as above.
            unsafe { EnvoyNetworkFilterImpl::new(handle) }.continue_reading();
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
    body: impl FnOnce(&mut Connection, &mut EnvoyNetworkFilterImpl) -> R,
) -> R {
    let with_handle = |connection: &mut Connection, handle: &Handle| {
        // SAFETY: the slot, and the handle in it, outlives the hook.
        body(connection, &mut unsafe { EnvoyNetworkFilterImpl::new(handle) })
    };
    // SAFETY: passed on.
    unsafe { Slot::<Connection>::run(hook, filter, envoy, default, with_handle) }
}

/// Exports the hooks of the read direction, whose answer may stop the connection.
macro_rules! read_hooks {
    ($($name:ident($($arg:ident: $ty:ty),*) = $method:ident;)+) => {$(
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
                run(stringify!($name), filter_module, filter_envoy, DataStatus::Continue, |connection, envoy| {
                    // After a panic in this hook its default answer goes on reading.
                    connection.held = false;
                    let status = connection.filter.$method(envoy $(, $arg)*);
                    connection.held = status == DataStatus::StopIteration;
                    status
                })
            };
            status.as_raw()
        }
    )+};
}

/// The exported hooks, under a path of their own.
pub mod exported {
    use super::*;

    read_hooks! {
        envoy_dynamic_module_on_network_filter_new_connection() = on_new_connection;
        envoy_dynamic_module_on_network_filter_read(data_length: usize, end_stream: bool) = on_read;
    }

    /// Bytes are about to be written.
    ///
    /// # Safety
    /// Called by Envoy with the pointers that the ABI promises.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_network_filter_write(
        filter_envoy: *mut c_void,
        filter_module: *const c_void,
        data_length: usize,
        end_stream: bool,
    ) -> u32 {
        // SAFETY: Envoy's promise.
        let status = unsafe {
            run("network_filter_write", filter_module, filter_envoy, DataStatus::Continue, |connection, envoy| {
                connection.filter.on_write(envoy, data_length, end_stream)
            })
        };
        status.as_raw()
    }

    /// The connection changed its state. An event that this crate does not know tells a filter nothing.
    ///
    /// # Safety
    /// Called by Envoy with the pointers that the ABI promises.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_network_filter_event(
        filter_envoy: *mut c_void,
        filter_module: *const c_void,
        event: u32,
    ) {
        if let Some(event) = ConnectionEvent::from_raw(event) {
            // SAFETY: Envoy's promise.
            unsafe { Slot::<Connection>::notify("network_filter_event", filter_module, filter_envoy, event) };
        }
    }

    /// Delivers a commit of the connection's scheduler.
    ///
    /// # Safety
    /// Called by Envoy with the pointers that the ABI promises.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_network_filter_scheduled(
        filter_envoy: *mut c_void,
        filter_module: *const c_void,
        event_id: u64,
    ) {
        // SAFETY: Envoy's promise.
        unsafe {
            run("network_filter_scheduled", filter_module, filter_envoy, (), |connection, envoy| {
                connection.filter.on_scheduled(envoy, event_id);
            });
        }
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
        let make = |name: &str, config: &[u8]| -> Option<Config> {
            FACTORY.get("network filter")?(&mut EnvoyNetworkFilterConfigImpl::new(config_envoy), name, config)
        };
        // SAFETY: Envoy's promise.
        unsafe { config::create("network_filter_config_new", name, config, make) }
    }

    /// Frees a configuration object, on any thread.
    ///
    /// # Safety
    /// Called by Envoy, once per object.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_network_filter_config_destroy(config_module: *const c_void) {
        // SAFETY: Envoy's promise.
        unsafe { config::destroy::<Config>("network_filter_config_destroy", config_module) };
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
        Slot::create("network_filter_new", filter_envoy, |handle| {
            // SAFETY: made by `config_new`; Envoy keeps it alive while filters of it are made.
            let config = unsafe { config::get::<Config>(config_module) }?;
            // SAFETY: the slot outlives this call.
            let filter = config.new_network_filter(&mut unsafe { EnvoyNetworkFilterImpl::new(handle) });
            Some(Connection { filter, held: false })
        })
    }

    /// Frees a connection's filter, on any thread; if one of its hooks is running, when that has returned.
    ///
    /// # Safety
    /// Called by Envoy, once per filter.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_network_filter_destroy(filter_module: *const c_void) {
        // SAFETY: Envoy's promise. The handle is cleared first: Envoy's side is being destroyed.
        unsafe {
            Slot::<Connection>::retire(filter_module);
            run("network_filter_destroy", filter_module, ptr::null_mut(), (), |connection, envoy| {
                connection.filter.on_destroy(envoy);
            });
            Slot::<Connection>::destroy("network_filter_destroy", filter_module);
        }
    }
}
