//! The fence on real Envoy: what it cures, what it says of a reset, and what the field leaves open.

mod cases;
mod findings;
mod hints;
mod listeners;
mod liveness;
mod memory;
mod own_closes;
mod race;
mod removal;
mod reset_classes;
mod rotation;
mod scenes;
mod shapes;
