//! What was measured on the real ztunnel, on the stand-in. `ZTUNNEL` runs those that apply on a real one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use h2::Reason;
use http::{Method, StatusCode};
use lab::app::Behaviour;
use lab::pod::Node;
use lab::ztunnel::{HBONE_PORT, Pings};
use rustls::HandshakeKind;
use rustls::pki_types::ServerName;
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::client::{GENEROUS, World, end_of, head};
use crate::raw::{DATA, GOAWAY, HEADERS, Next, PING, RST_STREAM, Raw, SETTINGS, WINDOW_UPDATE};
use crate::subject::Subject;

const ALL_STREAMS: u32 = (1 << 31) - 1;

/// For how long ztunnel, told to end, serves what is open.
const DEADLINE: Duration = Duration::from_secs(2);

#[tokio::test]
async fn settings_and_windows_are_ztunnels() {
    let Subject { world, pod, .. } = &Subject::start(DEADLINE).await;
    let mut raw = Raw::connect(world, pod.hbone_addr()).await;
    let Next::Frame { kind: SETTINGS, payload, .. } = raw.any().await else { panic!("SETTINGS come first") };
    let mut settings: Vec<(u16, u32)> = payload
        .chunks(6)
        .map(|one| {
            let (id, value) = one.split_at(2);
            (u16::from_be_bytes(id.try_into().unwrap()), u32::from_be_bytes(value.try_into().unwrap()))
        })
        .collect();
    settings.retain(|(id, _)| (3..=6).contains(id));
    assert_eq!(settings, [(3, 200), (4, 4 << 20), (5, 1 << 20), (6, 64 << 10)]);
    let window = loop {
        if let Next::Frame { kind: WINDOW_UPDATE, stream: 0, payload, .. } = raw.any().await {
            break u32::from_be_bytes(payload.try_into().unwrap());
        }
    };
    assert_eq!(window + 65_535, 16 << 20, "the connection's window");
}

#[tokio::test]
async fn the_201st_stream_is_refused_and_the_others_live() {
    let Subject { world, pod, .. } = &Subject::start(DEADLINE).await;
    let mut raw = Raw::connect(world, pod.hbone_addr()).await;
    for index in 0..=200 {
        raw.open(2 * index + 1, pod.addr()).await;
    }
    let (mut answered, mut refused) = (0, Vec::new());
    while answered < 200 || refused.is_empty() {
        match raw.next().await {
            Next::Frame { kind: HEADERS, .. } => answered += 1,
            Next::Frame { kind: RST_STREAM, stream, payload, .. } => refused.push((stream, payload)),
            next => panic!("{next:?}"),
        }
    }
    assert_eq!(refused, [(401, u32::from(Reason::REFUSED_STREAM).to_be_bytes().to_vec())]);
}

#[tokio::test]
async fn pings_are_sent_and_a_peer_that_does_not_answer_is_given_up() {
    let world = World::new().await;
    let pod = world.pod("pod-a", "10.244.1.1").await;
    assert_eq!(Pings::default(), Pings { interval: Duration::from_secs(10), timeout: Duration::from_secs(20) });
    let pings = Pings { interval: Duration::from_millis(50), timeout: Duration::from_millis(200) };
    pod.ztunnel().expect("ztunnel").set_pings(pings);
    let mut raw = Raw::connect(&world, pod.hbone_addr()).await;
    for _ in 0..3 {
        let (_, payload) = raw.frame(PING).await;
        raw.acknowledge(PING, &payload).await;
    }
    raw.frame(PING).await;
    assert_eq!(raw.go_away().await.1, u32::from(Reason::NO_ERROR));
    assert_eq!(raw.next().await, Next::CloseNotify);
}

