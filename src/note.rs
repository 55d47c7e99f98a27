//! Lines for Envoy's log.

use envoy_proxy_dynamic_modules_rust_sdk::{envoy_log_info, envoy_log_warn};

/// A line for Envoy's log, to be logged once no lock is held: that is a call into Envoy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// Something that is over, or that harms nobody.
    Info(String),
    /// Something that the operator may want to change.
    Warn(String),
}

// === impl Note ===

impl Note {
    /// The line's text.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Info(text) | Self::Warn(text) => text,
        }
    }
}

/// Writes lines to Envoy's log. No lock may be held.
pub(crate) fn log(notes: impl IntoIterator<Item = Note>) {
    for note in notes {
        match note {
            Note::Info(text) => envoy_log_info!("stale_guard: {text}"),
            Note::Warn(text) => envoy_log_warn!("stale_guard: {text}"),
        }
    }
}
