//! The C ABI: types, and the table of callbacks.

mod callbacks;
#[cfg(test)]
mod tests;
mod types;

#[cfg(test)]
pub(crate) use callbacks::{Callbacks, install_for_thread};
pub(crate) use callbacks::{ask, callbacks, envoy, install_from_process};
pub use types::*;

use std::ffi::CStr;

/// ABI version of Envoy 1.40.
#[allow(non_upper_case_globals, reason = "the official crate's name")]
pub const envoy_dynamic_modules_abi_version: &CStr = c"v0.2.0";

/// ABI version of Envoy 1.38 and 1.39.
pub(crate) const ABI_VERSION_BEFORE_1_40: &CStr = c"v0.1.0";
