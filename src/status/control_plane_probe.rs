//! Looks at Envoy's connection to the control plane.
//!
//! Envoy tells a dynamic module of it by a gauge only, and lets a bootstrap extension read gauges only
//! in the hooks of the server's life. So the module asks the admin endpoint, for gauges alone.

use std::time::{Duration, Instant};

use crate::note::Note;

/// The gauge, asked for alone and only if it was set.
pub(super) const PATH: &[u8] = b"/stats?filter=%5Econtrol_plane%5C.connected_state%24&usedonly&type=Gauges";

/// The pause between looks while they tell nothing: no gauge, or no answer.
const BLIND: Duration = Duration::from_secs(60);

/// When to look. Main thread.
pub(super) struct Probe {
    next: Instant,
    /// Looks that told nothing since the last one that did.
    blind: u32,
    /// Whether that was logged.
    warned: bool,
}

// === impl Probe ===

impl Probe {
    pub(super) const fn new(now: Instant) -> Self {
        Self { next: now, blind: 0, warned: false }
    }

    /// Whether a look is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    /// A look was sent; the next one is due after `pause`.
    pub(super) fn sent(&mut self, pause: Duration, now: Instant) {
        self.next = now + pause;
    }

    /// A look has told whether the control plane is connected.
    pub(super) fn told(&mut self, pause: Duration, now: Instant) {
        self.blind = 0;
        self.next = now + pause;
    }

    /// A look has told nothing, because of `why`, or because there is no such gauge. The first in a row may have come
    /// too early, or too late for one request; the second makes looks rare, and is logged once.
    pub(super) fn is_blind(&mut self, why: Option<&str>, now: Instant) -> Option<Note> {
        self.blind = self.blind.saturating_add(1);
        if self.blind < 2 {
            return None;
        }
        self.next = now + BLIND;
        let first = !std::mem::replace(&mut self.warned, true);
        first.then(|| match why {
            Some(why) => Note::Warn(format!(
                "the admin endpoint cannot be asked for the control plane's connection ({why}), so an outage cannot be \
                 seen (suspect_after has no effect) until it can"
            )),
            None => Note::Warn(
                "Envoy has no gauge control_plane.connected_state, so an outage cannot be seen (suspect_after has no \
                 effect); let its stats inclusion list the prefix control_plane"
                    .to_owned(),
            ),
        })
    }
}

/// Reads `control_plane.connected_state: 1`; none where the proxy's stats inclusion leaves it out.
pub(super) fn connected(text: &[u8]) -> Option<bool> {
    String::from_utf8_lossy(text)
        .lines()
        .find_map(|line| line.trim().strip_prefix("control_plane.connected_state:").map(|value| value.trim() == "1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gauge_is_read_from_the_text_of_stats() {
        assert_eq!(connected(b"control_plane.connected_state: 1\n"), Some(true));
        assert_eq!(connected(b"control_plane.connected_state: 0\n"), Some(false));
        assert_eq!(connected(b""), None, "a proxy that does not keep it");
    }

    #[test]
    fn looks_that_tell_nothing_become_rare_and_are_logged_once() {
        let now = Instant::now();
        let mut probe = Probe::new(now);
        let pause = Duration::from_millis(250);
        assert!(probe.is_due(now));
        probe.sent(pause, now);
        assert_eq!(probe.is_blind(Some("no cluster"), now), None, "the first failure may be an accident");
        let second = now + pause;
        assert!(probe.is_due(second));
        assert!(probe.is_blind(None, second).is_some());
        assert!(!probe.is_due(second + Duration::from_secs(59)));
        assert!(probe.is_due(second + BLIND));
        assert_eq!(probe.is_blind(None, second + BLIND), None, "once");
        probe.told(pause, second + BLIND);
        assert!(probe.is_due(second + BLIND + pause));
    }
}
