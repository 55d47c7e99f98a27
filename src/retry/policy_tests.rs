use super::*;

fn refused(json: &str) -> String {
    Policy::parse(json.as_bytes()).expect_err("this policy must be refused").to_string()
}

#[test]
fn the_empty_document_is_the_documented_default() {
    let policy = Policy::parse(b"{}").expect("{} is valid");
    assert_eq!((policy.mode, &policy.methods), (Mode::Enforce, &Methods::Idempotent));
    assert_eq!((policy.terms.max_retries, policy.terms.per_try_timeout), (1, None));
    assert_eq!(
        policy.terms.on,
        [Condition::Reset, Condition::ResetBeforeRequest, Condition::ConnectFailure, Condition::RefusedStream]
    );
    let budget = policy.budget;
    assert_eq!((budget.ratio.get(), budget.min_per_second.get(), budget.window().as_secs()), (0.2, 10, 10));
}

#[test]
fn a_rule_takes_what_it_does_not_say_from_the_document() {
    let policy = Policy::parse(
        br#"{"max_retries":3,"per_try_timeout":"1s","on":["5xx"],
            "rules":[{"name":"a","match":{"methods":["POST"]},"retry":true},
                     {"name":"b","match":{"methods":["PATCH"]},"retry":true,"max_retries":1,"per_try_timeout":"2s","on":["reset"]}]}"#,
    )
    .expect("a valid policy");
    let terms: Vec<_> = policy.rules.iter().map(|rule| rule.terms.clone().expect("an allowing rule")).collect();
    assert_eq!(terms[0], policy.terms);
    let own = Terms { on: vec![Condition::Reset], max_retries: 1, per_try_timeout: Some(Duration::from_secs(2)) };
    assert_eq!(terms[1], own);
}

#[test]
fn messages_say_where_what_and_what_is_allowed() {
    for (json, message) in [
        (
            r#"{"on":["resets"]}"#,
            r#"field "on[0]", value "resets": unknown variant `resets`, expected one of `5xx`, `gateway-error`, `reset`"#,
        ),
        (
            r#"{"methods":["GET","get"]}"#,
            r#"field "methods[1]", value "get": must be an HTTP method in upper case, such as "GET""#,
        ),
        (
            r#"{"rules":[{"name":"a","match":{"path":{"regex":"^/a/(b"}},"retry":true}]}"#,
            r#"field "rules[0].match.path.regex", value "^/a/(b": must be a valid regular expression: unclosed group, at character 4"#,
        ),
        (
            r#"{"rules":[{"name":"a","match":{"path":{"regex":"a{500}{500}"}},"retry":true}]}"#,
            r#"must compile to at most 262144 bytes; write a smaller regular expression"#,
        ),
        (
            r#"{"rules":[{"name":"a","match":{},"retry":true},{"name":"b","match":{"methods":["PUT"]},"retry":true}]}"#,
            r#"field "rules[1].match", value {"methods":["PUT"]}: can never match: rule "a" comes first and matches all of it"#,
        ),
        (
            r#"{"rules":[{"name":"a","match":{},"retry":false,"max_retries":2}]}"#,
            r#"field "rules[0].max_retries", value 2: must be left out of a rule with "retry": false"#,
        ),
    ] {
        let shown = refused(json);
        assert!(shown.contains(message), "{shown}\nmust contain\n{message}");
    }
}

#[test]
fn more_rules_than_can_be_looked_at_are_refused() {
    let rules: Vec<String> = (0..=MAX_RULES)
        .map(|n| format!(r#"{{"name":"r{n}","match":{{"path":{{"exact":"/{n}"}}}},"retry":true}}"#))
        .collect();
    let shown = refused(&format!(r#"{{"rules":[{}]}}"#, rules.join(",")));
    assert!(shown.contains(r#"field "rules""#), "{shown}");
}
