//! Rule 1's race: the module has seen a removal that the workers have not applied yet.

use std::time::Duration;

use http::StatusCode;
use lab::{
    bootstrap::Variant,
    control_plane::{Health, cluster_name},
    mesh::{ECHO, Setup},
};

use crate::scenes::{BROKEN, hold, outer};

/// Envoy applies a change of health at once only if none came within the last second
/// (`update_merge_window`); until then its workers keep the old state, while the module has seen the
/// new one. So a worker opens tunnels to an endpoint whose removal is known already.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_opened_between_the_removal_and_its_application_is_not_used_after_the_return() {
    let mesh = Setup::new(Variant::FenceOnly).start().await.unwrap();
    let (pod, other) = (mesh.pod("old", 1).await.unwrap(), mesh.pod("other", 2).await.unwrap());
    let cluster = cluster_name(ECHO, 80);
    mesh.list(ECHO, pod.addr()).await.unwrap();
    // The tunnel of before.
    let before = hold(&mesh, ECHO, "before").await;
    mesh.list(ECHO, other.addr()).await.unwrap();
    // The merge window is open from the first change on. The other pod is not to be picked.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    mesh.control_plane.set_health(&cluster, other.addr(), Health::Unhealthy).unwrap();
    mesh.acked().await.unwrap();

    mesh.control_plane.set_health(&cluster, pod.addr(), Health::Draining).unwrap();
    mesh.acked().await.unwrap();
    let between = hold(&mesh, ECHO, "between").await;
    assert_eq!(between.pod(), Some("old"), "the worker has not applied the removal, or the race is not provoked");
    assert_eq!(outer(&pod), 2, "after the removal was seen: a connection of its own, under a new generation");

    let addr = pod.addr();
    pod.vanish().await.unwrap();
    let successor = mesh.pod("new", 1).await.unwrap();
    mesh.control_plane.set_health(&cluster, addr, Health::Healthy).unwrap();
    mesh.acked().await.unwrap();
    let reply = mesh.post(ECHO, "/order").await.unwrap();
    assert_eq!((reply.status, successor.executed(&reply.id)), (StatusCode::OK, 1));
    assert_eq!(outer(&successor), 1, "neither the connection of before nor the one of between");
    assert_eq!(mesh.envoy.admin().stat(BROKEN).await.unwrap(), 0, "no dead connection was touched");
    drop((before, between));
}
