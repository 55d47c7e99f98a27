//! The report's data; its JSON form is `report.json`.

use lab::history::{History, Vanish};
use lab::load::Latency;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// All variants of one run of the demo, in the order in which they ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) variants: Vec<VariantResult>,
}

/// What one variant did. Times are in seconds from the start of the variant's load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct VariantResult {
    pub(crate) name: String,
    pub(crate) requests: u64,
    /// GET requests without a 2xx answer, the ones in `in_flight_lost` not counted.
    pub(crate) failed_get: u64,
    /// POST requests without a 2xx answer, the ones in `in_flight_lost` not counted.
    pub(crate) failed_post: u64,
    /// POST requests that were executed more than once.
    pub(crate) duplicate_posts: u64,
    pub(crate) retries: u64,
    /// TLS handshakes of outer connections.
    pub(crate) tls_handshakes: u64,
    /// Latency of all requests, failed ones included, from their intended start.
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) max_ms: f64,
    /// Requests that were in flight on a pod when it vanished; the rule is in `lab::history`.
    pub(crate) in_flight_lost: u64,
    /// Failed requests that spanned a vanish without proof that they had reached the pod.
    pub(crate) failed_around_vanish: u64,
    /// Width of the slices of `failures_over_time`.
    pub(crate) slice_s: f64,
    pub(crate) failures_over_time: Vec<Slice>,
    pub(crate) events: Vec<Event>,
}

/// Failures among the requests whose intended start lies in this slice.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Slice {
    pub(crate) t: f64,
    pub(crate) failed_get: u64,
    pub(crate) failed_post: u64,
    pub(crate) in_flight_lost: u64,
}

/// Something that the demo did to a pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Event {
    pub(crate) t: f64,
    pub(crate) kind: EventKind,
    /// Name of the pod instance.
    pub(crate) label: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EventKind {
    PodVanished,
    IpReused,
}

// === impl VariantResult ===

impl VariantResult {
    /// Measures a history. `retries` and `tls_handshakes` come from the proxy's counters and from the
    /// pods, which see more than the client does; `reused` lists when which new pod was given an old
    /// IP address.
    pub(crate) fn measure(
        name: &str,
        history: &History,
        vanished: &[Vanish],
        reused: &[(Instant, String)],
        retries: u64,
        tls_handshakes: u64,
    ) -> anyhow::Result<Self> {
        const SLICE: Duration = Duration::from_millis(500);
        let summary = history.summary(vanished);
        let latency = Latency::of(&history.requests)?;
        let seconds = |at: Instant| at.saturating_duration_since(history.origin).as_secs_f64();
        let event = |at, kind, label: &str| Event { t: seconds(at), kind, label: label.to_owned() };
        let mut events: Vec<Event> = vanished
            .iter()
            .map(|vanish| event(vanish.from, EventKind::PodVanished, &vanish.pod))
            .chain(reused.iter().map(|(at, pod)| event(*at, EventKind::IpReused, pod)))
            .collect();
        events.sort_by(|a, b| a.t.total_cmp(&b.t));
        Ok(Self {
            name: name.to_owned(),
            requests: summary.requests,
            failed_get: summary.failed_get,
            failed_post: summary.failed_post,
            duplicate_posts: summary.duplicate_posts,
            retries,
            tls_handshakes,
            p50_ms: latency.p50_ms,
            p99_ms: latency.p99_ms,
            max_ms: latency.max_ms,
            in_flight_lost: summary.in_flight_lost,
            failed_around_vanish: summary.failed_around_vanish,
            slice_s: SLICE.as_secs_f64(),
            failures_over_time: history
                .failures_over_time(vanished, SLICE)
                .into_iter()
                .map(|tally| Slice {
                    t: tally.at.as_secs_f64(),
                    failed_get: tally.failed_get,
                    failed_post: tally.failed_post,
                    in_flight_lost: tally.in_flight_lost,
                })
                .collect(),
            events,
        })
    }

    /// When the load ended, as far as the series shows.
    pub(crate) fn duration_s(&self) -> f64 {
        let slices = self.failures_over_time.last().map_or(0.0, |slice| slice.t + self.slice_s);
        self.events.iter().map(|event| event.t).fold(slices, f64::max)
    }
}
