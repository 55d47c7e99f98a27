//! Every name in Envoy's dynamic metadata, for access logs and for `set_filter_state`.

/// The namespace of everything that Stale Guard writes.
pub const NAMESPACE: &str = "stale_guard";

/// The generation of a tunnel's endpoint, as decimal text; on the connections of the fence's listener.
pub const GENERATION: &str = "generation";

/// The class of the reset that ended a tunnel or failed a request.
pub const RESET_CLASS: &str = "reset_class";

/// How the tunnel was refused, on the connections of the fence's listener (`connect`, `tls`,
/// `answered_<status>`, `ended`, `unanswered`).
pub const TUNNEL_REFUSAL: &str = "tunnel_refusal";

/// Envoy's id of the outer connection, on the connections of the fence's listener.
pub const CONNECTION_ID: &str = "connection_id";

/// Age of the outer connection when the tunnel ended, in milliseconds; on a request, of the connection
/// whose reset is explained.
pub const CONNECTION_AGE: &str = "connection_age_ms";

/// What was decided on a request (`retry`, `retry_unprocessed`, `leave`).
pub const RETRY_DECISION: &str = "retry_decision";

/// Why it was decided so.
pub const RETRY_REASON: &str = "retry_reason";

/// The rule that decided, if one did.
pub const RETRY_RULE: &str = "retry_rule";

/// What became of a request that had the right to be retried.
pub const RETRY_OUTCOME: &str = "retry_outcome";

/// Attempts that Envoy made of a request.
pub const ATTEMPTS: &str = "attempts";

/// The endpoint whose connection broke under a request.
pub const RESET_ENDPOINT: &str = "reset_endpoint";

/// How long a tunnel's bytes, or its CONNECT, had been waiting for an answer when it ended, in milliseconds;
/// absent if none were. On a request, of the tunnel whose reset is explained.
pub const WAITED: &str = "waited_ms";

/// How long the endpoint had been silent on the outer connection before those bytes were sent, or before the end
/// if none were waiting, in milliseconds.
pub const IDLE: &str = "idle_ms";

/// Other outer connections of the same worker that broke within the 200 ms before.
pub const OTHERS_AT_ONCE: &str = "others_at_once";

/// A duration as the metadata has it.
#[must_use]
pub fn millis(duration: std::time::Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}
