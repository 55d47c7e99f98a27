//! `/stats`: which statistics the proxy has. Their values are the business of dashboards.

use std::collections::BTreeSet;

/// The names of a proxy's statistics.
#[derive(Debug, Clone, Default)]
pub struct StatNames(BTreeSet<String>);

// === impl StatNames ===

impl StatNames {
    /// Reads the text of `/stats`.
    ///
    /// # Errors
    /// If no line of it is a statistic.
    pub fn read(text: &str) -> Result<Self, String> {
        let names: BTreeSet<String> =
            text.lines().filter_map(|line| Some(line.split_once(": ")?.0.to_owned())).collect();
        match names.is_empty() && !text.trim().is_empty() {
            true => Err("no statistic is in it".to_owned()),
            false => Ok(Self(names)),
        }
    }

    /// Whether there is one whose name begins so.
    #[must_use]
    pub fn has_prefix(&self, prefix: &str) -> bool {
        self.0.range(prefix.to_owned()..).next().is_some_and(|name| name.starts_with(prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_by_their_beginning() {
        let names = StatNames::read("a.b: 1\ncontrol_plane.connected_state: 1\nz: \"P0(nan,1)\"\n").unwrap();
        assert!(names.has_prefix("control_plane.connected_state") && names.has_prefix("a."));
        assert!(!names.has_prefix("b") && !names.has_prefix("zz"));
        assert!(StatNames::read("<html>").is_err());
        assert!(!StatNames::read("").unwrap().has_prefix("a"), "an answer without statistics is an answer");
    }
}
