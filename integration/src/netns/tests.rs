use std::io;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::*;

const GENEROUS: Duration = Duration::from_secs(20);
/// How long the wire must stay silent before a test calls it silence.
const QUIET: Duration = Duration::from_millis(700);

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an IP address")
}

async fn pair(fabric: &Fabric, a: &[&str], b: &[&str]) -> (Netns, Link, Netns, Link) {
    let parse = |addrs: &[&str]| addrs.iter().map(|addr| ip(addr)).collect::<Vec<_>>();
    let first = Netns::new("first").expect("first namespace");
    let second = Netns::new("second").expect("second namespace");
    let first_link = fabric.attach(&first, &parse(a)).await.expect("attach first");
    let second_link = fabric.attach(&second, &parse(b)).await.expect("attach second");
    (first, first_link, second, second_link)
}

/// A connection from `client` to `addr` in `server`, with an echo behind it.
async fn echo(server: &Netns, client: &Netns, addr: IpAddr) -> TcpStream {
    let listener = server.tcp_listener(SocketAddr::new(addr, 7000)).expect("listener");
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("accept");
        let (mut read, mut write) = socket.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
    });
    let mut stream = client.tcp_connect(SocketAddr::new(addr, 7000)).await.expect("connect over the bridge");
    assert_eq!(ping(&mut stream).await.expect("echo"), *b"ping");
    stream
}

