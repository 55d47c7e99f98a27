//! The C symbols of the bootstrap extension: Envoy requires all 17.

use std::ffi::c_void;

use super::completion::CompletionCallback;
use super::envoy::{EnvoyBootstrapExtensionConfig, EnvoyBootstrapExtensionConfigImpl, EnvoyBootstrapExtensionImpl};
use super::extension::{BootstrapExtension, BootstrapExtensionConfig, NewBootstrapExtensionConfigFunction};
use super::timer::Timer;
use crate::abi::{
    ask, envoy_dynamic_module_type_envoy_buffer as EB, envoy_dynamic_module_type_envoy_http_header as EH,
    envoy_dynamic_module_type_event_cb as EventCallback,
    envoy_dynamic_module_type_http_callout_result as HttpCalloutResult,
};
use crate::buffer::{self, EnvoyBuffer};
use crate::config;
use crate::factory::Factory;
use crate::guard::guard;
use crate::slot::{Handle, Occupant, Slot};

type Config = Box<dyn BootstrapExtensionConfig>;
type Extension = Box<dyn BootstrapExtension>;
type ExtensionSlot = Slot<Extension>;

/// The user's constructor of configurations.
pub(crate) static FACTORY: Factory<NewBootstrapExtensionConfigFunction> = Factory::new();

/// The server's life, as far as it wants no answer.
#[derive(Clone, Copy)]
pub(crate) enum Stage {
    ServerInitialized,
    WorkerThreadInitialized,
    DrainStarted,
}

impl Occupant for Extension {
    type Event = Stage;

    fn deliver(&mut self, handle: &Handle, event: Stage) {
        let envoy = &mut EnvoyBootstrapExtensionImpl::new(handle);
        match event {
            Stage::ServerInitialized => self.on_server_initialized(envoy),
            Stage::WorkerThreadInitialized => self.on_worker_thread_initialized(envoy),
            Stage::DrainStarted => self.on_drain_started(envoy),
        }
    }
}

/// Exports hooks of the configuration.
macro_rules! config_hooks {
    ($($name:ident($($arg:ident: $ty:ty),*) = |$config:ident, $envoy:ident| $body:expr;)+) => {$(
        /// Exported hook.
        ///
        /// # Safety
        /// Called by Envoy with the pointers that the ABI promises.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            config_envoy: *mut c_void,
            config_module: *const c_void,
            $($arg: $ty),*
        ) {
            let _ = guard(stringify!($name), || {
                let $envoy: &mut dyn EnvoyBootstrapExtensionConfig =
                    &mut EnvoyBootstrapExtensionConfigImpl::new(config_envoy);
                // SAFETY: made by `config_new` and still alive; buffers live as long as the hook.
                unsafe {
                    if let Some($config) = config::get::<Config>(config_module) {
                        $body
                    }
                }
            });
        }
    )+};
}

/// Exports hooks of the extension.
macro_rules! extension_hooks {
    ($($name:ident = $stage:ident;)+) => {$(
        /// Exported hook.
        ///
        /// # Safety
        /// Called by Envoy with the pointers that the ABI promises.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(extension_envoy: *mut c_void, extension_module: *const c_void) {
            // SAFETY: Envoy's promise.
            unsafe { ExtensionSlot::notify(stringify!($name), extension_module, extension_envoy, Stage::$stage) };
        }
    )+};
}

/// Exports hooks that Envoy requires, for what this crate cannot ask for and so never hears of.
macro_rules! unused_hooks {
    ($($name:ident($($arg:ident: $ty:ty),*);)+) => {$(
        /// Exported hook; does nothing.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(_config_envoy: *mut c_void, _config_module: *const c_void, $($arg: $ty),*) {}
    )+};
}

/// The exported hooks, under a path of their own.
pub mod exported {
    use super::*;

    config_hooks! {
        envoy_dynamic_module_on_bootstrap_extension_config_scheduled(event_id: u64) =
            |config, envoy| config.on_scheduled(envoy, event_id);
        envoy_dynamic_module_on_bootstrap_extension_timer_fired(timer: *mut c_void) =
            |config, envoy| config.on_timer_fired(envoy, &Timer::borrowed(timer));
        envoy_dynamic_module_on_bootstrap_extension_http_callout_done(
            callout_id: u64, result: u32, headers: *const EH, headers_size: usize, chunks: *const EB, chunks_size: usize
        ) = |config, envoy| {
            // However a later Envoy says that it failed: no answer came.
            let result = HttpCalloutResult::from_raw(result).unwrap_or(HttpCalloutResult::Reset);
            let headers = (!headers.is_null()).then(|| buffer::headers(headers, headers_size));
            let chunks = (!chunks.is_null()).then(|| buffer::buffers(chunks, chunks_size));
            config.on_http_callout_done(envoy, callout_id, result, headers.as_deref(), chunks.as_deref());
        };
    }

