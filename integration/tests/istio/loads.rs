//! istiod's configuration with our EnvoyFilter loads, and the filters stand where they should.

use http::StatusCode;
use lab::envoy::Binary;
use lab::istio::{Guard, Setup};

fn on(version: &str, setup: Setup) -> Setup {
    let binary = Binary::version(version).unwrap();
    setup.envoy(|options| options.binary = Some(binary))
}

#[tokio::test(flavor = "multi_thread")]
async fn stock() {
    let mesh = Setup::new(Guard::Stock).start().await.unwrap();
    let pod = mesh.pod("first", 1).await.unwrap();
    mesh.announce(&pod, "echo").await.unwrap();
    mesh.listed("echo", &[pod.addr()]).await.unwrap();
    let reply = mesh.get("echo", "/").await.unwrap();
    assert_eq!((reply.status, reply.pod()), (StatusCode::OK, Some("first")), "{reply:?}");
    println!("{:#?}", mesh.filters("connect_originate").await.unwrap());
    println!("{:#?}", mesh.filters("main_internal").await.unwrap());
    let _ = on;
}