async fn ping(stream: &mut TcpStream) -> io::Result<[u8; 4]> {
    let mut answer = [0; 4];
    stream.write_all(b"ping").await?;
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn both_address_families_are_usable_at_once_after_attach() {
    let fabric = Fabric::new().await.expect("fabric");
    let (_client, _cl, server, _sl) =
        pair(&fabric, &["10.244.0.2", "fd00:244::2"], &["10.244.1.1", "fd00:244::1:1"]).await;
    for addr in ["10.244.1.1", "fd00:244::1:1"] {
        let begin = Instant::now();
        echo(&server, &_client, ip(addr)).await;
        assert!(
            begin.elapsed() < Duration::from_millis(900),
            "{addr} took {:?}: the address was tentative, or neighbour discovery had to try twice",
            begin.elapsed()
        );
    }
}

#[tokio::test]
async fn a_cut_link_is_silent_for_new_and_for_old_connections() {
    let fabric = Fabric::new().await.expect("fabric");
    let (client, _cl, server, link) = pair(&fabric, &["10.244.0.2"], &["10.244.1.1"]).await;
    let mut stream = echo(&server, &client, ip("10.244.1.1")).await;
    link.cut().await.expect("cut");
    assert_eq!(fabric.ports().await.expect("ports").len(), 1, "the veth pair still exists");

    assert!(timeout(QUIET, ping(&mut stream)).await.is_err(), "the old connection was told");
    // Neighbour resolution gives up after three probes, a second apart.
    let connecting = client.tcp_connect("10.244.1.1:7000".parse().expect("address"));
    let outcome = timeout(Duration::from_secs(4), connecting).await;
    assert!(outcome.is_err(), "a new connection was told: {outcome:?}");
}

#[tokio::test]
async fn neighbours_expire_where_a_test_asks_for_it() {
    let fabric = Fabric::new().await.expect("fabric");
    let (client, _cl, _server, link) = pair(&fabric, &["10.244.0.2"], &["10.244.1.1"]).await;
    link.cut_with(Silence::NeighbourExpires).await.expect("cut");
    let connecting = client.tcp_connect("10.244.1.1:7000".parse().expect("address"));
    let error = timeout(GENEROUS, connecting).await.expect("ARP gives up").expect_err("no host");
    assert_eq!(error.kind(), io::ErrorKind::HostUnreachable);
}

#[tokio::test]
async fn a_new_namespace_on_the_same_address_has_the_same_mac_and_resets_old_connections() {
    let fabric = Fabric::new().await.expect("fabric");
    for addr in ["10.244.1.1", "fd00:244::1:1"] {
        let own = if addr.contains(':') { "fd00:244::2" } else { "10.244.0.2" };
        let (client, _cl, server, link) = pair(&fabric, &[own], &[addr]).await;
        let mut stream = echo(&server, &client, ip(addr)).await;
        let mac = link.mac();
        link.cut().await.expect("cut");
        let successor = Netns::new("successor").expect("namespace");
        let link = fabric.attach(&successor, &[ip(addr)]).await.expect("attach successor");
        assert_eq!(link.mac(), mac);
        let error = timeout(GENEROUS, ping(&mut stream)).await.expect("an answer").expect_err("RST");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{addr}");
        link.cut().await.expect("cut successor");
        drop(client);
        _cl.cut().await.expect("cut client");
    }
}

#[tokio::test]
async fn a_black_hole_swallows_everything_until_it_heals() {
    let fabric = Fabric::new().await.expect("fabric");
    let (client, _cl, server, link) = pair(&fabric, &["10.244.0.2"], &["10.244.1.1"]).await;
    let mut stream = echo(&server, &client, ip("10.244.1.1")).await;
    link.black_hole().await.expect("black hole");
    let mut answer = [0; 4];
    stream.write_all(b"ping").await.expect("the kernel takes the bytes");
    assert!(timeout(QUIET, stream.read_exact(&mut answer)).await.is_err(), "bytes got through");
    link.heal().await.expect("heal");
    timeout(GENEROUS, stream.read_exact(&mut answer))
        .await
        .expect("TCP retransmits after the link healed")
        .expect("the connection survived");
}

#[tokio::test]
async fn an_address_that_moves_to_another_links_mac_is_found_there() {
    let fabric = Fabric::new().await.expect("fabric");
    let (client, _cl, _server, link) = pair(&fabric, &["10.244.0.2"], &["10.244.1.1"]).await;
    link.cut().await.expect("cut");
    let successor = Netns::new("successor").expect("namespace");
    let link = fabric.attach(&successor, &[ip("10.244.9.9")]).await.expect("attach");
    link.add_address(ip("10.244.1.1")).await.expect("add address");
    assert_eq!(link.addrs().len(), 2);
    echo(&successor, &client, ip("10.244.1.1")).await;
}

#[tokio::test]
async fn an_address_cannot_be_held_twice() {
    let fabric = Fabric::new().await.expect("fabric");
    let (_a, _al, _b, _bl) = pair(&fabric, &["10.244.0.2"], &["10.244.1.1"]).await;
    let third = Netns::new("third").expect("namespace");
    let error = fabric.attach(&third, &[ip("10.244.1.1")]).await.expect_err("held by `second`");
    assert!(error.to_string().contains("second"), "{error}");
}

#[tokio::test]
async fn dropping_everything_leaves_no_thread_and_no_port() {
    let fabric = Fabric::new().await.expect("fabric");
    let (first, first_link, second, second_link) = pair(&fabric, &["10.244.0.2"], &["10.244.1.1"]).await;
    let task = |ns: &Netns| {
        let hint = ns.enter_hint();
        let (_, path) = hint.split_once("--net=").expect("hint names the namespace");
        path.split_whitespace().next().expect("a path").to_owned()
    };
    let tasks = [task(&first), task(&second)];
    assert!(tasks.iter().all(|task| std::fs::metadata(task).is_ok()), "{tasks:?}");
    drop((first, first_link, second, second_link));
    let deadline = Instant::now() + GENEROUS;
    while !fabric.ports().await.expect("ports").is_empty() || tasks.iter().any(|task| std::fs::metadata(task).is_ok()) {
        assert!(Instant::now() < deadline, "ports or threads outlive their owners");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_child_process_lives_in_the_namespace() {
    let fabric = Fabric::new().await.expect("fabric");
    let ns = Netns::new("child").expect("namespace");
    let _link = fabric.attach(&ns, &[ip("10.244.3.3")]).await.expect("attach");
    let mut command = Command::new("cat");
    command.arg("/proc/net/fib_trie").stdout(std::process::Stdio::piped());
    let output = ns.spawn(command).expect("spawn").wait_with_output().expect("cat ends");
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("10.244.3.3"), "the child sees another namespace:\n{table}");
}

#[test]
fn a_panic_on_the_namespaces_thread_reaches_the_caller_and_the_namespace_lives_on() {
    let ns = Netns::new("panics").expect("namespace");
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        ns.run(|| std::panic::panic_any("on purpose"));
    }));
    assert!(caught.is_err());
    assert_eq!(ns.run(|| 7), 7, "the thread survived");
}
