//! Each behaviour of the application does on the wire what its name says.

use std::io::ErrorKind;
use std::time::Duration;

use h2::Reason;
use http::{Method, Request, StatusCode};
use lab::app::{Behaviour, hash_of};
use lab::pod::{Ending, PodSpec};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::client::{GENEROUS, QUIET, Wire, World, collect, end_of, exchange, head, io_kind, ip, read_all};

#[tokio::test]
async fn http1_answers_with_the_pods_name_and_keeps_the_connection() {
    let world = World::new().await;
    let pod = world.plain_pod("pod-a", "10.244.1.1").await;
    let mut stream = world.tcp(pod.addr()).await;
    for id in ["one", "two"] {
        let Wire::Silence(text) = exchange(&mut stream, "GET", "/", id).await else {
            panic!("the connection was closed")
        };
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        assert!(text.contains("x-pod: pod-a") && text.ends_with("pod-a"), "{text}");
    }
    assert_eq!((pod.executed("one"), pod.executed("two")), (1, 1));
}

#[tokio::test]
async fn http1_bodies_are_counted_and_hashed() {
    let world = World::new().await;
    let pod = world.plain_pod("pod-a", "10.244.1.1").await;
    let body = vec![7; 100_000];
    let mut stream = world.tcp(pod.addr()).await;
    let head = "POST / HTTP/1.1\r\nhost: app\r\nx-request-id: big\r\ncontent-length: 100000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("head");
    stream.write_all(&body).await.expect("body");
    let execution = pod.wait_for_execution("big").await.expect("execution");
    assert_eq!((execution.body_len, execution.body_hash), (100_000, hash_of(&body)));
}

/// Behaviour, whether it executes the request, and what the client sees.
#[tokio::test]
async fn http1_faults_end_the_connection_as_named() {
    let world = World::new().await;
    let pod = world.plain_pod("pod-a", "10.244.1.1").await;
    let table = [
        (Behaviour::ReadThenClose, 1, Wire::Fin(String::new())),
        (Behaviour::ReadThenReset, 1, Wire::Rst(String::new())),
        (Behaviour::ResetOnArrival, 0, Wire::Rst(String::new())),
        (Behaviour::FinCrossing, 0, Wire::Fin(String::new())),
        (Behaviour::HangBeforeHeaders, 1, Wire::Silence(String::new())),
    ];
    for (place, (behaviour, executions, expected)) in table.into_iter().enumerate() {
        let mut stream = world.tcp(pod.addr()).await;
        // A first request makes it a reused connection.
        let first = exchange(&mut stream, "GET", "/", "warm").await;
        assert!(matches!(first, Wire::Silence(_)), "{first:?}");
        pod.script().next(1, behaviour);
        let id = format!("request-{place}");
        assert_eq!(exchange(&mut stream, "POST", "/", &id).await, expected, "{behaviour:?}");
        assert_eq!(pod.executed(&id), executions, "executions under {behaviour:?}");
        assert!(pod.script().is_done());
    }
}

#[tokio::test]
async fn http1_headers_then_reset_sends_ten_of_a_hundred_bytes() {
    let world = World::new().await;
    let pod = world.plain_pod("pod-a", "10.244.1.1").await;
    pod.script().next(1, Behaviour::HeadersThenReset);
    let mut stream = world.tcp(pod.addr()).await;
    let Wire::Rst(text) = exchange(&mut stream, "GET", "/", "cut").await else { panic!("no RST") };
    assert!(text.contains("content-length: 100") && text.ends_with("\r\n\r\nxxxxxxxxxx"), "{text}");
    assert_eq!(pod.executed("cut"), 1);
}

#[tokio::test]
async fn connections_can_be_ended_on_accept_or_refused() {
    let world = World::new().await;
    let pod = world.plain_pod("pod-a", "10.244.1.1").await;
    pod.script().next(1, Behaviour::ResetOnAccept);
    pod.script().next(1, Behaviour::CloseOnAccept);
    let mut stream = world.tcp(pod.addr()).await;
    assert_eq!(read_all(&mut stream).await, Wire::Rst(String::new()));
    let mut stream = world.tcp(pod.addr()).await;
    assert_eq!(read_all(&mut stream).await, Wire::Fin(String::new()));
    let app = pod.app().expect("application");
    app.refuse().await;
    let error = world.proxy.tcp_connect(pod.addr()).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    app.listen().expect("listen");
    world.tcp(pod.addr()).await;
}

