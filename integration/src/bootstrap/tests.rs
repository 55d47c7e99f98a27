use std::time::Duration;

use serde_json::json;

use super::*;

const TWO_HOSTS: [&str; 2] = ["a.default.svc.cluster.local", "b.default.svc.cluster.local"];

fn shipped() -> Bootstrap {
    Bootstrap::load().expect("the shipped file is readable YAML")
}

fn at(bootstrap: &Bootstrap, pointer: &str) -> Value {
    bootstrap.value().pointer(pointer).cloned().unwrap_or(Value::Null)
}

#[test]
fn the_shipped_file_has_all_four_extension_points() {
    let bootstrap = shipped();
    for point in ExtensionPoint::ALL {
        let places = bootstrap.extension(point);
        let expected = if point == ExtensionPoint::Watch { 2 } else { 1 };
        assert_eq!(places.len(), expected, "{point:?}: {places:?}");
    }
}

#[test]
fn the_fence_stands_before_the_pool_key_and_the_tunnel() {
    let bootstrap = shipped();
    let listener = bootstrap.listener("connect_originate").expect("listener");
    let filters = at(&bootstrap, &format!("{listener}{}", at::FILTERS));
    let names: Vec<_> = filters.as_array().into_iter().flatten().map(|filter| filter["name"].clone()).collect();
    let expected = ["stale_guard.fence", "envoy.filters.network.set_filter_state", "envoy.filters.network.tcp_proxy"];
    assert_eq!(names, expected.map(|name| json!(name)), "another order leaves the generation out of the pool key");
}

#[test]
fn stock_has_nothing_of_stale_guard() {
    let bootstrap = shipped().variant(Variant::Stock).expect("stock");
    let text = bootstrap.value().to_string();
    assert!(!text.contains("dynamic_modules"), "a control run must not load the module");
    assert!(!text.contains("set_filter_state"), "a control run must have stock pool keys");
    let proxy = bootstrap.tunnel_filter("envoy.filters.network.tcp_proxy").expect("tcp_proxy");
    assert_eq!(at(&bootstrap, &format!("{proxy}/typed_config/max_connect_attempts")), json!(1));
}

#[test]
fn fence_only_keeps_watch_and_fence() {
    let bootstrap = shipped().variant(Variant::FenceOnly).expect("fence only");
    assert!(bootstrap.extension(ExtensionPoint::Retry).is_empty());
    assert_eq!(bootstrap.extension(ExtensionPoint::Fence).len(), 1);
    assert_eq!(bootstrap.extension(ExtensionPoint::Watch).len(), 2);
}

#[test]
fn stale_guard_is_the_shipped_file() {
    assert_eq!(shipped().variant(Variant::StaleGuard).expect("as shipped"), shipped());
}

#[test]
fn every_service_gets_a_route_like_the_example() {
    let bootstrap = shipped()
        .with_services(&TWO_HOSTS)
        .and_then(|bootstrap| bootstrap.with_retry_on("reset"))
        .and_then(|bootstrap| bootstrap.with_route_timeout(Duration::from_millis(1500)))
        .expect("patched");
    let routes = at(&bootstrap, &format!("{}{}", bootstrap.hcm().expect("hcm"), at::ROUTES));
    let routes = routes.as_array().expect("routes");
    assert_eq!(routes.len(), 2);
    for (route, host) in routes.iter().zip(TWO_HOSTS) {
        assert_eq!(route["route"]["cluster"], json!(cluster_name(host, 80)));
        assert_eq!(route["match"]["headers"][0]["string_match"]["exact"], json!(host));
        assert_eq!(route["route"]["retry_policy"]["retry_on"], json!("reset"));
        assert_eq!(route["route"]["retry_policy"]["num_retries"], json!(2), "the rest of the policy stays");
        assert_eq!(route["route"]["timeout"], json!("1.500000000s"));
    }
}

#[test]
fn both_validators_get_the_same_configuration() {
    let config = json!({ "treat_as_removed": [] });
    let bootstrap = shipped().with_config(ExtensionPoint::Watch, &config).expect("patched");
    for place in bootstrap.extension(ExtensionPoint::Watch) {
        assert_eq!(at(&bootstrap, &format!("{place}/typed_config/extension_config/value")), config);
    }
}

#[test]
fn changing_some_fields_keeps_the_others() {
    let bootstrap =
        shipped().with_config_fields(ExtensionPoint::Status, &json!({ "suspect_after": "1s" })).expect("patched");
    let place = bootstrap.extension(ExtensionPoint::Status).pop().expect("status");
    let value = at(&bootstrap, &format!("{place}/typed_config/extension_config/value"));
    assert_eq!(value["suspect_after"], json!("1s"));
    assert_eq!(value["admin_path"], Value::Null, "what the file leaves to the default stays so");
    assert_eq!(value["capacity"], json!(65536));
}

#[test]
fn a_change_without_its_place_is_an_error() {
    assert!(shipped().patch("/no/such/place", json!(1)).is_err());
    assert!(shipped().patch("/static_resources/clusters/99", json!(1)).is_err());
    assert!(shipped().remove("/static_resources/clusters/99").is_err());
    assert!(shipped().without_module().and_then(Bootstrap::without_module).is_err());
    assert!(shipped().variant(Variant::Stock).and_then(|b| b.with_config(ExtensionPoint::Fence, &json!({}))).is_err());
}

#[test]
fn addresses_are_read_back_as_they_were_set() {
    let admin = "127.0.0.1:15999".parse().expect("address");
    let listen = "[::]:8081".parse().expect("address");
    let bootstrap = shipped().with_admin(admin).and_then(|b| b.with_listener(listen)).expect("patched");
    assert_eq!(bootstrap.admin().expect("admin"), admin);
    assert_eq!(bootstrap.listen().expect("listen"), listen);
    let cluster = bootstrap.cluster("prometheus_stats").expect("cluster");
    let port = at(&bootstrap, &format!("{cluster}{}/port_value", at::STATIC_ADDRESS));
    assert_eq!(port, json!(15999), "the status extension polls through this cluster");
}
