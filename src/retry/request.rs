//! What is known of a request when its headers have arrived.

use super::headers::HEDGE;

/// A request as the decision sees it: borrowed bytes, none of them trusted to be text.
#[derive(Clone, Copy)]
pub struct Evidence<'a> {
    /// `:method`; `None` when it could not be read.
    pub method: Option<&'a [u8]>,
    /// `:authority` or `Host`; `None` when it could not be read or the request has none.
    pub authority: Option<&'a [u8]>,
    /// `:path` with its query; `None` when it could not be read.
    pub path: Option<&'a [u8]>,
    /// The other headers.
    pub headers: &'a dyn Headers,
    /// How many bytes of a body Envoy keeps for another attempt, as far as the filter can see; `None`: any
    /// number.
    pub body_limit: Option<u64>,
}

/// Request headers by lower-case name.
pub trait Headers {
    /// The header's values, joined by `,` where there are several, as Envoy's own header matchers see
    /// them; `None` when the header is absent.
    fn joined(&self, name: &str) -> Option<Vec<u8>>;

    /// Whether the header is there.
    fn contains(&self, name: &str) -> bool {
        self.joined(name).is_some()
    }
}

/// A gRPC call's names, taken from its path `/service/method`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call<'a> {
    /// Full name of the service.
    pub service: &'a [u8],
    /// Name of the method.
    pub method: &'a [u8],
}

// === impl Evidence ===

impl<'a> Evidence<'a> {
    /// The path without its query and fragment.
    #[must_use]
    pub fn bare_path(&self) -> Option<&'a [u8]> {
        let path = self.path?;
        Some(path.split(|byte| matches!(byte, b'?' | b'#')).next().unwrap_or(path))
    }

    /// Whether the request's content type is gRPC's: `application/grpc`, alone or followed by a
    /// subtype (`+proto`) or parameters (`;`).
    #[must_use]
    pub fn is_grpc(&self) -> bool {
        const GRPC: &[u8] = b"application/grpc";
        self.headers.joined("content-type").is_some_and(|value| {
            let value = value.trim_ascii();
            value.split_at_checked(GRPC.len()).is_some_and(|(start, rest)| {
                start.eq_ignore_ascii_case(GRPC) && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
            })
        })
    }

    /// The names of a gRPC call; `None` for other requests and for paths of another shape.
    #[must_use]
    pub fn call(&self) -> Option<Call<'a>> {
        if !self.is_grpc() {
            return None;
        }
        let path = self.bare_path()?.strip_prefix(b"/")?;
        let slash = path.iter().rposition(|byte| *byte == b'/')?;
        let (service, method) = path.split_at_checked(slash)?;
        Some(Call { service, method: method.get(1..)? })
    }

    /// Whether the request says that its body is larger than what Envoy keeps. A body of unknown length
    /// is not, until it is seen to be.
    #[must_use]
    pub fn body_over_limit(&self) -> bool {
        let Some(limit) = self.body_limit else { return false };
        let length = self.headers.joined("content-length");
        let length = length.and_then(|value| std::str::from_utf8(&value).ok()?.trim().parse::<u64>().ok());
        length.is_some_and(|length| length > limit)
    }

    /// Whether the caller asks for hedging. Envoy takes `true` for it, and nothing else; whatever is not
    /// `false` is taken for it here.
    #[must_use]
    pub fn is_hedged(&self) -> bool {
        self.headers.joined(HEDGE).is_some_and(|value| value.trim_ascii() != b"false")
    }

    /// Whether the request asks to leave HTTP (RFC 9110 section 7.8). `Upgrade` alone is taken for it:
    /// whether `Connection` names it too is not worth a wrong answer. Envoy gives an extended CONNECT
    /// (RFC 8441) the same form before filters see it, and takes `Upgrade: h2c` away.
    #[must_use]
    pub fn is_upgrade(&self) -> bool {
        self.headers.contains("upgrade")
    }
}
