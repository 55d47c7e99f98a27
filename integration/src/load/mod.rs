//! Open-loop HTTP load: arrivals follow the clock, never the answers.
//!
//! ALWAYS
//! - a request starts when its arrival is due, however slow the others are; when every pooled
//!   HTTP/1.1 connection is busy, a new one is opened;
//! - latency is measured from the intended start, so a late start is part of it (no coordinated
//!   omission);
//! - every id that was issued ends in exactly one [`RequestRecord`], also when the run is stopped.
//!
//! NEVER
//! - is a request sent twice by the client: only a request that was provably not written to a
//!   pooled connection moves to another connection.
//!
//! Connections come from a [`Connector`] that the caller gives, so that they can be made inside a
//! network namespace.

mod arrivals;
mod client;
mod metrics;
mod plan;
mod record;
mod run;
mod stream;

pub use arrivals::{Arrivals, Mix, Schedule};
pub use client::{Connector, connector};
pub use metrics::Latency;
pub use plan::{AnswerHeaders, Plan, Protocol, RequestClass};
pub use record::{Issued, Outcome, RequestRecord, TransportError};
pub use run::{Load, Progress, Report};
pub use stream::{HeldStream, StreamEnd, StreamRecord, StreamSpec, hold_one_per_pod};
