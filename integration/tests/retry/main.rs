//! `retry` on real Envoy: the matrix of requests and faults, the public reports as cases, per-route
//! configuration, trust, budget, modes, and what an operator sees.
#![allow(clippy::expect_used, clippy::panic, clippy::missing_panics_doc, reason = "helpers of tests fail by panicking")]

mod cases_http;
mod cases_http2;
mod clients;
mod hedging;
mod kinds;
mod limits;
mod matrix;
mod modes;
mod operator;
mod outage;
mod refusals;
mod routes;
mod setup;
mod table;
mod terms;
mod world;
