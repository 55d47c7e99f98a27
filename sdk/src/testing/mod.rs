//! Fakes for tests without Envoy.
//!
//! The table set here is the calling thread's own, so tests run side by side.

mod fakes;

pub(crate) use fakes::{buffer, fake_callbacks, with_fake};

pub(crate) use crate::abi::install_for_thread as install;
