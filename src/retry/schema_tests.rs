//! Schema and parser agree, on good policies and on hundreds of bad ones.

use serde_json::{Value, json};

use super::policy::Policy;

const SCHEMA: &str = include_str!("../../envoy-config/schema/retry.json");

/// A policy that gives every field.
fn full() -> Value {
    json!({
        "mode": "enforce",
        "methods": ["GET", "PUT"],
        "idempotency_key_headers": ["Idempotency-Key", "x-key"],
        "rules": [
            {
                "name": "orders-read-api",
                "match": {
                    "methods": ["POST"],
                    "authority": "orders.*",
                    "path": { "prefix": "/search" },
                    "headers": [{ "name": "x-replay-safe", "exact": "true" }],
                    "grpc": { "service": "shop.Catalog", "method": "Get*" }
                },
                "retry": true,
                "max_retries": 2,
                "per_try_timeout": "2s",
                "on": ["reset", "unavailable"]
            },
            { "name": "never-reports", "match": { "path": { "regex": "^/reports/[0-9]+/run$" } }, "retry": false }
        ],
        "on": ["reset", "connect-failure"],
        "unprocessed": true,
        "max_retries": 1,
        "per_try_timeout": null,
        "budget": { "ratio": 0.2, "min_per_second": 10, "window": "10s" }
    })
}

/// What a field accepts, by values of every kind that it must refuse.
fn wrong(kind: &str) -> Vec<Value> {
    let text = vec![json!(1), json!(true), json!(null), json!([]), json!({})];
    let object = vec![json!(1), json!("x"), json!(true), json!(null), json!([1])];
    let mut list = vec![json!(1), json!("x"), json!(true), json!(null), json!({})];
    let with = |mut base: Vec<Value>, more: Value| {
        base.extend(more.as_array().cloned().unwrap_or_default());
        base
    };
    match kind {
        "mode" => with(text, json!(["on", "Enforce", ""])),
        "methods" => with(vec![json!(1), json!(null), json!({}), json!(true)], json!([[], "all", "", "GET", "Safe"])),
        "method" => with(text, json!(["get", "CONNECT", "", "GE T", "GET\n", "GÉT"])),
        "header" => with(text, json!(["", ":path", "a b", "a:", "é", "a\n"])),
        "name" => with(text, json!(["", "a b", "é", "x".repeat(65)])),
        "bool" => vec![json!(1), json!("true"), json!(null), json!([])],
        "count" => with(vec![json!("one"), json!(null), json!(true), json!([])], json!([0, 11, -1, 1.5, 1e9])),
        "floor" => with(vec![json!("one"), json!(null), json!(true), json!([])], json!([-1, 100_001, 0.5])),
        "ratio" => with(vec![json!("one"), json!(null), json!(true), json!([])], json!([-0.1, 1.1, 20])),
        "duration" => with(vec![json!(1), json!(true), json!([])], json!(["", "5", "5 s", "-1s", "1d", "1.2.3s", "s"])),
        "condition" => with(text, json!(["", "resets", "Reset", "5XX", "timeout"])),
        "glob" => with(text, json!(["", "a*b", "**", "a b", "*a*b*"])),
        "path" => with(text, json!(["", "x", "/a?b", "/a#b"])),
        "suffix" => with(text, json!(["", "a?b", "#"])),
        "regex" => with(text, json!([""])),
        "text" => text,
        "object" => object,
        _ => {
            list.push(json!([[]]));
            list
        }
    }
}

