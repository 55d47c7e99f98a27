//! When to poll Envoy's admin endpoint.
//!
//! Quiet times double the pause up to the longest; a change, or a hint that one is under way, brings it back to the
//! shortest. Whatever happens, polls take no more than one [`Polls::SHARE`]th of the main thread's time, unless
//! the longest pause demands it.

use std::time::{Duration, Instant};

/// The rhythm of polls. Main thread; one poll at a time.
#[derive(Debug)]
pub struct Polls {
    shortest: Duration,
    longest: Duration,
    pause: Duration,
    /// What the last polls took of the main thread.
    costs: [Option<Duration>; Polls::COSTS],
    state: State,
    started: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// The next one is due then.
    Idle { due: Instant },
    /// One was sent then. A hint that came since may be younger than its answer.
    InFlight { since: Instant, hinted: bool },
    /// Polls would tell nothing new, or cannot be answered: the next one is due then, whatever hints say.
    Rare { until: Instant },
}

/// How a poll ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It was read.
    Read {
        /// It differs from the one before.
        changed: bool,
        /// The validator reports every cluster that has endpoints.
        covered: bool,
    },
    /// Envoy did not let it through for its size. It has written all of it, and would again.
    TooLarge,
    /// It did not come, or could not be read.
    Failed,
}

// === impl Polls ===

impl Polls {
    /// The part of the main thread's time that polls may take is one in so many.
    pub const SHARE: u32 = 100;
    /// The pause while the validator reports every cluster that has endpoints.
    const COVERED: Duration = Duration::from_secs(60);
    /// The pause after an answer that was too large.
    const TOO_LARGE: Duration = Duration::from_secs(120);
    /// After so long a poll without an end has got lost: Envoy ends each within 5 s.
    const LOST: Duration = Duration::from_secs(15);
    /// Polls whose cost is remembered.
    const COSTS: usize = 4;

    /// Polls between two pauses, the first of them now.
    #[must_use]
    pub fn new(shortest: Duration, longest: Duration, now: Instant) -> Self {
        let longest = longest.max(shortest);
        let state = State::Idle { due: now };
        Self { shortest, longest, pause: shortest, costs: [None; Self::COSTS], state, started: None }
    }

    /// The timer fired, or a hint came: whether to poll now. `covered` says whether the validator reports every
    /// cluster that has endpoints, so that polls would find nothing.
    pub fn start(&mut self, covered: impl FnOnce() -> bool, now: Instant) -> bool {
        if self.due_in(now).is_none_or(|wait| !wait.is_zero()) {
            return false;
        }
        let rare = self.started.map(|at| at + Self::COVERED).filter(|until| now < *until);
        if let Some(until) = rare
            && covered()
        {
            self.state = State::Rare { until };
            return false;
        }
        self.state = State::InFlight { since: now, hinted: false };
        self.started = Some(now);
        true
    }

    /// Time until the next poll is due; none while one is in flight.
    #[must_use]
    pub fn due_in(&self, now: Instant) -> Option<Duration> {
        match self.state {
            State::Idle { due } | State::Rare { until: due } => Some(due.saturating_duration_since(now)),
            State::InFlight { since, .. } => {
                (now.saturating_duration_since(since) >= Self::LOST).then_some(Duration::ZERO)
            }
        }
    }

    /// Whether a hint would bring a poll nearer.
    #[must_use]
    pub const fn takes_hints(&self) -> bool {
        !matches!(self.state, State::Rare { .. })
    }

    /// Something says that endpoints may have changed.
    pub fn hint(&mut self) {
        self.pause = self.affordable();
        match &mut self.state {
            State::Idle { due } => *due = self.started.map_or(*due, |started| (*due).min(started + self.pause)),
            State::InFlight { hinted, .. } => *hinted = true,
            State::Rare { .. } => {}
        }
    }

    /// The poll in flight ended. `cost` is the time that the main thread spent meanwhile; whatever else it did is in
    /// it, so the smallest of the last few is what a poll takes.
    pub fn ended(&mut self, answer: Answer, cost: Duration, now: Instant) {
        self.costs.rotate_right(1);
        if let Some(first) = self.costs.first_mut() {
            *first = Some(cost);
        }
        let hinted = matches!(self.state, State::InFlight { hinted: true, .. });
        let changed = matches!(answer, Answer::Read { changed: true, .. });
        let affordable = self.affordable();
        self.pause = if changed || hinted { affordable } else { (self.pause * 2).clamp(affordable, self.longest) };
        self.state = match answer {
            Answer::TooLarge => State::Rare { until: now + Self::TOO_LARGE },
            Answer::Read { covered: true, .. } => State::Rare { until: now + Self::COVERED },
            Answer::Read { .. } | Answer::Failed => {
                State::Idle { due: self.started.map_or(now, |started| started + self.pause) }
            }
        };
    }

    /// The shortest pause that the cost of polls allows.
    fn affordable(&self) -> Duration {
        let cost = self.costs.iter().flatten().min().copied().unwrap_or_default();
        (cost * Self::SHARE).clamp(self.shortest, self.longest)
    }
}

#[cfg(test)]
#[path = "polls_tests.rs"]
mod tests;
