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
//!   [`panics_caught`] counts. After a panic, that filter or extension runs no more.
//! - A hook that Envoy runs inside another hook of the same object gets the default answer, and the
//!   object is not touched (`send_response` in `on_request_headers` runs `on_local_reply`).
//! - An object that Envoy destroys inside one of its hooks lives until that hook returns; calls to
//!   Envoy through it do nothing from then on.
//! - Null buffers are empty, names and configurations that are not UTF-8 are converted lossily, and
//!   unknown enum values are `Unknown`.
//!
//! # Testing
//! A crate's tests link as they are: without Envoy each callback gives its default answer. For more,
//! implement the traits of Envoy's side, whose methods all have defaults; or enable the feature
//! `testing` for `dev-dependencies`, install fake callbacks, and call the exported hooks.
//!
//! # Threads
//! Configurations are made on the main thread, used on all, and may be dropped on any. A filter stays
//! on one worker. A bootstrap extension, its timers and a validator stay on the main thread.
//! Schedulers are for any thread. Server start, measured on 1.38.3, 1.39.3 and 1.40.0: `init`,
//! bootstrap configuration, bootstrap extension, the validator of `ads_config` (1.40), then filters
//! of static listeners (network, per route, HTTP), then `on_server_initialized`. So what a bootstrap
//! configuration puts in a `static` is there for all the others.
//!
//! # Differences from the official crate
//! Traits of Envoy's side have default methods, so that a test's fake is short; configuration
//! traits are `Send + Sync` and per-route configuration is `dyn Any + Send + Sync`, since any thread
//! may drop them; [`get_server_concurrency`] and [`is_validation_mode`] are safe; enums that Envoy
//! sends have a variant `Unknown`; typed filter state is copied; a panicking validator accepts.

pub mod abi;
mod bootstrap;
mod buffer;
mod config_validator;
mod guard;
mod http;
mod init;
mod log;
mod metrics;
mod network;
mod scheduler;
mod slot;
mod tagged_sockets;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use bootstrap::{
    BootstrapExtension, BootstrapExtensionConfig, CompletionCallback, EnvoyBootstrapExtension,
    EnvoyBootstrapExtensionConfig, EnvoyBootstrapExtensionTimer, FILE_WATCHER_EVENT_MODIFIED,
    FILE_WATCHER_EVENT_MOVED_TO, NewBootstrapExtensionConfigFunction,
};
pub use buffer::{EnvoyBuffer, EnvoyMutBuffer};
pub use config_validator::{
    ConfigValidatorConfig, ConfigValidatorContext, ConfigValidatorResource, NewConfigValidatorConfigFunction,
};
pub use guard::panics_caught;
pub use http::{
    ClusterHostCount, EnvoyHttpFilter, EnvoyHttpFilterConfig, EnvoyHttpFilterConfigImpl, EnvoyHttpFilterImpl, Headers,
    HttpFilter, HttpFilterConfig, HttpPerRouteConfig, NewHttpFilterConfigFunction, NewHttpFilterPerRouteConfigFunction,
};
pub use init::{ProgramInitFunction, get_server_concurrency, is_validation_mode};
pub use log::{is_log_enabled, log_message};
pub use metrics::{
    EnvoyCounterId, EnvoyCounterVecId, EnvoyGaugeId, EnvoyGaugeVecId, EnvoyHistogramId, EnvoyHistogramVecId,
    MetricResult,
};
pub use network::{
    EnvoyNetworkFilter, EnvoyNetworkFilterConfig, EnvoyNetworkFilterConfigImpl, EnvoyNetworkFilterImpl, NetworkFilter,
    NetworkFilterConfig, NewNetworkFilterConfigFunction,
};
pub use scheduler::{
    Detached, EnvoyBootstrapExtensionConfigScheduler, EnvoyHttpFilterConfigScheduler, EnvoyHttpFilterScheduler,
    EnvoyNetworkFilterConfigScheduler, EnvoyNetworkFilterScheduler,
};
pub use tagged_sockets::{Found, SO_SNDTIMEO, SOL_SOCKET, SocketTag, TaggedSockets};

/// What the macros use.
#[doc(hidden)]
pub mod __private {
    pub use crate::init::{Factories, program_init};

    /// The exported hooks, to be called as Envoy would.
    pub mod hooks {
        pub use crate::bootstrap::exported as bootstrap;
        pub use crate::config_validator::exported as config_validator;
        pub use crate::http::exported as http;
        pub use crate::network::exported as network;
    }
}
