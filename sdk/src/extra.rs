//! What this crate has and the official one has not. Whatever of a module uses this file is what a
//! swap to the official crate has to replace (`docs/sdk.md`).

mod tagged_sockets;

pub use self::tagged_sockets::{Found, SO_SNDTIMEO, SOL_SOCKET, SocketTag, TaggedSockets};
use crate::abi::callbacks;
pub use crate::guard::panics_caught;
pub use crate::http::HttpPerRouteConfig;
pub use crate::metrics::MetricResult;

/// What came to the dynamic modules ABI after Envoy 1.38, the oldest release that this crate loads on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Envoy 1.39 and later. An HTTP filter can read the attributes of a failed or retried request
    /// (`response.flags`, `response.code_details`, `upstream.request_attempt_count`,
    /// `upstream.transport_failure_reason`, `upstream.local_address`); before, Envoy answers "none" and
    /// writes an error line to its log for each attempt to read one. A network filter can read attributes.
    FailureAttributes,
    /// Envoy 1.39 and later. HTTP and network filters can ask for the upstream connection's id.
    UpstreamConnectionId,
    /// Envoy 1.39 and later. A commit of a network filter's scheduler may run on another thread while
    /// the connection is destroyed; before, the two race inside Envoy.
    SafeCommitFromOtherThreads,
    /// Envoy 1.40 and later. xDS updates can be seen by a config validator.
    ConfigValidator,
}

/// Whether the running Envoy has `feature`; told by which callbacks it exports, so it costs one
/// comparison. Any thread. `false` in a process without Envoy.
pub fn envoy_has(feature: Feature) -> bool {
    match feature {
        // All three came in one release, whose mark is this callback.
        Feature::FailureAttributes | Feature::UpstreamConnectionId | Feature::SafeCommitFromOtherThreads => {
            callbacks().http_get_upstream_connection_id.is_some()
        }
        Feature::ConfigValidator => callbacks().config_validator_set_rejection_message.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Callbacks;
    use crate::testing::{fake_callbacks, install};

    const ALL: [Feature; 4] = [
        Feature::FailureAttributes,
        Feature::UpstreamConnectionId,
        Feature::SafeCommitFromOtherThreads,
        Feature::ConfigValidator,
    ];

    #[test]
    fn each_release_has_what_came_until_then() {
        let has = || ALL.map(envoy_has);
        assert_eq!(has(), [false; 4], "a process without Envoy has nothing");
        install(fake_callbacks());
        assert_eq!(has(), [true; 4], "Envoy 1.40 has everything");
        install(Callbacks { config_validator_set_rejection_message: None, ..fake_callbacks() });
        assert_eq!(has(), [true, true, true, false], "Envoy 1.39 has no config validator");
        install(Callbacks {
            config_validator_set_rejection_message: None,
            http_get_upstream_connection_id: None,
            ..fake_callbacks()
        });
        assert_eq!(has(), [false; 4], "Envoy 1.38 has none of these");
    }
}
