//! Whether an endpoint takes connections at the moment, and what to do with a new tunnel while it does not.
//!
//! Connecting to an internal listener always succeeds, so Envoy's router has "sent" a request before the
//! tunnel's connection is refused, and sees a reset like any other. A tunnel that is closed in the turn of the
//! event loop in which it was opened is different: that is a connect failure, which any retry policy may
//! answer by another endpoint, for any method, since nothing was sent.
//!
//! # Invariants
//! - NEVER: a tunnel is turned away on evidence of a late answer. What counts is a connection that does not
//!   come up: refused, or pending for [`Settings::silent_after`], with no success since.
//! - NEVER: a tunnel is turned away unless the main thread found that each cluster which lists the endpoint has
//!   another one that is not failing ([`Reach::set_replaceable`]).
//! - ALWAYS: one tunnel in each interval goes through, as a probe; a success ends the failure at once, a fence
//!   forgets it.

use std::time::{Duration, Instant};

/// How quickly an endpoint is taken for failing, and how often it is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// An attempt that is pending for longer counts against the endpoint.
    pub silent_after: Duration,
    /// The first interval between two probes.
    pub shortest: Duration,
    /// The longest: intervals double while the endpoint goes on failing.
    pub longest: Duration,
}

/// How an endpoint fails to take connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failing {
    /// The last attempt to connect was refused, or found no route.
    Refused,
    /// An attempt is pending, with no success since it began.
    Silent,
}

/// What becomes of a tunnel that opens now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It opens: nothing speaks against the endpoint, or nothing else could take the request.
    Open,
    /// It opens to find out whether the endpoint takes connections again.
    Probe,
    /// It is closed at once, so that the router takes another endpoint.
    TurnAway(Failing),
}

/// What the attempts to connect to one endpoint have shown.
#[derive(Debug, Clone, Default)]
pub struct Reach {
    /// Attempts that have neither succeeded nor failed.
    pending: u32,
    /// When the oldest of them began, or when the last attempt succeeded, if that was later.
    pending_since: Option<Instant>,
    failure: Option<Failure>,
}

#[derive(Debug, Clone, Copy)]
struct Failure {
    how: Failing,
    interval: Duration,
    /// When the next probe may go.
    probe_at: Instant,
    /// Whether each cluster that lists the endpoint has another one that is not failing.
    replaceable: bool,
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self {
            silent_after: Duration::from_secs(1),
            shortest: Duration::from_millis(20),
            longest: Duration::from_millis(500),
        }
    }
}

// === impl Reach ===

impl Reach {
    /// A tunnel opens. `living`: its worker has an established tunnel to the endpoint, so whatever others
    /// met, this one need not open a connection.
    pub fn open(&mut self, living: bool, settings: &Settings, now: Instant) -> Admission {
        self.notice_silence(settings, now);
        let admission = match &mut self.failure {
            Some(failure) if !living && failure.replaceable => failure.admit(settings, now),
            Some(_) | None => Admission::Open,
        };
        if !matches!(admission, Admission::TurnAway(_)) {
            self.pending += 1;
            self.pending_since.get_or_insert(now);
        }
        admission
    }

    /// A tunnel's CONNECT was answered: the endpoint takes connections.
    pub fn established(&mut self, now: Instant) {
        self.failure = None;
        self.ended(now);
    }

    /// A tunnel's connection was refused.
    pub fn refused(&mut self, settings: &Settings, now: Instant) {
        self.ended(now);
        self.fail(Failing::Refused, settings, now);
    }

    /// A tunnel that was neither established nor refused is over.
    pub fn given_up(&mut self, now: Instant) {
        self.ended(now);
    }

    /// The endpoint has left or come back: what was seen of it may have been of another pod.
    pub fn forget(&mut self) {
        self.failure = None;
        self.pending_since = None;
    }

    /// How the endpoint fails, if it does.
    pub fn failing(&mut self, settings: &Settings, now: Instant) -> Option<Failing> {
        self.notice_silence(settings, now);
        self.failure.map(|failure| failure.how)
    }

    /// Whether each cluster that lists the endpoint has another one that is not failing. Until the main thread
    /// has said so, nothing is turned away.
    pub fn set_replaceable(&mut self, replaceable: bool) {
        if let Some(failure) = &mut self.failure {
            failure.replaceable = replaceable;
        }
    }

    fn ended(&mut self, now: Instant) {
        self.pending = self.pending.saturating_sub(1);
        self.pending_since = (self.pending > 0).then_some(now);
    }

