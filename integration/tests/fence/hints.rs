//! The pool that closes an inner connection wakes the polls, on every Envoy.

use std::time::Duration;

use http::StatusCode;
use lab::{
    bootstrap::{Bootstrap, Variant},
    envoy::Binary,
    mesh::{ECHO, Setup},
};

use crate::scenes::{BROKEN, VERSIONS, outer, warm};

/// The endpoint has been listed for some seconds, so that polls have become rare; then it leaves, and a new pod has
/// its address 0.7 s later. Gives the status of a POST, dead connections used, and outer connections to the new pod.
async fn replaced_between_two_polls(variant: Variant, version: &str) -> (StatusCode, u64, usize) {
    let has_module = variant.has_module();
    let setup = Setup::new(variant).bootstrap(|bootstrap| bootstrap.with_max_connect_attempts(1));
    let binary = Binary::version(version).unwrap();
    let setup = setup.envoy(|options| options.binary = Some(binary));
    let setup = if has_module { setup.bootstrap(Bootstrap::without_config_validators) } else { setup };
    let (mesh, pod) = warm(setup).await.unwrap();
    let addr = pod.addr();
    if has_module {
        mesh.wait_stat("endpoints_listed", |count| count == 1).await.unwrap();
        // Without changes the pause between polls doubles, to 5 s.
        mesh.wait_stat("watch_admin_view_age_ms", |age| age > 2_000).await.unwrap();
    }
    let away = tokio::time::sleep(Duration::from_millis(700));
    mesh.unlist(ECHO, addr).await.unwrap();
    mesh.drained(ECHO).await.unwrap();
    pod.vanish().await.unwrap();
    let successor = mesh.pod("new", 1).await.unwrap();
    away.await;
    mesh.list(ECHO, addr).await.unwrap();
    let reply = mesh.post(ECHO, "/").await.unwrap();
    (reply.status, mesh.envoy.admin().stat(BROKEN).await.unwrap(), outer(&successor))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_leaves_and_returns_between_two_polls_is_seen_to_do_so() {
    for version in VERSIONS {
        let (stock, cured) = tokio::join!(
            replaced_between_two_polls(Variant::Stock, version),
            replaced_between_two_polls(Variant::FenceOnly, version)
        );
        assert_eq!(stock, (StatusCode::SERVICE_UNAVAILABLE, 1, 0), "{version}: the control run must fail");
        assert_eq!(cured, (StatusCode::OK, 0, 1), "{version}");
    }
}
