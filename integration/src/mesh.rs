//! The whole lab put together: services with pods, a waypoint in front, a client of it.

mod client;
mod setup;
mod waypoint;

pub use client::Reply;
pub use setup::Setup;
pub use waypoint::{ECHO, Mesh, WITHIN};
