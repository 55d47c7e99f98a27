//! Names in Envoy's dynamic metadata, for access logs and for `set_filter_state`.

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

/// Envoy's id of the connection that a request's last attempt went over: of the outer one, if it has a
/// tunnel.
pub const UPSTREAM_CONNECTION_ID: &str = "upstream_connection_id";

/// Age of that connection when the request ended, in milliseconds.
pub const UPSTREAM_CONNECTION_AGE: &str = "upstream_connection_age_ms";

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

/// How long the tunnel's last bytes had been waiting for an answer when it broke, in milliseconds.
pub const WAITED: &str = "waited_ms";
