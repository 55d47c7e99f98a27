//! Requests through the whole path: service chain, connect_originate, HBONE, pod; first on stock Envoy.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use lab::bootstrap::{Bootstrap, CertificateFiles, Variant};
use lab::certs::{Authority, spiffe_id};
use lab::control_plane::{ControlPlane, Endpoint, Params, Protocol, Service};
use lab::envoy::{Envoy, Options};
use lab::netns::{Fabric, Link, Netns};
use lab::pod::{Pod, PodSpec};
use tempfile::TempDir;

const WITHIN: Duration = Duration::from_secs(30);
const HOST: &str = "echo.default.svc.cluster.local";
const POD: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 244, 1, 1));

async fn send(envoy: &Envoy, method: &str, id: &str, body: &'static str) -> Response<Bytes> {
    let addr = envoy.admin().listener("service").await.unwrap();
    let addr = (Ipv4Addr::LOCALHOST, addr.port()).into();
    let socket = envoy.netns().tcp_connect(addr).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri("/echo")
        .header("host", HOST)
        .header("x-request-id", id)
        .body(Full::new(Bytes::from_static(body.as_bytes())))
        .unwrap();
    let (head, body) = sender.send_request(request).await.unwrap().into_parts();
    Response::from_parts(head, body.collect().await.unwrap().to_bytes())
}

/// One service with one pod behind a waypoint.
struct World {
    fabric: Fabric,
    authority: Authority,
    pod: Pod,
    control_plane: ControlPlane,
    cluster: String,
    envoy: Envoy,
    _link: Link,
    _folder: TempDir,
}

async fn world(variant: Variant, protocol: Protocol) -> World {
    let fabric = Fabric::new().await.unwrap();
    let proxy = Netns::new("proxy").unwrap();
    let link = fabric.attach(&proxy, &[IpAddr::V4(Ipv4Addr::new(10, 244, 0, 2))]).await.unwrap();
    let authority = Authority::new().unwrap();
    let pod = Pod::start(&fabric, &authority, PodSpec::new("echo-1", POD)).await.unwrap();

    let control_plane = ControlPlane::start(&proxy, Params::immediate()).await.unwrap();
    let service = Service::new(HOST, vec![Endpoint::new(pod.ip(), pod.addr().port())]);
    let cluster = service.cluster_name();
    control_plane.set_service(service);

    let folder = tempfile::tempdir().unwrap();
    let identity = authority.issue(&spiffe_id("default", "waypoint")).unwrap();
    let files =
        CertificateFiles::write(folder.path(), &identity.cert_pem, &identity.key_pem, authority.ca_pem()).unwrap();
    let bootstrap = Bootstrap::load()
        .and_then(|bootstrap| bootstrap.variant(variant))
        .and_then(|bootstrap| bootstrap.with_services(&[HOST]))
        .and_then(|bootstrap| bootstrap.with_ads(control_plane.addr(), protocol))
        .and_then(|bootstrap| bootstrap.with_certificates(&files))
        .unwrap();
    let envoy = Envoy::start_ready(&proxy, &bootstrap, &Options::default(), WITHIN).await.unwrap();
    control_plane.wait_acked(control_plane.version(), WITHIN).await.unwrap();
    World { fabric, authority, pod, control_plane, cluster, envoy, _link: link, _folder: folder }
}

