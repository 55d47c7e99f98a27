//! Schema and parser agree, on good configurations and on bad ones.

use serde_json::{Value, json};

use super::config::FenceConfig;

const SCHEMA: &str = include_str!("../../envoy-config/schema/fence.json");

fn full() -> Value {
    json!({
        "mode": "enforce",
        "tcp": { "user_timeout": "30s", "keepalive": { "idle": "15s", "interval": "5s", "probes": 3 } },
        "max_connection_age": "30m",
        "max_connection_age_jitter": 0.1,
        "close_fenced": false,
        "close_after_removal": "60s",
        "close_after_removal_jitter": 0.1
    })
}

/// Every place of [`full`], whether `null` is allowed there, and the kind of value that is.
const PLACES: &[(&str, bool, &str)] = &[
    ("/mode", false, "mode"),
    ("/tcp", false, "object"),
    ("/tcp/user_timeout", true, "duration"),
    ("/tcp/keepalive", true, "object"),
    ("/tcp/keepalive/idle", false, "duration"),
    ("/tcp/keepalive/interval", false, "duration"),
    ("/tcp/keepalive/probes", false, "count"),
    ("/max_connection_age", true, "duration"),
    ("/max_connection_age_jitter", false, "ratio"),
    ("/close_after_removal", true, "duration"),
    ("/close_after_removal_jitter", false, "ratio"),
];

fn wrong(kind: &str) -> Value {
    match kind {
        "mode" => json!(["on", "Enforce", "", 1, true, [], {}]),
        // The last one would be read by position.
        "object" => json!([1, "x", true, [], ["1s"]]),
        "duration" => json!([1, true, [], {}, "", "5", "5 s", "-1s", "1d", "1.2.3s", "s"]),
        "count" => json!(["one", true, [], {}, 0, 128, -1, 1.5]),
        _ => json!(["one", true, [], {}, -0.1, 1.1]),
    }
}

fn put(pointer: &str, value: Value) -> Value {
    let mut document = full();
    let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
    document.pointer_mut(parent).expect("the parent exists")[field] = value;
    document
}

fn schema() -> jsonschema::Validator {
    jsonschema::validator_for(&serde_json::from_str(SCHEMA).expect("the schema is JSON")).expect("the schema is valid")
}

fn parse(document: &Value) -> Result<FenceConfig, crate::config::ConfigError> {
    FenceConfig::parse(document.to_string().as_bytes())
}

#[test]
fn good_configurations_are_accepted_by_parser_and_schema() {
    let mut good = vec![json!({}), full(), json!({ "tcp": {} }), json!({ "tcp": { "keepalive": {} } })];
    for mode in ["observe", "off"] {
        good.push(put("/mode", json!(mode)));
    }
    for value in ["1s", "1500ms", "1.5s", ".5h", "10m", "1h"] {
        good.push(put("/max_connection_age", json!(value)));
    }
    good.extend(PLACES.iter().filter(|(_, nullable, _)| *nullable).map(|(pointer, ..)| put(pointer, Value::Null)));
    good.push(put("/tcp/keepalive/probes", json!(2.0)));
    // What Envoy's YAML reader makes of `off` and of fractions.
    good.extend([put("/mode", json!(false)), put("/max_connection_age_jitter", json!("0.25"))]);
    good.push(put("/tcp/keepalive/probes", json!("2.0")));
    let schema = schema();
    for document in good {
        assert!(schema.is_valid(&document), "the schema refuses {document}");
        if let Err(error) = parse(&document) {
            panic!("the parser refuses {document}: {error}");
        }
    }
}

#[test]
fn bad_configurations_are_refused_by_parser_and_schema_and_the_message_names_the_place() {
    let schema = schema();
    let mut bad = Vec::new();
    for (pointer, nullable, kind) in PLACES {
        let null = (!nullable).then_some(Value::Null);
        let values = wrong(kind).as_array().cloned().unwrap_or_default();
        bad.extend(values.into_iter().chain(null).map(|value| (*pointer, put(pointer, value))));
    }
    for unknown in ["/colour", "/aged_after", "/tcp/colour", "/tcp/keepalive/colour"] {
        bad.push((unknown, put(unknown, json!(1))));
    }
    assert!(bad.len() > 80, "only {} bad configurations were generated", bad.len());
    for (pointer, document) in bad {
        assert!(!schema.is_valid(&document), "the schema accepts a bad {pointer}: {document}");
        let error = parse(&document).err().unwrap_or_else(|| panic!("the parser accepts a bad {pointer}: {document}"));
        assert_eq!(error.field, pointer.trim_start_matches('/').replace('/', "."), "{error}");
    }
}

#[test]
fn durations_out_of_range_are_refused_by_the_parser_which_says_what_is_allowed() {
    for (pointer, value) in [
        ("/tcp/user_timeout", "999ms"),
        ("/tcp/user_timeout", "61m"),
        ("/tcp/keepalive/idle", "0s"),
        ("/tcp/keepalive/interval", "10h"),
        ("/max_connection_age", "999ms"),
        ("/max_connection_age", "169h"),
        ("/close_after_removal", "25h"),
    ] {
        let error = parse(&put(pointer, json!(value))).err().unwrap_or_else(|| panic!("{pointer} accepts {value}"));
        assert!(error.to_string().contains("must be a duration from"), "{error}");
    }
}

#[test]
fn the_schemas_defaults_are_the_parsers() {
    let schema: Value = serde_json::from_str(SCHEMA).expect("the schema is JSON");
    let mut document = json!({});
    for (name, property) in schema["properties"].as_object().expect("properties") {
        document[name] = property["default"].clone();
    }
    let (stated, absent) = (parse(&document).expect("the defaults are valid"), parse(&json!({})).expect("valid"));
    assert_eq!(format!("{stated:?}"), format!("{absent:?}"));
}

#[test]
fn closing_after_a_removal_needs_the_modules_timer_and_an_envoy_that_may_be_woken() {
    let config = |document: Value| parse(&document).expect("valid by itself");
    let closing = json!({ "close_after_removal": "60s" });
    let refused = |has_pulse, takes_commits| {
        config(closing.clone()).checked(has_pulse, takes_commits).err().map(|error| error.allowed)
    };
    assert_eq!(refused(true, true), None);
    assert!(refused(false, true).is_some_and(|why| why.contains("\"status\"")));
    assert!(refused(true, false).is_some_and(|why| why.contains("Envoy 1.39")));
    assert!(config(json!({})).checked(false, false).is_ok(), "by default nothing is closed");
}
