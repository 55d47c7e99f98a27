//! Reading JSON that may be damaged: what cannot be read is noted, and the rest is read.

mod at;
mod repair;

pub use at::Unread;
pub(crate) use at::{At, Notes, last_part};
pub(crate) use repair::{Parsed, parse};
