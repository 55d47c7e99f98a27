//! Names in Envoy's dynamic metadata, for access logs and for `set_filter_state`.

/// The namespace of everything that Stale Guard writes.
pub const NAMESPACE: &str = "stale_guard";

/// The generation of a tunnel's endpoint, as decimal text; on the connections of the fence's listener.
pub const GENERATION: &str = "generation";

/// The class of the reset that ended a tunnel or failed a request.
pub const RESET_CLASS: &str = "reset_class";
