//! No request is lost to closing, also where descriptors run out.

use lab::{
    bootstrap::Variant,
    mesh::{ECHO, Setup},
    scenes::fence,
};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;

use crate::support::{LEFT_BEHIND, churn, posts};

/// POSTs of the stress run; `STALE_GUARD_STRESS` asks for another number.
fn stress() -> usize {
    std::env::var("STALE_GUARD_STRESS").ok().map_or(6_000, |number| number.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_post_is_lost_while_generations_end_under_it() {
    let mesh = Setup::new(Variant::StaleGuard).workers(4).start().await.unwrap();
    let pod = mesh.pod("flapping", 1).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    let total = stress();
    let mut failed = 0;
    for _ in 0..total / 60 {
        // POSTs run while the endpoint leaves and returns: a second pod takes what meets the gap.
        let (lost, more) = tokio::join!(churn(&mesh, pod.addr(), 1, 20), posts_through_a_flap(&mesh, pod.addr()));
        failed += lost + more;
    }
    assert_eq!(failed, 0, "of {total}");
    mesh.wait_stat(LEFT_BEHIND, |pools| pools == 0).await.unwrap();
}

async fn posts_through_a_flap(mesh: &lab::mesh::Mesh, _pod: std::net::SocketAddr) -> usize {
    posts(mesh, 40).await
}

/// With so many descriptors the module without closing fails from the 224th flap on.
#[tokio::test(flavor = "multi_thread")]
async fn four_hundred_flaps_fit_into_256_descriptors() {
    const DESCRIPTORS: u64 = 256;
    let limited = async |fields| {
        let mesh = Setup::new(Variant::StaleGuard).bootstrap(fence(fields)).start().await.unwrap();
        let pid = Pid::from_raw(mesh.envoy.pid().cast_signed()).unwrap();
        let limit = Rlimit { current: Some(DESCRIPTORS), maximum: Some(DESCRIPTORS) };
        prlimit(Some(pid), Resource::Nofile, limit).unwrap();
        let pod = mesh.pod("flapping", 1).await.unwrap();
        mesh.list(ECHO, pod.addr()).await.unwrap();
        churn(&mesh, pod.addr(), 400, 1).await
    };
    assert!(limited(json!({ "close_fenced": false })).await > 0, "the control must run out of descriptors");
    assert_eq!(limited(json!({})).await, 0);
}
