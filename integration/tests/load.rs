//! The load generator against a server in this process, and against servers that break.
#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests fail by panicking")]

mod load_support;

use http::HeaderName;
use lab::history::{History, laws};
use lab::load::{
    Arrivals, HeldStream, Load, Outcome, Plan, Protocol, Report, RequestClass, StreamEnd, StreamSpec, TransportError,
    connector, hold_one_per_pod,
};
use load_support::{Break, Server, breaking, eventually};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

const DRAIN: Duration = Duration::from_secs(10);

fn plan(classes: Vec<RequestClass>, count: u64) -> Plan {
    Plan { max_requests: count, connections: 4, ..Plan::new("t", 400.0, classes) }
}

fn get(path: &str) -> RequestClass {
    RequestClass::get("shop.example", path)
}

async fn run(plan: Plan, server: &Server) -> Report {
    Load::start(plan, server.connector()).await.expect("start").finished().await.expect("finish")
}

fn assert_accounted(report: &Report, count: usize) {
    let ids: BTreeSet<_> = report.issued.iter().map(|issued| &issued.id).collect();
    assert_eq!(ids.len(), count, "ids are unique, and all arrivals were issued");
    let history = History::new::<lab::history::ServerRecord>(report.clone(), [], []);
    assert_eq!(laws::every_request_accounted_once(&history), []);
}

#[tokio::test]
async fn a_stalled_server_delays_no_other_arrival() {
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let server = Server::start().await;
        let classes = vec![get("/").weight(4), get("/stall").named("stall")];
        let load = Load::start(Plan { protocol, ..plan(classes, 200) }, server.connector()).await.unwrap();
        eventually("all others are answered while 40 requests are stalled", || load.progress().finished == 160).await;
        let opened = Instant::now();
        server.open_gate();
        let report = load.finished().await.unwrap();

        assert_accounted(&report, 200);
        for record in &report.records {
            assert!(record.success(), "{protocol:?} {record:?}");
            let waited_for_gate = record.ended >= opened;
            assert_eq!(waited_for_gate, &*record.class == "stall", "{protocol:?} {record:?}");
            if waited_for_gate {
                assert!(record.latency() >= opened - record.intended, "latency counts from the intended start");
            }
        }
        let history = History::new(report, server.records(), []);
        assert_eq!(laws::core(&history, 0), []);
    }
}

#[tokio::test]
async fn the_mix_is_exact_and_requests_arrive_as_planned() {
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let server = Server::start().await;
        let key = HeaderName::from_static("idempotency-key");
        let post = RequestClass::post("shop.example", "/", "order").weight(3).idempotency_key(key);
        let arrivals = Arrivals::Poisson { seed: 1 };
        let report = run(Plan { protocol, arrivals, ..plan(vec![get("/").weight(7), post], 200) }, &server).await;

        assert_accounted(&report, 200);
        let seen = server.seen();
        assert_eq!(seen.len(), 200);
        let posts: Vec<_> = seen.iter().filter(|seen| seen.record.method == "POST").collect();
        assert_eq!(posts.len(), 60, "30 % of 200");
        for post in posts {
            assert_eq!(post.idempotency_key.as_ref(), Some(&post.record.id));
            assert_eq!(&post.body[..], b"order");
        }
        assert!(seen.iter().all(|seen| seen.host == "shop.example"));
        assert!(report.records.iter().all(|record| record.idempotent), "GET by method, POST by key");
        assert!(report.records.iter().all(|record| record.attempts() == Some(1) && record.pod().is_some()));
    }
}

#[tokio::test]
async fn all_pooled_connections_are_used_in_turn() {
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let server = Server::start().await;
        // Slow enough that an answer is always back before the next turn of the same connection.
        let report = run(Plan { protocol, rate: 100.0, ..plan(vec![get("/")], 40) }, &server).await;
        let used: BTreeSet<_> = report.records.iter().filter_map(|record| record.connection).collect();
        assert!(used.is_superset(&(0..4).collect()), "{protocol:?}: the load must spread, but used {used:?}");
        assert_eq!(report.connections_opened as usize, server.connections());
    }
}

