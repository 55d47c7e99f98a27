//! Listeners whose connections are logged, and can be drained, frozen and ended from outside: what
//! applications and the ztunnel stand-in have in common.

mod connections;
mod control;
mod listener;
mod log;
mod stream;

pub use connections::{Connection, Connections};
pub use control::Ending;
pub(crate) use control::{Control, Order};
pub(crate) use listener::Listener;
pub use log::{DEADLINE, Log};
pub use stream::Cause;
pub(crate) use stream::Stream;
