//! An access log can show the age of the connection that served or failed a request.

use std::time::Duration;

use http::StatusCode;
use lab::{
    app::Behaviour,
    bootstrap::Variant,
    control_plane::{Endpoint, Service, cluster_name},
    mesh::{ECHO, Setup},
    pod::PodSpec,
};

use crate::scenes::{http_entry, page, warm};

#[tokio::test(flavor = "multi_thread")]
async fn a_request_through_a_tunnel_shows_the_outer_connections_age() {
    let (mesh, pod) = warm(Setup::new(Variant::StaleGuard)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let reply = mesh.get(ECHO, "/").await.unwrap();
    let entry = http_entry(&mesh, &reply.id).await;
    let told = &entry["stale_guard"];
    assert!(told["upstream_connection_age_ms"].as_f64().unwrap() >= 300.0, "{entry:#}");
    let page = page(&mesh, pod.ip()).await;
    assert_eq!(told["upstream_connection_id"].as_f64(), page["connections"][0]["id"].as_f64(), "{page:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_a_tunnel_shows_its_connections_age_also_when_it_fails() {
    let mesh = Setup::new(Variant::StaleGuard).start().await.unwrap();
    let ip = "10.244.1.1".parse().unwrap();
    let pod = mesh.pod_with(PodSpec { hbone: false, ..PodSpec::new("plain", ip) }).await.unwrap();
    mesh.control_plane.remove_service(&cluster_name(ECHO, 80)).unwrap();
    mesh.acked().await.unwrap();
    let endpoint = Endpoint::new(ip, pod.addr().port()).plain();
    mesh.control_plane.set_service(Service::new(ECHO, vec![endpoint]));
    mesh.acked().await.unwrap();
    let first = mesh.get(ECHO, "/").await.unwrap();
    assert_eq!(first.status, StatusCode::OK);
    let first = http_entry(&mesh, &first.id).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    pod.script().next(1, Behaviour::ReadThenReset);
    let failed = mesh.post(ECHO, "/").await.unwrap();
    assert_eq!(failed.status, StatusCode::SERVICE_UNAVAILABLE);
    let failed = http_entry(&mesh, &failed.id).await;
    assert_eq!(
        failed["stale_guard"]["upstream_connection_id"], first["stale_guard"]["upstream_connection_id"],
        "{failed:#}"
    );
    assert!(failed["stale_guard"]["upstream_connection_age_ms"].as_f64().unwrap() >= 300.0, "{failed:#}");
    let page = page(&mesh, ip).await;
    assert_eq!(page["connections"].as_array().map(Vec::len), Some(1), "{page:#}");
}
