//! Damaged dumps: what is wrong is said, nothing is concluded from what is absent, and nothing panics.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod support;

use proptest::prelude::*;
use serde_json::{Value, json};
use stale_guard_doctor::{Code, Exposure, Input, Severity, Unreadable, examine};
use support::{Dump, code, codes};

fn input(config_dump: &str) -> Input<'_> {
    Input { config_dump, clusters: None, stats: None }
}

#[test]
fn a_dump_that_is_cut_off_anywhere_accuses_nobody() {
    let text = Dump::shipped().text();
    let mut read = 0;
    for end in (0..text.len()).step_by(7) {
        let Ok(report) = examine(input(&text[..end])) else { continue };
        read += 1;
        assert!(codes(&report).contains(&code("SG0001")), "cut at {end}");
        let worst = report.findings.iter().filter(|finding| finding.severity() == Severity::Error).collect::<Vec<_>>();
        assert!(worst.is_empty(), "cut at {end}: the rest may be right: {worst:?}");
        assert_ne!(report.exposure, Exposure::Exposed, "cut at {end}");
        assert!(!report.unread.is_empty());
    }
    assert!(read > 1_000, "most beginnings are read: {read}");
}

#[test]
fn what_was_read_before_the_cut_is_examined() {
    let mut dump = Dump::shipped();
    dump.generation()["factory_key"] = json!("envoy.string");
    let text = dump.text();
    let routes = text.find("RoutesConfigDump").unwrap();
    let report = examine(input(&text[..routes])).unwrap();
    assert!(codes(&report).contains(&code("SG0205")), "{:#?}", report.findings);
}

#[test]
fn what_is_no_dump_is_refused_with_a_reason() {
    for (text, reason) in [
        ("", "no JSON"),
        ("upstream connect error", "no JSON"),
        ("[]", "no JSON object"),
        ("5", "no JSON object"),
        ("{}", "no \"configs\""),
        ("{\"configs\":5}", "no list"),
        ("{\"cluster_statuses\":[]}", "/clusters"),
        ("{\"static_resources\":{}}", "bootstrap"),
    ] {
        let error = examine(input(text)).unwrap_err();
        assert!(error.to_string().contains(reason), "{text:?}: {error}");
    }
    assert!(matches!(examine(input(&"[".repeat(1_000_000))), Err(Unreadable::NotJson(_))));
}

#[test]
fn unknown_sections_and_types_are_passed_over() {
    let mut dump = Dump::shipped();
    let configs = dump.at("/configs").as_array_mut().unwrap();
    configs.insert(0, json!({ "@type": "type.googleapis.com/envoy.admin.v9.DreamsConfigDump", "dreams": 5 }));
    configs.push(json!({ "no": "type" }));
    let filter =
        json!({ "name": "x", "typed_config": { "@type": "type.googleapis.com/io.istio.Unknown", "a": [null] } });
    let listeners = configs[3]["static_listeners"].as_array_mut().unwrap();
    listeners[1]["listener"]["filter_chains"][0]["filters"].as_array_mut().unwrap().insert(0, filter);
    let report = dump.examine();
    assert_eq!((codes(&report), report.exposure, report.unread), (vec![], Exposure::Fenced, vec![]));
}

