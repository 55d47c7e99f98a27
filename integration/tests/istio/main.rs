//! Stale Guard on what istiod generates.

mod loads;
mod same_ip;
