//! Beginnings and faults that many tests share.

use anyhow::{Context, Result, ensure};
use http::StatusCode;
use serde_json::Value;

use crate::{
    bootstrap::{Bootstrap, ExtensionPoint},
    load::{HeldStream, StreamSpec},
    mesh::{ECHO, Mesh, Setup},
    pod::Pod,
};

/// Answers with headers, and a body that never ends.
pub const HANG: &str = "/?hang=body";

/// Outer connections that broke under a tunnel: 0 says that no dead one was touched.
pub const BROKEN: &str = "cluster.connect_originate.upstream_cx_destroy_remote_with_active_rq";

/// Fields of the fence's configuration, for [`Setup::bootstrap`].
pub fn fence(fields: Value) -> impl FnOnce(Bootstrap) -> Result<Bootstrap> + Send {
    move |bootstrap| bootstrap.with_config_fields(ExtensionPoint::Fence, &fields)
}

/// A waypoint with one pod, called "old", that has answered one request: both its pools are warm.
///
/// # Errors
/// The path does not work.
pub async fn warm(setup: Setup) -> Result<(Mesh, Pod)> {
    let mesh = setup.start().await?;
    let pod = mesh.pod("old", 1).await?;
    mesh.list(ECHO, pod.addr()).await?;
    let first = mesh.get(ECHO, "/").await?;
    ensure!(
        (first.status, first.pod()) == (StatusCode::OK, Some("old")),
        "the path does not work before the fault: {first:?}"
    );
    Ok((mesh, pod))
}

/// A stream that stays open, under the id `id`.
///
/// # Errors
/// No pod answers it.
pub async fn hold(mesh: &Mesh, host: &str, id: &str) -> Result<HeldStream> {
    let stream = HeldStream::open(&mesh.connector(), &StreamSpec::get(host, HANG), id).await?;
    ensure!(stream.pod().is_some(), "no pod answers the stream {id}");
    Ok(stream)
}

/// A waypoint with one pod to which one stream is open and nothing else: no idle connection is there
/// whose end, sent to a pod that is gone, could meet the successor's RST before a request does.
///
/// # Errors
/// The path does not work.
pub async fn hung(setup: Setup) -> Result<(Mesh, Pod, HeldStream)> {
    let mesh = setup.start().await?;
    let pod = mesh.pod("old", 1).await?;
    mesh.list(ECHO, pod.addr()).await?;
    let stream = hold(&mesh, ECHO, "hung").await?;
    Ok((mesh, pod, stream))
}

/// The pod leaves EDS, then vanishes without FIN; another pod, called "new", gets its address, and EDS
/// lists it. For a pod that a stream holds: see [`replace_after_drain`].
///
/// # Errors
/// A step failed.
pub async fn replace_after_removal(mesh: &Mesh, pod: Pod) -> Result<Pod> {
    mesh.unlist(ECHO, pod.addr()).await?;
    succeed(mesh, pod).await
}

/// The same for a pod with idle inner connections only. They end first: their end still reaches the
/// pod, so that no retransmission of it meets the successor's RST before a request does.
///
/// # Errors
/// A step failed.
pub async fn replace_after_drain(mesh: &Mesh, pod: Pod) -> Result<Pod> {
    mesh.unlist(ECHO, pod.addr()).await?;
    mesh.drained(ECHO).await?;
    succeed(mesh, pod).await
}

/// The pod vanishes without FIN and another gets its address; no update says so.
///
/// # Errors
/// A step failed.
pub async fn replace_in_the_dark(mesh: &Mesh, pod: Pod) -> Result<Pod> {
    pod.vanish().await?;
    mesh.pod("new", 1).await
}

/// Outer connections that the pod accepted, open and closed.
///
#[must_use]
pub fn outer(pod: &Pod) -> usize {
    pod.ztunnel().map_or(0, |ztunnel| ztunnel.connections().log().len())
}

/// Outer connections of the pod that are open.
#[must_use]
pub fn outer_open(pod: &Pod) -> usize {
    pod.ztunnel().map_or(0, |ztunnel| ztunnel.connections().open().len())
}

/// How many dead connections were touched; see [`BROKEN`].
///
/// # Errors
/// The admin endpoint did not answer.
pub async fn broken(mesh: &Mesh) -> Result<u64> {
    mesh.envoy.admin().stat(BROKEN).await.context("count of broken outer connections")
}

async fn succeed(mesh: &Mesh, pod: Pod) -> Result<Pod> {
    let addr = pod.addr();
    let successor = replace_in_the_dark(mesh, pod).await?;
    mesh.list(ECHO, addr).await?;
    Ok(successor)
}