#[tokio::test]
async fn idle_connections_are_closed_with_fin_by_timeout_or_on_demand() {
    let world = World::new().await;
    let spec = PodSpec {
        hbone: false,
        keep_alive: Some(Duration::from_millis(300)),
        ..PodSpec::new("timeout", ip("10.244.1.1"))
    };
    let pod = world.start(spec).await;
    let mut stream = world.tcp(pod.addr()).await;
    let end = exchange(&mut stream, "GET", "/", "one").await;
    assert!(matches!(&end, Wire::Fin(text) if text.ends_with("timeout")), "{end:?}");

    let pod = world.plain_pod("demand", "10.244.1.2").await;
    let mut idle = world.tcp(pod.addr()).await;
    let mut busy = world.tcp(pod.addr()).await;
    assert!(matches!(exchange(&mut idle, "GET", "/", "idle").await, Wire::Silence(_)));
    let open = exchange(&mut busy, "GET", "/?hang=body", "busy").await;
    assert!(matches!(&open, Wire::Silence(text) if text.contains("demand\n")), "{open:?}");
    let app = pod.app().expect("application");
    app.close_idle();
    assert_eq!(read_all(&mut idle).await, Wire::Fin(String::new()));
    assert_eq!(read_all(&mut busy).await, Wire::Silence(String::new()), "a stream was open on it");
    app.release();
    let end = read_all(&mut busy).await;
    assert!(matches!(&end, Wire::Silence(text) if text.ends_with("0\r\n\r\n")), "{end:?}");
}

#[tokio::test]
async fn an_idle_connection_is_reset_where_the_server_does_so() {
    let world = World::new().await;
    let keep_alive = Some(Duration::from_millis(150));
    let spec =
        PodSpec { hbone: false, keep_alive, idle_ending: Ending::Rst, ..PodSpec::new("pod-a", ip("10.244.1.1")) };
    let pod = world.start(spec).await;
    let mut stream = world.tcp(pod.addr()).await;
    let wire = exchange(&mut stream, "GET", "/", "one").await;
    assert!(matches!(&wire, Wire::Rst(text) if text.ends_with("pod-a")), "answered, then reset: {wire:?}");
    let mut young = world.tcp(pod.addr()).await;
    young.write_all(head("GET", "/?delay_ms=300", "slow").as_bytes()).await.expect("write");
    let wire = read_all(&mut young).await;
    assert!(matches!(&wire, Wire::Rst(text) if text.ends_with("pod-a")), "not while a request is served: {wire:?}");
}

#[tokio::test]
async fn an_upgrade_is_answered_by_101_and_echoed() {
    let world = World::new().await;
    let pod = world.plain_pod("pod-a", "10.244.1.1").await;
    let mut stream = world.tcp(pod.addr()).await;
    let head = "GET /ws HTTP/1.1\r\nhost: app\r\nx-request-id: ws\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("head");
    let Wire::Silence(text) = read_all(&mut stream).await else { panic!("closed") };
    assert!(text.starts_with("HTTP/1.1 101"), "{text}");
    stream.write_all(b"ping").await.expect("ping");
    let mut echo = [0; 4];
    timeout(GENEROUS, stream.read_exact(&mut echo)).await.expect("echo").expect("echo");
    assert_eq!(&echo, b"ping");
    assert_eq!(pod.executed("ws"), 1);
}

#[tokio::test]
async fn http2_faults_end_the_connection_or_the_stream_as_named() {
    let world = World::new().await;
    let pod = world.plain_pod("pod-a", "10.244.1.1").await;
    let reset = Some(ErrorKind::ConnectionReset);
    let table = [
        (Behaviour::ReadThenReset, 1, reset),
        (Behaviour::ReadThenClose, 1, None),
        (Behaviour::ResetOnArrival, 0, reset),
        (Behaviour::FinCrossing, 0, None),
    ];
    for (place, (behaviour, executions, expected)) in table.into_iter().enumerate() {
        let mut client = world.h2c(pod.addr()).await;
        let (status, body) = client.request(Method::GET, "/", "warm").await.expect("answer");
        assert_eq!((status, body.as_slice()), (StatusCode::OK, b"pod-a".as_slice()));
        pod.script().next(1, behaviour);
        let id = format!("request-{place}");
        let request = timeout(GENEROUS, client.request(Method::POST, "/", &id)).await;
        assert!(request.expect("an end").is_err(), "{behaviour:?} answered");
        let error = client.end().await;
        let kind = error.as_ref().and_then(io_kind).filter(|kind| Some(*kind) == reset);
        assert_eq!(kind, expected, "{behaviour:?}: {error:?}");
        assert_eq!(pod.executed(&id), executions, "executions under {behaviour:?}");
    }
}

