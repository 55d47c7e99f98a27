//! Notices that the control plane was away for so long that endpoints may have changed unseen.

use std::time::{Duration, Instant};

/// The control plane's connection as a series of looks at it. Main thread.
#[derive(Debug)]
pub struct Gap {
    suspect_after: Duration,
    last_connected: Option<Instant>,
    away: bool,
    suspected: bool,
}

/// What a look at the connection means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Nothing new.
    Quiet,
    /// The control plane has been away for long enough: what is known may be out of date.
    Suspect,
    /// It is back after such a time: what it says next may leave replacements out. It was last seen
    /// connected at `since`.
    Back {
        /// The last look before the gap.
        since: Instant,
    },
}

// === impl Gap ===

impl Gap {
    /// A watch that suspects after `suspect_after` without a connection.
    #[must_use]
    pub const fn new(suspect_after: Duration) -> Self {
        Self { suspect_after, last_connected: None, away: false, suspected: false }
    }

    /// Whether the control plane is connected now. Between two looks the connection counts as lost
    /// right after the last look that saw it: in doubt a gap is too long, never too short.
    pub fn look(&mut self, connected: bool, now: Instant) -> Look {
        let Some(last_connected) = self.last_connected else {
            // Before the first connection nothing is known that could be out of date.
            self.last_connected = connected.then_some(now);
            return Look::Quiet;
        };
        let long = now.saturating_duration_since(last_connected) >= self.suspect_after;
        let was_away = std::mem::replace(&mut self.away, !connected);
        if connected {
            self.last_connected = Some(now);
            let suspected = std::mem::take(&mut self.suspected);
            return if was_away && (long || suspected) { Look::Back { since: last_connected } } else { Look::Quiet };
        }
        if long && !self.suspected {
            self.suspected = true;
            return Look::Suspect;
        }
        Look::Quiet
    }

    /// Whether the gap that lasts now was suspected.
    #[must_use]
    pub const fn is_suspected(&self) -> bool {
        self.suspected
    }

    /// Time between looks: often enough not to stretch a gap much, and soon while it lasts.
    #[must_use]
    pub fn pause(&self) -> Duration {
        if self.away {
            Duration::from_secs(1)
        } else {
            (self.suspect_after / 4).clamp(Duration::from_millis(250), Duration::from_secs(10))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a series of looks means; `Back` with the second of the last sight.
    fn looks(looks: &[(u64, bool)]) -> Vec<String> {
        let start = Instant::now();
        let mut gap = Gap::new(Duration::from_secs(30));
        let look = |(second, connected): &(u64, bool)| match gap.look(*connected, start + Duration::from_secs(*second))
        {
            Look::Back { since } => format!("back since {}", since.duration_since(start).as_secs()),
            other => format!("{other:?}").to_lowercase(),
        };
        looks.iter().map(look).collect()
    }

    #[test]
    fn a_long_absence_is_suspected_once_and_again_when_it_ends() {
        assert_eq!(
            looks(&[(0, true), (10, false), (31, false), (40, false), (50, true), (60, true)]),
            ["quiet", "quiet", "suspect", "quiet", "back since 0", "quiet"]
        );
    }

    #[test]
    fn a_short_absence_and_a_slow_start_are_not_suspected() {
        assert!(
            looks(&[(0, true), (10, false), (20, true), (40, true), (45, false), (60, true)])
                .iter()
                .all(|look| look == "quiet")
        );
        assert!(looks(&[(0, false), (100, false), (200, true)]).iter().all(|look| look == "quiet"));
    }

    #[test]
    fn an_absence_that_ends_between_two_looks_counts_from_the_last_sight() {
        assert_eq!(looks(&[(0, true), (29, false), (31, true)]), ["quiet", "quiet", "back since 0"]);
    }
}
