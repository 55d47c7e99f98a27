//! Schemas and parsers of `status` and of `watch` agree.

use serde_json::{Value, json};

use super::config::StatusConfig;
use crate::{config::ConfigError, watch::config::WatchConfig};

const STATUS: &str = include_str!("../../envoy-config/schema/status.json");
const WATCH: &str = include_str!("../../envoy-config/schema/watch.json");

fn schema(text: &str) -> jsonschema::Validator {
    jsonschema::validator_for(&serde_json::from_str(text).expect("the schema is JSON")).expect("the schema is valid")
}

fn status(document: &Value) -> Result<StatusConfig, ConfigError> {
    StatusConfig::parse(document.to_string().as_bytes())
}

fn watch(document: &Value) -> Result<WatchConfig, ConfigError> {
    WatchConfig::parse(document.to_string().as_bytes())
}

fn full() -> Value {
    json!({
        "capacity": 65536,
        "admin_path": "/stale-guard",
        "watch": {
            "source": "admin",
            "cluster": "prometheus_stats",
            "min_interval": "250ms",
            "max_interval": "5s",
            "treat_as_removed": ["DRAINING", "UNHEALTHY"]
        },
        "suspect_after": "30s"
    })
}

/// Every field with values that it must refuse.
fn wrong() -> Vec<(&'static str, &'static str, Vec<Value>)> {
    let any = || vec![json!(true), json!({ "a": 1 }), json!([1])];
    let with = |more: Vec<Value>| [any(), more].concat();
    let duration = || with(vec![json!(5), json!("5"), json!("5 s"), json!("-1s"), json!("")]);
    vec![
        ("/capacity", "capacity", with(vec![json!(null), json!("many"), json!(63), json!(1_048_577), json!(64.5)])),
        ("/admin_path", "admin_path", with(vec![json!(null), json!(""), json!("/"), json!("page"), json!("/a?b")])),
        ("/watch", "watch", vec![json!(null), json!([]), json!(["admin"]), json!("admin"), json!(1)]),
        ("/watch/source", "watch.source", with(vec![json!(null), json!("eds"), json!("Admin")])),
        ("/watch/cluster", "watch.cluster", with(vec![json!(null), json!("")])),
        ("/watch/min_interval", "watch.min_interval", duration()),
        ("/watch/max_interval", "watch.max_interval", duration()),
        (
            "/watch/treat_as_removed",
            "watch.treat_as_removed",
            vec![
                json!(null),
                json!("DRAINING"),
                json!({}),
                json!(["HEALTHY"]),
                json!(["UNKNOWN"]),
                json!(["draining"]),
            ],
        ),
        ("/suspect_after", "suspect_after", duration()),
    ]
}

fn put(pointer: &str, value: Value) -> Value {
    let mut document = full();
    let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
    document.pointer_mut(parent).expect("the parent exists")[field] = value;
    document
}

#[test]
fn good_configurations_are_accepted_by_parser_and_schema() {
    let (status_schema, watch_schema) = (schema(STATUS), schema(WATCH));
    let mut good = vec![json!({}), full(), json!({ "watch": {} }), put("/suspect_after", json!(null))];
    good.extend([64.0, 1_048_576.0].map(|capacity| put("/capacity", json!(capacity))));
    // What Envoy's YAML reader makes of a number with a point.
    good.push(put("/capacity", json!("64.0")));
    good.push(put("/watch/treat_as_removed", json!([])));
    for document in good {
        assert!(status_schema.is_valid(&document), "the schema refuses {document}");
        assert!(status(&document).is_ok(), "the parser refuses {document}: {:?}", status(&document));
    }
    for document in
        [json!({}), json!({ "treat_as_removed": [] }), json!({ "treat_as_removed": ["TIMEOUT", "DEGRADED"] })]
    {
        assert!(watch_schema.is_valid(&document), "the schema refuses {document}");
        assert!(watch(&document).is_ok(), "the parser refuses {document}");
    }
}

#[test]
fn bad_configurations_are_refused_by_both_and_the_message_names_the_place() {
    let (status_schema, watch_schema) = (schema(STATUS), schema(WATCH));
    for (pointer, place, values) in wrong() {
        for value in values {
            let document = put(pointer, value);
            assert!(!status_schema.is_valid(&document), "the schema accepts {document}");
            let error = status(&document).expect_err("the parser must refuse it");
            assert!(error.field.starts_with(place), "{error}\nmust name {place} in {document}");
        }
    }
    for pointer in ["/capacty", "/watch/intervals"] {
        let document = put(pointer, json!(1));
        assert!(!status_schema.is_valid(&document), "the schema accepts {document}");
        assert!(status(&document).is_err(), "the parser accepts {document}");
    }
    for document in [
        json!([]),
        json!(["DRAINING"]),
        json!({ "treat_as_removed": ["HEALTHY"] }),
        json!({ "treat_as_removed": ["DRAIN"] }),
        json!({ "treat_as_removed": "DRAINING" }),
        json!({ "treat_as_removed": null }),
        json!({ "removed": [] }),
    ] {
        assert!(!watch_schema.is_valid(&document), "the schema accepts {document}");
        assert!(watch(&document).is_err(), "the parser accepts {document}");
    }
}

#[test]
fn what_a_schema_cannot_say_is_refused_by_the_parser() {
    let status_schema = schema(STATUS);
    for (pointer, value, place) in [
        ("/watch/min_interval", json!("49ms"), "watch.min_interval"),
        ("/watch/min_interval", json!("61s"), "watch.min_interval"),
        ("/watch/max_interval", json!("2h"), "watch.max_interval"),
        ("/watch/max_interval", json!("249ms"), "watch.max_interval"),
        ("/suspect_after", json!("999ms"), "suspect_after"),
        ("/suspect_after", json!("25h"), "suspect_after"),
    ] {
        let document = put(pointer, value);
        assert!(status_schema.is_valid(&document), "the schema can tell after all: list this one as bad: {document}");
        assert_eq!(status(&document).expect_err("the parser must refuse it").field, place);
    }
}