/// Every place of [`full`] with what it accepts.
const PLACES: &[(&str, &str)] = &[
    ("/mode", "mode"),
    ("/methods", "methods"),
    ("/methods/1", "method"),
    ("/idempotency_key_headers", "list"),
    ("/idempotency_key_headers/0", "header"),
    ("/rules", "list"),
    ("/rules/0", "object"),
    ("/rules/0/name", "name"),
    ("/rules/0/match", "object"),
    ("/rules/0/match/methods", "methods"),
    ("/rules/0/match/methods/0", "method"),
    ("/rules/0/match/authority", "glob"),
    ("/rules/0/match/path", "object"),
    ("/rules/0/match/path/prefix", "path"),
    ("/rules/0/match/headers", "list"),
    ("/rules/0/match/headers/0", "object"),
    ("/rules/0/match/headers/0/name", "header"),
    ("/rules/0/match/headers/0/exact", "text"),
    ("/rules/0/match/grpc", "object"),
    ("/rules/0/match/grpc/service", "glob"),
    ("/rules/0/match/grpc/method", "glob"),
    ("/rules/0/retry", "bool"),
    ("/rules/0/max_retries", "count"),
    ("/rules/0/per_try_timeout", "duration"),
    ("/rules/0/on", "list"),
    ("/rules/0/on/1", "condition"),
    ("/rules/1/match/path/regex", "regex"),
    ("/on", "list"),
    ("/on/0", "condition"),
    ("/unprocessed", "bool"),
    ("/max_retries", "count"),
    ("/per_try_timeout", "duration"),
    ("/budget", "object"),
    ("/budget/ratio", "ratio"),
    ("/budget/min_per_second", "floor"),
    ("/budget/window", "duration"),
];

/// Bad policies, each with the place that the message must name.
fn bad() -> Vec<(String, Value)> {
    let mut bad = Vec::new();
    for (pointer, kind) in PLACES {
        for value in wrong(kind) {
            bad.push((path_of(pointer), put(pointer, value)));
        }
    }
    for object in [
        "",
        "/rules/0",
        "/rules/0/match",
        "/rules/0/match/path",
        "/rules/0/match/headers/0",
        "/rules/0/match/grpc",
        "/budget",
    ] {
        let pointer = format!("{object}/colour");
        bad.push((path_of(&pointer), put(&pointer, json!(1))));
    }
    for (place, pointer, value) in contradictions() {
        bad.push((place.to_owned(), put(pointer, value)));
    }
    for field in ["name", "match", "retry"] {
        let mut document = full();
        document["rules"][0].as_object_mut().expect("a rule").remove(field);
        bad.push(("rules[0]".to_owned(), document));
    }
    bad
}

/// What each field would allow, but not together; the schema can say so.
fn contradictions() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        ("methods[1]", "/methods", json!(["GET", "GET"])),
        ("idempotency_key_headers[1]", "/idempotency_key_headers", json!(["a", "a"])),
        ("on", "/on", json!([])),
        ("on[2]", "/on", json!(["reset", "5xx", "reset"])),
        ("rules[0].on", "/rules/0/on", json!([])),
        ("rules[0].match.methods", "/rules/0/match/methods", json!([])),
        ("rules[0].match.headers", "/rules/0/match/headers", json!([])),
        ("rules[0].match.path", "/rules/0/match/path", json!({})),
        ("rules[0].match.path", "/rules/0/match/path", json!({ "exact": "/a", "suffix": "b" })),
        ("rules[0].match.path.exact", "/rules/0/match/path", json!({ "exact": "a" })),
        ("rules[0].match.path.suffix", "/rules/0/match/path", json!({ "suffix": "" })),
        ("rules[0].match.path.suffix", "/rules/0/match/path", json!({ "suffix": "x?y" })),
        ("rules[0].match.headers[0]", "/rules/0/match/headers/0", json!({ "name": "a" })),
        (
            "rules[0].match.headers[0]",
            "/rules/0/match/headers/0",
            json!({ "name": "a", "exact": "b", "present": true }),
        ),
        ("rules[0].match.headers[0].prefix", "/rules/0/match/headers/0", json!({ "name": "a", "prefix": "" })),
        ("rules[0].match.headers[0].regex", "/rules/0/match/headers/0", json!({ "name": "a", "regex": "" })),
        ("rules[0].match.headers[0].present", "/rules/0/match/headers/0", json!({ "name": "a", "present": "yes" })),
        ("rules[0].match.grpc", "/rules/0/match/grpc", json!({})),
        ("rules[1].max_retries", "/rules/1/max_retries", json!(1)),
        ("rules[1].per_try_timeout", "/rules/1/per_try_timeout", json!("1s")),
        ("rules[1].on", "/rules/1/on", json!(["reset"])),
        ("budget", "/budget", json!({ "ratio": 0, "min_per_second": 0 })),
    ]
}

