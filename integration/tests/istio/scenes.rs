//! What the tests share.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use lab::envoy::Binary;
use lab::istio::{Guard, IstioMesh, Reply, Setup};
use lab::pod::Pod;
use lab::ztunnel::Tunnel;

/// How the module learns of endpoints, and on which Envoy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feed {
    /// By polls, on the Envoy of Istio 1.31.
    Polls139,
    /// By polls, on Envoy 1.40.
    Polls140,
    /// By config validators, on Envoy 1.40; no build of Istio has them yet.
    Validator140,
}

impl Feed {
    pub(crate) const ALL: [Self; 3] = [Self::Polls139, Self::Polls140, Self::Validator140];

    pub(crate) fn setup(self, guard: Guard) -> Setup {
        let version = if self == Self::Polls139 { "1.39.3" } else { "1.40.0" };
        let binary = Binary::version(version).unwrap();
        let setup = Setup::new(guard).envoy(|options| options.binary = Some(binary));
        if self == Self::Validator140 && guard != Guard::Stock { setup.validator() } else { setup }
    }
}

pub(crate) fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A pod of `echo` that Envoy and the module know and that has answered: both pools to it are warm.
pub(crate) async fn warm(mesh: &IstioMesh, name: &str) -> Pod {
    let pod = mesh.pod(name, 1).await.unwrap();
    mesh.announce(&pod, "echo").await.unwrap();
    mesh.health("echo", pod.addr(), "HEALTHY").await.unwrap();
    let first = first(mesh, Method::GET, "echo").await;
    assert_eq!((first.status, first.pod()), (StatusCode::OK, Some(name)), "before the fault: {first:?}");
    // By polls, an endpoint that came and went between two of them was never there.
    mesh.known(1).await.unwrap();
    pod
}

/// The first request that Envoy gives to an endpoint. A worker learns up to a second late that an endpoint is
/// healthy (Envoy's `update_merge_window`); until then Envoy itself answers, and no connection is touched.
pub(crate) async fn first(mesh: &IstioMesh, method: Method, service: &str) -> Reply {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let request = mesh.request(method.clone(), "/").body(Bytes::from_static(b"one order")).unwrap();
        let reply = mesh.send(service, request).await.unwrap();
        if reply.body != "no healthy upstream" || Instant::now() > deadline {
            return reply;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Outer connections that broke under a tunnel: 0 says that no dead one was touched.
pub(crate) async fn broken(mesh: &IstioMesh) -> u64 {
    let stats =
        mesh.envoy.admin().stats(r"^cluster\.connect_originate;?\.upstream_cx_destroy_remote_with_active_rq$").await;
    let stats = stats.unwrap();
    assert_eq!(stats.len(), 1, "the statistic is kept: {stats:?}");
    stats.values().sum()
}

/// Waits until no tunnel to the pod is open: the proxy has given up its connections to a removed endpoint.
pub(crate) async fn tunnels_closed(pod: &Pod) {
    let closed = |tunnels: &[Tunnel]| tunnels.iter().all(|tunnel| tunnel.closed.is_some()).then_some(());
    pod.ztunnel().unwrap().tunnels().wait_for("the last tunnel's end", closed).await.unwrap();
}
