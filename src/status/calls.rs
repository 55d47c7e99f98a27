//! The call-outs to Envoy's own admin endpoint that are under way.

use std::fmt;

/// What a call-out asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// The endpoints of every cluster.
    Poll,
    /// The gauge of the control plane's connection.
    Look,
}

/// Why a call-out has no answer that can be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The answer is larger than Envoy lets through.
    TooLarge,
    /// Anything else.
    Other(String),
}

/// The calls under way, by Envoy's id. Main thread.
#[derive(Debug, Default)]
pub(super) struct Calls {
    known: Vec<(u64, Call)>,
    /// One that is being sent: its id is not known yet, and Envoy may report its end from within the call.
    sending: Option<Call>,
}

// === impl Calls ===

impl Calls {
    /// A call is about to be sent.
    pub(super) fn send(&mut self, call: Call) {
        // Whatever was left of an earlier one of its kind has got lost.
        self.known.retain(|(_, known)| *known != call);
        self.sending = Some(call);
    }

    /// The call that was sent has an id now, or none, if Envoy refused it. Returns whether it is still to be ended.
    pub(super) fn sent(&mut self, id: Option<u64>) -> bool {
        let Some(call) = self.sending.take() else { return false };
        self.known.extend(id.map(|id| (id, call)));
        true
    }

    /// The call with this id has ended.
    pub(super) fn take(&mut self, id: u64) -> Option<Call> {
        match self.known.iter().position(|(known, _)| *known == id) {
            Some(index) => Some(self.known.swap_remove(index).1),
            None => self.sending.take(),
        }
    }

    /// Whether a call of this kind is under way.
    pub(super) fn is_under_way(&self, call: Call) -> bool {
        self.sending == Some(call) || self.known.iter().any(|(_, known)| *known == call)
    }
}

// === impl Failure ===

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge => out.write_str(
                "its answer is larger than the runtime key http.async_response_buffer_limit allows, 32 MiB by default: \
                 raise it, or use the config validator; the next attempt is in two minutes",
            ),
            Self::Other(why) => out.write_str(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_ended_once_whether_envoy_reports_it_during_the_call_or_later() {
        let mut calls = Calls::default();
        calls.send(Call::Poll);
        assert!(calls.is_under_way(Call::Poll));
        assert!(calls.sent(Some(7)));
        calls.send(Call::Look);
        assert_eq!(calls.take(9), Some(Call::Look), "reported from within the call, under an id not known yet");
        assert!(!calls.sent(Some(9)), "and not again after it");
        assert_eq!((calls.take(7), calls.take(7)), (Some(Call::Poll), None));
        calls.send(Call::Look);
        assert!(calls.sent(None), "refused: to be ended by whoever sent it");
        assert!(!calls.is_under_way(Call::Look));
    }
}
