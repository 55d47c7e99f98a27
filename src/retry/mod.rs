//! `retry`: decides per request whether a broken upstream connection may be answered by another
//! attempt, and has Envoy's own router make that attempt.
//!
//! The core is pure: [`policy`] is the operator's configuration, [`request`] what is known of a
//! request, [`decide`] the decision, [`steer`] the headers that carry it to Envoy's router, [`budget`]
//! the load it may cost, [`outcome`] what became of it. [`filter`], `stream`, `asked`, `metrics` and [`budgets`] adapt that
//! core to Envoy's HTTP filter; `explain` finds the tunnel that broke under a request.
//!
//! ALWAYS
//! - What the caller and the route ask for stays: conditions are added, never removed.
//! - A request whose method is not declared safe to repeat gains only conditions that prove that no
//!   upstream acted on it ([`words::Condition::proves_unprocessed`]).
//! - Evidence that is missing makes a request not eligible.
//!
//! NEVER
//! - A retry header on CONNECT, on an upgrade, on a request that a rule denies, or over budget; nor on a
//!   request that is not eligible and whose caller asks for hedging.
//! - A panic on bytes that a client chose.

mod asked;
pub mod budget;
pub mod budgets;
pub mod config;
pub mod decide;
mod explain;
pub mod filter;
pub mod headers;
pub mod matcher;
mod metrics;
pub mod outcome;
pub mod policy;
pub mod request;
pub mod steer;
mod stream;
pub mod wire;
pub mod words;

#[cfg(test)]
mod schema_tests;
#[cfg(test)]
mod testing;

/// The name that selects this part in Envoy's configuration (`filter_name`, `per_route_config_name`).
pub const PART: &str = "retry";
