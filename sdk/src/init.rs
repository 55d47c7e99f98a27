//! `program_init`, and the macros that declare it in the user's crate.

use std::ffi::c_char;
use std::io::Write;
use std::sync::OnceLock;

use crate::abi::{self, ABI_VERSION_BEFORE_1_40};
use crate::bootstrap::NewBootstrapExtensionConfigFunction;
use crate::config_validator::NewConfigValidatorConfigFunction;
use crate::guard::guard;
use crate::http::{
    EnvoyHttpFilterConfigImpl, EnvoyHttpFilterImpl, NewHttpFilterConfigFunction,
    NewHttpFilterPerRouteConfigFunction,
};
use crate::network::{
    EnvoyNetworkFilterConfigImpl, EnvoyNetworkFilterImpl, NewNetworkFilterConfigFunction,
};

/// Called once on the main thread when the module is loaded; `false` rejects the module.
pub type ProgramInitFunction = fn() -> bool;

static FACTORIES: OnceLock<Factories> = OnceLock::new();
static SERVER: OnceLock<Server> = OnceLock::new();

/// What does not change while the server runs.
struct Server {
    concurrency: u32,
    validation: bool,
}

/// The user's constructors, one per extension point. Filled by the `declare_*` macros.
#[doc(hidden)]
#[derive(Clone, Copy, Default)]
pub struct Factories {
    pub http: Option<NewHttpFilterConfigFunction<EnvoyHttpFilterConfigImpl, EnvoyHttpFilterImpl>>,
    pub http_per_route: Option<NewHttpFilterPerRouteConfigFunction>,
    pub network: Option<
        NewNetworkFilterConfigFunction<EnvoyNetworkFilterConfigImpl, EnvoyNetworkFilterImpl>,
    >,
    pub bootstrap: Option<NewBootstrapExtensionConfigFunction>,
    pub config_validator: Option<NewConfigValidatorConfigFunction>,
}

/// The constructors in force.
pub(crate) fn factories() -> Factories {
    #[cfg(any(test, feature = "testing"))]
    if let Some(factories) = crate::testing::factories() {
        return factories;
    }
    FACTORIES.get().copied().unwrap_or_default()
}

/// Body of the exported `program_init`: fills the callback table, keeps the constructors, runs the
/// user's `init`. Null, with the reason on stderr or in Envoy's log, makes Envoy refuse the module.
#[doc(hidden)]
pub fn program_init(init: ProgramInitFunction, factories: Factories) -> *const c_char {
    if let Err(name) = abi::install_from_process() {
        // Envoy's logger is one of the callbacks, so stderr is the place that is sure to exist.
        let _ = writeln!(
            std::io::stderr(),
            "dynamic module refused: this process has no {name}; Envoy 1.38 or later is needed"
        );
        return std::ptr::null();
    }
    let _ = FACTORIES.set(factories);
    // Both may be asked on the main thread only, which is where this runs, and never change.
    let _ = SERVER.set(Server {
        concurrency: abi::envoy!(get_concurrency() or 1),
        validation: abi::envoy!(is_validation_mode() or false),
    });
    match guard("program_init", init) {
        Some(true) => {}
        Some(false) => {
            crate::envoy_log_error!("the module's init function refused to start");
            return std::ptr::null();
        }
        None => return std::ptr::null(),
    }
    // Either version loads everywhere; the matching one spares a misleading log line.
    if abi::callbacks().log_v2.is_some() {
        abi::envoy_dynamic_modules_abi_version.as_ptr()
    } else {
        ABI_VERSION_BEFORE_1_40.as_ptr()
    }
}

/// Worker threads that Envoy runs (`--concurrency`), read when the module was loaded; 1 without
/// Envoy. Any thread. (The official crate's function reads it anew and is `unsafe` for that.)
pub fn get_server_concurrency() -> u32 {
    SERVER.get().map_or(1, |server| server.concurrency)
}

/// Whether Envoy only checks its configuration (`--mode validate`). Any thread, as above.
pub fn is_validation_mode() -> bool {
    SERVER.get().is_some_and(|server| server.validation)
}

/// Declares the module: `init`, then any of `http`, `http_per_route`, `network`, `bootstrap`,
/// `config_validator`, each with its constructor, in any order.
///
/// An extension point without a constructor refuses its configuration.
#[macro_export]
macro_rules! declare_all_init_functions {
    ($init:expr, $($key:ident : $factory:expr),+ $(,)?) => {
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub extern "C" fn envoy_dynamic_module_on_program_init() -> *const ::core::ffi::c_char {
            let mut factories = $crate::__private::Factories::default();
            $(factories.$key = ::core::option::Option::Some($factory);)+
            $crate::__private::program_init($init, factories)
        }
    };
}

/// Declares a module with an HTTP filter, and with per-route configuration if a third function is given.
#[macro_export]
macro_rules! declare_init_functions {
    ($init:expr, $http:expr $(,)?) => {
        $crate::declare_all_init_functions!($init, http: $http);
    };
    ($init:expr, $http:expr, $per_route:expr $(,)?) => {
        $crate::declare_all_init_functions!($init, http: $http, http_per_route: $per_route);
    };
}

/// Declares a module with a network filter.
#[macro_export]
macro_rules! declare_network_filter_init_functions {
    ($init:expr, $network:expr $(,)?) => {
        $crate::declare_all_init_functions!($init, network: $network);
    };
}

/// Declares a module with a bootstrap extension.
#[macro_export]
macro_rules! declare_bootstrap_init_functions {
    ($init:expr, $bootstrap:expr $(,)?) => {
        $crate::declare_all_init_functions!($init, bootstrap: $bootstrap);
    };
}
