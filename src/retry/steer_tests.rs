use proptest::prelude::*;

use super::{
    super::{
        decide::{Allowance, decide},
        policy::Policy,
        testing::*,
    },
    *,
};

fn steered(policy: &Policy, request: &Request) -> Vec<(&'static str, String)> {
    let verdict = decide(&request.evidence(), policy, Allowance::Available);
    headers(&request.evidence(), &verdict.action, || None)
        .into_iter()
        .map(|(name, value)| (name, String::from_utf8_lossy(&value).into_owned()))
        .collect()
}

fn is(name: &'static str, value: &str) -> (&'static str, String) {
    (name, value.to_owned())
}

const DEFAULT_ON: &str = "reset,reset-before-request,connect-failure,refused-stream";
const UNPROCESSED_ON: &str = "reset-before-request,connect-failure,refused-stream";

#[test]
fn one_retry_is_left_to_the_route_so_that_its_own_larger_number_stays() {
    assert_eq!(steered(&policy("{}"), &Request::new("GET", "/")), [is(RETRY_ON, DEFAULT_ON)]);
}

#[test]
fn more_than_one_retry_is_asked_for_by_number() {
    let policy = policy(r#"{"max_retries":3,"per_try_timeout":"1.5s","on":["reset"]}"#);
    assert_eq!(
        steered(&policy, &Request::new("GET", "/")),
        [is(RETRY_ON, "reset"), is(MAX_RETRIES, "3"), is(PER_TRY_TIMEOUT, "1500")]
    );
}

#[test]
fn what_a_caller_asks_for_is_kept() {
    let policy = policy(r#"{"max_retries":3,"per_try_timeout":"2s","on":["reset","connect-failure"]}"#);
    for (request, expected) in [
        (
            Request::new("GET", "/").with(RETRY_ON, "5xx, reset").with(MAX_RETRIES, "5"),
            vec![is(RETRY_ON, "5xx, reset,connect-failure"), is(PER_TRY_TIMEOUT, "2000")],
        ),
        (
            Request::new("GET", "/").with(RETRY_ON, "connect-failure,reset").with(MAX_RETRIES, "2"),
            vec![is(MAX_RETRIES, "3"), is(PER_TRY_TIMEOUT, "2000")],
        ),
        (
            Request::new("GET", "/").with(RETRY_ON, "5xx").with(RETRY_ON, "reset").with(PER_TRY_TIMEOUT, "7"),
            vec![is(RETRY_ON, "5xx,reset,connect-failure"), is(MAX_RETRIES, "3")],
        ),
        (
            Request::new("GET", "/").with(RETRY_ON, " ").with(MAX_RETRIES, "many").with(PER_TRY_TIMEOUT, "7"),
            vec![is(RETRY_ON, " reset,connect-failure"), is(MAX_RETRIES, "3")],
        ),
    ] {
        assert_eq!(steered(&policy, &request), expected, "{request:?}");
    }
}

#[test]
fn a_request_that_is_not_eligible_gains_no_number_and_no_timeout() {
    let policy = policy(r#"{"max_retries":3,"per_try_timeout":"2s"}"#);
    assert_eq!(steered(&policy, &Request::new("POST", "/")), [is(RETRY_ON, UNPROCESSED_ON)]);
}

#[test]
fn grpc_conditions_travel_in_their_own_header() {
    let policy = policy(
        r#"{"on":["reset","unavailable"],"rules":[{"name":"g","match":{"grpc":{"service":"a.B"}},"retry":true}]}"#,
    );
    let call = Request::new("POST", "/a.B/C").with("content-type", "application/grpc").with(RETRY_GRPC_ON, "internal");
    assert_eq!(steered(&policy, &call), [is(RETRY_ON, "reset"), is(RETRY_GRPC_ON, "internal,unavailable")]);
    assert_eq!(steered(&policy, &Request::new("GET", "/")), [is(RETRY_ON, "reset")]);
}

#[test]
fn numbers_are_read_as_envoy_reads_them() {
    for (value, number) in [("3", Some(3)), (" 3 ", Some(3)), ("", None), ("3x", None), ("-1", None), ("+1", None)] {
        assert_eq!(parse_number(value.as_bytes()), number, "{value:?}");
    }
    assert_eq!(parse_number("9".repeat(40).as_bytes()), None);
    assert_eq!(parse_number(&[0xff, b'1']), None);
}

/// The policy says of `words` only what it may say of a request that it does not allow to be repeated.
fn proves_unprocessed(words: &str) -> bool {
    words.split(',').map(str::trim).all(|word| UNPROCESSED_ON.split(',').any(|known| known == word))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_request_that_is_not_eligible_never_gains_a_retry_header(
        policy in any_policy(), request in any_request(), exhausted in any::<bool>()
    ) {
        let allowance = if exhausted { Allowance::Exhausted } else { Allowance::Available };
        let evidence = request.evidence();
        let verdict = decide(&evidence, &policy, allowance);
        let set = headers(&evidence, &verdict.action, || None);
        match verdict.action {
            Action::Leave => prop_assert!(set.is_empty(), "{:?} gained {:?}", verdict.reason, set),
            Action::RetryUnprocessed(_) => {
                for (name, value) in set {
                    prop_assert_eq!(name, RETRY_ON, "no number, no timeout, no gRPC condition");
                    let before = evidence.headers.joined(RETRY_ON).unwrap_or_default();
                    prop_assert!(value.starts_with(&before), "what the caller sent must stay");
                    let gained = String::from_utf8_lossy(value.get(before.len()..).unwrap_or_default()).into_owned();
                    prop_assert!(proves_unprocessed(gained.trim_start_matches(',')), "gained {}", gained);
                }
            }
            Action::Retry(_) => {}
        }
        if exhausted {
            prop_assert!(headers(&evidence, &decide(&evidence, &policy, Allowance::Exhausted).action, || None).is_empty());
        }
    }

    #[test]
    fn nothing_that_a_caller_asks_for_is_taken_away(policy in any_policy(), request in any_request()) {
        let evidence = request.evidence();
        for (name, value) in headers(&evidence, &decide(&evidence, &policy, Allowance::Available).action, || Some(3)) {
            let before = evidence.headers.joined(name);
            match name {
                MAX_RETRIES => prop_assert!(parse_number(&value) > before.and_then(|value| parse_number(&value))),
                PER_TRY_TIMEOUT => prop_assert_eq!(before, None),
                _ => prop_assert!(value.starts_with(&before.unwrap_or_default())),
            }
        }
    }

    #[test]
    fn bytes_behind_the_query_and_in_other_headers_do_not_change_the_answer(
        policy in any_policy(), request in any_request(),
        noise in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let evidence = request.evidence();
        let plain = decide(&evidence, &policy, Allowance::Available);
        let mut noisy = request.clone().with("x-noise", &noise).with("user-agent", &noise);
        if let Some(path) = noisy.path.as_mut().filter(|path| !path.is_empty()) {
            path.push(b'?');
            path.extend_from_slice(&noise);
        }
        prop_assert_eq!(decide(&noisy.evidence(), &policy, Allowance::Available), plain);
    }

    #[test]
    fn a_method_of_arbitrary_bytes_is_eligible_only_if_it_is_listed(
        method in prop::collection::vec(any::<u8>(), 1..16), path in prop::collection::vec(any::<u8>(), 1..32),
        value in prop::collection::vec(any::<u8>(), 0..32),
    ) {
        let policy = policy("{}");
        let listed = [&b"GET"[..], b"HEAD", b"OPTIONS", b"TRACE", b"PUT", b"DELETE", b"CONNECT"].contains(&method.as_slice());
        let request = Request { method: Some(method), path: Some(path), ..Request::default() }.with("x-any", value);
        let verdict = decide(&request.evidence(), &policy, Allowance::Available);
        prop_assert_eq!(matches!(verdict.action, Action::RetryUnprocessed(_)), !listed);
    }
}

#[test]
fn a_routes_number_that_is_told_is_never_lowered() {
    for (ours, route, caller, expected) in [
        (3, None, None, Some("3")),
        (3, Some(2), None, Some("3")),
        (3, Some(3), None, None),
        (3, Some(5), None, None),
        (1, Some(0), None, None),
        // Envoy lets the caller's number replace the route's, so the route's does not count.
        (3, Some(5), Some("2"), Some("3")),
        (3, Some(5), Some("4"), None),
    ] {
        let policy = policy(&format!(r#"{{"max_retries":{ours}}}"#));
        let request = Request::new("GET", "/");
        let request = caller.into_iter().fold(request, |request, caller| request.with(MAX_RETRIES, caller));
        let evidence = request.evidence();
        let verdict = decide(&evidence, &policy, Allowance::Available);
        let set = headers(&evidence, &verdict.action, || route);
        let number = set.iter().find(|(name, _)| *name == MAX_RETRIES).map(|(_, value)| value.clone());
        assert_eq!(
            number.as_deref(),
            expected.map(str::as_bytes),
            "ours {ours}, the route's {route:?}, the caller's {caller:?}"
        );
    }
}
