//! Looks at Envoy's connection to the control plane.
//!
//! Envoy tells a dynamic module of it by a gauge only, and lets a bootstrap extension read gauges only
//! in the hooks of the server's life. So the module asks the admin endpoint, for gauges alone.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use envoy_proxy_dynamic_modules_rust_sdk::EnvoyBuffer;

use super::note::Note;
use crate::{
    shared::shared,
    watch::gap::{Gap, Look, Sight},
};

/// The gauge, asked for alone and only if it was set.
pub(super) const PATH: &[u8] = b"/stats?filter=%5Econtrol_plane%5C.connected_state%24&usedonly&type=Gauges";

/// The pause between looks while they tell nothing: no gauge, or no answer.
const BLIND: Duration = Duration::from_secs(60);

/// The looks' state. Main thread.
pub(super) struct Connection {
    gap: Gap,
    next: Instant,
    in_flight: bool,
    /// Looks that told nothing since the last one that did.
    blind: u32,
    /// Whether that was said.
    said: bool,
}

// === impl Connection ===

impl Connection {
    pub(super) fn new(gap: Gap, now: Instant) -> Self {
        Self { gap, next: now, in_flight: false, blind: 0, said: false }
    }

    /// Whether to look now; if so, the look counts as in flight.
    pub(super) fn start(&mut self, now: Instant) -> bool {
        if self.in_flight || now < self.next {
            return false;
        }
        self.in_flight = true;
        self.next = now + self.gap.pause();
        true
    }

    /// The look in flight failed: nothing is known, so nothing is done.
    pub(super) fn failed(&mut self, why: &str, now: Instant) -> Option<Note> {
        self.in_flight = false;
        self.is_blind(now).then(|| {
            Note::Warn(format!(
                "the admin endpoint cannot be asked for the control plane's connection ({why}), so an outage cannot be \
                 seen (suspect_after has no effect) until it can"
            ))
        })
    }

    /// Takes in the answer of the look in flight.
    pub(super) fn answered(&mut self, body: &[EnvoyBuffer], now: Instant) -> Option<Note> {
        self.in_flight = false;
        let text: Vec<u8> = body.iter().flat_map(|chunk| chunk.as_slice()).copied().collect();
        let control_plane = &shared().control_plane;
        let connected = connected(&text);
        control_plane.seen.store(connected.is_some(), Ordering::Relaxed);
        control_plane.connected.store(connected == Some(true), Ordering::Relaxed);
        let Some(connected) = connected else {
            return self.is_blind(now).then(|| Note::Warn(UNSEEN.to_owned()));
        };
        self.blind = 0;
        if connected {
            shared().connected();
        }
        let sight = Sight { connected, updated_at: shared().endpoints_at() };
        let look = self.gap.look(sight, now);
        self.next = now + self.gap.pause();
        match look {
            Look::Quiet => None,
            Look::Suspect => {
                shared().suspect();
                let said = "the control plane has been away for long; every endpoint is fenced, and once more when it is \
                            back";
                Some(Note::Warn(said.to_owned()))
            }
            Look::Back { suspected } => {
                shared().reconnected(suspected);
                Some(Note::Warn("the control plane is back after a long absence".to_owned()))
            }
        }
    }

    /// A look has told nothing: whether that is to be said. The first in a row may have come too early, or
    /// too late for one request; the second makes looks rare, and is said once.
    fn is_blind(&mut self, now: Instant) -> bool {
        self.blind = self.blind.saturating_add(1);
        if self.blind > 1 {
            self.next = now + BLIND;
        }
        self.blind > 1 && !std::mem::replace(&mut self.said, true)
    }
}

/// Reads `control_plane.connected_state: 1`; none where the proxy's stats inclusion leaves it out.
fn connected(text: &[u8]) -> Option<bool> {
    String::from_utf8_lossy(text)
        .lines()
        .find_map(|line| line.trim().strip_prefix("control_plane.connected_state:").map(|value| value.trim() == "1"))
}

const UNSEEN: &str = "there is no gauge control_plane.connected_state, so a control-plane outage cannot be seen \
                      (suspect_after has no effect); on Istio, add the prefix control_plane to proxyStatsMatcher";

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
    fn looks_that_tell_nothing_become_rare() {
        let now = Instant::now();
        let mut connection = Connection::new(Gap::new(Duration::from_secs(1)), now);
        assert!(connection.start(now));
        assert_eq!(connection.failed("no cluster", now), None);
        let second = now + Duration::from_millis(250);
        assert!(connection.start(second), "the first failure may be an accident");
        assert!(connection.failed("no cluster", second).is_some(), "it is said");
        assert!(!connection.start(second + Duration::from_secs(59)));
        assert!(connection.start(second + BLIND));
        assert_eq!(connection.failed("no cluster", second + BLIND), None, "once");
    }
}
