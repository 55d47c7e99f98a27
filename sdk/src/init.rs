//! `program_init`, and the macro that declares it in the user's crate.

use std::ffi::c_char;
use std::io::Write;

use crate::abi::{self, ABI_VERSION_BEFORE_1_40};
use crate::guard::{guard, quiet_guarded_panics};
use crate::http::{
    EnvoyHttpFilterConfigImpl, EnvoyHttpFilterImpl, NewHttpFilterConfigFunction, NewHttpFilterPerRouteConfigFunction,
};
use crate::network::{EnvoyNetworkFilterConfigImpl, EnvoyNetworkFilterImpl, NewNetworkFilterConfigFunction};
use crate::{bootstrap, config_validator, http, network};

/// Called once on the main thread when the module is loaded; `false` rejects the module.
pub type ProgramInitFunction = fn() -> bool;

/// The user's constructors, one per extension point. Filled by the macro.
#[doc(hidden)]
#[derive(Clone, Copy, Default)]
pub struct Factories {
    pub http: Option<NewHttpFilterConfigFunction<EnvoyHttpFilterConfigImpl, EnvoyHttpFilterImpl>>,
    pub http_per_route: Option<NewHttpFilterPerRouteConfigFunction>,
    pub network: Option<NewNetworkFilterConfigFunction<EnvoyNetworkFilterConfigImpl, EnvoyNetworkFilterImpl>>,
    pub bootstrap: Option<bootstrap::NewBootstrapExtensionConfigFunction>,
    pub config_validator: Option<config_validator::NewConfigValidatorConfigFunction>,
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
    quiet_guarded_panics();
    http::FACTORY.set(factories.http);
    http::PER_ROUTE_FACTORY.set(factories.http_per_route);
    network::FACTORY.set(factories.network);
    bootstrap::FACTORY.set(factories.bootstrap);
    config_validator::FACTORY.set(factories.config_validator);
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
