//! What the scenes share.

use http::StatusCode;
use lab::{
    bootstrap::{Bootstrap, ExtensionPoint},
    load::{HeldStream, StreamSpec},
    mesh::{ECHO, Mesh, Setup, WITHIN},
    pod::Pod,
};
use serde_json::Value;

/// Answers with headers, and a body that never ends.
pub(crate) const HANG: &str = "/?hang=body";

/// Outer connections that broke under a tunnel: 0 says that no dead one was touched.
pub(crate) const BROKEN: &str = "cluster.connect_originate.upstream_cx_destroy_remote_with_active_rq";

/// Fields of the fence's configuration, for [`Setup::bootstrap`].
pub(crate) fn fence(fields: Value) -> impl FnOnce(Bootstrap) -> anyhow::Result<Bootstrap> + Send {
    move |bootstrap| bootstrap.with_config_fields(ExtensionPoint::Fence, &fields)
}

/// Every tunnel is logged, not only those that could not be opened.
pub(crate) fn log_all_tunnels(bootstrap: Bootstrap) -> anyhow::Result<Bootstrap> {
    let proxy = bootstrap.tunnel_filter("envoy.filters.network.tcp_proxy")?;
    bootstrap.remove(&format!("{proxy}/typed_config/access_log/0/filter"))
}

/// A waypoint with one pod that has answered one request, so that both its pools are warm.
pub(crate) async fn warm(setup: Setup) -> (Mesh, Pod) {
    let mesh = setup.start().await.unwrap();
    let pod = mesh.pod("old", 1).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    let first = mesh.get(ECHO, "/").await.unwrap();
    assert_eq!((first.status, first.pod()), (StatusCode::OK, Some("old")), "the path works before the fault");
    (mesh, pod)
}

/// A stream that stays open; its client is `id`.
pub(crate) async fn hold(mesh: &Mesh, host: &str, id: &str) -> HeldStream {
    let stream = HeldStream::open(&mesh.connector(), &StreamSpec::get(host, HANG), id).await.unwrap();
    assert!(stream.pod().is_some(), "a pod answers the stream {id}");
    stream
}

/// A waypoint with one pod to which one stream is open and nothing else: no idle connection is there
/// whose end, sent to a pod that is gone, could meet the successor's RST before a request does.
pub(crate) async fn hung(setup: Setup) -> (Mesh, Pod, HeldStream) {
    let mesh = setup.start().await.unwrap();
    let pod = mesh.pod("old", 1).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    let stream = hold(&mesh, ECHO, "hung").await;
    (mesh, pod, stream)
}

/// The pod leaves EDS, then vanishes without FIN; another pod gets its address, and EDS lists it.
pub(crate) async fn replace_after_removal(mesh: &Mesh, pod: Pod) -> Pod {
    let addr = pod.addr();
    mesh.unlist(ECHO, addr).await.unwrap();
    pod.vanish().await.unwrap();
    let successor = mesh.pod("new", 1).await.unwrap();
    mesh.list(ECHO, addr).await.unwrap();
    successor
}

/// The pod vanishes without FIN and another gets its address; no update says so.
pub(crate) async fn replace_in_the_dark(mesh: &Mesh, pod: Pod) -> Pod {
    pod.vanish().await.unwrap();
    mesh.pod("new", 1).await.unwrap()
}

/// Outer connections that the pod accepted, open and closed.
pub(crate) fn outer(pod: &Pod) -> usize {
    pod.ztunnel().unwrap().connections().log().len()
}

/// Outer connections that are open.
pub(crate) fn outer_open(pod: &Pod) -> usize {
    pod.ztunnel().unwrap().connections().open().len()
}

/// The access log entry of a request.
pub(crate) async fn http_entry(mesh: &Mesh, id: &str) -> Value {
    mesh.envoy.wait_for_access_log(WITHIN, |entry| entry["request_id"] == id).await.unwrap()
}

/// The access log entry of a tunnel whose reset got this class.
pub(crate) async fn tunnel_entry(mesh: &Mesh, class: &str) -> Value {
    let wanted = |entry: &Value| entry["log"] == "hbone" && entry["stale_guard"]["reset_class"] == class;
    mesh.envoy.wait_for_access_log(WITHIN, wanted).await.unwrap()
}

/// What the admin page says of an endpoint.
pub(crate) async fn page(mesh: &Mesh, ip: std::net::IpAddr) -> Value {
    let page = mesh.envoy.admin().get(&format!("/stale-guard?endpoint={ip}")).await.unwrap();
    let page: Value = serde_json::from_str(&page).unwrap();
    page["endpoints"][0].clone()
}
