//! The control plane, against real Envoy: each test runs with both protocols.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use lab::bootstrap::{Bootstrap, CertificateFiles, Variant};
use lab::control_plane::{
    Answer, ControlPlane, ENDPOINT_TYPE, Endpoint, Health, Params, Protocol, Raw, Service, cluster_name,
};
use lab::envoy::{Envoy, Options};
use lab::netns::Netns;

const WITHIN: Duration = Duration::from_secs(30);
const HOST: &str = "echo.default.svc.cluster.local";

struct World {
    control_plane: ControlPlane,
    envoy: Envoy,
}

fn endpoint(last: u8) -> Endpoint {
    Endpoint::new(IpAddr::V4(Ipv4Addr::new(10, 244, 0, last)), 8080)
}

fn addr(last: u8) -> SocketAddr {
    endpoint(last).addr()
}

fn echo() -> String {
    cluster_name(HOST, 80)
}

fn bootstrap(
    control_plane: &ControlPlane,
    variant: Variant,
    protocol: Protocol,
    certificates: &tempfile::TempDir,
) -> Bootstrap {
    let identity = rcgen::generate_simple_self_signed(vec!["lab".to_owned()]).unwrap();
    let (chain, key) = (identity.cert.pem(), identity.signing_key.serialize_pem());
    let files = CertificateFiles::write(certificates.path(), &chain, &key, &chain).unwrap();
    Bootstrap::load()
        .unwrap()
        .variant(variant)
        .unwrap()
        .with_services(&[HOST])
        .unwrap()
        .with_ads(control_plane.addr(), protocol)
        .unwrap()
        .with_ads_backoff(Duration::from_millis(20), Duration::from_millis(200))
        .unwrap()
        .with_certificates(&files)
        .unwrap()
}

/// A control plane with one service of two endpoints, and an Envoy that knows them.
async fn world(protocol: Protocol, params: Params) -> World {
    let netns = Netns::new("proxy").unwrap();
    let control_plane = ControlPlane::start(&netns, params).await.unwrap();
    control_plane.set_service(Service::new(HOST, vec![endpoint(1), endpoint(2)]));
    let version = control_plane.push_now();
    let certificates = tempfile::tempdir().unwrap();
    let bootstrap = bootstrap(&control_plane, Variant::Stock, protocol, &certificates);
    let envoy = Envoy::start_ready(&netns, &bootstrap, &Options::default(), WITHIN).await.unwrap();
    control_plane.wait_acked(version, WITHIN).await.unwrap();
    World { control_plane, envoy }
}

/// Each of these on both protocols.
macro_rules! both {
    ($($scene:ident),* $(,)?) => {
        mod sotw {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $scene() {
                super::$scene(super::Protocol::Sotw).await;
            })*
        }
        mod delta {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $scene() {
                super::$scene(super::Protocol::Delta).await;
            })*
        }
    };
}

both! {
    clusters_and_endpoints_come_and_go,
    held_changes_arrive_as_one_response,
    an_outage_with_churn_behind_it_ends_in_the_right_set,
    a_restart_that_forgets_versions_resyncs,
    an_unreadable_resource_is_rejected_and_the_next_good_one_accepted,
    late_endpoints_arrive_when_they_are_delivered,
    fifty_thousand_endpoints_fit_into_one_resource,
}

async fn clusters_and_endpoints_come_and_go(protocol: Protocol) {
    let World { control_plane, envoy } = world(protocol, Params::immediate()).await;
    let admin = envoy.admin();
    assert_eq!(control_plane.protocols(), [protocol], "the bootstrap's api_type decides the protocol");
    admin.wait_for_endpoints(&echo(), WITHIN, &[addr(1), addr(2)]).await.unwrap();

    control_plane.remove_endpoint(&echo(), addr(1)).unwrap();
    control_plane.wait_acked(control_plane.version(), WITHIN).await.unwrap();
    let endpoints = admin.endpoints(&echo()).await.unwrap();
    assert_eq!(endpoints, [addr(2).to_string()].into(), "an ACK means that Envoy's main thread has applied it");

    let other = Service::new("other.default.svc.cluster.local", vec![endpoint(3), endpoint(4).priority(1)]);
    let other_name = other.cluster_name();
    control_plane.set_service(other);
    control_plane.wait_acked(control_plane.version(), WITHIN).await.unwrap();
    admin.wait_for_endpoints(&other_name, WITHIN, &[addr(3), addr(4)]).await.unwrap();

    control_plane.remove_service(&other_name).unwrap();
    control_plane.wait_acked(control_plane.version(), WITHIN).await.unwrap();
    assert!(!admin.cluster_names().await.unwrap().contains(&other_name), "a removed cluster is gone at its ACK");
}