async fn requests_reach_the_pod_through_one_tunnel(protocol: Protocol) {
    let World { pod, control_plane, cluster, envoy, .. } = &world(Variant::Stock, protocol).await;
    for (method, id, body) in [("GET", "first", ""), ("POST", "second", "one order")] {
        let response = send(envoy, method, id, body).await;
        let entry = envoy.wait_for_access_log(WITHIN, |entry| entry["request_id"] == id).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{method}: {:?} {entry:#}", envoy.access_log());
        assert_eq!(response.headers()["x-pod"], "echo-1");
        let execution = pod.wait_for_execution(id).await.unwrap();
        assert_eq!(execution.method, method);
        assert_eq!(execution.body_len, body.len() as u64);
        assert_eq!(execution.attempt_count.as_deref(), Some("1"));
        assert_eq!(pod.executed(id), 1, "one request is one execution, under the id that the client gave it");
    }
    let tunnels = pod.wait_for_tunnels(1).await.unwrap();
    assert_eq!(tunnels.len(), 1, "the second request uses the first one's tunnel: {tunnels:#?}");
    assert_eq!(tunnels[0].authority, pod.addr().to_string());

    let entry = envoy.wait_for_access_log(WITHIN, |entry| entry["request_id"] == "second").await.unwrap();
    assert_eq!(entry["response_code"], 200);
    assert_eq!(entry["upstream_cluster"], cluster.as_str());

    control_plane.remove_endpoint(cluster, pod.addr()).unwrap();
    control_plane.wait_acked(control_plane.version(), WITHIN).await.unwrap();
    let response = send(envoy, "GET", "third", "").await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    let entry = envoy.wait_for_access_log(WITHIN, |entry| entry["request_id"] == "third").await.unwrap();
    assert_eq!(entry["response_flags"], "UH", "no endpoint is left: {entry}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sotw_requests_reach_the_pod_through_one_tunnel() {
    requests_reach_the_pod_through_one_tunnel(Protocol::Sotw).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn delta_requests_reach_the_pod_through_one_tunnel() {
    requests_reach_the_pod_through_one_tunnel(Protocol::Delta).await;
}

/// A pod vanishes, leaves EDS, and its address goes to another pod; then comes a POST.
async fn post_after_the_address_moved(variant: Variant) -> (Response<Bytes>, usize) {
    let World { fabric, authority, pod, control_plane, cluster, envoy, _link, _folder } =
        world(variant, Protocol::Delta).await;
    let first = send(&envoy, "GET", "first", "").await;
    assert_eq!(first.status(), StatusCode::OK);
    let addr = pod.addr();

    // Removal first: the closing of the tunnel still reaches the pod, so that no retransmission of it
    // meets the successor's RST before the POST does.
    control_plane.remove_endpoint(&cluster, addr).unwrap();
    control_plane.wait_acked(control_plane.version(), WITHIN).await.unwrap();
    let inner = format!("cluster.{cluster}.upstream_cx_active");
    envoy.admin().wait_for_stat(&inner, WITHIN, |active| active == 0).await.unwrap();
    pod.vanish().await.unwrap();
    let successor = Pod::start(&fabric, &authority, PodSpec::new("echo-2", POD)).await.unwrap();
    control_plane.add_endpoint(&cluster, Endpoint::new(successor.ip(), addr.port())).unwrap();
    control_plane.wait_acked(control_plane.version(), WITHIN).await.unwrap();
    let response = send(&envoy, "POST", "order", "one order").await;
    (response, successor.executed("order"))
}

#[tokio::test(flavor = "multi_thread")]
async fn stock_answers_503_after_the_address_moved() {
    let (response, executed) = post_after_the_address_moved(Variant::Stock).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE, "the fault injection is broken: stock survived");
    assert_eq!(executed, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_connect_attempts_reach_the_successor() {
    let (response, executed) = post_after_the_address_moved(Variant::MaxConnectAttempts(3)).await;
    assert_eq!(response.status(), StatusCode::OK, "no byte was sent before the CONNECT was answered");
    assert_eq!(response.headers()["x-pod"], "echo-2");
    assert_eq!(executed, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn fence_alone_reaches_the_successor() {
    let (response, executed) = post_after_the_address_moved(Variant::FenceOnly).await;
    assert_eq!(response.status(), StatusCode::OK, "one CONNECT attempt and no retry: only a new connection helps");
    assert_eq!(response.headers()["x-pod"], "echo-2");
    assert_eq!(executed, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shipped_file_reaches_the_successor() {
    let (response, executed) = post_after_the_address_moved(Variant::StaleGuard).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["x-pod"], "echo-2");
    assert_eq!(executed, 1);
}
