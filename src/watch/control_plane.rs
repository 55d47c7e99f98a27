//! Whether the control plane is there, and when its absence calls for a fence of every endpoint.
//!
//! While the management server is away, pods may be replaced unseen; when it is back, it may list the
//! replacements as if nothing had happened. So after an absence that was long enough every endpoint is fenced:
//! once while it lasts, for the tunnels that open meanwhile, and once more when it has ended, for those that
//! were opened to pods that had been replaced since.
//!
//! What is known comes as events: *looks* at Envoy's gauge `control_plane.connected_state`, and *news*, which is
//! any change of endpoints that the validator or a poll has seen. Envoy sets the gauge as soon as the stream's
//! object exists, before TCP is up: while the server cannot be reached, the gauge is 1 during each attempt to
//! connect and 0 between them. So a look that sees 1 counts once it has lasted for ten seconds.
//!
//! # Invariants
//! - ALWAYS: after an absence of `suspect_after` or more, a fence follows the end of the absence.
//! - NEVER: news ends an absence for good. It may come from another server, or just before the next break;
//!   it fences, and the absence counts from then on. A later look that sees no connection makes it one again.
//! - ALWAYS: of an absence that goes on, whatever news comes, there is at most one fence in `suspect_after`,
//!   and one at its end.
//! - Before the first look that saw a connection nothing is an absence: a proxy that starts has no old tunnels.

use std::time::{Duration, Instant};

/// How long the gauge must stay 1 to count without news.
const SETTLED: Duration = Duration::from_secs(10);

/// The control plane's presence. Main thread.
#[derive(Debug)]
pub struct ControlPlane {
    suspect_after: Duration,
    state: State,
    connected: Option<bool>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// No look has seen a connection yet.
    Unknown,
    Here {
        /// The last look at it.
        seen: Instant,
    },
    Away(Absence),
}

#[derive(Debug, Clone, Copy)]
struct Absence {
    /// Everything that happened until then is fenced, or was seen.
    since: Instant,
    /// Every endpoint was fenced for it, and will be once more at its end.
    suspected: bool,
    /// The first of the looks that have seen the gauge at 1 since the last that did not.
    back: Option<Instant>,
    /// News came since the last look that saw no connection.
    news: bool,
}

/// What happens to the control plane, as far as the proxy sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A look at the gauge; none where Envoy does not have it, or did not answer.
    Look(Option<bool>),
    /// The validator, or a poll, has seen endpoints change.
    News,
}

/// Every endpoint is to be fenced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceAll {
    /// The control plane has been away for too long.
    Absent,
    /// Endpoints changed after an absence that was too long.
    News,
    /// The control plane is back after an absence that was too long.
    Returned,
}

// === impl ControlPlane ===

impl ControlPlane {
    /// An absence of `suspect_after` or more is too long.
    #[must_use]
    pub const fn new(suspect_after: Duration) -> Self {
        Self { suspect_after, state: State::Unknown, connected: None }
    }

    /// Takes in an event. Gives why every endpoint is to be fenced now, if it is.
    pub fn on(&mut self, event: Event, now: Instant) -> Option<FenceAll> {
        match event {
            Event::Look(connected) => {
                self.connected = connected;
                if connected? { self.seen(now) } else { self.missed(now) }
            }
            Event::News => self.news(now),
        }
    }

    /// Whether the gauge was 1 at the last look; none where it cannot be seen.
    #[must_use]
    pub const fn connected(&self) -> Option<bool> {
        self.connected
    }

    /// Time to the next look: often enough not to stretch an absence much, and soon while one lasts.
    #[must_use]
    pub fn pause(&self) -> Duration {
        match self.state {
            State::Away(_) => Duration::from_secs(1),
            State::Unknown | State::Here { .. } => {
                (self.suspect_after / 4).clamp(Duration::from_millis(250), Duration::from_secs(10))
            }
        }
    }

    fn seen(&mut self, now: Instant) -> Option<FenceAll> {
        let too_long = match self.state {
            State::Unknown => false,
            // Nobody looked in between: in doubt it was away all the time.
            State::Here { seen } => self.is_too_long(seen, now),
            State::Away(mut absence) => {
                let back = *absence.back.get_or_insert(now);
                if !absence.news && now.saturating_duration_since(back) < SETTLED {
                    self.state = State::Away(absence);
                    return None;
                }
                absence.suspected || (!absence.news && self.is_too_long(absence.since, back))
            }
        };
        self.state = State::Here { seen: now };
        too_long.then_some(FenceAll::Returned)
    }

    fn missed(&mut self, now: Instant) -> Option<FenceAll> {
        let absence = match self.state {
            State::Unknown => return None,
            State::Here { seen } => Absence { since: seen, suspected: false, back: None, news: false },
            State::Away(absence) => Absence { back: None, news: false, ..absence },
        };
        let suspect = !absence.suspected && self.is_too_long(absence.since, now);
        self.state = State::Away(Absence { suspected: absence.suspected || suspect, ..absence });
        suspect.then_some(FenceAll::Absent)
    }

    fn news(&mut self, now: Instant) -> Option<FenceAll> {
        let State::Away(absence) = self.state else { return None };
        // What the absence may have hidden so far is fenced; from here on it counts anew.
        let fence = self.is_too_long(absence.since, now);
        self.state = State::Away(Absence { since: now, suspected: false, news: true, ..absence });
        fence.then_some(FenceAll::News)
    }

    fn is_too_long(&self, since: Instant, now: Instant) -> bool {
        now.saturating_duration_since(since) >= self.suspect_after
    }
}

// === impl FenceAll ===

impl FenceAll {
    /// What the operator is told.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::Absent => {
                "the management server has been unreachable for longer than suspect_after: every endpoint is fenced \
                 now, and will be again once the server is back"
            }
            Self::News => {
                "endpoints changed after the management server had been unreachable for longer than suspect_after: \
                 every endpoint is fenced"
            }
            Self::Returned => {
                "the management server is back after it had been unreachable for longer than suspect_after: every \
                 endpoint is fenced"
            }
        }
    }
}

#[cfg(test)]
#[path = "control_plane_tests.rs"]
mod tests;
