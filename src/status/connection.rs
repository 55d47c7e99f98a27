//! Looks at Envoy's connection to the control plane.
//!
//! Envoy tells a dynamic module of it by a gauge only, and lets a bootstrap extension read gauges only
//! in the hooks of the server's life. So the module asks the admin endpoint, for gauges alone.

use std::{sync::Once, sync::atomic::Ordering, time::Instant};

use envoy_proxy_dynamic_modules_rust_sdk::{EnvoyBuffer, envoy_log_info, envoy_log_warn};

use crate::{
    shared::shared,
    watch::gap::{Gap, Look},
};

/// The gauge, asked for alone and only if it was set.
pub(super) const PATH: &[u8] = b"/stats?filter=%5Econtrol_plane%5C.connected_state%24&usedonly&type=Gauges";

/// The looks' state. Main thread.
pub(super) struct Connection {
    gap: Gap,
    next: Instant,
    in_flight: bool,
}

// === impl Connection ===

impl Connection {
    pub(super) fn new(gap: Gap, now: Instant) -> Self {
        Self { gap, next: now, in_flight: false }
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
    pub(super) fn failed(&mut self) {
        self.in_flight = false;
    }

    /// Takes in the answer of the look in flight.
    pub(super) fn answered(&mut self, body: &[EnvoyBuffer], now: Instant) {
        self.in_flight = false;
        let text: Vec<u8> = body.iter().flat_map(|chunk| chunk.as_slice()).copied().collect();
        let control_plane = &shared().control_plane;
        let Some(connected) = connected(&text) else {
            control_plane.seen.store(false, Ordering::Relaxed);
            return unseen();
        };
        control_plane.seen.store(true, Ordering::Relaxed);
        control_plane.connected.store(connected, Ordering::Relaxed);
        let suspected = self.gap.is_suspected();
        let look = self.gap.look(connected, now);
        self.next = now + self.gap.pause();
        match look {
            Look::Quiet => {}
            Look::Suspect => {
                envoy_log_warn!(
                    "stale_guard: the control plane has been away for long; every endpoint is fenced, and once more when \
                     it is back"
                );
                shared().suspect();
            }
            Look::Back { since } => {
                envoy_log_warn!("stale_guard: the control plane is back after a long absence");
                shared().reconnected(suspected, since);
            }
        }
    }
}

/// Reads `control_plane.connected_state: 1`; none where the proxy's stats inclusion leaves it out.
fn connected(text: &[u8]) -> Option<bool> {
    String::from_utf8_lossy(text)
        .lines()
        .find_map(|line| line.trim().strip_prefix("control_plane.connected_state:").map(|value| value.trim() == "1"))
}

fn unseen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        envoy_log_info!(
            "stale_guard: there is no gauge control_plane.connected_state, so a control-plane outage cannot be seen \
             (suspect_after has no effect); on Istio, add the prefix control_plane to proxyStatsMatcher"
        );
    });
}
