//! The request headers that Envoy's router and a trusted caller speak of retries in.
//!
//! Source: Envoy, "Router" HTTP filter. Envoy's HTTP connection manager removes all but the attempt count from
//! requests of callers that it does not trust, before any filter runs; the router removes them before a
//! request goes upstream.

/// Conditions, united with the route's.
pub const RETRY_ON: &str = "x-envoy-retry-on";
/// gRPC conditions, united with the route's.
pub const RETRY_GRPC_ON: &str = "x-envoy-retry-grpc-on";
/// Number of retries, instead of the route's.
pub const MAX_RETRIES: &str = "x-envoy-max-retries";
/// Milliseconds for one attempt, instead of the route's.
pub const PER_TRY_TIMEOUT: &str = "x-envoy-upstream-rq-per-try-timeout-ms";
/// `true`: at the end of that time a second attempt is sent beside the first; instead of the route's.
pub const HEDGE: &str = "x-envoy-hedge-on-per-try-timeout";
/// Where Envoy counts attempts for the upstream, if the virtual host asks for it
/// (`include_request_attempt_count`).
pub const ATTEMPT_COUNT: &str = "x-envoy-attempt-count";

/// The number that Envoy reads from a header such as `x-envoy-max-retries`; `None` where it reads none.
#[must_use]
pub fn parse_number(value: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(value.trim_ascii()).ok()?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}
