//! What threads share state with, named once.
//!
//! The registry takes its locks and atomics from here, so that its concurrency test can compile the
//! same source against a scheduler that tries orders of execution.

pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU32, AtomicU64, Ordering},
};