#[tokio::test]
async fn clients_of_another_trust_domain_are_refused_by_an_alert() {
    let world = World::new().await;
    let pod = world.pod("pod-a", "10.244.1.1").await;
    for id in ["spiffe://other.domain/ns/default/sa/waypoint", "https://cluster.local/ns/default/sa/waypoint"] {
        let identity = world.authority.issue(id).expect("identity");
        let config = world.authority.client_config(&identity).expect("client config");
        let connector = TlsConnector::from(config);
        let tcp = world.tcp(pod.hbone_addr()).await;
        let mut tls = connector.connect(ServerName::from(pod.ip()), tcp).await.expect("as TLS 1.3 has it");
        let error = tls.read(&mut [0; 64]).await.expect_err("an alert");
        assert!(error.to_string().contains("CertificateUnknown"), "{id}: {error}");
    }
}

/// Connects twice with one client, which keeps its tickets.
async fn second_handshake(world: &World, to: SocketAddr) -> HandshakeKind {
    let connector = TlsConnector::from(world.client_config());
    let mut kind = None;
    for _ in 0..2 {
        let tcp = world.tcp(to).await;
        let mut tls = connector.connect(ServerName::from(to.ip()), tcp).await.expect("TLS");
        // Tickets come with the first bytes of the server.
        timeout(GENEROUS, tls.read(&mut [0; 1])).await.expect("an answer").expect("a byte");
        kind = tls.get_ref().1.handshake_kind();
    }
    kind.expect("a handshake")
}

#[tokio::test]
async fn no_tls_session_is_resumed() {
    let Subject { world, pod, .. } = &Subject::start(DEADLINE).await;
    assert_eq!(second_handshake(world, pod.hbone_addr()).await, HandshakeKind::Full);

    let addr: SocketAddr = "10.244.0.2:15009".parse().unwrap();
    let server = world.proxy.tcp_listener(addr).unwrap();
    let identity = world.authority.issue("spiffe://cluster.local/ns/default/sa/server").unwrap();
    let acceptor = TlsAcceptor::from(world.authority.server_config(&identity).unwrap());
    tokio::spawn(async move {
        while let Ok((tcp, _)) = server.accept().await {
            let mut tls = acceptor.accept(tcp).await.unwrap();
            tokio::io::AsyncWriteExt::write_all(&mut tls, b"x").await.unwrap();
            tokio::spawn(async move { tls.read(&mut [0; 1]).await });
        }
    });
    let control = second_handshake(world, addr).await;
    assert_eq!(control, HandshakeKind::Resumed, "a server that resumes shows that this client would");
}

#[tokio::test]
async fn connects_elsewhere_and_other_methods_are_refused() {
    let Subject { world, pod, .. } = &Subject::start(DEADLINE).await;
    let _other = world.pod("pod-b", "10.244.1.2").await;
    let mut outer = world.outer(pod.hbone_addr()).await;
    for (authority, status) in [
        ("10.244.1.2:8080", StatusCode::BAD_REQUEST),
        ("10.244.1.1:15001", StatusCode::SERVICE_UNAVAILABLE),
        ("10.244.1.1:15006", StatusCode::SERVICE_UNAVAILABLE),
        ("10.244.1.1:15008", StatusCode::SERVICE_UNAVAILABLE),
        ("echo.default.svc.cluster.local:80", StatusCode::SERVICE_UNAVAILABLE),
        ("10.244.1.1", StatusCode::BAD_REQUEST),
    ] {
        let answer = outer.connect_to(authority).await.expect("an answer");
        assert_eq!(answer.status, status, "{authority}");
    }
    let (status, _) = outer.request(Method::GET, "/", "one").await.expect("an answer");
    assert_eq!(status, StatusCode::BAD_REQUEST, "a method other than CONNECT");
    assert_eq!(outer.connect(pod.addr()).await.expect("an answer").status, StatusCode::OK);
}

#[tokio::test]
async fn an_applications_reset_in_mid_answer_looks_like_its_end() {
    let Subject { world, pod, .. } = &Subject::start(DEADLINE).await;
    let mut outer = world.outer(pod.hbone_addr()).await;
    let mut tunnel = outer.connect(pod.addr()).await.expect("tunnel");
    pod.script().next(1, Behaviour::HeadersThenReset);
    tunnel.send("GET", "/", "cut").expect("send");
    tunnel.expect("xxxxxxxxxx").await.expect("ten bytes of a hundred");
    let end = end_of(&mut tunnel.from).await;
    assert!(end.is_none(), "END_STREAM: {end:?}");
}

