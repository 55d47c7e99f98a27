//! The data plane of the lab, on the wire and without Envoy: what a proxy sees of a pod that
//! vanishes, ends, crashes, freezes; of ztunnel's faults; and that nothing stays behind.

#[path = "pods/behaviours.rs"]
mod behaviours;
#[path = "pods/client.rs"]
mod client;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use client::{GENEROUS, QUIET, World, end_of, io_kind, ip};
use http::StatusCode;
use lab::app::Behaviour;
use lab::pod::{Cause, Ending, Node, PodSpec};
use lab::ztunnel::{ConnectBehaviour, HBONE_PORT, TlsBehaviour};
use std::io::ErrorKind;
use tokio::time::timeout;

#[tokio::test]
async fn a_request_through_a_tunnel_is_recorded_with_its_outer_connection() {
    let world = World::new().await;
    for addr in ["10.244.1.1", "fd00:244::1:1"] {
        let pod = world.pod("pod-a", addr).await;
        let mut outer = world.outer(pod.hbone_addr()).await;
        let mut tunnel = outer.connect(pod.addr()).await.expect("tunnel");
        tunnel.get("/hello", "one").await.expect("answer");
        let execution = pod.wait_for_execution("one").await.expect("execution");
        assert_eq!((execution.method.as_str(), execution.path.as_str()), ("GET", "/hello"));
        assert_eq!(execution.pod, "pod-a");
        let tunnels = pod.wait_for_tunnels(1).await.expect("tunnel");
        let [logged] = tunnels.as_slice() else { panic!("one tunnel expected: {tunnels:?}") };
        assert_eq!(logged.peer, outer.local, "the log names the client's local address");
        assert_eq!(logged.authority, pod.addr().to_string());
        assert_eq!((logged.connection, logged.closed), (0, None));
        pod.vanish().await.expect("vanish");
    }
}

#[tokio::test]
async fn a_vanished_pod_is_silent_and_its_successor_resets_the_old_connection() {
    let world = World::new().await;
    let pod = world.pod("old", "10.244.1.1").await;
    let addr = pod.addr();
    let mut outer = world.outer(pod.hbone_addr()).await;
    let mut tunnel = outer.connect(addr).await.expect("tunnel");
    tunnel.get("/", "one").await.expect("answer");

    pod.vanish().await.expect("vanish");
    assert!(outer.is_silent().await, "a FIN or a RST left the pod");
    let new = world.pod("new", "10.244.1.1").await;
    assert!(outer.is_silent().await, "the new pod cannot know of the old connection");

    tunnel.send("POST", "/", "two").expect("h2 takes the bytes");
    let error = outer.end().await.expect("the connection fails");
    assert_eq!(io_kind(&error), Some(ErrorKind::ConnectionReset), "RST by the successor's kernel");
    assert_eq!(new.executed("two"), 0);
    let mut outer = world.outer(new.hbone_addr()).await;
    outer.connect(addr).await.expect("tunnel").get("/", "three").await.expect("answer");
    assert_eq!(new.executed("three"), 1);
}

#[tokio::test]
async fn a_graceful_end_sends_goaway_finishes_the_request_and_closes_with_fin() {
    let world = World::new().await;
    let pod = world.pod("pod-a", "10.244.1.1").await;
    let (addr, executions) = (pod.addr(), pod.executions().clone());
    let mut outer = world.outer(pod.hbone_addr()).await;
    let mut tunnel = outer.connect(addr).await.expect("tunnel");
    tunnel.send("GET", "/?delay_ms=300", "slow").expect("send");
    pod.wait_for_execution("slow").await.expect("execution");
    let ending = tokio::spawn(pod.end_gracefully());

    tunnel.expect("HTTP/1.1 200").await.expect("the request in progress is answered");
    let refused = timeout(GENEROUS, async {
        loop {
            match outer.connect(addr).await {
                Ok(_) => tokio::task::yield_now().await,
                Err(error) => break error,
            }
        }
    });
    let error = refused.await.expect("GOAWAY");
    assert!(error.is_go_away(), "not a GOAWAY: {error:?}");
    tunnel.to.send_data(bytes::Bytes::new(), true).expect("end of stream");
    drop(tunnel);
    assert!(outer.end().await.is_none(), "GOAWAY and FIN are no error");
    ending.await.expect("no panic").expect("graceful end");
    assert_eq!(executions.len(), 1);
}

