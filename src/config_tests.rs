use super::*;

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Sample {
    mode: Mode,
    count: Whole<1, 10>,
    wait: Option<Span<100, 3_600_000>>,
    share: Ratio,
    nested: Nested,
    list: Vec<Nested>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Nested {
    on: bool,
}

impl Default for Sample {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            count: Whole::clamped(1),
            wait: None,
            share: Ratio::clamped(0.2),
            nested: Nested::default(),
            list: Vec::new(),
        }
    }
}

fn refused(json: &str) -> ConfigError {
    parse::<Sample>("sample", json.as_bytes()).expect_err("this configuration must be refused")
}

#[test]
fn nothing_is_the_empty_object() {
    for json in ["", "  \n", "{}"] {
        let sample: Sample = parse("sample", json.as_bytes()).expect("an empty configuration is valid");
        assert_eq!((sample.mode, sample.count.get(), sample.share.get()), (Mode::Enforce, 1, 0.2));
    }
}

#[test]
fn durations_are_read_with_every_unit() {
    for (text, millis) in [("250ms", 250), ("1.5s", 1_500), ("10m", 600_000), ("1h", 3_600_000)] {
        let sample: Sample = parse("sample", format!(r#"{{"wait":"{text}"}}"#).as_bytes()).expect(text);
        assert_eq!(sample.wait.map(Span::get), Some(Duration::from_millis(millis)), "{text}");
    }
}

#[test]
fn a_double_that_is_whole_is_a_whole_number() {
    let sample: Sample = parse("sample", br#"{"count":7.0}"#).expect("a Struct's numbers are doubles");
    assert_eq!(sample.count.get(), 7);
}

/// Envoy's YAML reader hands fractions inside a `Struct` over as strings, and `off` as `false`.
#[test]
fn numbers_and_modes_are_read_as_yaml_hands_them_over() {
    for (text, share) in [("0.2", 0.2), ("1.0", 1.0), (".5", 0.5), ("1e-1", 0.1), ("0", 0.0)] {
        let sample: Sample = parse("sample", format!(r#"{{"share":"{text}"}}"#).as_bytes()).expect(text);
        assert_eq!(sample.share.get(), share, "{text}");
    }
    let sample: Sample = parse("sample", br#"{"count":"7.0","mode":false}"#).expect("what YAML makes of 7.0 and off");
    assert_eq!((sample.count.get(), sample.mode), (7, Mode::Off));
    for text in ["", " ", "0.2 ", "inf", "nan", "1.2.3", "0x1", "1_0", "e", "."] {
        let error = refused(&format!(r#"{{"share":"{text}"}}"#));
        assert_eq!(error.allowed, "must be a number from 0 to 1", "{text:?} is no number");
    }
}

#[test]
fn errors_name_field_value_and_what_is_allowed() {
    for (json, field, value, allowed) in [
        (r#"{"count":11}"#, "count", "11", "must be a whole number from 1 to 10"),
        (r#"{"count":1.5}"#, "count", "1.5", "must be a whole number from 1 to 10"),
        (r#"{"count":"11"}"#, "count", "\"11\"", "must be a whole number from 1 to 10"),
        (r#"{"count":"three"}"#, "count", "\"three\"", "must be a whole number from 1 to 10"),
        (r#"{"share":"1.1"}"#, "share", "\"1.1\"", "must be a number from 0 to 1"),
        (r#"{"mode":true}"#, "mode", "true", "must be one of \"enforce\", \"observe\" and \"off\""),
        (
            r#"{"wait":"5"}"#,
            "wait",
            "\"5\"",
            "must be a duration from \"100ms\" to \"1h\", a number with a unit of ms, s, m or h",
        ),
        (
            r#"{"wait":"2h"}"#,
            "wait",
            "\"2h\"",
            "must be a duration from \"100ms\" to \"1h\", a number with a unit of ms, s, m or h",
        ),
        (
            r#"{"wait":"-1s"}"#,
            "wait",
            "\"-1s\"",
            "must be a duration from \"100ms\" to \"1h\", a number with a unit of ms, s, m or h",
        ),
        (r#"{"share":1.01}"#, "share", "1.01", "must be a number from 0 to 1"),
        (r#"{"mode":"on"}"#, "mode", "\"on\"", "unknown variant `on`, expected one of `enforce`, `observe`, `off`"),
        (r#"{"nested":{"on":3}}"#, "nested.on", "3", "invalid type: integer `3`, expected a boolean"),
        (r#"{"list":[{},{"of":true}]}"#, "list[1].of", "true", "unknown field `of`, expected `on`"),
        (
            r#"{"colour":1}"#,
            "colour",
            "1",
            "unknown field `colour`, expected one of `mode`, `count`, `wait`, `share`, `nested`, `list`",
        ),
        (r#"[1]"#, ".", "[1]", "must be a JSON object, such as {}"),
    ] {
        let error = refused(json);
        assert_eq!(
            (error.field.as_str(), error.value.as_str(), error.allowed.as_str()),
            (field, value, allowed),
            "{json}"
        );
    }
}

#[test]
fn text_that_is_no_json_is_refused_and_shown_shortened() {
    let error = refused(&"x".repeat(1_000));
    assert!(error.allowed.starts_with("not valid JSON"), "{error}");
    assert!(error.value.chars().count() <= VALUE_SHOWN + 1, "a huge value must not flood the log: {error}");
}