#[tokio::test]
async fn http2_headers_then_reset_sends_ten_of_a_hundred_bytes() {
    let world = World::new().await;
    let pod = world.plain_pod("pod-a", "10.244.1.1").await;
    pod.script().next(1, Behaviour::HeadersThenReset);
    let mut client = world.h2c(pod.addr()).await;
    let request = Request::get("http://app/").header("x-request-id", "cut").body(()).expect("get");
    let (response, _) = client.send.send_request(request, true).expect("send");
    let response = timeout(GENEROUS, response).await.expect("headers").expect("headers");
    assert_eq!(response.headers().get("content-length").map(|value| value.as_bytes()), Some(&b"100"[..]));
    assert!(collect(response.into_body()).await.is_err(), "the body was cut");
    let error = client.end().await.expect("a failure");
    assert_eq!(io_kind(&error), Some(ErrorKind::ConnectionReset));
}

#[tokio::test]
async fn refused_stream_concerns_one_stream_and_executes_nothing() {
    let world = World::new().await;
    let pod = world.plain_pod("pod-a", "10.244.1.1").await;
    let mut client = world.h2c(pod.addr()).await;
    pod.script().next(1, Behaviour::RefuseStream);
    let error = client.request(Method::POST, "/", "refused").await.expect_err("RST_STREAM");
    assert_eq!(error.reason(), Some(Reason::REFUSED_STREAM));
    assert!(error.is_remote() && error.is_reset());
    client.request(Method::POST, "/", "next").await.expect("the connection lives");
    assert_eq!((pod.executed("refused"), pod.executed("next")), (0, 1));
}

#[tokio::test]
async fn goaway_below_the_stream_executes_nothing_and_names_the_earlier_stream() {
    let world = World::new().await;
    let pod = world.plain_pod("pod-a", "10.244.1.1").await;
    let mut client = world.h2c(pod.addr()).await;
    client.request(Method::GET, "/", "first").await.expect("answer");
    pod.script().next(1, Behaviour::GoAwayBelow);
    let error = client.request(Method::POST, "/", "below").await.expect_err("GOAWAY");
    assert!(error.is_go_away() && error.is_remote(), "{error:?}");
    assert_eq!(error.reason(), Some(Reason::NO_ERROR));
    assert_eq!(pod.executed("below"), 0);
    client.end().await;
}

#[tokio::test]
async fn http2_hangs_hang_until_released() {
    let world = World::new().await;
    let pod = world.plain_pod("pod-a", "10.244.1.1").await;
    let mut client = world.h2c(pod.addr()).await;
    let hanging = timeout(QUIET, client.request(Method::GET, "/?hang=headers", "never")).await;
    assert!(hanging.is_err(), "it was answered");
    assert_eq!(pod.executed("never"), 1);
    let request = Request::get("http://app/?hang=body").header("x-request-id", "open");
    let (response, _) = client.send.send_request(request.body(()).expect("get"), true).expect("send");
    let mut body = timeout(GENEROUS, response).await.expect("headers").expect("headers").into_body();
    assert_eq!(body.data().await.expect("data").expect("data"), "pod-a\n");
    assert!(timeout(QUIET, body.data()).await.is_err(), "the body ended by itself");
    pod.app().expect("application").release();
    assert!(end_of(&mut body).await.is_none());
}

#[tokio::test]
async fn grpc_gets_its_body_back_and_a_status() {
    let world = World::new().await;
    let pod = world.plain_pod("pod-a", "10.244.1.1").await;
    let mut client = world.h2c(pod.addr()).await;
    pod.script().next(1, Behaviour::Normal);
    pod.script().next(1, Behaviour::GrpcStatus(14));
    let call = || {
        let request = Request::post("http://app/shop.Catalog/Get")
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        request.body(()).expect("request")
    };
    let (response, mut to) = client.send.send_request(call(), false).expect("send");
    to.send_data(bytes::Bytes::from_static(b"\0\0\0\0\x02hi"), true).expect("message");
    let mut body = response.await.expect("headers").into_body();
    assert_eq!(body.data().await.expect("data").expect("data"), &b"\0\0\0\0\x02hi"[..]);
    assert!(body.data().await.is_none());
    let trailers = body.trailers().await.expect("trailers").expect("trailers");
    assert_eq!(trailers.get("grpc-status").map(|value| value.as_bytes()), Some(&b"0"[..]));

    let (response, _) = client.send.send_request(call(), true).expect("send");
    let response = response.await.expect("headers");
    assert_eq!(response.headers().get("grpc-status").map(|value| value.as_bytes()), Some(&b"14"[..]));
}
