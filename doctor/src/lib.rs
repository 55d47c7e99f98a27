//! Says from what a proxy's admin endpoint shows whether it can suffer from stale connections, whether Stale
//! Guard is installed rightly, and what to change.
//!
//! The core is pure: the text of `/config_dump` becomes a [`model::Proxy`], and each check is a function from
//! that to findings with a code of the closed enum [`Code`]. Only [`cli`] and its `fetch` do I/O.
//!
//! The doctor does not use the module's crate: the proxy may run another version of the module, so unknown
//! fields are passed over and absent ones mean what the documentation says.

#![forbid(unsafe_code)]

mod checks;
pub mod cli;
mod clusters;
mod code;
mod duration;
mod fetch;
mod json;
pub mod model;
mod paste;
mod report;
mod stats;
mod unix;

pub use checks::examine;
pub use clusters::Hosts;
pub use code::{Code, Severity};
pub use json::Unread;
pub use report::{Exposure, Finding, Report};
pub use stats::StatNames;

/// What the doctor looks at; everything but the `config_dump` is optional.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The text of `/config_dump`.
    pub config_dump: &'a str,
    /// The text of `/clusters`, or of `/clusters?format=json`.
    pub clusters: Option<&'a str>,
    /// The text of `/stats`.
    pub stats: Option<&'a str>,
}

/// Why there is nothing to examine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// No JSON value could be read, or saved from the beginning of it.
    #[error("the config_dump is no JSON: {0}")]
    NotJson(String),
    /// JSON, but nothing that `/config_dump` answers.
    #[error("this is no config_dump: {0}")]
    NotADump(&'static str),
}
