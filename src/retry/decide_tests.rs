use super::{super::testing::*, *};

fn reason(policy: &Policy, request: &Request) -> Reason {
    decide(&request.evidence(), policy, Allowance::Available).reason
}

fn action<'a>(policy: &'a Policy, request: &Request) -> Action<'a> {
    decide(&request.evidence(), policy, Allowance::Available).action
}

#[test]
fn idempotent_methods_are_eligible_and_others_are_not() {
    let policy = policy("{}");
    for method in ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"] {
        assert_eq!(reason(&policy, &Request::new(method, "/")), Reason::MethodEligible, "{method}");
    }
    for method in ["POST", "PATCH", "get", "PROPFIND", "QUERY"] {
        assert_eq!(reason(&policy, &Request::new(method, "/")), Reason::MethodNotEligible, "{method}");
    }
}

#[test]
fn a_method_that_is_not_eligible_keeps_only_the_conditions_that_prove_nothing_was_done() {
    let policy = policy("{}");
    assert!(matches!(action(&policy, &Request::new("POST", "/")), Action::RetryUnprocessed(_)));
    let resets_only = super::super::testing::policy(r#"{"on":["reset","5xx"]}"#);
    let verdict = Request::new("POST", "/");
    assert_eq!(action(&resets_only, &verdict), Action::Leave, "no configured condition proves anything");
    assert_eq!(reason(&resets_only, &verdict), Reason::MethodNotEligible, "the true cause is the method");
}

/// Envoy hedges whatever has any retry condition.
#[test]
fn a_hedged_request_that_is_not_eligible_gets_no_condition_at_all() {
    let hedged = |method: &str, value: &str| Request::new(method, "/").with("x-envoy-hedge-on-per-try-timeout", value);
    let policy = policy(r#"{"rules":[{"name":"pay","match":{"path":{"prefix":"/pay"}},"retry":false}]}"#);
    for value in ["true", " true", "TRUE", "true,true", ""] {
        let request = hedged("POST", value);
        assert_eq!(
            (reason(&policy, &request), action(&policy, &request)),
            (Reason::Hedged, Action::Leave),
            "{value:?}"
        );
    }
    assert!(
        matches!(action(&policy, &hedged("POST", "false")), Action::RetryUnprocessed(_)),
        "it asks for the contrary"
    );
    assert!(matches!(action(&policy, &hedged("GET", "true")), Action::Retry(_)), "it may be sent twice, at once too");
    let denied = Request { path: Some(b"/pay".to_vec()), ..hedged("POST", "true") };
    assert_eq!(reason(&policy, &denied), Reason::RuleDenies, "a rule comes first");
    let resets_only = super::super::testing::policy(r#"{"on":["reset"]}"#);
    assert_eq!(
        reason(&resets_only, &hedged("POST", "true")),
        Reason::MethodNotEligible,
        "there is nothing to withhold"
    );
}

#[test]
fn the_switch_keeps_requests_that_are_not_eligible_as_they_are() {
    let policy = policy(r#"{"unprocessed":false}"#);
    for (method, expected) in [("POST", Reason::MethodNotEligible), ("PATCH", Reason::MethodNotEligible)] {
        let request = Request::new(method, "/");
        assert_eq!((reason(&policy, &request), action(&policy, &request)), (expected, Action::Leave));
    }
    assert!(matches!(action(&policy, &Request::new("GET", "/")), Action::Retry(_)));
}

#[test]
fn presets_and_lists_replace_each_other() {
    assert_eq!(reason(&policy(r#"{"methods":"safe"}"#), &Request::new("PUT", "/")), Reason::MethodNotEligible);
    assert_eq!(reason(&policy(r#"{"methods":"safe"}"#), &Request::new("GET", "/")), Reason::MethodEligible);
    assert_eq!(reason(&policy(r#"{"methods":["PATCH"]}"#), &Request::new("PATCH", "/")), Reason::MethodEligible);
    assert_eq!(reason(&policy(r#"{"methods":["PATCH"]}"#), &Request::new("GET", "/")), Reason::MethodNotEligible);
}

#[test]
fn what_follows_a_switch_of_protocols_is_never_retried_not_even_by_rule() {
    let policy = policy(r#"{"rules":[{"name":"all","match":{},"retry":true}]}"#);
    assert_eq!(reason(&policy, &Request::new("CONNECT", "/")), Reason::Connect);
    let mut tunnel = Request::new("CONNECT", "");
    tunnel.path = None;
    assert_eq!(reason(&policy, &tunnel), Reason::Connect, "CONNECT has no path");
    let upgrade = Request::new("GET", "/").with("upgrade", "websocket").with("connection", "upgrade");
    assert_eq!(reason(&policy, &upgrade), Reason::Upgrade);
    assert_eq!(action(&policy, &upgrade), Action::Leave);
}

#[test]
fn the_first_rule_that_matches_decides_before_the_method() {
    let policy = policy(
        r#"{"rules":[
            {"name":"deny","match":{"path":{"regex":"^/reports/[0-9]+/run$"}},"retry":false},
            {"name":"allow","match":{"methods":["POST"],"path":{"regex":"^/"}},"retry":true,"max_retries":3,"on":["5xx"]},
            {"name":"late","match":{"methods":["POST"],"path":{"prefix":"/late"},"headers":[{"name":"a","present":true}]},"retry":false}
        ]}"#,
    );
    let denied = Request::new("GET", "/reports/12/run?x=1");
    let verdict = decide(&denied.evidence(), &policy, Allowance::Available);
    assert_eq!((verdict.reason, verdict.rule, &verdict.action), (Reason::RuleDenies, Some("deny"), &Action::Leave));
    let allowed = Request::new("POST", "/late").with("a", "1");
    let verdict = decide(&allowed.evidence(), &policy, Allowance::Available);
    assert_eq!((verdict.reason, verdict.rule), (Reason::RuleAllows, Some("allow")));
    let Action::Retry(terms) = verdict.action else { panic!("a rule with retry: true allows") };
    assert_eq!((terms.max_retries, terms.on.as_slice()), (3, [Condition::FiveXx].as_slice()));
    assert_eq!(reason(&policy, &Request::new("GET", "/reports/x/run")), Reason::MethodEligible);
}

#[test]
fn every_part_of_a_match_must_hold() {
    let policy = policy(
        r#"{"rules":[{"name":"r","match":{"methods":["POST"],"authority":"orders.*","path":{"prefix":"/search"},
            "headers":[{"name":"X-Replay-Safe","exact":"true"}]},"retry":true}]}"#,
    );
    let right = || Request::new("POST", "/search?q=1").with("x-replay-safe", "true").authority("Orders.Shop:80");
    assert_eq!(reason(&policy, &right()), Reason::RuleAllows);
    let mut other_method = right();
    other_method.method = Some(b"PATCH".to_vec());
    let mut other_path = right();
    other_path.path = Some(b"/research".to_vec());
    let other_header = Request::new("POST", "/search").with("x-replay-safe", "true").with("x-replay-safe", "false");
    for wrong in [other_method, other_path, other_header, right().authority("shop.orders")] {
        assert_eq!(reason(&policy, &wrong), Reason::MethodNotEligible, "{wrong:?}");
    }
}

#[test]
fn authorities_are_compared_without_case_and_without_port_unless_the_pattern_has_one() {
    for (pattern, authority, matches) in [
        ("orders.shop", "ORDERS.shop", true),
        ("orders.shop", "orders.shop:8080", true),
        ("orders.shop:80", "orders.shop:80", true),
        ("orders.shop:80", "orders.shop:8080", false),
        ("orders.shop:80", "orders.shop", false),
        ("*.shop", "orders.shop:8080", true),
        ("*.shop", "shop", false),
        ("*:8080", "orders.shop:8080", true),
        ("*rders*", "orders.shop", true),
        ("*", "anything", true),
        ("[fd00::1]", "[fd00::1]:80", true),
        ("[fd00::1]:80", "[fd00::1]:80", true),
        ("[fd00::1]:80", "[fd00::1]", false),
        ("fd00::1", "fd00::1", true),
        ("10.0.0.1", "10.0.0.1:80", true),
    ] {
        let policy =
            policy(&format!(r#"{{"rules":[{{"name":"r","match":{{"authority":"{pattern}"}},"retry":true}}]}}"#));
        let expected = if matches { Reason::RuleAllows } else { Reason::MethodEligible };
        assert_eq!(
            reason(&policy, &Request::new("GET", "/").authority(authority)),
            expected,
            "{pattern} on {authority}"
        );
    }
}

#[test]
fn grpc_is_eligible_by_rule_or_key_only() {
    let policy = policy(
        r#"{"idempotency_key_headers":["idempotency-key"],"methods":["POST","GET"],"rules":[
            {"name":"reads","match":{"grpc":{"service":"shop.Catalog","method":"Get*"}},"retry":true}]}"#,
    );
    for content_type in ["application/grpc", "application/grpc+proto", "Application/gRPC; charset=x"] {
        let call = |path| Request::new("POST", path).with("content-type", content_type);
        assert_eq!(reason(&policy, &call("/shop.Catalog/GetItem")), Reason::RuleAllows, "{content_type}");
        assert_eq!(reason(&policy, &call("/shop.Catalog/PutItem")), Reason::GrpcNotDeclared, "{content_type}");
        assert_eq!(reason(&policy, &call("/other.Catalog/GetItem")), Reason::GrpcNotDeclared, "{content_type}");
        let keyed = call("/shop.Catalog/PutItem").with("idempotency-key", "7");
        assert_eq!(reason(&policy, &keyed), Reason::IdempotencyKey);
    }
    let web = Request::new("POST", "/shop.Catalog/GetItem").with("content-type", "application/grpc-web");
    assert_eq!(reason(&policy, &web), Reason::MethodEligible, "gRPC-Web is another protocol");
}

#[test]
fn an_idempotency_key_with_a_value_makes_any_method_eligible() {
    let policy = policy(r#"{"idempotency_key_headers":["Idempotency-Key"]}"#);
    assert_eq!(reason(&policy, &Request::new("POST", "/").with("idempotency-key", "\"a\"")), Reason::IdempotencyKey);
    assert_eq!(reason(&policy, &Request::new("POST", "/").with("idempotency-key", " ")), Reason::MethodNotEligible);
    assert_eq!(reason(&policy, &Request::new("POST", "/").with("x-key", "a")), Reason::MethodNotEligible);
}

#[test]
fn a_precondition_guards_methods_that_change_something() {
    let policy = policy("{}");
    for header in ["if-match", "if-none-match", "if-unmodified-since"] {
        for method in ["PUT", "DELETE"] {
            let guarded = Request::new(method, "/").with(header, "\"x\"");
            assert_eq!(reason(&policy, &guarded), Reason::Precondition, "{method} {header}");
        }
        let read = Request::new("GET", "/").with(header, "\"x\"");
        assert_eq!(reason(&policy, &read), Reason::MethodEligible, "a read evaluates {header} the same again");
    }
    for header in ["if-modified-since", "if-range"] {
        let put = Request::new("PUT", "/").with(header, "x");
        assert_eq!(reason(&policy, &put), Reason::MethodEligible, "{header} has no meaning on PUT");
    }
    let by_rule = super::super::testing::policy(r#"{"rules":[{"name":"r","match":{"methods":["PUT"]},"retry":true}]}"#);
    assert_eq!(reason(&by_rule, &Request::new("PUT", "/").with("if-match", "x")), Reason::RuleAllows);
}

#[test]
fn evidence_that_is_missing_makes_a_request_not_eligible() {
    let policy = policy(r#"{"rules":[{"name":"deny","match":{"authority":"pay.*"},"retry":false}]}"#);
    let mut request = Request::new("GET", "/");
    request.authority = None;
    let verdict = decide(&request.evidence(), &policy, Allowance::Available);
    assert_eq!((verdict.reason, verdict.rule), (Reason::EvidenceUnknown, Some("deny")));
    request.method = None;
    assert_eq!(reason(&policy, &request), Reason::InvalidRequest);
    let mut request = Request::new("GET", "/");
    request.path = None;
    assert_eq!(reason(&policy, &request), Reason::InvalidRequest);
}

#[test]
fn a_caller_may_switch_retries_off() {
    let policy = policy("{}");
    for value in ["0", " 0 ", "00"] {
        let request = Request::new("GET", "/").with("x-envoy-max-retries", value);
        assert_eq!(reason(&policy, &request), Reason::CallerDeclines, "{value:?}");
    }
    for value in ["1", "", "-0", "none"] {
        let request = Request::new("GET", "/").with("x-envoy-max-retries", value);
        assert_eq!(reason(&policy, &request), Reason::MethodEligible, "{value:?}");
    }
}

#[test]
fn conditions_of_grpc_do_not_apply_to_other_requests() {
    let policy =
        policy(r#"{"on":["unavailable"],"rules":[{"name":"g","match":{"grpc":{"service":"*"}},"retry":true}]}"#);
    assert_eq!(reason(&policy, &Request::new("GET", "/")), Reason::NoCondition);
    let call = Request::new("POST", "/a.B/C").with("content-type", "application/grpc");
    assert_eq!(reason(&policy, &call), Reason::RuleAllows);
}

#[test]
fn a_body_that_says_that_it_is_too_large_to_keep_is_left_alone() {
    let policy = policy("{}");
    for (method, length, expected) in [
        ("PUT", "1000", Reason::MethodEligible),
        ("PUT", "1001", Reason::BodyOverLimit),
        ("POST", "1001", Reason::BodyOverLimit),
        ("POST", "1000", Reason::MethodNotEligible),
        ("PUT", "many", Reason::MethodEligible),
        ("CONNECT", "1001", Reason::Connect),
    ] {
        let request = Request::new(method, "/").with("content-length", length);
        assert_eq!(reason(&policy, &request), expected, "{method} {length}");
    }
    let request = Request::new("PUT", "/").with("content-length", "1001");
    let unbounded = Evidence { body_limit: None, ..request.evidence() };
    assert_eq!(decide(&unbounded, &policy, Allowance::Available).reason, Reason::MethodEligible);
}

#[test]
fn an_empty_budget_leaves_requests_without_the_right_to_retry() {
    let policy = policy("{}");
    for method in ["GET", "POST"] {
        let request = Request::new(method, "/");
        let verdict = decide(&request.evidence(), &policy, Allowance::Exhausted);
        assert_eq!((verdict.action, verdict.reason), (Action::Leave, Reason::BudgetExhausted), "{method}");
    }
    let denied = Request::new("CONNECT", "/");
    let verdict = decide(&denied.evidence(), &policy, Allowance::Exhausted);
    assert_eq!(verdict.reason, Reason::Connect, "what was never eligible keeps its reason");
}

#[test]
fn reasons_have_distinct_names() {
    let names: std::collections::HashSet<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
    assert_eq!(names.len(), Reason::ALL.len());
}
