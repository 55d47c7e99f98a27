//! Clusters that come and go, and clusters with an EDS source of their own.

use std::time::Duration;

use envoy_types::pb::envoy::{
    config::core::v3::{
        ApiConfigSource, ApiVersion, ConfigSource, GrpcService, TypedExtensionConfig,
        api_config_source::ApiType,
        config_source::ConfigSourceSpecifier,
        grpc_service::{EnvoyGrpc, TargetSpecifier},
    },
    extensions::{
        config::validators::dynamic_modules::v3::DynamicModuleConfigValidator, dynamic_modules::v3::DynamicModuleConfig,
    },
};
use envoy_types::pb::google::protobuf::Duration as Seconds;
use envoy_types::util::pack_any;
use http::StatusCode;
use lab::{
    bootstrap::{Bootstrap, Variant},
    control_plane::{ENDPOINT_TYPE, Endpoint, Protocol, Service, cluster_name},
    mesh::{ECHO, Mesh, Setup, WITHIN},
    pod::Pod,
};
use serde_json::json;

use crate::support::{FEEDS, ip, page, polls, removed, seen, wait_polls, wait_seen};

const OTHER: &str = "other.default.svc.cluster.local";

/// Removes the service of the pod, which vanishes; the service comes back with another pod at its address.
async fn cluster_away_while_its_pod_is_replaced(mesh: &Mesh, pod: Pod) -> Pod {
    let addr = pod.addr();
    mesh.control_plane.remove_service(&cluster_name(ECHO, 80)).unwrap();
    mesh.acked().await.unwrap();
    mesh.drained(ECHO).await.unwrap();
    pod.vanish().await.unwrap();
    let successor = mesh.pod("successor", 1).await.unwrap();
    mesh.control_plane.set_service(Service::new(ECHO, vec![Endpoint::new(addr.ip(), addr.port())]));
    mesh.acked().await.unwrap();
    successor
}