#[tokio::test]
async fn a_tunnel_that_outlasts_the_grace_period_is_closed_with_fin() {
    let world = World::new().await;
    let pod = world.pod("pod-a", "10.244.1.1").await;
    let mut outer = world.outer(pod.hbone_addr()).await;
    let mut tunnel = outer.connect(pod.addr()).await.expect("tunnel");
    tunnel.send("GET", "/?hang=headers", "hung").expect("send");
    pod.wait_for_execution("hung").await.expect("execution");
    let done = pod.end_within(Duration::from_millis(200)).await.expect("end");
    assert!(!done, "a hung request cannot end by itself");
    let error = outer.end().await;
    let kind = error.as_ref().and_then(io_kind);
    assert_ne!(kind, Some(ErrorKind::ConnectionReset), "{error:?}");
}

#[tokio::test]
async fn a_crash_resets_every_connection_before_the_pod_is_gone() {
    let world = World::new().await;
    let pod = world.pod("pod-a", "10.244.1.1").await;
    let mut outer = world.outer(pod.hbone_addr()).await;
    let _tunnel = outer.connect(pod.addr()).await.expect("tunnel");
    let idle = world.outer(pod.hbone_addr()).await;
    pod.crash().await.expect("crash");
    for outer in [outer, idle] {
        let error = outer.end().await.expect("a failure");
        assert_eq!(io_kind(&error), Some(ErrorKind::ConnectionReset));
    }
}

#[tokio::test]
async fn a_black_hole_is_silent_and_heals() {
    let world = World::new().await;
    let pod = world.pod("pod-a", "10.244.1.1").await;
    let mut outer = world.outer(pod.hbone_addr()).await;
    let mut tunnel = outer.connect(pod.addr()).await.expect("tunnel");
    tunnel.get("/", "one").await.expect("answer");
    pod.link().black_hole().await.expect("black hole");
    tunnel.send("GET", "/", "two").expect("send");
    assert!(timeout(QUIET, tunnel.from.data()).await.is_err(), "an answer from a black hole");
    assert!(outer.is_silent().await);
    assert_eq!(pod.executed("two"), 0);
    pod.link().heal().await.expect("heal");
    tunnel.expect("HTTP/1.1 200").await.expect("TCP retransmits");
    assert_eq!(pod.executed("two"), 1);
}

#[tokio::test]
async fn a_frozen_pod_takes_bytes_and_answers_after_the_thaw() {
    let world = World::new().await;
    let pod = world.pod("pod-a", "10.244.1.1").await;
    let mut outer = world.outer(pod.hbone_addr()).await;
    let mut tunnel = outer.connect(pod.addr()).await.expect("tunnel");
    pod.freeze();
    tunnel.send("GET", "/", "one").expect("send");
    assert!(timeout(QUIET, tunnel.from.data()).await.is_err(), "a frozen pod answered");
    let connecting = timeout(QUIET, world.try_outer(pod.hbone_addr())).await;
    assert!(connecting.is_err(), "a frozen ztunnel shook hands");
    pod.thaw();
    tunnel.expect("HTTP/1.1 200").await.expect("answer");
}

