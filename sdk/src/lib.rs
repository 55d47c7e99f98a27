//! Rust binding for Envoy's dynamic modules ABI: HTTP filter with per-route configuration, network
//! filter, bootstrap extension and xDS config validator, on Envoy 1.38 and later.
//!
//! Macros, traits, methods and status types bear the names of the official crate, which lives in
//! Envoy's repository only. All `unsafe` of a module is here: its own crate can forbid it.
//!
//! # Loading
//! `program_init` fills a table of Envoy's callbacks with `dlsym(RTLD_DEFAULT)`, once. A callback of
//! Envoy 1.38 that is missing refuses the module with a message on stderr; a younger one is `None`,
//! and the method that needs it says so (`None`, `false`, `Err(MetricNotFound)`). Nothing is bound at
//! link time, so one `.so` loads on each release, and test binaries link without Envoy; there, every
//! call gets its default answer. Configure `do_not_close: true`: the module may hold threads.
//!
//! # What hooks guarantee
//! - A panic ends in the hook: the answer is "continue"; a configuration being made is rejected; a
//!   filter being made is inert; a validator's update passes; shutdown completes.
//!   [`extra::panics_caught`] counts. After a panic, that filter or extension runs no more, and what one
//!   of its earlier hooks had stopped goes on.
//! - A hook that Envoy runs inside another hook of the same object does not touch the object. One that
//!   wants an answer gets the default one (`send_response` in `on_request_headers` runs
//!   `on_local_reply`); one that tells of something runs when the outer one has returned
//!   (`on_stream_complete`, `on_event`).
//! - An object that Envoy destroys inside one of its hooks lives until that hook returns; calls to
//!   Envoy through it do nothing from then on.
//! - Null buffers are empty, names and configurations that are not UTF-8 are converted lossily, and
//!   an enum value that is not known is never made into an enum.
//!
//! # Testing
//! A crate's tests link as they are: without Envoy each callback gives its default answer. For more,
//! implement the traits of Envoy's side, whose methods all have defaults.
//!
//! # Threads
//! Configurations are made on the main thread, used on all, and may be dropped on any. A filter's hooks
//! run on one worker; an HTTP filter is dropped there, a network filter possibly on a thread that commits
//! an event to it. A bootstrap extension, its timers and a validator stay on the main thread.
//! Schedulers are for any thread. Server start, measured on 1.38.3, 1.39.3 and 1.40.0: `init`,
//! bootstrap configuration, bootstrap extension, the validator of `ads_config` (1.40), then filters
//! of static listeners (network, per route, HTTP), then `on_server_initialized`. So what a bootstrap
//! configuration puts in a `static` is there for all the others.
//!
//! # The official crate
//! What is here has the official names and types, which a test compares with `official-api.txt`; what the
//! official crate does not have is in [`extra`]. `docs/sdk.md` describes the swap and what it costs.

pub mod abi;
mod bootstrap;
mod buffer;
mod config;
mod config_validator;
pub mod extra;
mod factory;
mod guard;
mod http;
mod init;
mod log;
mod metrics;
mod network;
mod scheduler;
mod slot;
#[cfg(test)]
mod testing;

pub use bootstrap::{
    BootstrapExtension, BootstrapExtensionConfig, CompletionCallback, EnvoyBootstrapExtension,
    EnvoyBootstrapExtensionConfig, EnvoyBootstrapExtensionTimer, NewBootstrapExtensionConfigFunction,
};
pub use buffer::EnvoyBuffer;
pub use config_validator::{
    ConfigValidatorConfig, ConfigValidatorContext, ConfigValidatorResource, NewConfigValidatorConfigFunction,
};
pub use http::{
    EnvoyHttpFilter, EnvoyHttpFilterConfig, EnvoyHttpFilterConfigImpl, EnvoyHttpFilterImpl, HttpFilter,
    HttpFilterConfig, NewHttpFilterConfigFunction, NewHttpFilterPerRouteConfigFunction,
};
pub use init::ProgramInitFunction;
pub use log::is_log_enabled;
pub use metrics::{EnvoyCounterId, EnvoyGaugeId, EnvoyHistogramId};
pub use network::{
    EnvoyNetworkFilter, EnvoyNetworkFilterConfig, EnvoyNetworkFilterConfigImpl, EnvoyNetworkFilterImpl, NetworkFilter,
    NetworkFilterConfig, NewNetworkFilterConfigFunction,
};
pub use scheduler::{EnvoyBootstrapExtensionConfigScheduler, EnvoyHttpFilterScheduler, EnvoyNetworkFilterScheduler};

/// What the macros use.
#[doc(hidden)]
pub mod __private {
    pub use crate::init::{Factories, program_init};
    pub use crate::log::log_message;

    /// The exported hooks; public, so that they are exported from the user's library too.
    pub mod hooks {
        pub use crate::bootstrap::exported as bootstrap;
        pub use crate::config_validator::exported as config_validator;
        pub use crate::http::exported as http;
        pub use crate::network::exported as network;
    }
}