/// Two services, so that the world is never empty.
async fn warm(setup: Setup) -> (Mesh, Pod) {
    let mesh = setup.services(&[ECHO, OTHER]).start().await.unwrap();
    let pod = mesh.pod("pod", 1).await.unwrap();
    mesh.list(ECHO, pod.addr()).await.unwrap();
    assert_eq!(mesh.get(ECHO, "/").await.unwrap().status, StatusCode::OK);
    (mesh, pod)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_goes_and_returns_with_another_pod_is_fenced_without_a_bootstrap_extension() {
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let setup = Setup::new(Variant::FenceOnly).protocol(protocol).bootstrap(Bootstrap::without_status);
        let (mesh, pod) = warm(setup).await;
        let successor = cluster_away_while_its_pod_is_replaced(&mesh, pod).await;
        let reply = mesh.post(ECHO, "/order").await.unwrap();
        assert_eq!((reply.status, reply.pod()), (StatusCode::OK, Some("successor")), "{protocol:?}");
        assert_eq!(successor.ztunnel().unwrap().connections().log().len(), 1, "{protocol:?}: a new connection");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stock_uses_the_dead_connection_when_a_cluster_goes_and_returns() {
    let limited = |bootstrap: Bootstrap| bootstrap.with_route_timeout(Duration::from_secs(3));
    let (mesh, pod) = warm(Setup::new(Variant::Stock).bootstrap(limited)).await;
    let successor = cluster_away_while_its_pod_is_replaced(&mesh, pod).await;
    let reply = mesh.post(ECHO, "/order").await.unwrap();
    assert_ne!(reply.status, StatusCode::OK, "the control run must fail, else the fault is not injected");
    assert_eq!(successor.executed(&reply.id), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_goes_is_one_removal_of_its_endpoints_and_its_return_fences_again() {
    for feed in FEEDS {
        // At first polls are quick; then, in quiet times, too rare to be the reason.
        let watch = json!({ "source": if feed.is_admin() { "admin" } else { "none" }, "max_interval": "60s" });
        let (mesh, pod) = warm(feed.setup().bootstrap(move |bootstrap| polls(bootstrap, &watch))).await;
        if feed.is_admin() {
            wait_polls(&mesh, 4).await;
        }
        let before = seen(&mesh, ip(1)).await.generation;
        let successor = cluster_away_while_its_pod_is_replaced(&mesh, pod).await;
        let back = wait_seen(&mesh, ip(1), |seen| seen.removals == 1 && seen.presence == "present").await;
        assert!(back.fenced, "{feed:?}: {back:?}");
        let reply = mesh.post(ECHO, "/order").await.unwrap();
        assert_eq!((reply.status, reply.pod()), (StatusCode::OK, Some("successor")), "{feed:?}");
        assert!(seen(&mesh, ip(1)).await.generation > before, "{feed:?}");
        assert_eq!(successor.ztunnel().unwrap().connections().log().len(), 1, "{feed:?}: a new connection");
        let page = page(&mesh, "").await;
        assert_eq!(page["watch"][feed.name()]["removed"], 1, "{feed:?}: both ways saw it, one counts: {page:#}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_validator_for_clusters_polls_notice_one_that_goes_and_that_is_said_once() {
    let without = |bootstrap: Bootstrap| bootstrap.remove("/dynamic_resources/ads_config/config_validators/1");
    let polled = |bootstrap| polls(bootstrap, &json!({ "max_interval": "1s" }));
    let setup = Setup::new(Variant::FenceOnly).bootstrap(without).bootstrap(polled);
    let (mesh, pod) = warm(setup).await;
    let before = seen(&mesh, ip(1)).await.generation;
    wait_polls(&mesh, 1).await;
    let addr = pod.addr();
    mesh.control_plane.remove_service(&cluster_name(ECHO, 80)).unwrap();
    mesh.acked().await.unwrap();
    mesh.drained(ECHO).await.unwrap();
    wait_seen(&mesh, ip(1), |seen| seen.removals == 1 && seen.presence == "gone").await;
    pod.vanish().await.unwrap();
    let successor = mesh.pod("successor", 1).await.unwrap();
    mesh.control_plane.set_service(Service::new(ECHO, vec![Endpoint::new(addr.ip(), addr.port())]));
    mesh.acked().await.unwrap();
    let back = wait_seen(&mesh, ip(1), |seen| seen.presence == "present").await;
    assert!(back.fenced, "{back:?}");
    assert_eq!(mesh.post(ECHO, "/order").await.unwrap().pod(), Some("successor"));
    assert!(seen(&mesh, ip(1)).await.generation > before);
    assert_eq!(successor.ztunnel().unwrap().connections().log().len(), 1, "a new connection");
    let said = mesh.envoy.log().unwrap().matches("is configured for endpoints but not for clusters").count();
    assert_eq!(said, 1, "{}", mesh.envoy.log_tail());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_with_another_configuration_is_taken_for_a_return_of_its_endpoints() {
    let (mesh, pod) = warm(FEEDS[2].setup()).await;
    let second = mesh.pod("second", 2).await.unwrap();
    mesh.list(ECHO, second.addr()).await.unwrap();
    for _ in 0..4 {
        assert_eq!(mesh.get(ECHO, "/").await.unwrap().status, StatusCode::OK, "both endpoints are in use");
    }
    wait_polls(&mesh, 2).await;
    let cluster = cluster_name(ECHO, 80);
    let modified = "cluster_manager.cluster_modified";
    let before = mesh.envoy.admin().stat(modified).await.unwrap();
    mesh.control_plane.note(&cluster, "one").unwrap();
    mesh.acked().await.unwrap();
    mesh.envoy.admin().wait_for_stat(modified, WITHIN, |count| count == before + 1).await.unwrap();
    wait_polls(&mesh, 3).await;
    for octet in [1, 2] {
        // Polls cannot tell it from a replacement of every pod, and a handshake is cheaper than a 503.
        assert_eq!(seen(&mesh, ip(octet)).await.removals, 1, "Envoy made its hosts anew, their counters at zero");
    }
    assert_eq!(mesh.get(ECHO, "/").await.unwrap().status, StatusCode::OK);
    mesh.unlist(ECHO, pod.addr()).await.unwrap();
    removed(&mesh, ip(1), 2).await;
}

/// Both pods are replaced between two polls. Gives the POSTs that failed, of four.
async fn failed_posts_after_all_pods_were_replaced(setup: Setup, polled: bool) -> usize {
    let mesh = setup.start().await.unwrap();
    let (one, two) = (mesh.pod("one", 1).await.unwrap(), mesh.pod("two", 2).await.unwrap());
    let pods = [one.addr(), two.addr()];
    for pod in pods {
        mesh.list(ECHO, pod).await.unwrap();
    }
    for _ in 0..4 {
        assert_eq!(mesh.post(ECHO, "/").await.unwrap().status, StatusCode::OK, "both endpoints are in use");
    }
    if polled {
        wait_polls(&mesh, 2).await;
    }
    for pod in pods {
        mesh.unlist(ECHO, pod).await.unwrap();
    }
    mesh.drained(ECHO).await.unwrap();
    one.vanish().await.unwrap();
    two.vanish().await.unwrap();
    let _successors = (mesh.pod("one again", 1).await.unwrap(), mesh.pod("two again", 2).await.unwrap());
    for pod in pods {
        mesh.list(ECHO, pod).await.unwrap();
    }
    if polled {
        mesh.wait_stat("watch_admin_removed", |removed| removed == 2).await.unwrap();
    }
    let mut failed = 0;
    for _ in 0..4 {
        failed += usize::from(mesh.post(ECHO, "/").await.unwrap().status != StatusCode::OK);
    }
    failed
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_that_were_all_replaced_between_two_polls_are_all_fenced() {
    let stock = failed_posts_after_all_pods_were_replaced(Setup::new(Variant::Stock), false).await;
    assert!(stock > 0, "the control run must fail");
    // No hint wakes a poll, so that the removals and the returns lie between the same two.
    let slow = |bootstrap: Bootstrap| polls(bootstrap, &json!({ "min_interval": "3s", "max_interval": "3s" }));
    let setup = FEEDS[2].setup().bootstrap(slow);
    assert_eq!(failed_posts_after_all_pods_were_replaced(setup, true).await, 0);
}

/// An `eds_config` that leads to the lab's control plane by a stream of its own, with or without a validator.
fn own_source(protocol: Protocol, validated: bool) -> ConfigSource {
    let validator = TypedExtensionConfig {
        name: "stale_guard.watch".to_owned(),
        typed_config: Some(pack_any(DynamicModuleConfigValidator {
            dynamic_module_config: Some(DynamicModuleConfig {
                name: "stale_guard".to_owned(),
                do_not_close: true,
                ..Default::default()
            }),
            extension_name: "watch".to_owned(),
            type_urls: vec![ENDPOINT_TYPE.to_owned()],
            ..Default::default()
        })),
    };
    ConfigSource {
        resource_api_version: ApiVersion::V3.into(),
        initial_fetch_timeout: Some(Seconds::default()),
        config_source_specifier: Some(ConfigSourceSpecifier::ApiConfigSource(ApiConfigSource {
            api_type: match protocol {
                Protocol::Sotw => ApiType::Grpc.into(),
                Protocol::Delta => ApiType::DeltaGrpc.into(),
            },
            transport_api_version: ApiVersion::V3.into(),
            grpc_services: vec![GrpcService {
                target_specifier: Some(TargetSpecifier::EnvoyGrpc(EnvoyGrpc {
                    cluster_name: "xds-grpc".to_owned(),
                    ..Default::default()
                })),
                ..Default::default()
            }],
            config_validators: if validated { vec![validator] } else { Vec::new() },
            ..Default::default()
        })),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_with_an_eds_source_of_its_own_needs_a_validator_of_its_own_or_the_polls() {
    for (protocol, validated) in [(Protocol::Delta, true), (Protocol::Sotw, true), (Protocol::Delta, false)] {
        // All that is shipped: both sources.
        let mesh = Setup::new(Variant::FenceOnly).start().await.unwrap();
        let pod = mesh.pod("pod", 1).await.unwrap();
        let service = Service::new(OTHER, vec![Endpoint::new(ip(1), pod.addr().port())]);
        mesh.control_plane.set_service(service.eds_config(own_source(protocol, validated)));
        mesh.acked().await.unwrap();
        mesh.wait_stat("endpoints_listed", |listed| listed == 1).await.unwrap();
        mesh.unlist(OTHER, pod.addr()).await.unwrap();
        removed(&mesh, ip(1), 1).await;
        let page = page(&mesh, "").await;
        let removals = |source: &str| page["watch"][source]["removed"].as_u64().unwrap();
        let wanted = if validated { (1, 0) } else { (0, 1) };
        assert_eq!((removals("validator"), removals("admin")), wanted, "{protocol:?}: {page:#}");
    }
}