async fn held_changes_arrive_as_one_response(protocol: Protocol) {
    let World { control_plane, envoy } = world(protocol, Params::immediate()).await;
    let second = Service::new("second.default.svc.cluster.local", vec![endpoint(9)]);
    let second_name = second.cluster_name();
    control_plane.set_service(second);
    control_plane.wait_acked(control_plane.version(), WITHIN).await.unwrap();
    let before = control_plane.pushes().len();

    control_plane.hold();
    // An address moves from one service to another, and one endpoint changes its health.
    control_plane.remove_endpoint(&echo(), addr(1)).unwrap();
    control_plane.add_endpoint(&second_name, endpoint(1)).unwrap();
    control_plane.set_health(&echo(), addr(2), Health::Draining).unwrap();
    assert_eq!(control_plane.pushes().len(), before, "nothing leaves while held");
    let version = control_plane.release();
    control_plane.wait_acked(version, WITHIN).await.unwrap();

    let pushes = control_plane.pushes();
    let new = &pushes[before..];
    assert_eq!(new.len(), 1, "all changes are in one response: {new:#?}");
    assert_eq!(new[0].type_url, ENDPOINT_TYPE);
    assert_eq!(new[0].resources, [echo(), second_name.clone()]);
    assert!(matches!(new[0].answer, Answer::Acked(_)));
    let admin = envoy.admin();
    assert_eq!(admin.endpoints(&echo()).await.unwrap(), [addr(2).to_string()].into());
    admin.wait_for_endpoints(&second_name, WITHIN, &[addr(1), addr(9)]).await.unwrap();
}

