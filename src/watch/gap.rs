//! Notices that the control plane was away for so long that endpoints may have changed unseen.

use std::time::{Duration, Instant};

/// How long the connection must last to count without an update. Envoy sets its gauge as soon as the
/// stream's object exists, before TCP is up: while the control plane cannot be reached, it is 1 during
/// each attempt to connect (`connect_timeout`, 5 s by default) and 0 between them.
const SETTLED: Duration = Duration::from_secs(10);

/// The control plane's connection as a series of looks at it. Main thread.
#[derive(Debug)]
pub struct Gap {
    suspect_after: Duration,
    /// The last look at a connection that counts.
    last_connected: Option<Instant>,
    /// The last look since then that saw none.
    away_at: Option<Instant>,
    /// The first look after it that saw one, without one to the contrary since.
    seen_since: Option<Instant>,
    suspected: bool,
}

/// One look at the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sight {
    /// What Envoy's gauge says.
    pub connected: bool,
    /// When the last endpoints came from the control plane, which shows that it is there.
    pub updated_at: Option<Instant>,
}

/// What a look at the connection means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Nothing new.
    Quiet,
    /// The control plane has been away for long enough: what is known may be out of date.
    Suspect,
    /// It is back for sure after such a time, and has said what it had to say, or had the time to.
    Back {
        /// Whether the gap was suspected while it lasted.
        suspected: bool,
    },
}

// === impl Gap ===

impl Gap {
    /// A watch that suspects after `suspect_after` without a connection.
    #[must_use]
    pub const fn new(suspect_after: Duration) -> Self {
        Self { suspect_after, last_connected: None, away_at: None, seen_since: None, suspected: false }
    }

    /// Takes in a look. Between two looks the connection counts as lost right after the last look that
    /// saw it: in doubt a gap is too long, never too short.
    pub fn look(&mut self, sight: Sight, now: Instant) -> Look {
        let Some(last_connected) = self.last_connected else {
            // Before the first connection nothing is known that could be out of date.
            self.last_connected = sight.connected.then_some(now);
            return Look::Quiet;
        };
        if !sight.connected {
            self.away_at = Some(now);
            self.seen_since = None;
            let long = now.saturating_duration_since(last_connected) >= self.suspect_after;
            return if long && !std::mem::replace(&mut self.suspected, true) { Look::Suspect } else { Look::Quiet };
        }
        if let Some(away_at) = self.away_at {
            let seen_since = *self.seen_since.get_or_insert(now);
            let settled = now.saturating_duration_since(seen_since) >= SETTLED;
            if !settled && sight.updated_at.is_none_or(|at| at <= away_at) {
                return Look::Quiet;
            }
            (self.away_at, self.seen_since, self.last_connected) = (None, None, Some(now));
            let long = seen_since.saturating_duration_since(last_connected) >= self.suspect_after;
            let suspected = std::mem::take(&mut self.suspected);
            return if long || suspected { Look::Back { suspected } } else { Look::Quiet };
        }
        self.last_connected = Some(now);
        Look::Quiet
    }

    /// Time between looks: often enough not to stretch a gap much, and soon while one lasts.
    #[must_use]
    pub fn pause(&self) -> Duration {
        if self.away_at.is_some() {
            Duration::from_secs(1)
        } else {
            (self.suspect_after / 4).clamp(Duration::from_millis(250), Duration::from_secs(10))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUSPECT_AFTER: u64 = 30;

    /// What a series of looks means: `(second, connected)`.
    fn looks(looks: &[(u64, bool)]) -> Vec<String> {
        let looks: Vec<_> = looks.iter().map(|(second, connected)| (*second, *connected, None)).collect();
        looks_and_updates(&looks)
    }

    /// The same, with the second of the last update.
    fn looks_and_updates(looks: &[(u64, bool, Option<u64>)]) -> Vec<String> {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let mut gap = Gap::new(Duration::from_secs(SUSPECT_AFTER));
        let look = |(second, connected, updated): &(u64, bool, Option<u64>)| {
            let sight = Sight { connected: *connected, updated_at: updated.map(at) };
            let meaning = match gap.look(sight, at(*second)) {
                Look::Quiet => "quiet",
                Look::Suspect => "suspect",
                Look::Back { suspected: true } => "back",
                Look::Back { suspected: false } => "back, unsuspected",
            };
            meaning.to_owned()
        };
        looks.iter().map(look).collect()
    }

    fn all_quiet(looks: &[String]) -> bool {
        looks.iter().all(|look| look == "quiet")
    }

    #[test]
    fn a_long_absence_is_suspected_once_and_again_when_it_has_ended_for_sure() {
        assert_eq!(
            looks(&[(0, true), (10, false), (31, false), (40, false), (50, true), (55, true), (60, true), (70, true)]),
            ["quiet", "quiet", "suspect", "quiet", "quiet", "quiet", "back", "quiet"]
        );
    }

    #[test]
    fn an_update_ends_an_absence_at_once() {
        assert_eq!(
            looks_and_updates(&[(0, true, None), (31, false, None), (50, true, Some(49)), (51, true, Some(49))]),
            ["quiet", "suspect", "back", "quiet"]
        );
        assert_eq!(
            looks_and_updates(&[(5, true, Some(1)), (40, false, Some(6)), (50, true, Some(6))]),
            ["quiet", "suspect", "quiet"],
            "an update from before says nothing"
        );
    }

    #[test]
    fn attempts_to_connect_are_no_connection() {
        // Each attempt is seen as a connection; the control plane cannot be reached from second 1 to 300.
        let attempts = (1..300).map(|second| (second, second % 6 < 4));
        let mut series: Vec<_> = [(0, true)].into_iter().chain(attempts).collect();
        let seen = looks(&series);
        assert_eq!(seen.iter().filter(|look| *look == "suspect").count(), 1, "said once: {seen:?}");
        assert!(!seen.iter().any(|look| look == "back"), "no attempt is a return: {seen:?}");
        let suspect = seen.iter().position(|look| look == "suspect");
        assert!(
            suspect.is_some_and(|at| at as u64 <= SUSPECT_AFTER + 4),
            "no attempt delays the suspicion: {suspect:?}"
        );
        series.extend((300..320).map(|second| (second, true)));
        let seen = looks(&series);
        let back: Vec<_> = seen.iter().filter(|look| *look == "back").collect();
        assert_eq!(back.len(), 1, "and the return is seen once: {back:?}");
    }

    #[test]
    fn a_connection_that_flaps_at_every_look_is_suspected_once() {
        let flaps: Vec<_> = (0..100).map(|second| (second, second % 2 == 0)).collect();
        let seen = looks(&flaps);
        assert_eq!(seen.iter().filter(|look| *look != "quiet").count(), 1, "{seen:?}");
    }

    #[test]
    fn a_short_absence_and_a_slow_start_are_not_suspected() {
        assert!(all_quiet(&looks(&[
            (0, true),
            (10, false),
            (20, true),
            (30, true),
            (45, false),
            (55, true),
            (70, true)
        ])));
        assert!(all_quiet(&looks(&[(0, false), (100, false), (200, true)])));
        let settling = [(0, true), (10, false), (25, true), (31, true), (35, true), (40, true)];
        assert!(all_quiet(&looks(&settling)), "the time that a connection takes to count is no part of the gap");
    }

    #[test]
    fn an_absence_that_ends_between_two_looks_counts_from_the_last_sight() {
        assert_eq!(
            looks(&[(0, true), (29, false), (31, true), (41, true)]),
            ["quiet", "quiet", "quiet", "back, unsuspected"]
        );
    }
}