#[tokio::test]
async fn sigterm_sends_two_goaways_serves_to_the_deadline_and_leaves_late_connects_unanswered() {
    let subject = Arc::new(Subject::start(DEADLINE).await);
    let Subject { world, pod, .. } = &*subject;
    let mut raw = Raw::connect(world, pod.hbone_addr()).await;
    let mut idle = Raw::connect(world, pod.hbone_addr()).await;
    raw.open(1, pod.addr()).await;
    assert_eq!(raw.frame(HEADERS).await.0, 1);
    // Its SETTINGS are answered: both sides know each other.
    assert_eq!(idle.next_if_any().await, Next::Nothing);

    let begin = Instant::now();
    let told = Arc::clone(&subject);
    let end = tokio::spawn(async move { told.terminate().await });
    assert_eq!(raw.go_away().await, (ALL_STREAMS, 0));
    let (_, ping) = raw.frame(PING).await;
    assert_eq!(ping, [0x0b, 0x7b, 0xa2, 0xf0, 0x8b, 0x9b, 0xfe, 0x54]);
    // A CONNECT that crosses the GOAWAY.
    raw.open(3, pod.addr()).await;
    raw.acknowledge(PING, &ping).await;
    assert_eq!(raw.go_away().await, (3, 0), "the second GOAWAY covers the stream that crossed");
    let refused = world.proxy.tcp_connect(pod.hbone_addr()).await.expect_err("the listener is closed at once");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);

    assert_eq!(idle.go_away().await, (ALL_STREAMS, 0));
    let (_, ping) = idle.frame(PING).await;
    idle.acknowledge(PING, &ping).await;
    assert_eq!(idle.go_away().await.1, 0);
    assert_eq!(idle.next().await, Next::CloseNotify, "an idle connection ends in order");

    raw.send(DATA, 0, 1, head("GET", "/", "during").as_bytes()).await;
    assert_eq!(raw.frame(DATA).await.0, 1, "an open tunnel is served");
    assert_eq!(raw.next().await, Next::Cut, "neither an answer to stream 3 nor close_notify");
    let took = begin.elapsed();
    assert!(took >= DEADLINE && took < DEADLINE + Duration::from_secs(1), "cut at the deadline, but after {took:?}");
    end.await.expect("no panic");
    assert_eq!(pod.executed("during"), 1);
}

#[tokio::test]
async fn a_pod_taken_from_ztunnel_with_its_link_up_is_cut_at_once_and_its_port_refuses() {
    let subject = Subject::start(DEADLINE).await;
    let Subject { world, pod, .. } = &subject;
    let mut raw = Raw::connect(world, pod.hbone_addr()).await;
    raw.open(1, pod.addr()).await;
    raw.frame(HEADERS).await;
    let begin = Instant::now();
    subject.remove().await;
    assert_eq!(raw.next().await, Next::Cut, "FIN without a GOAWAY and without close_notify");
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(1), "at once, the real one within 4 ms; here it took {took:?}");
    let refused = world.proxy.tcp_connect(pod.hbone_addr()).await.expect_err("the port is closed");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn a_pod_whose_link_goes_first_says_nothing() {
    let Subject { world, pod, .. } = Subject::start(DEADLINE).await;
    let mut raw = Raw::connect(&world, pod.hbone_addr()).await;
    raw.open(1, pod.addr()).await;
    raw.frame(HEADERS).await;
    pod.vanish().await.expect("vanish");
    assert_eq!(raw.next_if_any().await, Next::Nothing);
}