/// What only the parser refuses: JSON Schema has no words for it.
fn beyond_schema() -> Vec<(&'static str, &'static str, Value)> {
    let rule = |name: &str, matches: Value| json!({ "name": name, "match": matches, "retry": true });
    vec![
        // Ranges of durations.
        ("per_try_timeout", "/per_try_timeout", json!("9ms")),
        ("per_try_timeout", "/per_try_timeout", json!("61m")),
        ("rules[0].per_try_timeout", "/rules/0/per_try_timeout", json!("2h")),
        ("budget.window", "/budget/window", json!("999ms")),
        ("budget.window", "/budget/window", json!("6m")),
        // Ranges of numbers that are written as strings.
        ("max_retries", "/max_retries", json!("11.0")),
        ("rules[0].max_retries", "/rules/0/max_retries", json!("1.5")),
        ("budget.ratio", "/budget/ratio", json!("1.01")),
        ("budget.min_per_second", "/budget/min_per_second", json!("-1")),
        ("budget", "/budget", json!({ "ratio": "0.0", "min_per_second": "0" })),
        // Regular expressions that are invalid or too large.
        ("rules[1].match.path.regex", "/rules/1/match/path/regex", json!("^/reports/(")),
        ("rules[1].match.path.regex", "/rules/1/match/path/regex", json!("a{1000}{1000}")),
        ("rules[1].match.path.regex", "/rules/1/match/path/regex", json!("(a)\\1")),
        ("rules[0].match.headers[0].regex", "/rules/0/match/headers/0", json!({ "name": "a", "regex": "[z-a]" })),
        // Header names that differ in case only.
        ("idempotency_key_headers[1]", "/idempotency_key_headers", json!(["x-key", "X-Key"])),
        // Relations between rules.
        ("rules[1].name", "/rules/1/name", json!("orders-read-api")),
        ("rules[1].match", "/rules", json!([rule("all", json!({})), rule("late", json!({ "methods": ["PUT"] }))])),
        (
            "rules[1].match",
            "/rules",
            json!([rule("a", json!({ "authority": "x" })), rule("b", json!({ "authority": "x" }))]),
        ),
        (
            "rules[1].match",
            "/rules",
            json!([
                rule("a", json!({ "methods": ["PUT", "GET"] })),
                rule("b", json!({ "methods": ["GET"], "authority": "x" }))
            ]),
        ),
        (
            "rules[2].match",
            "/rules",
            json!([
                rule("a", json!({ "authority": "x" })),
                rule("all", json!({})),
                rule("late", json!({ "path": { "exact": "/" } }))
            ]),
        ),
    ]
}

fn good() -> Vec<Value> {
    let mut good = vec![json!({}), full()];
    for (pointer, values) in [
        // `false` and the strings: what Envoy's YAML reader makes of `off` and of fractions.
        ("/mode", json!(["observe", "off", false])),
        ("/budget/ratio", json!(["0.2", "1", ".5", "5e-1"])),
        ("/budget/min_per_second", json!(["10.0"])),
        ("/methods", json!(["idempotent", "safe", ["GET"], ["M-SEARCH", "PROPFIND"]])),
        ("/idempotency_key_headers", json!([[], ["Idempotency-Key"]])),
        ("/rules", json!([[]])),
        ("/max_retries", json!([1, 10, 2.0, "2.0"])),
        ("/per_try_timeout", json!([null, "10ms", "1.5s", "60m", "1h", ".5s", "5.s"])),
        (
            "/budget",
            json!([{}, { "ratio": 0 }, { "min_per_second": 0 }, { "ratio": 1, "window": "5m" }, { "min_per_second": 100000 }]),
        ),
        (
            "/rules/0/match",
            json!([{}, { "methods": "safe" }, { "authority": "*" }, { "authority": "*.x:80" }, { "grpc": { "method": "*" } }]),
        ),
        ("/rules/0/match/path", json!([{ "exact": "*" }, { "exact": "/" }, { "suffix": ".json" }, { "regex": "a|b" }])),
        (
            "/rules/0/match/headers",
            json!([[{ "name": "A", "present": false }], [{ "name": "a", "prefix": "x" }, { "name": "a", "regex": "^[0-9]+$" }], [{ "name": "a", "exact": "" }]]),
        ),
    ] {
        for value in values.as_array().cloned().unwrap_or_default() {
            // A rule that matches everything must be the last one.
            let mut document = put(pointer, value);
            if pointer == "/rules/0/match" {
                document["rules"].as_array_mut().expect("rules").truncate(1);
            }
            good.push(document);
        }
    }
    for condition in super::testing::WORDS {
        good.push(json!({ "on": [condition] }));
    }
    good
}