#[tokio::test]
async fn one_outer_connection_can_be_ended_by_its_peer_address() {
    let world = World::new().await;
    let pod = world.pod("pod-a", "10.244.1.1").await;
    let connections = pod.ztunnel().expect("ztunnel").connections();
    for ending in [Ending::Rst, Ending::Fin] {
        let mut victim = world.outer(pod.hbone_addr()).await;
        // After an answer no byte is on its way that could turn a FIN into a RST.
        victim.connect(pod.addr()).await.expect("tunnel");
        let mut other = world.outer(pod.hbone_addr()).await;
        let id = connections
            .log()
            .with(|all| all.iter().find(|one| one.peer == victim.local).map(|one| one.id))
            .expect("the log names the peer");
        assert!(connections.end(id, ending));
        assert_eq!(connections.wait_closed(id).await.expect("closed"), Cause::Local(ending));
        let error = victim.end().await;
        let kind = error.as_ref().and_then(io_kind);
        match ending {
            Ending::Rst => assert_eq!(kind, Some(ErrorKind::ConnectionReset)),
            Ending::Fin => assert_ne!(kind, Some(ErrorKind::ConnectionReset), "{error:?}"),
        }
        other.connect(pod.addr()).await.expect("the other connection lives");
    }
}

#[tokio::test]
async fn connects_can_be_refused_left_unanswered_or_end_the_connection() {
    let world = World::new().await;
    let pod = world.pod("pod-a", "10.244.1.1").await;
    let ztunnel = pod.ztunnel().expect("ztunnel");
    let mut outer = world.outer(pod.hbone_addr()).await;
    for status in [StatusCode::SERVICE_UNAVAILABLE, StatusCode::FORBIDDEN] {
        ztunnel.next_connects(1, ConnectBehaviour::Answer(status));
        assert_eq!(outer.connect(pod.addr()).await.expect("an answer").status, status);
    }
    ztunnel.next_connects(1, ConnectBehaviour::NeverAnswer);
    assert!(timeout(QUIET, outer.connect(pod.addr())).await.is_err(), "it was answered");
    let nobody = SocketAddr::new(pod.ip(), 9);
    let status = outer.connect(nobody).await.expect("an answer").status;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "no application listens there");
    assert_eq!(outer.connect(pod.addr()).await.expect("an answer").status, StatusCode::OK);
    ztunnel.next_connects(1, ConnectBehaviour::EndConnection(Ending::Rst));
    assert!(outer.connect(pod.addr()).await.is_err());
    let statuses: Vec<_> = ztunnel.tunnels().snapshot().iter().map(|one| one.status).collect();
    assert_eq!(statuses.len(), 5, "{statuses:?}");
}

#[tokio::test]
async fn handshakes_can_be_refused_on_either_side_and_the_port_closed() {
    let world = World::new().await;
    let pod = world.pod("pod-a", "10.244.1.1").await;
    let ztunnel = pod.ztunnel().expect("ztunnel");
    for (tls, alert) in [(TlsBehaviour::RefuseClient, "UnknownCA"), (TlsBehaviour::UntrustedServer, "UnknownIssuer")] {
        ztunnel.set_tls(tls);
        let outcome = match timeout(GENEROUS, world.try_outer(pod.hbone_addr())).await {
            Ok(Ok(mut outer)) => {
                let tunnel = outer.connect(pod.addr()).await;
                tunnel.err().map(|error| format!("{error:?}"))
            }
            Ok(Err(error)) => Some(format!("{error:?}")),
            Err(_) => Some("no end".to_owned()),
        };
        let outcome = outcome.unwrap_or_default();
        assert!(outcome.contains(alert), "{tls:?}: {outcome}");
    }
    ztunnel.set_tls(TlsBehaviour::NeverAnswer);
    assert!(timeout(QUIET, world.try_outer(pod.hbone_addr())).await.is_err());
    ztunnel.set_tls(TlsBehaviour::Normal);
    ztunnel.refuse().await;
    let refused = world.try_outer(pod.hbone_addr()).await.err().expect("refused");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    ztunnel.listen().expect("listen");
    world.outer(pod.hbone_addr()).await;
}