#[tokio::test]
async fn a_server_that_closes_after_each_answer_fails_no_request() {
    let server = Server::start().await;
    let report = run(plan(vec![get("/bye")], 100), &server).await;
    assert_accounted(&report, 100);
    for record in &report.records {
        assert!(record.success(), "the client's own connection handling must not look like a fault: {record:?}");
    }
}

#[tokio::test]
async fn broken_connections_are_told_apart_and_accounted() {
    for (how, expected) in [
        (Break::Fin, Outcome::Failed(TransportError::Closed)),
        (Break::Rst, Outcome::Failed(TransportError::Reset)),
        (Break::HalfBody, Outcome::Broken { status: 200, error: TransportError::Closed }),
    ] {
        let addr = breaking(how).await;
        let load = Load::start(plan(vec![get("/")], 50), connector(move || TcpStream::connect(addr))).await.unwrap();
        let report = load.finished().await.unwrap();
        assert_accounted(&report, 50);
        for record in &report.records {
            assert_eq!(record.outcome, expected, "{how:?}: {}", record.outcome);
        }
    }
}

#[tokio::test]
async fn a_reset_http2_stream_is_told_by_its_error_code() {
    let server = Server::start().await;
    let report = run(Plan { protocol: Protocol::Http2, ..plan(vec![get("/fail")], 10) }, &server).await;
    assert_accounted(&report, 10);
    for record in &report.records {
        assert!(matches!(record.outcome, Outcome::Failed(TransportError::Http2(_))), "{}", record.outcome);
    }
}

#[tokio::test]
async fn a_request_is_never_sent_twice() {
    let server = Server::start().await;
    let report = run(plan(vec![get("/fail"), RequestClass::post("shop.example", "/fail", "x")], 60), &server).await;
    assert_accounted(&report, 60);
    let ids: BTreeSet<_> = server.records().into_iter().map(|record| record.id).collect();
    assert_eq!(ids.len(), server.records().len(), "the server saw an id twice");
}

#[tokio::test]
async fn the_client_timeout_counts_from_the_intended_start() {
    let server = Server::start().await;
    let timeout = Duration::from_millis(300);
    let report = run(Plan { timeout, ..plan(vec![get("/stall")], 20) }, &server).await;
    assert_accounted(&report, 20);
    for record in &report.records {
        assert_eq!(record.outcome, Outcome::TimedOut);
        assert!(record.latency() >= timeout && record.connection.is_some(), "{record:?}");
    }
}

#[tokio::test]
async fn waiting_for_a_connection_is_part_of_the_latency() {
    let server = Server::start().await;
    let (addr, delay) = (server.addr, Duration::from_millis(50));
    let slow = connector(move || async move {
        tokio::time::sleep(delay).await;
        TcpStream::connect(addr).await
    });
    let report = Load::start(Plan { connections: 1, ..plan(vec![get("/bye")], 20) }, slow).await.unwrap();
    let report = report.finished().await.unwrap();
    let late: Vec<_> = report.records.iter().filter(|r| r.started >= r.intended + delay).collect();
    assert!(late.len() >= 15, "nearly every request has to open its own connection; {} did", late.len());
    assert!(late.iter().all(|record| record.success() && record.latency() >= delay));
}

#[tokio::test]
async fn stopping_ends_arrivals_and_accounts_for_what_is_in_flight() {
    let server = Server::start().await;
    let load = Load::start(plan(vec![get("/"), get("/stall").named("stall")], 1_000_000), server.connector());
    let load = load.await.unwrap();
    eventually("some requests are in flight", || load.progress().issued >= 40).await;
    let report = load.stop(Duration::from_millis(200)).await.unwrap();

    assert_accounted(&report, report.issued.len());
    for record in &report.records {
        match &*record.class {
            "stall" => assert_eq!(record.outcome, Outcome::Abandoned),
            _ => assert!(record.success(), "{record:?}"),
        }
    }
}

