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

/// How long the tunnel's last bytes had been waiting for an answer when it broke, in milliseconds.
pub const WAITED: &str = "waited_ms";
