//! Keeps new tunnels off the connections of an endpoint that has gone or come back.
//!
//! A network filter on the internal listener `connect_originate`, before `set_filter_state` and
//! `tcp_proxy`. It hands the endpoint's generation on as dynamic metadata, which `set_filter_state`
//! turns into a part of the connection pool's key, sets the TCP options of the outer connection, and
//! follows the tunnel to its end.

pub mod config;
mod filter;
mod metrics;
mod progress;
#[cfg(test)]
mod schema_tests;

pub(crate) use self::filter::FenceFilterConfig;
pub use self::{
    filter::CLOSED_AFTER_REMOVAL,
    progress::{ClosedBy, Progress, refusal},
};