#[tokio::test]
async fn stopping_waits_for_what_is_in_flight() {
    let server = Server::start().await;
    let load = Load::start(plan(vec![get("/stall")], 1_000_000), server.connector()).await.unwrap();
    eventually("some requests have arrived", || server.seen().len() >= 20).await;
    let stop = tokio::spawn(load.stop(DRAIN));
    server.open_gate();
    let report = stop.await.unwrap().unwrap();
    assert_accounted(&report, report.issued.len());
    assert!(report.records.iter().all(lab::load::RequestRecord::success));
}

#[tokio::test]
async fn beyond_the_limit_in_flight_arrivals_are_recorded_as_not_sent() {
    let server = Server::start().await;
    let load = Load::start(Plan { max_outstanding: 10, ..plan(vec![get("/stall")], 50) }, server.connector());
    let load = load.await.unwrap();
    eventually("40 of 50 arrivals could not be sent", || load.progress().finished == 40).await;
    server.open_gate();
    let report = load.finished().await.unwrap();
    assert_accounted(&report, 50);
    assert_eq!(report.records.iter().filter(|record| record.outcome == Outcome::NotSent).count(), 40);
}

#[tokio::test]
async fn a_proxy_that_cannot_be_reached_fails_the_start() {
    let addr = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let error = Load::start(plan(vec![get("/")], 1), connector(move || TcpStream::connect(addr))).await.unwrap_err();
    assert!(format!("{error:#}").contains("connection refused"), "{error:#}");
}

#[tokio::test]
async fn a_plan_that_cannot_run_is_refused_by_name() {
    let server = Server::start().await;
    for (bad, word) in [
        (Plan { rate: 0.0, ..plan(vec![get("/")], 1) }, "rate"),
        (Plan { connections: 0, ..plan(vec![get("/")], 1) }, "connections"),
        (plan(vec![get("/").weight(0)], 1), "weight"),
        (plan(vec![get("no path").named("odd")], 1), "odd"),
    ] {
        let error = Load::start(bad, server.connector()).await.unwrap_err();
        assert!(format!("{error:#}").contains(word), "{error:#}");
    }
}

#[tokio::test]
async fn streams_are_held_one_per_pod_and_released() {
    let server = Server::start().await;
    let spec = StreamSpec::get("shop.example", "/hang");
    let pods = ["pod-0".to_owned(), "pod-1".to_owned()];
    let held = hold_one_per_pod(&server.connector(), &spec, "t", &pods, 8).await.unwrap();
    assert_eq!(held.keys().collect::<Vec<_>>(), ["pod-0", "pod-1"]);
    for (pod, stream) in held {
        assert_eq!(stream.ended(), None, "nobody told it to end");
        let record = stream.release().await.unwrap();
        assert_eq!((record.pod, record.status, record.end), (Some(pod), 200, StreamEnd::Released));
    }
    let missing = hold_one_per_pod(&server.connector(), &spec, "u", &["pod-9".to_owned()], 3).await.unwrap_err();
    assert!(missing.to_string().contains("pod-9"), "{missing}");
}

#[tokio::test]
async fn a_stream_tells_how_it_ended_by_itself() {
    let server = Server::start().await;
    let spec = StreamSpec::get("shop.example", "/hang");
    let mut stream = HeldStream::open(&server.connector(), &spec, "whole").await.unwrap();
    server.open_gate();
    assert_eq!(stream.wait_end(DRAIN).await.unwrap(), StreamEnd::Complete);
    assert_eq!(stream.release().await.unwrap().end, StreamEnd::Complete, "a release afterwards changes nothing");

    let addr = breaking(Break::HalfBody).await;
    let broken = connector(move || TcpStream::connect(addr));
    let mut stream = HeldStream::open(&broken, &spec, "broken").await.unwrap();
    assert_eq!(stream.wait_end(DRAIN).await.unwrap(), StreamEnd::Broken(TransportError::Closed));
}
