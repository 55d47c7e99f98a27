//! What the scenes share, beyond the lab's own.

pub(crate) use lab::scenes::{
    BROKEN, broken, fence, hold, hung, outer, outer_open, replace_after_drain, replace_after_removal,
    replace_in_the_dark, warm,
};
use lab::{
    bootstrap::Bootstrap,
    mesh::{Mesh, WITHIN},
};
use serde_json::Value;

/// Every tunnel is logged, not only those that could not be opened.
pub(crate) fn log_all_tunnels(bootstrap: Bootstrap) -> anyhow::Result<Bootstrap> {
    let proxy = bootstrap.tunnel_filter("envoy.filters.network.tcp_proxy")?;
    bootstrap.remove(&format!("{proxy}/typed_config/access_log/0/filter"))
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

/// The tunnels that the fence counts as reset, of every class.
pub(crate) async fn resets(mesh: &Mesh) -> u64 {
    mesh.envoy.admin().stats(r"^dynamicmodulescustom\.fence_reset_").await.unwrap().values().sum()
}

/// Runs on this Envoy, as it is configured there: without validators before 1.40.
pub(crate) fn on(version: &str, setup: lab::mesh::Setup) -> lab::mesh::Setup {
    let binary = lab::envoy::Binary::version(version).unwrap();
    let setup = setup.envoy(|options| options.binary = Some(binary));
    if version == "1.40.0" { setup } else { setup.bootstrap(Bootstrap::without_config_validators) }
}

/// The Envoys that the module is tested on.
pub(crate) const VERSIONS: [&str; 3] = ["1.38.3", "1.39.3", "1.40.0"];
