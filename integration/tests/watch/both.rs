//! Both sources at once, as shipped.

use http::StatusCode;
use lab::{
    bootstrap::Variant,
    control_plane::Service,
    mesh::{ECHO, Setup},
};

use crate::support::{ip, page, polled, removed, seen, wait_polls, wait_seen};

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
    // A new cluster may be one that the validator does not speak for.
    mesh.control_plane.set_service(Service::new("new.default.svc.cluster.local", Vec::new()));
    mesh.acked().await.unwrap();
    let deadline = std::time::Instant::now() + lab::mesh::WITHIN;
    while polled(&mesh).await == polls {
        assert!(std::time::Instant::now() < deadline, "a new cluster must be polled for");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let state = page(&mesh, "").await;
    assert_eq!(state["watch"]["admin"]["removed"], 0, "the poll changes nothing: {state:#}");
}