fn put(pointer: &str, value: Value) -> Value {
    let mut document = full();
    let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
    match document.pointer_mut(parent).expect("the parent exists") {
        Value::Array(list) => list[field.parse::<usize>().expect("an index")] = value,
        parent => parent[field] = value,
    }
    document
}

fn path_of(pointer: &str) -> String {
    let mut path = String::new();
    for segment in pointer.split('/').skip(1) {
        if segment.bytes().all(|byte| byte.is_ascii_digit()) {
            path.push_str(&format!("[{segment}]"));
        } else {
            path.push_str(if path.is_empty() { "" } else { "." });
            path.push_str(segment);
        }
    }
    path
}

fn schema() -> jsonschema::Validator {
    jsonschema::validator_for(&serde_json::from_str(SCHEMA).expect("the schema is JSON")).expect("the schema is valid")
}

#[test]
fn good_policies_are_accepted_by_parser_and_schema() {
    let schema = schema();
    for document in good() {
        assert!(schema.is_valid(&document), "the schema refuses {document}");
        if let Err(error) = Policy::parse(document.to_string().as_bytes()) {
            panic!("the parser refuses {document}: {error}");
        }
    }
}

#[test]
fn bad_policies_are_refused_by_parser_and_schema_and_the_message_names_the_place() {
    let schema = schema();
    let bad = bad();
    assert!(bad.len() >= 200, "only {} bad policies were generated", bad.len());
    for (place, document) in bad {
        assert!(!schema.is_valid(&document), "the schema accepts a policy with a bad {place}: {document}");
        let error = Policy::parse(document.to_string().as_bytes())
            .err()
            .unwrap_or_else(|| panic!("the parser accepts a policy with a bad {place}: {document}"));
        assert!(error.field.starts_with(&place), "{error}\nmust name {place} in {document}");
    }
}

#[test]
fn what_a_schema_cannot_say_is_refused_by_the_parser() {
    let schema = schema();
    for (place, pointer, value) in beyond_schema() {
        let document = put(pointer, value);
        assert!(schema.is_valid(&document), "the schema can tell after all: list this one as bad: {document}");
        let error = Policy::parse(document.to_string().as_bytes())
            .err()
            .unwrap_or_else(|| panic!("the parser accepts a policy with a bad {place}: {document}"));
        assert_eq!(error.field, place, "{error}");
    }
}

#[test]
fn the_schemas_defaults_are_the_parsers() {
    let schema: Value = serde_json::from_str(SCHEMA).expect("the schema is JSON");
    let mut document = json!({});
    let properties = schema["properties"].as_object().expect("properties");
    for (name, property) in properties.iter().filter(|(name, _)| *name != "budget") {
        document[name] = property["default"].clone();
        assert!(property.get("default").is_some(), "{name} has no default");
    }
    for (name, property) in properties["budget"]["properties"].as_object().expect("the budget's properties") {
        document["budget"][name] = property["default"].clone();
    }
    let parse = |document: &Value| Policy::parse(document.to_string().as_bytes()).expect("the defaults are valid");
    assert_eq!(format!("{:?}", parse(&document)), format!("{:?}", parse(&json!({}))));
}