async fn an_outage_with_churn_behind_it_ends_in_the_right_set(protocol: Protocol) {
    let World { control_plane, envoy } = world(protocol, Params::immediate()).await;
    let admin = envoy.admin();
    let doomed = Service::new("doomed.default.svc.cluster.local", vec![endpoint(7)]);
    let doomed_name = doomed.cluster_name();
    control_plane.set_service(doomed);
    control_plane.wait_acked(control_plane.version(), WITHIN).await.unwrap();

    control_plane.outage().await;
    admin.wait_for_stat("control_plane.connected_state", WITHIN, |value| value == 0).await.unwrap();
    control_plane.remove_endpoint(&echo(), addr(1)).unwrap();
    control_plane.add_endpoint(&echo(), endpoint(3)).unwrap();
    control_plane.remove_service(&doomed_name).unwrap();
    assert_eq!(control_plane.connected(), 0);
    control_plane.recover().await.unwrap();

    control_plane.wait_acked(control_plane.version(), WITHIN).await.unwrap();
    admin.wait_for_endpoints(&echo(), WITHIN, &[addr(2), addr(3)]).await.unwrap();
    assert!(!admin.cluster_names().await.unwrap().contains(&doomed_name), "a removal during the outage is not lost");
    envoy.assert_alive().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn delta_resumes_by_version_with_only_what_changed() {
    let params = Params { resend_on_reconnect: false, ..Params::immediate() };
    let World { control_plane, envoy } = world(Protocol::Delta, params).await;
    let quiet = Service::new("quiet.default.svc.cluster.local", vec![endpoint(8)]);
    let quiet_name = quiet.cluster_name();
    control_plane.set_service(quiet);
    control_plane.wait_acked(control_plane.version(), WITHIN).await.unwrap();

    control_plane.outage().await;
    let before = control_plane.pushes().len();
    control_plane.remove_endpoint(&echo(), addr(1)).unwrap();
    control_plane.recover().await.unwrap();
    control_plane.wait_acked(control_plane.version(), WITHIN).await.unwrap();

    envoy.admin().wait_for_endpoints(&echo(), WITHIN, &[addr(2)]).await.unwrap();
    let pushes = control_plane.pushes();
    let resent: Vec<_> = pushes[before..].iter().filter(|push| push.resources.contains(&quiet_name)).collect();
    assert!(resent.is_empty(), "what the proxy has already is not sent again: {resent:#?}");
}

async fn a_restart_that_forgets_versions_resyncs(protocol: Protocol) {
    let World { control_plane, envoy } = world(protocol, Params::immediate()).await;
    let version = control_plane.version();
    control_plane.restart().await.unwrap();
    assert!(control_plane.version() <= version, "versions begin anew");
    control_plane.add_endpoint(&echo(), endpoint(3)).unwrap();
    control_plane.wait_acked(control_plane.version(), WITHIN).await.unwrap();
    envoy.admin().wait_for_endpoints(&echo(), WITHIN, &[addr(1), addr(2), addr(3)]).await.unwrap();
}

async fn an_unreadable_resource_is_rejected_and_the_next_good_one_accepted(protocol: Protocol) {
    let World { control_plane, envoy } = world(protocol, Params::immediate()).await;
    let broken = Raw { type_url: ENDPOINT_TYPE.to_owned(), value: vec![0xff; 7] };
    control_plane.set_raw(&echo(), Some(broken));
    let version = control_plane.version();
    let message = control_plane.wait_nacked(version, WITHIN).await.unwrap();
    assert!(!message.is_empty(), "a NACK says why");
    assert!(control_plane.wait_acked(version, WITHIN).await.is_err(), "waiting for the ACK reports the NACK");

    let endpoints = envoy.admin().endpoints(&echo()).await.unwrap();
    assert_eq!(endpoints.len(), 2, "a rejected update changes nothing");
    control_plane.set_raw(&echo(), None);
    control_plane.wait_acked(control_plane.version(), WITHIN).await.unwrap();
}

async fn late_endpoints_arrive_when_they_are_delivered(protocol: Protocol) {
    let World { control_plane, envoy } = world(protocol, Params::immediate()).await;
    let late = Service::new("late.default.svc.cluster.local", vec![endpoint(5)]);
    let late_name = late.cluster_name();
    control_plane.withhold_endpoints(&late_name, true);
    control_plane.set_service(late);
    // Existing services go on meanwhile.
    control_plane.add_endpoint(&echo(), endpoint(3)).unwrap();
    envoy.admin().wait_for_endpoints(&echo(), WITHIN, &[addr(1), addr(2), addr(3)]).await.unwrap();
    assert!(envoy.admin().endpoints(&late_name).await.unwrap().is_empty(), "withheld endpoints must not arrive");

    control_plane.withhold_endpoints(&late_name, false);
    control_plane.wait_acked(control_plane.version(), WITHIN).await.unwrap();
    envoy.admin().wait_for_endpoints(&late_name, WITHIN, &[addr(5)]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_endpoints_have_socket_addresses() {
    let World { control_plane, envoy } = world(Protocol::Delta, Params::immediate()).await;
    let plain = Service::new("plain.default.svc.cluster.local", vec![endpoint(6).plain()]);
    let name = plain.cluster_name();
    control_plane.set_service(plain);
    control_plane.wait_acked(control_plane.version(), WITHIN).await.unwrap();
    envoy.admin().wait_for_endpoints(&name, WITHIN, &[addr(6)]).await.unwrap();
    let hosts = envoy.admin().get("/clusters").await.unwrap();
    assert!(hosts.contains(&format!("{name}::{}::", addr(6))), "addressed by the pod itself: {hosts}");
    assert!(hosts.contains(&format!("{}::envoy://connect_originate/{}::", echo(), addr(1))), "by a tunnel: {hosts}");
}

#[tokio::test(flavor = "multi_thread")]
async fn debounce_merges_a_removal_and_a_re_add_into_one_push() {
    let World { control_plane, envoy } = world(Protocol::Delta, Params::default()).await;
    let (version, before) = (control_plane.version(), control_plane.pushes().len());
    control_plane.remove_endpoint(&echo(), addr(1)).unwrap();
    control_plane.add_endpoint(&echo(), endpoint(1)).unwrap();
    control_plane.wait_acked(version + 1, WITHIN).await.unwrap();
    let pushes = control_plane.pushes();
    assert_eq!(pushes.len(), before + 1, "both changes lie within one debounce: {:#?}", &pushes[before..]);
    envoy.admin().wait_for_endpoints(&echo(), WITHIN, &[addr(1), addr(2)]).await.unwrap();
}

async fn fifty_thousand_endpoints_fit_into_one_resource(protocol: Protocol) {
    let World { control_plane, envoy } = world(protocol, Params::immediate()).await;
    let endpoints = (0..50_000_u32)
        .map(|index| Endpoint::new(IpAddr::V4(Ipv4Addr::from_bits(0x0af5_0000 + index)), 8080))
        .collect();
    control_plane.set_service(Service::new(HOST, endpoints));
    control_plane.wait_acked(control_plane.version(), WITHIN).await.unwrap();
    let total = format!("cluster.{}.membership_total", echo());
    let value = envoy.admin().wait_for_stat(&total, WITHIN, |value| value == 50_000).await.unwrap();
    assert_eq!(value, 50_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_services_survive_rolling_churn() {
    let World { control_plane, envoy } = world(Protocol::Delta, Params::immediate()).await;
    let name = |service: u8| format!("s{service}.default.svc.cluster.local");
    let pod = |service: u8, pod: u8| Endpoint::new(IpAddr::V4(Ipv4Addr::new(10, 244, service, pod)), 8080);
    control_plane.hold();
    for service in 1..=50 {
        let pods = (1..=40).map(|index| pod(service, index)).collect();
        control_plane.set_service(Service::new(&name(service), pods));
    }
    control_plane.wait_acked(control_plane.release(), WITHIN).await.unwrap();
    for service in 1..=50 {
        for index in 1..=40 {
            let cluster = cluster_name(&name(service), 80);
            control_plane.remove_endpoint(&cluster, pod(service, index).addr()).unwrap();
            control_plane.add_endpoint(&cluster, pod(service, index + 100)).unwrap();
        }
    }
    control_plane.wait_acked(control_plane.version(), WITHIN).await.unwrap();
    let fresh: Vec<SocketAddr> = (101..=140).map(|index| pod(50, index).addr()).collect();
    envoy.admin().wait_for_endpoints(&cluster_name(&name(50), 80), WITHIN, &fresh).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_proxies_of_different_protocols_share_one_control_plane() {
    let World { control_plane, envoy } = world(Protocol::Delta, Params::immediate()).await;
    let certificates = tempfile::tempdir().unwrap();
    let second = bootstrap(&control_plane, Variant::Stock, Protocol::Sotw, &certificates)
        .with_admin(([127, 0, 0, 1], 15001).into())
        .unwrap()
        .with_listener(([127, 0, 0, 1], 0).into())
        .unwrap();
    let second = Envoy::start_ready(envoy.netns(), &second, &Options::workers(2), WITHIN).await.unwrap();
    control_plane.wait_connected(2, WITHIN).await.unwrap();
    control_plane.add_endpoint(&echo(), endpoint(3)).unwrap();
    control_plane.wait_acked(control_plane.version(), WITHIN).await.unwrap();
    for admin in [envoy.admin(), second.admin()] {
        admin.wait_for_endpoints(&echo(), WITHIN, &[addr(1), addr(2), addr(3)]).await.unwrap();
    }
    assert_eq!(second.admin().stat("server.concurrency").await.unwrap(), 2);
    assert_ne!(second.admin().listener("service").await.unwrap().port(), 0, "the real port is told");

    let status = second.quit(WITHIN).await.unwrap();
    assert!(status.success(), "{}", second.log_tail());
    control_plane.wait_connected(1, WITHIN).await.unwrap();
    let version = control_plane.push_full();
    control_plane.wait_acked(version, WITHIN).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_variant_without_the_module_is_accepted() {
    let netns = Netns::new("proxy").unwrap();
    let control_plane = ControlPlane::start(&netns, Params::default()).await.unwrap();
    let certificates = tempfile::tempdir().unwrap();
    for variant in [
        Variant::Stock,
        Variant::RetryOnReset,
        Variant::HboneIdleTimeout(Duration::from_secs(1)),
        Variant::MaxConnectAttempts(3),
    ] {
        let bootstrap = bootstrap(&control_plane, variant, Protocol::Delta, &certificates);
        let validation = Envoy::validate(&netns, &bootstrap, &Options::default()).await.unwrap();
        assert!(validation.status.success(), "{}: {}", variant.name(), validation.log);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_configuration_is_reported_with_envoys_log() {
    let netns = Netns::new("proxy").unwrap();
    let control_plane = ControlPlane::start(&netns, Params::default()).await.unwrap();
    let certificates = tempfile::tempdir().unwrap();
    let bootstrap = bootstrap(&control_plane, Variant::Stock, Protocol::Delta, &certificates)
        .patch("/no_such_field", serde_json::json!(1))
        .unwrap();
    let validation = Envoy::validate(&netns, &bootstrap, &Options::default()).await.unwrap();
    assert!(!validation.status.success() && validation.log.contains("no_such_field"), "{}", validation.log);
    let envoy = Envoy::start(&netns, &bootstrap, &Options::default()).unwrap();
    let error = envoy.wait_ready(WITHIN).await.unwrap_err().to_string();
    assert!(error.contains("no_such_field"), "an Envoy that ended is noticed, with its reason: {error}");
}
