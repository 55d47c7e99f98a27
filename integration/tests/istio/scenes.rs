//! What the tests share.

use std::net::{IpAddr, SocketAddr};

use http::StatusCode;
use lab::envoy::Binary;
use lab::istio::{Guard, IstioMesh, Setup};
use lab::pod::Pod;

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

/// A pod of `echo` that Envoy has and that has answered: both pools to it are warm.
pub(crate) async fn warm(mesh: &IstioMesh, name: &str) -> Pod {
    let pod = mesh.pod(name, 1).await.unwrap();
    mesh.announce(&pod, "echo").await.unwrap();
    mesh.health("echo", pod.addr(), "HEALTHY").await.unwrap();
    let first = mesh.get("echo", "/").await.unwrap();
    assert_eq!((first.status, first.pod()), (StatusCode::OK, Some(name)), "before the fault: {first:?}");
    pod
}
