//! Damage to the input.

use super::Case;
use crate::{Code, Finding, model::Seen};

/// Parts that could not be read.
pub(super) fn damaged(case: &Case<'_>) -> Vec<Finding> {
    let Some(first) = case.unread.first() else { return Vec::new() };
    let more = case.unread.len() - 1;
    let message = match more {
        0 => format!("It could not be read: {}.", first.problem),
        _ => format!("It could not be read: {}; and so {more} more.", first.problem),
    };
    vec![Finding::new(Code::InputDamaged, first.place.clone(), message)]
}

/// Sections that the dump does not have.
pub(super) fn sections(case: &Case<'_>) -> Vec<Finding> {
    let coverage = case.proxy.coverage;
    let sections = [
        ("bootstrap", coverage.bootstrap),
        ("listeners", coverage.listeners),
        ("clusters", coverage.clusters),
        ("routes", coverage.routes),
    ];
    let missing: Vec<&str> =
        sections.into_iter().filter(|(_, seen)| *seen == Seen::Missing).map(|(name, _)| name).collect();
    match missing.is_empty() {
        true => Vec::new(),
        false => vec![Finding::new(
            Code::SectionMissing,
            "config_dump",
            format!("The dump has no {}.", missing.join(", no ")),
        )],
    }
}
