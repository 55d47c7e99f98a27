//! istiod's configuration with our EnvoyFilter loads, and the filters stand where they should.

use std::time::Duration;

use http::StatusCode;
use lab::istio::objects::Service;
use lab::istio::{Guard, IstioMesh, Setup, folder};
use lab::pod::PodSpec;
use serde_json::Value;

use crate::scenes::{Feed, address, ip, warm};

const FENCE: &str = "stale_guard.fence";
const GENERATION: &str = "stale_guard.generation";
const RETRY: &str = "stale_guard.retry";
const TCP_PROXY: &str = "envoy.filters.network.tcp_proxy";
const ROUTER: &str = "envoy.filters.http.router";

const WITHIN: Duration = Duration::from_secs(10);

/// What a busy namespace may have beside a waypoint.
const POLICIES: &str = include_str!("policies.yaml");

fn busy(setup: Setup) -> Setup {
    let shop = Service::new("shop", ip("10.96.1.2")).port("http-admin", 8080, 8081).port("tcp-raw", 9000, 9000);
    let plain = Service::new("plain", ip("10.96.1.3")).port("grpc", 9090, 9090);
    setup.objects(shop.yaml()).objects(plain.yaml()).objects(POLICIES)
}

#[tokio::test(flavor = "multi_thread")]
async fn istiods_configuration_loads_with_the_filters_in_their_places() {
    for feed in Feed::ALL {
        // It settles only if Envoy refuses nothing.
        let mut mesh = busy(feed.setup(Guard::Enforce)).start().await.unwrap();
        assert_eq!(
            mesh.filters("connect_originate").await.unwrap(),
            [tunnel(&[FENCE, GENERATION, TCP_PROXY])],
            "{feed:?}"
        );
        let terminate = mesh.filters("connect_terminate").await.unwrap();
        let (_, _, http) = &terminate[0];
        assert!(!http.iter().any(|name| name == RETRY), "{feed:?}: the listener that ends HBONE sees only CONNECT");
        let chains = mesh.filters("main_internal").await.unwrap();
        let names: Vec<&str> = chains.iter().map(|(name, ..)| name.as_str()).collect();
        for service in ["80|http|echo", "80|http|shop", "8080|http|shop", "9000|tcp|shop", "9090|http|plain"] {
            let wanted = format!("inbound-vip|{service}.default.svc.cluster.local");
            assert!(names.contains(&wanted.as_str()), "{feed:?}: {wanted} is not in {names:?}");
        }
        for (name, network, http) in &chains {
            if http.is_empty() {
                assert!(
                    !network.iter().any(|filter| filter.starts_with("stale_guard")),
                    "{feed:?}: {name} {network:?}"
                );
                continue;
            }
            let last: Vec<&str> = http.iter().rev().take(2).map(String::as_str).collect();
            assert_eq!(last, [ROUTER, RETRY], "{feed:?}: chain {name}: {http:?}");
            assert_eq!(http.iter().filter(|filter| *filter == RETRY).count(), 1, "{feed:?}: chain {name}: {http:?}");
        }
        let shop = chains.iter().find(|(name, ..)| name.contains("80|http|shop")).unwrap();
        assert!(shop.2.iter().any(|filter| filter == "envoy.filters.http.rbac"), "the policy is in force: {shop:?}");
        // Traffic through the VirtualService's subset, the HTTPRoute and the policy.
        let pod = mesh
            .pod_with(PodSpec { ports: vec![8080, 8081, 9000], ..PodSpec::new("shop-1", ip("10.244.1.2")) })
            .await
            .unwrap();
        mesh.announce(&pod, "shop").await.unwrap();
        mesh.listed("shop", &[address("10.244.1.2:8080")]).await.unwrap();
        mesh.reach("shop", address("10.96.1.2:80")).unwrap();
        assert_eq!(mesh.get("shop", "/").await.unwrap().status, StatusCode::OK, "{feed:?}");
        assert_eq!(mesh.get("shop", "/forbidden").await.unwrap().status, StatusCode::FORBIDDEN, "{feed:?}");
        warm(&mesh, "first").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_without_us_is_what_istiod_generates() {
    let mesh = busy(Feed::Polls139.setup(Guard::Stock)).start().await.unwrap();
    assert_eq!(mesh.filters("connect_originate").await.unwrap(), [tunnel(&[TCP_PROXY])]);
    for (name, network, http) in mesh.filters("main_internal").await.unwrap() {
        let ours = network.iter().chain(&http).filter(|filter| filter.starts_with("stale_guard")).count();
        assert_eq!(ours, 0, "chain {name}");
    }
    assert!(tcp_proxy(&mesh).await.get("max_connect_attempts").is_none());
    warm(&mesh, "first").await;
}

/// Observe changes neither pools nor attempts.
#[tokio::test(flavor = "multi_thread")]
async fn observe_loads_and_leaves_the_number_of_connect_attempts_alone() {
    let mesh = Feed::Polls139.setup(Guard::Observe).start().await.unwrap();
    assert_eq!(mesh.filters("connect_originate").await.unwrap(), [tunnel(&[FENCE, GENERATION, TCP_PROXY])]);
    assert!(tcp_proxy(&mesh).await.get("max_connect_attempts").is_none());
    warm(&mesh, "first").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn enforce_allows_a_second_connect_and_keeps_what_istiod_set() {
    let mesh = Feed::Polls139.setup(Guard::Enforce).start().await.unwrap();
    let proxy = tcp_proxy(&mesh).await;
    assert_eq!(proxy["max_connect_attempts"], 2);
    assert_eq!(proxy["tunneling_config"]["hostname"], "%DOWNSTREAM_LOCAL_ADDRESS%");
    assert_eq!((&proxy["cluster"], &proxy["stat_prefix"]), (&"connect_originate".into(), &"connect_originate".into()));
}

/// An older proxy has no dynamic modules and would refuse the listener that every tunnel needs.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_of_an_older_istio_is_left_alone() {
    let setup = Feed::Polls139.setup(Guard::Enforce).istio_version("1.30.3");
    let mesh = setup.start().await.unwrap();
    assert_eq!(mesh.filters("connect_originate").await.unwrap(), [tunnel(&[TCP_PROXY])]);
    warm(&mesh, "first").await;
}

/// The wrong order: the filters before the file. A proxy that runs keeps what it has; one that begins has no
/// connect_originate, and every tunnel of it fails.
#[tokio::test(flavor = "multi_thread")]
async fn filters_before_the_file_are_refused_by_running_proxies_and_fatal_to_new_ones() {
    let mesh = Feed::Polls139.setup(Guard::Stock).start().await.unwrap();
    let pod = warm(&mesh, "first").await;
    let manifests = mesh.istiod.kustomize(&folder().join("waypoint/overlays/enforce")).await.unwrap();
    let filter = manifests.split("\n---\n").find(|object| object.contains("kind: EnvoyFilter")).unwrap().to_owned();
    mesh.istiod.apply(&filter).await.unwrap();
    let refused = mesh.eventually("a refusal", async || Ok(mesh.istiod.settled(1, WITHIN).await.is_err()));
    refused.await.unwrap();
    assert_eq!(mesh.filters("connect_originate").await.unwrap(), [tunnel(&[TCP_PROXY])], "the old listener stays");
    assert_eq!(mesh.get("echo", "/").await.unwrap().status, StatusCode::OK);
    drop((mesh, pod));
    let error = Feed::Polls139.setup(Guard::Stock).objects(filter).start().await.err().expect("a listener is refused");
    assert!(format!("{error:#}").contains("connect_originate"), "{error:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_filter_in_the_root_namespace_reaches_every_waypoint() {
    let mesh = Feed::Polls139.setup(Guard::Enforce).overlay("all-waypoints/enforce").start().await.unwrap();
    assert_eq!(mesh.filters("connect_originate").await.unwrap(), [tunnel(&[FENCE, GENERATION, TCP_PROXY])]);
    warm(&mesh, "first").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mesh_settings_reach_the_waypoint() {
    let values: Value =
        serde_saphyr::from_str(&std::fs::read_to_string(folder().join("mesh-settings.yaml")).unwrap()).unwrap();
    let settings = values["meshConfig"].to_string();
    let setup = Feed::Polls139.setup(Guard::Enforce).istiod(|istiod| istiod.mesh = settings);
    let mesh = setup.start().await.unwrap();
    let cluster = cluster(&mesh, "connect_originate").await;
    let options =
        &cluster["typed_extension_protocol_options"]["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"];
    assert_eq!(options["common_http_protocol_options"]["idle_timeout"], "300s", "{cluster:#}");
    assert_eq!(cluster["connect_timeout"], "5s");
    let dump = mesh.config_dump().await.unwrap().to_string();
    assert!(dump.contains(r#""retry_on":"connect-failure,refused-stream,reset-before-request""#), "no route has it");
}

/// A certificate that is renewed serves later handshakes; connections that are open stay.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_certificate_leaves_open_connections_alone() {
    let mesh = Feed::Polls139.setup(Guard::Enforce).start().await.unwrap();
    let pod = warm(&mesh, "first").await;
    let identity = mesh.authority.issue("spiffe://cluster.local/ns/default/sa/waypoint").unwrap();
    mesh.sds.rotate(identity, WITHIN).await.unwrap();
    assert_eq!(mesh.get("echo", "/").await.unwrap().status, StatusCode::OK);
    assert_eq!(pod.ztunnel().unwrap().connections().log().len(), 1, "the outer connection is the one from before");
    let second = mesh.pod("second", 2).await.unwrap();
    mesh.announce(&second, "echo").await.unwrap();
    mesh.health("echo", second.addr(), "HEALTHY").await.unwrap();
    mesh.istiod.step("first", "terminate").await.unwrap();
    mesh.listed("echo", &[second.addr()]).await.unwrap();
    let reply = mesh.get("echo", "/").await.unwrap();
    assert_eq!((reply.status, reply.pod()), (StatusCode::OK, Some("second")), "a new handshake, with the new one");
}

fn tunnel(filters: &[&str]) -> (String, Vec<String>, Vec<String>) {
    (String::new(), filters.iter().map(|name| (*name).to_owned()).collect(), Vec::new())
}

async fn tcp_proxy(mesh: &IstioMesh) -> Value {
    find(&mesh.config_dump().await.unwrap(), &|value| {
        value["name"] == TCP_PROXY && value["typed_config"]["cluster"] == "connect_originate"
    })
    .expect("connect_originate has a tcp_proxy")["typed_config"]
        .clone()
}

async fn cluster(mesh: &IstioMesh, name: &str) -> Value {
    let wanted = |value: &Value| value["name"] == name && value["connect_timeout"].is_string();
    find(&mesh.config_dump().await.unwrap(), &wanted).expect("the cluster is there")
}

fn find(value: &Value, wanted: &impl Fn(&Value) -> bool) -> Option<Value> {
    if wanted(value) {
        return Some(value.clone());
    }
    match value {
        Value::Object(fields) => fields.values().find_map(|value| find(value, wanted)),
        Value::Array(list) => list.iter().find_map(|value| find(value, wanted)),
        _ => None,
    }
}
