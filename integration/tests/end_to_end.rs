//! Requests through the whole path on stock Envoy: service chain, connect_originate, HBONE, pod.

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
use lab::netns::{Fabric, Netns};
use lab::pod::{Pod, PodSpec};

const WITHIN: Duration = Duration::from_secs(30);
const HOST: &str = "echo.default.svc.cluster.local";

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

async fn requests_reach_the_pod_through_one_tunnel(protocol: Protocol) {
    let fabric = Fabric::new().await.unwrap();
    let proxy = Netns::new("proxy").unwrap();
    let _link = fabric.attach(&proxy, &[IpAddr::V4(Ipv4Addr::new(10, 244, 0, 2))]).await.unwrap();
    let authority = Authority::new().unwrap();
    let address = IpAddr::V4(Ipv4Addr::new(10, 244, 1, 1));
    let pod = Pod::start(&fabric, &authority, PodSpec::new("echo-1", address)).await.unwrap();

    let control_plane = ControlPlane::start(&proxy, Params::immediate()).await.unwrap();
    let service = Service::new(HOST, vec![Endpoint::new(pod.ip(), pod.addr().port())]);
    let cluster = service.cluster_name();
    control_plane.set_service(service);

    let folder = tempfile::tempdir().unwrap();
    let identity = authority.issue(&spiffe_id("default", "waypoint")).unwrap();
    let files =
        CertificateFiles::write(folder.path(), &identity.cert_pem, &identity.key_pem, authority.ca_pem()).unwrap();
    let bootstrap = Bootstrap::load()
        .and_then(|bootstrap| bootstrap.variant(Variant::Stock))
        .and_then(|bootstrap| bootstrap.with_services(&[HOST]))
        .and_then(|bootstrap| bootstrap.with_ads(control_plane.addr(), protocol))
        .and_then(|bootstrap| bootstrap.with_certificates(&files))
        .unwrap();
    let envoy = Envoy::start_ready(&proxy, &bootstrap, &Options::default(), WITHIN).await.unwrap();
    control_plane.wait_acked(control_plane.version(), WITHIN).await.unwrap();

    for (method, id, body) in [("GET", "first", ""), ("POST", "second", "one order")] {
        let response = send(&envoy, method, id, body).await;
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
    assert_eq!(entry["upstream_cluster"], cluster);

    control_plane.remove_endpoint(&cluster, pod.addr()).unwrap();
    control_plane.wait_acked(control_plane.version(), WITHIN).await.unwrap();
    let response = send(&envoy, "GET", "third", "").await;
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
