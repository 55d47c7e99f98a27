//! What `watch` sees of endpoints that leave, from both of its sources, on real Envoys.

mod both;
mod clusters;
mod decoder;
mod fake_admin;
mod gap;
mod order;
mod restart;
mod scenes;
mod shapes;
mod support;