#[tokio::test]
async fn a_ztunnel_restart_ends_the_connections_of_all_pods_of_the_node() {
    let world = World::new().await;
    let pods = [world.pod("a", "10.244.1.1").await, world.pod("b", "10.244.1.2").await];
    let elsewhere = world.pod("c", "10.244.2.1").await;
    let node = Node::of(&pods).expect("node");
    let mut outers = Vec::new();
    for pod in &pods {
        outers.push(world.outer(pod.hbone_addr()).await);
    }
    let mut unharmed = world.outer(elsewhere.hbone_addr()).await;
    node.restart_ztunnel(Ending::Rst).await.expect("restart");
    for outer in outers {
        assert_eq!(outer.end().await.as_ref().and_then(io_kind), Some(ErrorKind::ConnectionReset));
    }
    for pod in &pods {
        world.outer(pod.hbone_addr()).await.connect(pod.addr()).await.expect("it listens again");
    }
    unharmed.connect(elsewhere.addr()).await.expect("another node's connection lives");
}

#[tokio::test]
async fn the_applications_end_shows_in_the_tunnel() {
    let world = World::new().await;
    let pod = world.pod("pod-a", "10.244.1.1").await;
    let mut outer = world.outer(pod.hbone_addr()).await;
    let mut tunnel = outer.connect(pod.addr()).await.expect("tunnel");
    pod.script().next(1, Behaviour::ReadThenClose);
    tunnel.send("POST", "/", "fin").expect("send");
    let end = end_of(&mut tunnel.from).await;
    assert!(end.is_none(), "FIN is END_STREAM: {end:?}");

    let mut tunnel = outer.connect(pod.addr()).await.expect("tunnel");
    pod.script().next(1, Behaviour::ReadThenReset);
    tunnel.send("POST", "/", "rst").expect("send");
    let end = end_of(&mut tunnel.from).await;
    assert!(end.is_none(), "and so is RST, as ztunnel has it: {end:?}");
    assert_eq!((pod.executed("fin"), pod.executed("rst")), (1, 1));
    assert!(outer.is_silent().await, "the outer connection is not concerned");
}

#[tokio::test]
async fn one_pod_can_serve_many_addresses_and_ports() {
    let world = World::new().await;
    let addrs: Vec<_> = (1..=40).map(|last| ip(&format!("10.244.7.{last}"))).collect();
    let spec = PodSpec { addrs: addrs.clone(), ports: vec![80, 8080], ..PodSpec::new("m", addrs[0]) };
    let pod = world.start(spec).await;
    for (count, addr) in [addrs[0], addrs[39]].into_iter().enumerate() {
        let mut outer = world.outer(SocketAddr::new(addr, HBONE_PORT)).await;
        for port in [80, 8080] {
            let id = format!("{count}-{port}");
            let mut tunnel = outer.connect(SocketAddr::new(addr, port)).await.expect("tunnel");
            tunnel.get("/", &id).await.expect("answer");
            assert_eq!(pod.wait_for_execution(&id).await.expect("execution").port, port);
        }
    }
}

#[tokio::test]
async fn a_few_dozen_pods_are_cheap_and_leave_nothing_behind() {
    let world = World::new().await;
    let begin = Instant::now();
    let starts = (0..48).map(|n| world.pod_at(n));
    let pods = futures::future::join_all(starts).await;
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(20), "48 pods took {took:?}");
    let mut outers = Vec::new();
    for pod in &pods {
        outers.push(world.outer(pod.hbone_addr()).await);
    }
    let hints: Vec<_> = pods.iter().map(|pod| pod.netns().enter_hint()).collect();
    let tasks: Vec<_> = hints.iter().filter_map(|hint| hint.split("--net=").nth(1)).collect();
    let tasks: Vec<_> = tasks.iter().filter_map(|path| path.split(' ').next()).collect();
    assert_eq!(tasks.len(), 48);
    drop(pods);
    let deadline = Instant::now() + GENEROUS;
    while world.fabric.ports().await.expect("ports").len() > 1
        || tasks.iter().any(|task| std::fs::metadata(task).is_ok())
    {
        assert!(Instant::now() < deadline, "links or threads outlive their pods");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl World {
    async fn pod_at(&self, n: u8) -> lab::pod::Pod {
        self.pod(&format!("pod-{n}"), &format!("10.244.3.{}", n + 1)).await
    }
}
