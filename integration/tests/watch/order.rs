//! The validator's place in time, from Envoy's own log: before Envoy applies an update.

use lab::{
    control_plane::Protocol,
    mesh::{ECHO, WITHIN},
};

use crate::support::{Feed, ip, removed};

#[tokio::test(flavor = "multi_thread")]
async fn the_validator_fences_before_envoy_applies_the_removal() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let setup = Feed::Validator(protocol).setup().envoy(|options| {
            *options = options.clone().log("upstream", "debug").log("dynamic_modules", "debug");
        });
        let mesh = setup.start().await.unwrap();
        let pod = mesh.pod("pod", 1).await.unwrap();
        mesh.list(ECHO, pod.addr()).await.unwrap();
        mesh.get(ECHO, "/").await.unwrap();
        let before = mesh.envoy.log().unwrap().len();
        mesh.unlist(ECHO, pod.addr()).await.unwrap();
        removed(&mesh, ip(1), 1).await;
        mesh.drained(ECHO).await.unwrap();
        let deadline = std::time::Instant::now() + WITHIN;
        let (seen, applied) = loop {
            let log = mesh.envoy.log().unwrap();
            let log = log.get(before..).unwrap_or_default();
            let line = |text: &str| log.lines().position(|line| line.contains(text));
            if let (Some(seen), Some(applied)) =
                (line("0 endpoints added, 1 removed"), line("EDS hosts or locality weights changed"))
            {
                break (seen, applied);
            }
            assert!(std::time::Instant::now() < deadline, "the log does not tell: {log}");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        };
        assert!(seen < applied, "{protocol:?}: line {seen} must come before line {applied}");
    }
}