#[test]
fn an_empty_dump_says_what_it_lacks() {
    let report = examine(input(r#"{"configs":[]}"#)).unwrap();
    assert_eq!((codes(&report), report.exposure), (vec![code("SG0002")], Exposure::Unknown));
    for section in ["bootstrap", "listeners", "clusters", "routes"] {
        assert!(report.findings[0].message.contains(section), "{}", report.findings[0].message);
    }
}

#[test]
fn damaged_clusters_and_stats_are_said_and_the_rest_is_examined() {
    let report = Dump::shipped().examine_with(Some("<html>"), Some("<html>"));
    assert_eq!(codes(&report), [code("SG0001")]);
    let places: Vec<&str> = report.unread.iter().map(|unread| unread.place.as_str()).collect();
    assert_eq!(places, ["clusters", "stats"]);
}

#[test]
fn names_cannot_steer_a_terminal_or_forge_a_line() {
    let mut dump = Dump::istiod();
    dump.bootstrap()["node"]["id"] = json!("waypoint~\u{1b}]0;owned\u{7}\nNo issues found.");
    let text = dump.examine().to_string();
    assert!(!text.chars().any(|letter| letter.is_control() && letter != '\n'), "{text:?}");
    assert_eq!(text.lines().filter(|line| line.starts_with("No issues")).count(), 0, "{text}");
}

#[test]
fn a_dump_of_many_services_is_examined_in_little_time() {
    let mut dump = Dump::istiod();
    let service = |value: &Value, number: usize| -> Value {
        serde_json::from_str(&value.to_string().replace("echo.shop", &format!("echo-{number}.shop"))).unwrap()
    };
    const SERVICES: usize = 2_000;
    let chains = dump.listener("main_internal")["filter_chains"].as_array_mut().unwrap();
    let chain = chains[0].clone();
    chains.extend((0..SERVICES).map(|number| service(&chain, number)));
    for (place, index) in [("/configs/1/static_clusters", 1), ("/configs/3/static_route_configs", 1)] {
        let list = dump.at(place).as_array_mut().unwrap();
        let one = list[index].clone();
        assert!(one.to_string().contains("echo.shop"), "{place} begins with another");
        list.extend((0..SERVICES).map(|number| service(&one, number)));
    }
    let text = dump.text();
    let started = std::time::Instant::now();
    let report = examine(input(&text)).unwrap();
    assert_eq!(codes(&report), codes(&Dump::istiod().examine()));
    // A debug build needs about a second; what is quadratic in services would need minutes.
    assert!(started.elapsed().as_secs() < 60, "{:?} for {} MB", started.elapsed(), text.len() / 1_000_000);
}

/// Any value in place of another one.
fn junk() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".*".prop_map(Value::from),
        Just(json!([])),
        Just(json!({})),
        Just(json!([null, 5, "x", {}, []])),
        Just(json!({ "@type": "x", "name": 5, "value": [], "typed_config": "x", "filters": {} })),
    ]
}

/// The number of values within a value, itself included.
fn size(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(size).sum(),
        Value::Object(map) => map.values().map(size).sum(),
        _ => 0,
    }
}

/// The `index`th value within a value.
fn nth<'a>(value: &'a mut Value, index: &mut usize) -> Option<&'a mut Value> {
    if *index == 0 {
        return Some(value);
    }
    *index -= 1;
    let children: Box<dyn Iterator<Item = &'a mut Value>> = match value {
        Value::Array(list) => Box::new(list.iter_mut()),
        Value::Object(map) => Box::new(map.values_mut()),
        _ => return None,
    };
    for child in children {
        let all = size(child);
        if *index < all {
            return nth(child, index);
        }
        *index -= all;
    }
    None
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn any_value_may_be_replaced_by_any_other(
        places in prop::collection::vec((any::<prop::sample::Index>(), junk()), 1..5),
        stock: bool,
    ) {
        let mut dump = if stock { Dump::istiod() } else { Dump::shipped() };
        for (place, junk) in places {
            let mut index = place.index(size(&dump.0));
            *nth(&mut dump.0, &mut index).unwrap() = junk;
        }
        if let Ok(report) = examine(input(&dump.text())) {
            // Whatever is in it can be written, in both forms.
            let json: Value = serde_json::from_str(&report.json()).unwrap();
            prop_assert_eq!(json["findings"].as_array().unwrap().len(), report.findings.len());
            prop_assert!(report.findings.iter().all(|finding| Code::ALL.contains(&finding.code)));
            prop_assert!(!report.to_string().is_empty());
        }
    }

    #[test]
    fn any_text_may_come_as_any_input(text in ".*", clusters in ".*", stats in ".*") {
        let _ = examine(input(&text));
        let dump = Dump::shipped().text();
        let all = Input { config_dump: &dump, clusters: Some(&clusters), stats: Some(&stats) };
        prop_assert!(examine(all).is_ok());
    }
}
