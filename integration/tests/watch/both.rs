//! Both sources at once, as shipped.

use http::StatusCode;
use lab::{
    bootstrap::{Bootstrap, Variant},
    control_plane::Service,
    mesh::{ECHO, Setup},
};

use serde_json::json;

use crate::support::{FEEDS, ip, page, polled, removed, seen, wait_polls, wait_seen};

#[tokio::test(flavor = "multi_thread")]
async fn the_validator_has_the_word_and_polls_become_rare() {
    let mesh = Setup::new(Variant::FenceOnly).start().await.unwrap();
    let pod = mesh.pod("pod", 1).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    assert_eq!(mesh.get(ECHO, "/").await.unwrap().status, StatusCode::OK);
    // The first poll finds that the validator speaks for every cluster.
    if polled(&mesh).await == 0 {
        wait_polls(&mesh, 1).await;
    }
    let polls = polled(&mesh).await;
    let mut generation = seen(&mesh, ip(1)).await.generation;
    for round in 1..=5 {
        // Each removal closes an idle tunnel, which hints at a poll.
        mesh.unlist(ECHO, pod.addr()).await.unwrap();
        mesh.drained(ECHO).await.unwrap();
        assert_eq!(removed(&mesh, ip(1), round).await.removals, round);
        mesh.list(ECHO, pod.addr()).await.unwrap();
        wait_seen(&mesh, ip(1), |seen| seen.presence == "present").await;
        assert_eq!(mesh.get(ECHO, "/").await.unwrap().status, StatusCode::OK);
        let now = seen(&mesh, ip(1)).await;
        assert_eq!((now.removals, now.fenced), (round, false), "one removal, one new generation");
        assert!(now.generation > generation);
        generation = now.generation;
    }
    let state = page(&mesh, "").await;
    assert_eq!(state["watch"]["validator"]["removed"], 5, "{state:#}");
    assert_eq!((&state["watch"]["admin"]["removed"], &state["watch"]["admin"]["added"]), (&0.into(), &0.into()));
    assert_eq!(polled(&mesh).await, polls, "no poll while the validator covers everything");
    // Nor for a new cluster, once the validator has its endpoints.
    mesh.control_plane.set_service(Service::new("new.default.svc.cluster.local", Vec::new()));
    mesh.acked().await.unwrap();
    mesh.unlist(ECHO, pod.addr()).await.unwrap();
    mesh.drained(ECHO).await.unwrap();
    removed(&mesh, ip(1), 6).await;
    assert_eq!(polled(&mesh).await, polls, "the validator speaks for the new cluster as well");
}

/// So small that no answer to a poll gets through.
fn no_room(bootstrap: Bootstrap) -> anyhow::Result<Bootstrap> {
    bootstrap.patch("/layered_runtime/layers/0/static_layer", json!({ "http.async_response_buffer_limit": 1_000 }))
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_too_large_for_envoy_are_asked_for_once_in_minutes_and_harm_nobody_that_the_validator_covers() {
    for covered in [true, false] {
        let setup = if covered { Setup::new(Variant::FenceOnly) } else { FEEDS[2].setup() };
        let mesh = setup.bootstrap(no_room).start().await.unwrap();
        mesh.wait_stat("watch_admin_errors", |errors| errors == 1).await.unwrap();
        let pod = mesh.pod("pod", 1).await.unwrap();
        // Hints: each removal closes an idle tunnel; and a cluster comes.
        for _ in 0..3 {
            mesh.list(ECHO, pod.addr()).await.unwrap();
            assert_eq!(mesh.get(ECHO, "/").await.unwrap().status, StatusCode::OK);
            mesh.unlist(ECHO, pod.addr()).await.unwrap();
            mesh.drained(ECHO).await.unwrap();
        }
        mesh.control_plane.set_service(Service::new("new.default.svc.cluster.local", Vec::new()));
        mesh.acked().await.unwrap();
        let page = page(&mesh, "?limit=0").await;
        let admin = &page["watch"]["admin"];
        assert_eq!((&admin["errors"], &admin["updates"]), (&1.into(), &0.into()), "covered {covered}: {page:#}");
        let log = mesh.envoy.log().unwrap();
        let line = log.lines().find(|line| line.contains("the admin endpoint cannot be polled")).expect("it is said");
        assert!(line.contains("http.async_response_buffer_limit"), "it names what to change: {line}");
        assert_eq!(line.contains("[warning]"), !covered, "a warning only where something is missed: {line}");
        if covered {
            removed(&mesh, ip(1), 3).await;
        }
    }
}