    fn notice_silence(&mut self, settings: &Settings, now: Instant) {
        let silent = self.pending_since.is_some_and(|since| now.saturating_duration_since(since) >= settings.silent_after);
        if silent && self.failure.is_none() {
            self.fail(Failing::Silent, settings, now);
        }
    }

    fn fail(&mut self, how: Failing, settings: &Settings, now: Instant) {
        match &mut self.failure {
            Some(failure) => failure.how = how,
            None => {
                let interval = settings.shortest;
                self.failure = Some(Failure { how, interval, probe_at: now + interval, replaceable: false });
            }
        }
    }
}

// === impl Failure ===

impl Failure {
    fn admit(&mut self, settings: &Settings, now: Instant) -> Admission {
        if now < self.probe_at {
            return Admission::TurnAway(self.how);
        }
        self.interval = (self.interval * 2).min(settings.longest);
        self.probe_at = now + self.interval;
        Admission::Probe
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings = Settings {
        silent_after: Duration::from_secs(1),
        shortest: Duration::from_millis(20),
        longest: Duration::from_millis(500),
    };

    fn refused(start: Instant) -> Reach {
        let mut reach = Reach::default();
        assert_eq!(reach.open(false, &SETTINGS, start), Admission::Open);
        reach.refused(&SETTINGS, start);
        reach
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn nothing_is_turned_away_before_it_is_known_that_another_endpoint_can_take_it() {
        let start = Instant::now();
        let mut reach = refused(start);
        assert_eq!(reach.open(false, &SETTINGS, start + ms(1)), Admission::Open);
        reach.set_replaceable(true);
        assert_eq!(reach.open(false, &SETTINGS, start + ms(2)), Admission::TurnAway(Failing::Refused));
        assert_eq!(reach.open(true, &SETTINGS, start + ms(2)), Admission::Open, "this worker has a living connection");
        reach.set_replaceable(false);
        assert_eq!(reach.open(false, &SETTINGS, start + ms(3)), Admission::Open, "the others fail too");
    }

    #[test]
    fn probes_become_rarer_while_the_endpoint_goes_on_refusing() {
        let start = Instant::now();
        let mut reach = refused(start);
        reach.set_replaceable(true);
        let mut probes = Vec::new();
        for at in 0..5_000 {
            let now = start + ms(at);
            if reach.open(false, &SETTINGS, now) == Admission::Probe {
                reach.refused(&SETTINGS, now);
                probes.push(at);
            }
        }
        assert_eq!(probes.get(..6), Some(&[20, 60, 140, 300, 620, 1_120][..]), "{probes:?}");
        assert_eq!(probes.len(), 13, "then one in half a second: {probes:?}");
    }

    #[test]
    fn one_success_ends_the_failure_and_a_fence_forgets_it() {
        let start = Instant::now();
        let mut reach = refused(start);
        reach.set_replaceable(true);
        assert_eq!(reach.open(false, &SETTINGS, start + ms(20)), Admission::Probe);
        reach.established(start + ms(21));
        assert_eq!(reach.open(false, &SETTINGS, start + ms(22)), Admission::Open);
        let mut reach = refused(start);
        reach.set_replaceable(true);
        reach.forget();
        assert_eq!(reach.open(false, &SETTINGS, start + ms(1)), Admission::Open, "it may be another pod");
    }

    #[test]
    fn an_attempt_that_stays_pending_counts_only_where_nothing_succeeded_since() {
        let start = Instant::now();
        let mut reach = Reach::default();
        reach.open(false, &SETTINGS, start);
        assert_eq!(reach.failing(&SETTINGS, start + ms(999)), None);
        assert_eq!(reach.failing(&SETTINGS, start + ms(1_000)), Some(Failing::Silent));
        let mut reach = Reach::default();
        reach.open(false, &SETTINGS, start);
        reach.open(false, &SETTINGS, start + ms(10));
        reach.established(start + ms(900));
        assert_eq!(reach.failing(&SETTINGS, start + ms(1_500)), None, "the endpoint answered another tunnel meanwhile");
        assert_eq!(reach.failing(&SETTINGS, start + ms(1_900)), Some(Failing::Silent));
    }

    #[test]
    fn an_attempt_that_is_given_up_is_not_pending_any_more() {
        let start = Instant::now();
        let mut reach = Reach::default();
        reach.open(false, &SETTINGS, start);
        reach.given_up(start + ms(500));
        assert_eq!(reach.failing(&SETTINGS, start + ms(5_000)), None);
    }
}
