//! What is to be logged, once no lock is held: a log line is a call into Envoy.

use envoy_proxy_dynamic_modules_rust_sdk::{envoy_log_info, envoy_log_warn};

/// A line for Envoy's log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Note {
    Info(String),
    Warn(String),
}

// === impl Note ===

impl Note {
    pub(super) fn say(&self) {
        match self {
            Self::Info(text) => envoy_log_info!("stale_guard: {text}"),
            Self::Warn(text) => envoy_log_warn!("stale_guard: {text}"),
        }
    }
}
