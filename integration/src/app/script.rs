//! What the application does with the next requests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::StatusCode;

use crate::tcp::Ending;

/// What the application does with a request, or with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// What the request asks for.
    Normal,
    /// Answers normally, this much later.
    Delay(Duration),
    /// Reads and executes the request, and never answers.
    HangBeforeHeaders,
    /// Executes the request, answers 200 and keeps the body open until [`super::App::release`].
    HangBody,
    /// Executes the request, then closes the connection with FIN, unanswered.
    ReadThenClose,
    /// Executes the request, then resets the connection, unanswered.
    ReadThenReset,
    /// Executes the request, sends 200 and 10 of the 100 bytes it announced, then resets.
    HeadersThenReset,
    /// Executes the request and answers with this status.
    Status(StatusCode),
    /// gRPC: executes the request and answers with this `grpc-status`, trailers only.
    GrpcStatus(u16),
    /// Resets the connection when the request's first byte arrives; nothing is executed.
    ResetOnArrival,
    /// Sends FIN when the request's first byte arrives, as an idle timeout that meets a request on
    /// the way does (RFC 9112, section 9.5); nothing is executed.
    FinCrossing,
    /// HTTP/2: RST_STREAM with `REFUSED_STREAM` (RFC 9113, section 8.7); nothing is executed.
    RefuseStream,
    /// HTTP/2: GOAWAY (`NO_ERROR`) whose last stream id is below the request's (RFC 9113, section
    /// 6.8); nothing is executed. Needs an earlier stream on the connection to be of interest.
    GoAwayBelow,
    /// Accepts the next connection and resets it at once.
    ResetOnAccept,
    /// Accepts the next connection and closes it at once, with FIN.
    CloseOnAccept,
}

/// A queue of behaviours, one script per application. Clones share it.
///
/// The head decides; it applies to requests, or to connections, by its nature. When the queue is
/// empty, everything is [`Behaviour::Normal`].
#[derive(Debug, Clone, Default)]
pub struct Script {
    rules: Arc<Mutex<VecDeque<Rule>>>,
}

#[derive(Debug)]
struct Rule {
    behaviour: Behaviour,
    /// None: until told otherwise.
    remaining: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Connection,
    Arrival,
    Request,
}

// === impl Behaviour ===

impl Behaviour {
    fn stage(self) -> Stage {
        match self {
            Self::ResetOnAccept | Self::CloseOnAccept => Stage::Connection,
            Self::ResetOnArrival | Self::FinCrossing | Self::GoAwayBelow => Stage::Arrival,
            Self::Normal
            | Self::Delay(_)
            | Self::HangBeforeHeaders
            | Self::HangBody
            | Self::ReadThenClose
            | Self::ReadThenReset
            | Self::HeadersThenReset
            | Self::Status(_)
            | Self::GrpcStatus(_)
            | Self::RefuseStream => Stage::Request,
        }
    }
}

// === impl Script ===

impl Script {
    /// After what is queued: the next `count` requests (or connections) meet `behaviour`.
    pub fn next(&self, count: u32, behaviour: Behaviour) {
        if count > 0 {
            self.rules().push_back(Rule { behaviour, remaining: Some(count) });
        }
    }

    /// In place of what is queued: all meet `behaviour`, until told otherwise.
    pub fn until_told(&self, behaviour: Behaviour) {
        let mut rules = self.rules();
        rules.clear();
        rules.push_back(Rule { behaviour, remaining: None });
    }

    /// From now on everything is [`Behaviour::Normal`].
    pub fn clear(&self) {
        self.rules().clear();
    }

    /// Whether all that was queued has happened.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.rules().is_empty()
    }

    pub(crate) fn take_for_connection(&self) -> Option<Ending> {
        match self.take(Stage::Connection)? {
            Behaviour::ResetOnAccept => Some(Ending::Rst),
            _ => Some(Ending::Fin),
        }
    }

    pub(crate) fn take_on_arrival(&self) -> Option<Behaviour> {
        self.take(Stage::Arrival)
    }

    pub(crate) fn take_for_request(&self) -> Behaviour {
        self.take(Stage::Request).unwrap_or(Behaviour::Normal)
    }

    fn take(&self, stage: Stage) -> Option<Behaviour> {
        let mut rules = self.rules();
        let rule = rules.front_mut().filter(|rule| rule.behaviour.stage() == stage)?;
        let behaviour = rule.behaviour;
        let spent = match &mut rule.remaining {
            None => false,
            Some(remaining) => {
                *remaining -= 1;
                *remaining == 0
            }
        };
        if spent {
            rules.pop_front();
        }
        Some(behaviour)
    }

    fn rules(&self) -> MutexGuard<'_, VecDeque<Rule>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_behaviours_happen_in_order_and_then_all_is_normal() {
        let script = Script::default();
        script.next(2, Behaviour::ReadThenReset);
        script.next(1, Behaviour::HangBody);
        let taken: Vec<_> = (0..4).map(|_| script.take_for_request()).collect();
        use Behaviour::{HangBody, Normal, ReadThenReset};
        assert_eq!(taken, [ReadThenReset, ReadThenReset, HangBody, Normal]);
        assert!(script.is_done());
    }

    #[test]
    fn a_behaviour_waits_for_the_stage_it_belongs_to() {
        let script = Script::default();
        script.next(1, Behaviour::FinCrossing);
        assert_eq!(script.take_for_connection(), None);
        assert_eq!(script.take_for_request(), Behaviour::Normal, "the head is for arrivals");
        assert_eq!(script.take_on_arrival(), Some(Behaviour::FinCrossing));
        assert!(script.is_done());
    }
}
