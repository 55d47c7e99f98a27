//! A pod whose readiness flaps, and what its proxy keeps of it.

use std::net::SocketAddr;

use bytes::Bytes;
use futures::{StreamExt as _, stream::FuturesUnordered};
use http::{Method, StatusCode};
use lab::mesh::{ECHO, Mesh};

/// Outer connections that Envoy has open.
pub(crate) const OPEN: &str = "cluster.connect_originate.upstream_cx_active";
/// Pools of past generations that still carry a tunnel, or whose connections are still to be closed.
pub(crate) const LEFT_BEHIND: &str = "pools_left_behind";
/// Outer connections that the module closed.
pub(crate) const CLOSED: &str = "connections_closed";

/// The pod leaves EDS and comes back, and never stops serving.
pub(crate) async fn flap(mesh: &Mesh, pod: SocketAddr) {
    mesh.unlist(ECHO, pod).await.unwrap();
    mesh.list(ECHO, pod).await.unwrap();
}

/// So many POSTs at once, each over a client connection of its own, so that every worker has some.
/// Returns how many were not answered with 200.
pub(crate) async fn posts(mesh: &Mesh, count: usize) -> usize {
    let mut replies: FuturesUnordered<_> = (0..count)
        .map(|_| {
            let request = mesh.request(Method::POST, ECHO, "/").body(Bytes::from_static(b"x")).unwrap();
            mesh.send(request)
        })
        .collect();
    let mut failed = 0;
    while let Some(reply) = replies.next().await {
        failed += usize::from(reply.map_or(true, |reply| reply.status != StatusCode::OK));
    }
    failed
}

/// Flaps with traffic after each; returns failed requests.
pub(crate) async fn churn(mesh: &Mesh, pod: SocketAddr, flaps: usize, posts_each: usize) -> usize {
    let mut failed = 0;
    for _ in 0..flaps {
        flap(mesh, pod).await;
        failed += posts(mesh, posts_each).await;
    }
    failed
}
