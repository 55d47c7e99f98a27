//! Requests and policies for tests.

use proptest::prelude::*;

use super::{
    policy::Policy,
    request::{Evidence, Headers},
};

/// A request that owns its bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    pub(crate) method: Option<Vec<u8>>,
    pub(crate) authority: Option<Vec<u8>>,
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
}

impl Request {
    pub(crate) fn new(method: &str, path: &str) -> Self {
        Self {
            method: Some(method.into()),
            authority: Some(b"orders.shop:8080".to_vec()),
            path: Some(path.into()),
            headers: Vec::new(),
        }
    }

    pub(crate) fn with(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    pub(crate) fn authority(mut self, authority: &str) -> Self {
        self.authority = Some(authority.into());
        self
    }

    pub(crate) fn evidence(&self) -> Evidence<'_> {
        Evidence {
            method: self.method.as_deref(),
            authority: self.authority.as_deref(),
            path: self.path.as_deref(),
            headers: self,
            body_limit: Some(1_000),
        }
    }
}

impl Headers for Request {
    fn joined(&self, name: &str) -> Option<Vec<u8>> {
        let values: Vec<&[u8]> =
            self.headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_slice()).collect();
        (!values.is_empty()).then(|| values.join(&b','))
    }
}

pub(crate) fn policy(json: &str) -> Policy {
    Policy::parse(json.as_bytes()).unwrap_or_else(|error| panic!("this policy must be accepted: {error}\n{json}"))
}

/// Any request: likely values, and any bytes at all.
pub(crate) fn any_request() -> impl Strategy<Value = Request> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..24);
    let word = |words: &'static [&'static str]| prop::sample::select(words).prop_map(|word| word.as_bytes().to_vec());
    let method = prop_oneof![
        6 => word(&["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "POST", "PATCH", "CONNECT", "get", ""]),
        1 => bytes(),
    ];
    let path = prop_oneof![
        4 => word(&["/", "/search", "/search?q=1", "/reports/7/run", "/shop.Catalog/GetItem", "*", ""]),
        1 => bytes(),
    ];
    let authority = prop_oneof![3 => word(&["orders.shop", "ORDERS.shop:80", "[::1]:80", "a"]), 1 => bytes()];
    let name = prop::sample::select(vec![
        "content-type",
        "upgrade",
        "if-match",
        "if-none-match",
        "if-unmodified-since",
        "idempotency-key",
        "x-replay-safe",
        "x-envoy-retry-on",
        "x-envoy-retry-grpc-on",
        "x-envoy-max-retries",
        "x-envoy-hedge-on-per-try-timeout",
        "x-envoy-upstream-rq-per-try-timeout-ms",
    ]);
    let value = prop_oneof![
        3 => word(&["application/grpc", "application/grpc+proto", "websocket", "true", "", "0", "5", "reset,5xx", "x"]),
        1 => bytes(),
    ];
    let headers = prop::collection::vec((name.prop_map(str::to_owned), value), 0..5);
    (
        prop::option::weighted(0.9, method),
        prop::option::weighted(0.9, authority),
        prop::option::weighted(0.9, path),
        headers,
    )
        .prop_map(|(method, authority, path, headers)| Request { method, authority, path, headers })
}

/// Any valid policy.
pub(crate) fn any_policy() -> impl Strategy<Value = Policy> {
    let methods = prop::sample::select(vec![r#""idempotent""#, r#""safe""#, r#"["POST"]"#, r#"["GET","PATCH"]"#]);
    let on = prop::sample::select(vec![
        r#"["reset"]"#,
        r#"["unavailable"]"#,
        r#"["reset","connect-failure","refused-stream","cancelled"]"#,
        r#"["5xx","reset-before-request"]"#,
    ]);
    let keys = prop::sample::select(vec!["[]", r#"["idempotency-key"]"#]);
    let matches = prop::sample::select(vec![
        r#"{"methods":["POST"]}"#,
        r#"{"authority":"orders.*"}"#,
        r#"{"path":{"prefix":"/search"}}"#,
        r#"{"path":{"regex":"^/reports/[0-9]+/run$"}}"#,
        r#"{"headers":[{"name":"x-replay-safe","exact":"true"}]}"#,
        r#"{"headers":[{"name":"x-replay-safe","present":false}]}"#,
        r#"{"grpc":{"service":"shop.*","method":"Get*"}}"#,
    ]);
    let rules = prop::collection::btree_map(matches, (any::<bool>(), 1_u32..=10), 0..4);
    let switches = (any::<bool>(), any::<bool>());
    (methods, on, keys, rules, 1_u32..=10, switches).prop_map(|(methods, on, keys, rules, max, switches)| {
        let (timeout, unprocessed) = switches;
        let rules: Vec<String> = rules
            .iter()
            .enumerate()
            .map(|(index, (matches, (retry, max)))| {
                let terms = if *retry { format!(r#","max_retries":{max}"#) } else { String::new() };
                format!(r#"{{"name":"r{index}","match":{matches},"retry":{retry}{terms}}}"#)
            })
            .collect();
        let timeout = if timeout { r#""2s""# } else { "null" };
        policy(&format!(
            r#"{{"methods":{methods},"on":{on},"idempotency_key_headers":{keys},"unprocessed":{unprocessed},"rules":[{}],"max_retries":{max},"per_try_timeout":{timeout}}}"#,
            rules.join(",")
        ))
    })
}

/// Every word that `on` accepts.
pub(crate) const WORDS: [&str; 16] = [
    "5xx",
    "gateway-error",
    "reset",
    "reset-before-request",
    "connect-failure",
    "envoy-ratelimited",
    "retriable-4xx",
    "refused-stream",
    "retriable-status-codes",
    "retriable-headers",
    "http3-post-connect-failure",
    "cancelled",
    "deadline-exceeded",
    "internal",
    "resource-exhausted",
    "unavailable",
];
