//! Closes the connections that fenced generations leave behind.
//!
//! The fence never uses an outer connection of a past generation again, but Envoy keeps it until it has been
//! idle for long, an hour on Istio. An endpoint whose readiness flaps, a rotation by age or a gap of the
//! control plane would leave one behind on each worker every time. Envoy has no call that closes them, so
//! they are found among the process's own sockets, by a tag that the fence gave them.

mod closer;
pub mod plan;

pub(crate) use self::closer::{Closer, tag};
pub(crate) use self::plan::Searched;