#[tokio::test]
async fn a_surge_restart_refuses_nobody_and_serves_old_tunnels_to_the_deadline() {
    let world = World::new().await;
    let pods = [world.pod("a", "10.244.1.1").await, world.pod("b", "10.244.1.2").await];
    let [pod, _] = &pods;
    let mut old = Raw::connect(&world, pod.hbone_addr()).await;
    old.open(1, pod.addr()).await;
    old.frame(HEADERS).await;
    let node = Node::of(&pods).expect("node");
    let restart = tokio::spawn(async move { node.surge_restart_ztunnel(Duration::from_millis(800)).await });
    let mut young = Vec::new();
    while !restart.is_finished() {
        match world.try_outer(pod.hbone_addr()).await {
            Ok(outer) => young.push(outer),
            // It waited in the first socket's queue to be accepted; the kernel resets those.
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    restart.await.expect("no panic").expect("restart");
    assert_eq!(old.go_away().await, (ALL_STREAMS, 0));
    let (_, ping) = old.frame(PING).await;
    assert_eq!(ping.len(), 8);
    assert_eq!(old.next().await, Next::Cut, "the deadline cuts what is left");
    let mut last = young.pop().expect("connections");
    last.connect(pod.addr()).await.expect("the successor serves").get("/", "after").await.expect("answer");
    assert_eq!(pod.executed("after"), 1);
}

#[tokio::test]
async fn goaways_are_sent_in_any_order_with_any_last_stream() {
    let world = World::new().await;
    let pod = world.pod("pod-a", "10.244.1.1").await;
    let ztunnel = pod.ztunnel().expect("ztunnel");
    let mut raw = Raw::connect(&world, pod.hbone_addr()).await;
    for stream in [1, 3] {
        raw.open(stream, pod.addr()).await;
        assert_eq!(raw.frame(HEADERS).await.0, stream);
    }
    ztunnel.go_away(1, Reason::ENHANCE_YOUR_CALM);
    assert_eq!(raw.go_away().await, (1, u32::from(Reason::ENHANCE_YOUR_CALM)), "below a stream that is open");
    ztunnel.go_away(ALL_STREAMS, Reason::NO_ERROR);
    assert_eq!(raw.go_away().await, (ALL_STREAMS, 0));
    raw.send(DATA, 0, 3, head("GET", "/?bytes=200000", "big").as_bytes()).await;
    let mut received = 0;
    let mut goaways = 0;
    while received < 200_000 && goaways < 50 {
        match raw.next().await {
            Next::Frame { kind: DATA, payload, .. } => {
                received += payload.len();
                // The client's windows are the default ones.
                let more = u32::try_from(payload.len()).unwrap().to_be_bytes();
                raw.send(WINDOW_UPDATE, 0, 0, &more).await;
                raw.send(WINDOW_UPDATE, 0, 3, &more).await;
                ztunnel.go_away(3, Reason::NO_ERROR);
            }
            Next::Frame { kind: GOAWAY, .. } => goaways += 1,
            next => panic!("a frame was torn, or the connection ended: {next:?}"),
        }
    }
    assert!(received >= 200_000 && goaways > 0, "{received} bytes, {goaways} GOAWAYs in between");
}

#[tokio::test]
async fn one_flow_is_lost_and_found_while_the_others_go_on() {
    let world = World::new().await;
    let pod = world.pod("pod-a", "10.244.1.1").await;
    let connections = pod.ztunnel().expect("ztunnel").connections().clone();
    let mut lost = world.outer(pod.hbone_addr()).await;
    let mut tunnel = lost.connect(pod.addr()).await.expect("tunnel");
    tunnel.get("/", "before").await.expect("answer");
    let mut other = world.outer(pod.hbone_addr()).await;
    let id = connections.log().with(|all| all.iter().find(|one| one.peer == lost.local).map(|one| one.id)).unwrap();
    connections.lose(id).expect("filter");
    tunnel.send("GET", "/", "lost").expect("send");
    assert!(lost.is_silent().await, "neither an answer nor an end");
    other.connect(pod.addr()).await.expect("tunnel").get("/", "beside").await.expect("answer");
    assert_eq!((pod.executed("lost"), pod.executed("beside")), (0, 1));
    connections.find(id).expect("filter");
    tunnel.expect("HTTP/1.1 200").await.expect("TCP retransmits");
    assert_eq!(pod.executed("lost"), 1);
}

/// Whether a connection ends by `TCP_USER_TIMEOUT` while bytes wait to be sent.
async fn times_out(close_window: bool) -> bool {
    let world = World::new().await;
    let pod = world.pod("pod-a", "10.244.1.1").await;
    let connections = pod.ztunnel().expect("ztunnel").connections().clone();
    let outer = world.outer(pod.hbone_addr()).await;
    let id = connections.open_ids()[0];
    drop(outer);
    connections.wait_closed(id).await.expect("an end");
    // A bare connection: what is sent are the bytes of a handshake that ztunnel does not read to its end.
    let tcp = world.tcp(pod.hbone_addr()).await;
    let socket = socket2::SockRef::from(&tcp);
    socket.set_tcp_user_timeout(Some(Duration::from_millis(300))).expect("option");
    socket.set_send_buffer_size(1 << 20).expect("option");
    let local = tcp.local_addr().expect("address");
    let find = |all: &[lab::pod::Connection]| all.iter().find(|one| one.peer == local).map(|one| one.id);
    let id = connections.log().wait_for("the connection", find).await.expect("accepted");
    if close_window {
        connections.close_window(id).expect("option");
    }
    let writing = async {
        loop {
            tcp.writable().await.expect("writable");
            match tcp.try_write(&[0x16; 16 << 10]) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return error.kind(),
                Ok(_) => {}
            }
        }
    };
    timeout(GENEROUS, writing).await.expect("an end") == std::io::ErrorKind::TimedOut
}

#[tokio::test]
async fn a_peer_with_a_zero_window_is_given_up_by_the_user_timeout() {
    assert!(times_out(true).await, "the kernel counts unanswered bytes, although its probes are acknowledged");
    assert!(!times_out(false).await, "the control ends by the peer's own doing, an alert");
}

#[tokio::test]
async fn a_delayed_link_shows_its_round_trip_time_and_carries_everything() {
    const DELAY: Duration = Duration::from_millis(20);
    let world = World::new().await;
    let pod = world.pod("pod-a", "10.244.1.1").await;
    pod.link().delay(DELAY).await.expect("delay");
    let connect = async |port: u16| {
        let begin = Instant::now();
        let result = world.proxy.tcp_connect(SocketAddr::new(pod.ip(), port)).await;
        (begin.elapsed(), result.map_err(|error| error.kind()).err())
    };
    // Neighbours are resolved by the first one.
    connect(8080).await;
    let (took, error) = connect(8080).await;
    assert!(error.is_none() && took >= 2 * DELAY, "one round trip: {took:?} {error:?}");
    assert!(took < 4 * DELAY, "and not two: {took:?}");
    let (took, error) = connect(9).await;
    assert_eq!(error, Some(std::io::ErrorKind::ConnectionRefused));
    assert!(took >= 2 * DELAY, "a refusal takes as long: {took:?}");

    let mut outer = world.outer(pod.hbone_addr()).await;
    let mut tunnel = outer.connect(pod.addr()).await.expect("tunnel");
    tunnel.send("GET", "/?bytes=3000000", "big").expect("send");
    let mut received = 0;
    while received < 3_000_000 {
        let chunk = timeout(GENEROUS, tunnel.from.data()).await.expect("in time").expect("more").expect("data");
        tunnel.from.flow_control().release_capacity(chunk.len()).expect("window");
        received += chunk.len();
    }
    pod.link().black_hole().await.expect("black hole");
    tunnel.send("GET", "/", "later").expect("send");
    assert!(outer.is_silent().await);
    pod.link().heal().await.expect("heal");
    tunnel.expect("HTTP/1.1 200").await.expect("TCP retransmits");
    pod.vanish().await.expect("vanish");
    let _successor = world.pod("pod-b", "10.244.1.1").await;
    assert!(world.proxy.tcp_connect(SocketAddr::new("10.244.1.1".parse().unwrap(), HBONE_PORT)).await.is_ok());
}
