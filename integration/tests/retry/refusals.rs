//! Configurations that must not load, and bytes that must not matter.

use std::os::unix::process::ExitStatusExt as _;

use lab::{
    bootstrap::{Bootstrap, CertificateFiles, ExtensionPoint, Variant},
    certs::{Authority, spiffe_id},
    control_plane::Protocol,
    envoy::{Envoy, Options},
    mesh::Setup,
    netns::Netns,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{
    kinds::Transport,
    setup::{guarded, per_route, virtual_host},
    world::{ONE, World},
};

/// Bad policies, with the place that the message must name.
fn bad() -> Vec<(Value, &'static str)> {
    vec![
        (json!({ "retries": 1 }), "retries"),
        (json!({ "mode": "on" }), "mode"),
        (json!({ "max_retries": 11 }), "max_retries"),
        (json!({ "max_retries": "one" }), "max_retries"),
        (json!({ "methods": ["CONNECT"] }), "methods[0]"),
        (json!({ "per_try_timeout": "1ms" }), "per_try_timeout"),
        (json!({ "on": ["resets"] }), "on[0]"),
        (json!({ "budget": { "ratio": 2 } }), "budget.ratio"),
        (json!({ "rules": [{ "name": "r", "match": { "path": { "regex": "(" } }, "retry": true }] }), "regex"),
        (json!({ "rules": [{ "name": "r", "match": {}, "retry": false, "max_retries": 2 }] }), "rules[0]"),
    ]
}

fn bootstrap(change: impl FnOnce(Bootstrap) -> anyhow::Result<Bootstrap>) -> (Bootstrap, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new().unwrap();
    let identity = authority.issue(&spiffe_id("default", "waypoint")).unwrap();
    let (chain, key) = (&identity.cert_pem, &identity.key_pem);
    let files = CertificateFiles::write(folder.path(), chain, key, authority.ca_pem()).unwrap();
    let bootstrap = Bootstrap::load().unwrap().with_services(&[ONE]).unwrap();
    let bootstrap = bootstrap.with_ads(([127, 0, 0, 1], 15010).into(), Protocol::Delta).unwrap();
    (change(bootstrap.with_certificates(&files).unwrap()).unwrap(), folder)
}

async fn refused(what: &str, place: &str, change: impl FnOnce(Bootstrap) -> anyhow::Result<Bootstrap>) {
    let (bootstrap, _folder) = bootstrap(change);
    let netns = Netns::new("validate").unwrap();
    let validation = Envoy::validate(&netns, &bootstrap, &Options::default()).await.unwrap();
    assert_eq!(validation.status.signal(), None, "{what}: Envoy crashed\n{}", validation.log);
    assert!(!validation.status.success(), "{what} was accepted");
    let said = validation.log.lines().any(|line| line.contains("stale_guard") && line.contains(place));
    assert!(said, "{what}: no line names {place}\n{}", validation.log);
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_refuses_bad_policies_of_the_filter_with_our_message() {
    for (policy, place) in bad() {
        let what = policy.to_string();
        refused(&what, place, |bootstrap| bootstrap.with_config(ExtensionPoint::Retry, &policy)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_refuses_bad_policies_of_a_route_with_our_message() {
    for (policy, place) in bad() {
        let what = format!("per route: {policy}");
        refused(&what, place, |bootstrap| {
            let at = virtual_host(&bootstrap)?;
            bootstrap.patch(&format!("{at}/routes/0/typed_per_filter_config"), per_route(&policy))
        })
        .await;
    }
}

/// The control: good ones load, in both places.
#[tokio::test(flavor = "multi_thread")]
async fn envoy_loads_good_policies_in_both_places() {
    let (bootstrap, _folder) = bootstrap(|bootstrap| {
        let at = virtual_host(&bootstrap)?;
        let policy = json!({ "max_retries": 2, "per_try_timeout": "2s" });
        bootstrap
            .with_config(ExtensionPoint::Retry, &policy)?
            .patch(&format!("{at}/routes/0/typed_per_filter_config"), per_route(&policy))
    });
    let netns = Netns::new("validate").unwrap();
    let validation = Envoy::validate(&netns, &bootstrap, &Options::default()).await.unwrap();
    assert!(validation.status.success(), "{}", validation.log);
}

/// Requests with bytes that are no text, or no sense.
fn hostile() -> Vec<Vec<u8>> {
    let host = format!("host: {ONE}\r\n").into_bytes();
    let request =
        |line: &[u8], header: &[u8]| [line, b" HTTP/1.1\r\n", &host, header, b"connection: close\r\n\r\n"].concat();
    let mut all = Vec::new();
    for method in
        [&b"GET"[..], b"get", b"FOO", b"P\xffT", b"G\x01T", b"PROPFIND", b"M-SEARCH", b"CONNECT", &[b'A'; 300]]
    {
        all.push(request(&[method, b" /"].concat(), b""));
    }
    for path in [
        &b"/\xff\xfe"[..],
        b"/%ff%00",
        b"/%2e%2e/%zz",
        b"/\x7f",
        b"//",
        b"*",
        b"/search\xc3\x28?q=\xf0\x28\x8c",
        b"/#fragment",
        b"http://x/y",
        &[b'/'; 5_000],
    ] {
        all.push(request(&[b"GET ", path].concat(), b""));
        all.push(request(&[b"POST ", path].concat(), b"content-length: 0\r\n"));
    }
    for header in [
        &b"x-replay-safe: \xff\xfe\x80\r\n"[..],
        b"x-replay-safe: \xc3\x28\r\nx-replay-safe: \xa0\xa1\r\n",
        b"idempotency-key: \xf0\x28\x8c\xbc\r\n",
        b"x-envoy-retry-on: \xff,reset\r\n",
        b"x-envoy-max-retries: 99999999999999999999\r\n",
        b"x-envoy-max-retries: \xff1\r\n",
        b"x-envoy-max-retries: -1\r\n",
        b"x-envoy-upstream-rq-per-try-timeout-ms: \xfe\r\n",
        b"content-type: application/grpc\xff\r\n",
        b"upgrade: \xff\r\nconnection: upgrade\r\n",
        b"if-match: \xff\r\n",
        b"x-nul: a\x00b\r\n",
        b": empty\r\n",
    ] {
        all.push(request(b"GET /", header));
        all.push(request(b"PUT /", &[header, b"content-length: 0\r\n"].concat()));
    }
    all
}

/// The status of each answer; `None` where the connection was closed without one.
async fn answers(setup: Setup) -> Vec<Option<String>> {
    let world = World::start(setup, Transport::Http1).await;
    // At once: Envoy keeps a connection open for a second after it refused what came.
    let exchanges = hostile().into_iter().map(async |bytes| {
        let mut socket = world.mesh.envoy.netns().tcp_connect(world.mesh.listener()).await.unwrap();
        socket.write_all(&bytes).await.unwrap();
        let mut answer = Vec::new();
        // A reset after the answer is an answer.
        let read = tokio::time::timeout(lab::mesh::WITHIN, socket.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "no answer to {}", bytes.escape_ascii());
        let line = answer.split(|byte| *byte == b'\r').next().filter(|line| !line.is_empty());
        line.map(|line| String::from_utf8_lossy(line).into_owned())
    });
    let statuses = futures::future::join_all(exchanges).await;
    world.mesh.envoy.assert_alive().unwrap();
    assert_eq!(world.mesh.get(ONE, "/").await.unwrap().status, 200, "Envoy serves on");
    let log = world.mesh.envoy.log().unwrap();
    assert!(!log.contains("panicked"), "a panic was caught, but none may happen:\n{log}");
    statuses
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_text_neither_crash_envoy_nor_change_an_answer() {
    let policy = json!({
        "idempotency_key_headers": ["idempotency-key"],
        "rules": [
            {
                "name": "all-parts",
                "match": {
                    "methods": ["GET", "POST"],
                    "authority": "*.local",
                    "path": { "regex": "^/search" },
                    "headers": [{ "name": "x-replay-safe", "regex": "^(true|yes)$" }],
                },
                "retry": true,
                "max_retries": 2,
            },
            { "name": "deny", "match": { "headers": [{ "name": "x-replay-safe", "prefix": "n" }] }, "retry": false },
            { "name": "grpc", "match": { "grpc": { "service": "*" } }, "retry": true },
        ],
    });
    let (stock, ours) = (answers(Setup::new(Variant::Stock)).await, answers(guarded(policy)).await);
    for ((bytes, stock), ours) in hostile().iter().zip(&stock).zip(&ours) {
        assert_eq!(ours, stock, "{}", bytes.escape_ascii());
    }
    assert!(stock.iter().flatten().any(|line| line.contains(" 200")), "some of these reach an application");
}
