//! The fence on real Envoy: what it cures, what it says of a reset, and what the field leaves open.

mod ages;
mod cases;
mod findings;
mod listeners;
mod liveness;
mod memory;
mod race;
mod removal;
mod reset_classes;
mod rotation;
mod scenes;
mod shapes;
