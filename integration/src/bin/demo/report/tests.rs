use super::data::{Event, EventKind, Slice};
use super::{Report, picture, progress_line, table};
use crate::report::data::VariantResult;
use http::Method;
use lab::history::{History, ServerRecord, Vanish};
use lab::load::{self, Issued, Outcome, RequestRecord};
use std::time::{Duration, Instant};

fn variant(name: &str) -> VariantResult {
    VariantResult {
        name: name.to_owned(),
        requests: 123_456,
        failed_get: 1234,
        failed_post: 1234,
        duplicate_posts: 1234,
        retries: 12_345,
        tls_handshakes: 1234,
        p50_ms: 123.4,
        p99_ms: 15_000.0,
        max_ms: 15_001.0,
        in_flight_lost: 123,
        failed_around_vanish: 3,
        slice_s: 0.5,
        failures_over_time: vec![Slice { t: 0.0, failed_get: 3, failed_post: 2, in_flight_lost: 1 }],
        events: vec![Event { t: 0.2, kind: EventKind::PodVanished, label: "pod-0".to_owned() }],
    }
}

#[test]
fn the_table_fits_120_columns_with_the_longest_name_and_large_numbers() {
    let report = Report { variants: vec![variant("stock + max_connect_attempts")] };
    for line in table(&report).lines() {
        assert!(line.chars().count() <= 120, "{} columns: {line}", line.chars().count());
    }
}

#[test]
fn the_json_has_the_promised_fields_and_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    let report = Report { variants: vec![variant("stock"), variant("stale-guard")] };
    let [json, svg] = report.write(&dir.path().join("demo")).unwrap();
    assert_eq!(Report::read(&json).unwrap(), report);
    assert!(std::fs::read_to_string(svg).unwrap().starts_with("<svg"));

    let value: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    for field in [
        "name",
        "requests",
        "failed_get",
        "failed_post",
        "duplicate_posts",
        "retries",
        "tls_handshakes",
        "p50_ms",
        "p99_ms",
        "max_ms",
        "in_flight_lost",
    ] {
        assert!(value["variants"][1].get(field).is_some(), "no field {field}");
    }
}

#[test]
fn the_picture_names_every_variant_and_survives_an_empty_report() {
    let report = Report { variants: vec![variant("stock"), variant("a < b & c")] };
    let svg = picture::svg(&report).unwrap();
    assert!(svg.contains("stock") && svg.contains("a &lt; b &amp; c"), "names are escaped");
    picture::svg(&Report::default()).unwrap();
}

#[test]
fn measures_a_history() {
    let origin = Instant::now();
    let at = |ms| origin + Duration::from_millis(ms);
    let request = |id: &str, method: Method, start, outcome| RequestRecord {
        id: id.to_owned(),
        class: method.as_str().into(),
        idempotent: method.is_idempotent(),
        method,
        intended: at(start),
        started: at(start),
        ended: at(start + 10),
        connection: None,
        outcome,
    };
    let refused = |attempts| Outcome::Response { status: 503, pod: None, attempts, flags: None, details: None };
    let records = vec![
        request("stale", Method::GET, 1200, refused(Some(1))),
        request("lost", Method::POST, 995, refused(Some(1))),
    ];
    let issued = records.iter().map(|r| Issued { id: r.id.clone(), intended: r.intended }).collect();
    let report = load::Report { origin, issued, records, connections_opened: 1 };
    let execution =
        ServerRecord { id: "lost".to_owned(), pod: "a-1".to_owned(), at: at(996), method: "POST".to_owned() };
    let history = History::new(report, [execution], []);

    let reused = [(at(1100), "a-2".to_owned())];
    let result = VariantResult::measure("stock", &history, &[Vanish::at("a-1", at(1000))], &reused, 4, 9).unwrap();
    assert_eq!((result.requests, result.failed_get, result.failed_post, result.in_flight_lost), (2, 1, 0, 1));
    assert_eq!((result.retries, result.tls_handshakes), (4, 9));
    assert!((result.max_ms - 10.0).abs() < 1e-6);
    let kinds: Vec<_> = result.events.iter().map(|event| (event.kind, event.label.as_str())).collect();
    assert_eq!(kinds, [(EventKind::PodVanished, "a-1"), (EventKind::IpReused, "a-2")]);
    let failures: Vec<_> =
        result.failures_over_time.iter().map(|s| (s.failed_get, s.failed_post, s.in_flight_lost)).collect();
    assert_eq!(failures, [(0, 0, 0), (0, 0, 1), (1, 0, 0)]);
    assert_eq!(progress_line(0, 6, &result), "[1/6] stock: 2 requests in 2 s, 1 failed, 1 lost in flight");
}
