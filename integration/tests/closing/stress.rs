//! No request is lost to closing, also where descriptors run out.

use lab::{
    bootstrap::Variant,
    mesh::{ECHO, Setup},
    scenes::fence,
};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;

use crate::support::{CLOSED, LEFT_BEHIND, churn, flap, posts};

/// POSTs of the stress run; `STALE_GUARD_STRESS` asks for another number.
fn stress() -> usize {
    std::env::var("STALE_GUARD_STRESS").ok().map_or(6_000, |number| number.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread")]
async fn no_post_is_lost_while_generations_end_under_it() {
    const AT_ONCE: usize = 40;
    let mesh = Setup::new(Variant::StaleGuard).workers(4).start().await.unwrap();
    let pods = [mesh.pod("flapping", 1).await.unwrap(), mesh.pod("steady", 2).await.unwrap()];
    for pod in &pods {
        mesh.list(ECHO, pod.addr()).await.unwrap();
    }
    let (mut sent, mut failed) = (0, 0);
    while sent < stress() {
        // The endpoint leaves and returns while POSTs are on their way to it; the other one takes the rest.
        let ((), lost) = tokio::join!(flap(&mesh, pods[0].addr()), posts(&mesh, AT_ONCE));
        failed += lost;
        sent += AT_ONCE;
    }
    assert_eq!(failed, 0, "of {sent}");
    mesh.wait_stat(LEFT_BEHIND, |pools| pools == 0).await.unwrap();
    assert!(mesh.stat(CLOSED).await.unwrap() > 0, "something was closed under them");
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
