//! Envoy's retry conditions, by Envoy's own words.
//!
//! Source: Envoy, "Router" HTTP filter, `x-envoy-retry-on` and `x-envoy-retry-grpc-on`.

use serde::Deserialize;

/// A condition under which Envoy's router retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// Any 5xx answer, or none at all.
    #[serde(rename = "5xx")]
    FiveXx,
    /// 502, 503 or 504, or no answer at all.
    GatewayError,
    /// No answer at all: disconnect, reset, read timeout.
    Reset,
    /// As `reset`, and only if the request's headers had not been sent upstream.
    ResetBeforeRequest,
    /// The connection could not be made.
    ConnectFailure,
    /// The answer carries `x-envoy-ratelimited`.
    EnvoyRatelimited,
    /// 409.
    #[serde(rename = "retriable-4xx")]
    Retriable4xx,
    /// The upstream reset the stream with REFUSED_STREAM.
    RefusedStream,
    /// A status code named by the route or by `x-envoy-retriable-status-codes`.
    RetriableStatusCodes,
    /// A response header named by the route or by `x-envoy-retriable-header-names`.
    RetriableHeaders,
    /// An HTTP/3 attempt failed after the connection was made.
    #[serde(rename = "http3-post-connect-failure")]
    Http3PostConnectFailure,
    /// gRPC status 1 in the response headers.
    Cancelled,
    /// gRPC status 4 in the response headers.
    DeadlineExceeded,
    /// gRPC status 13 in the response headers.
    Internal,
    /// gRPC status 8 in the response headers.
    ResourceExhausted,
    /// gRPC status 14 in the response headers.
    Unavailable,
}

/// Which of Envoy's two request headers carries a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// `x-envoy-retry-on`.
    Http,
    /// `x-envoy-retry-grpc-on`.
    Grpc,
}

// === impl Condition ===

impl Condition {
    /// Envoy's word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::FiveXx => "5xx",
            Self::GatewayError => "gateway-error",
            Self::Reset => "reset",
            Self::ResetBeforeRequest => "reset-before-request",
            Self::ConnectFailure => "connect-failure",
            Self::EnvoyRatelimited => "envoy-ratelimited",
            Self::Retriable4xx => "retriable-4xx",
            Self::RefusedStream => "refused-stream",
            Self::RetriableStatusCodes => "retriable-status-codes",
            Self::RetriableHeaders => "retriable-headers",
            Self::Http3PostConnectFailure => "http3-post-connect-failure",
            Self::Cancelled => "cancelled",
            Self::DeadlineExceeded => "deadline-exceeded",
            Self::Internal => "internal",
            Self::ResourceExhausted => "resource-exhausted",
            Self::Unavailable => "unavailable",
        }
    }

    /// The header that Envoy reads this word from.
    #[must_use]
    pub const fn carrier(self) -> Carrier {
        match self {
            Self::FiveXx
            | Self::GatewayError
            | Self::Reset
            | Self::ResetBeforeRequest
            | Self::ConnectFailure
            | Self::EnvoyRatelimited
            | Self::Retriable4xx
            | Self::RefusedStream
            | Self::RetriableStatusCodes
            | Self::RetriableHeaders
            | Self::Http3PostConnectFailure => Carrier::Http,
            Self::Cancelled | Self::DeadlineExceeded | Self::Internal | Self::ResourceExhausted | Self::Unavailable => {
                Carrier::Grpc
            }
        }
    }

    /// Whether the condition holds only when no upstream acted on the request, so that a retry cannot
    /// repeat an effect, whatever the method (RFC 9110 section 9.2.2: "some means to detect that the
    /// original request was never applied"; RFC 9113 section 8.7 for REFUSED_STREAM).
    #[must_use]
    pub const fn proves_unprocessed(self) -> bool {
        match self {
            Self::ResetBeforeRequest | Self::ConnectFailure | Self::RefusedStream => true,
            Self::FiveXx
            | Self::GatewayError
            | Self::Reset
            | Self::EnvoyRatelimited
            | Self::Retriable4xx
            | Self::RetriableStatusCodes
            | Self::RetriableHeaders
            | Self::Http3PostConnectFailure
            | Self::Cancelled
            | Self::DeadlineExceeded
            | Self::Internal
            | Self::ResourceExhausted
            | Self::Unavailable => false,
        }
    }
}
