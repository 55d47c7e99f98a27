//! Pods: a network namespace with an application and an in-pod ztunnel, and the ways a pod can end.

mod node;
mod running;
mod spec;

pub use crate::tcp::{Cause, Connection, Connections, DEADLINE, Ending, Log};
pub use node::Node;
pub use running::Pod;
pub use spec::PodSpec;