    extension_hooks! {
        envoy_dynamic_module_on_bootstrap_extension_server_initialized = ServerInitialized;
        envoy_dynamic_module_on_bootstrap_extension_worker_thread_initialized = WorkerThreadInitialized;
        envoy_dynamic_module_on_bootstrap_extension_drain_started = DrainStarted;
    }

    unused_hooks! {
        envoy_dynamic_module_on_bootstrap_extension_file_changed(_path: EB, _events: u32);
        envoy_dynamic_module_on_bootstrap_extension_cluster_add_or_update(_name: EB);
        envoy_dynamic_module_on_bootstrap_extension_cluster_removal(_name: EB);
        envoy_dynamic_module_on_bootstrap_extension_listener_add_or_update(_name: EB);
        envoy_dynamic_module_on_bootstrap_extension_listener_removal(_name: EB);
    }

    /// Answers an admin request; 500 after a panic.
    ///
    /// # Safety
    /// Called by Envoy with the pointers that the ABI promises.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_bootstrap_extension_admin_request(
        config_envoy: *mut c_void,
        config_module: *const c_void,
        method: EB,
        path: EB,
        body: EB,
    ) -> u32 {
        let answer = guard("bootstrap_extension_admin_request", || {
            // SAFETY: made by `config_new` and still alive; buffers live as long as the hook.
            let (config, method, path, body) = unsafe {
                (
                    config::get::<Config>(config_module),
                    EnvoyBuffer::from_raw(method).to_str_lossy(),
                    EnvoyBuffer::from_raw(path).to_str_lossy(),
                    EnvoyBuffer::from_raw(body).bytes(),
                )
            };
            let envoy = &mut EnvoyBootstrapExtensionConfigImpl::new(config_envoy);
            config.map_or((404, String::new()), |config| config.on_admin_request(envoy, &method, &path, body))
        });
        let (status, body) = answer.unwrap_or_else(|| (500, "the module panicked\n".to_owned()));
        let envoy = EnvoyBootstrapExtensionConfigImpl::new(config_envoy);
        ask!(envoy, bootstrap_extension_admin_set_response(body.as_str().into()) or ());
        status
    }

    /// Makes the configuration object; null rejects the configuration.
    ///
    /// # Safety
    /// Called by Envoy with the pointers that the ABI promises.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_bootstrap_extension_config_new(
        config_envoy: *mut c_void,
        name: EB,
        config: EB,
    ) -> *const c_void {
        let make = |name: &str, config: &[u8]| -> Option<Config> {
            FACTORY.get("bootstrap extension")?(&mut EnvoyBootstrapExtensionConfigImpl::new(config_envoy), name, config)
        };
        // SAFETY: Envoy's promise.
        unsafe { config::create("bootstrap_extension_config_new", name, config, make) }
    }

    /// Frees the configuration object.
    ///
    /// # Safety
    /// Called by Envoy, once per object.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_bootstrap_extension_config_destroy(config_module: *const c_void) {
        // SAFETY: Envoy's promise.
        unsafe { config::destroy::<Config>("bootstrap_extension_config_destroy", config_module) };
    }

    /// Makes the extension; an inert one after a panic.
    ///
    /// # Safety
    /// Called by Envoy with the pointers that the ABI promises.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_bootstrap_extension_new(
        config_module: *const c_void,
        extension_envoy: *mut c_void,
    ) -> *const c_void {
        ExtensionSlot::create("bootstrap_extension_new", extension_envoy, |handle| {
            // SAFETY: made by `config_new` and still alive.
            let config = unsafe { config::get::<Config>(config_module) }?;
            Some(config.new_bootstrap_extension(&mut EnvoyBootstrapExtensionImpl::new(handle)))
        })
    }

    /// Frees the extension.
    ///
    /// # Safety
    /// Called by Envoy, once per object.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_bootstrap_extension_destroy(extension_module: *const c_void) {
        // SAFETY: Envoy's promise.
        unsafe { ExtensionSlot::destroy("bootstrap_extension_destroy", extension_module) };
    }

    /// Shutdown: the completion runs exactly once, whatever the extension does.
    ///
    /// # Safety
    /// Called by Envoy with the pointers that the ABI promises.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn envoy_dynamic_module_on_bootstrap_extension_shutdown(
        extension_envoy: *mut c_void,
        extension_module: *const c_void,
        callback: EventCallback,
        context: *mut c_void,
    ) {
        // Dropped unused, by an inert extension's slot or by a panic, it completes as well.
        let completion = CompletionCallback::new(callback, context);
        let shutdown = |extension: &mut Extension, handle: &Handle| {
            extension.on_shutdown(&mut EnvoyBootstrapExtensionImpl::new(handle), completion);
        };
        // SAFETY: Envoy's promise.
        unsafe {
            ExtensionSlot::run("bootstrap_extension_shutdown", extension_module, extension_envoy, (), shutdown);
        }
    }
}
