//! Clients beyond `Mesh::send`: HTTP/2 with trailers, and upgrades.

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lab::mesh::{Mesh, WITHIN};

/// An answer over HTTP/2.
pub struct Reply2 {
    pub id: String,
    pub status: u16,
    pub headers: HeaderMap,
    pub trailers: HeaderMap,
    pub broken: bool,
}

/// Sends a request over HTTP/2 on a connection of its own.
pub async fn send2(mesh: &Mesh, request: Request<Bytes>) -> Reply2 {
    let id = request.headers()["x-request-id"].to_str().expect("id").to_owned();
    let (mut parts, body) = request.into_parts();
    let host = parts.headers.remove("host").expect("host");
    parts.uri = format!("http://{}{}", host.to_str().expect("host"), parts.uri).parse().expect("uri");
    let socket = mesh.envoy.netns().tcp_connect(mesh.listener()).await.expect("connect");
    let exchange = async {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.expect("handshake");
        let driver = tokio::spawn(connection);
        let answer = sender.send_request(Request::from_parts(parts, Full::new(body))).await;
        let answer = answer.unwrap_or_else(|error| panic!("{id} got no answer: {error:?}"));
        let (head, mut body) = answer.into_parts();
        let (mut trailers, mut broken) = (HeaderMap::new(), false);
        while let Some(frame) = body.frame().await {
            match frame.map(hyper::body::Frame::into_trailers) {
                Ok(Ok(got)) => trailers = got,
                Ok(Err(_)) => {}
                Err(_) => {
                    broken = true;
                    break;
                }
            }
        }
        driver.abort();
        Reply2 { id: id.clone(), status: head.status.as_u16(), headers: head.headers, trailers, broken }
    };
    tokio::time::timeout(WITHIN, exchange).await.unwrap_or_else(|_| panic!("{id} hangs"))
}

/// Asks for an upgrade; where it is granted, sends a few bytes and looks whether they come back.
pub async fn upgrade(mesh: &Mesh, request: Request<Bytes>) -> (String, String, HeaderMap, bool) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let id = request.headers()["x-request-id"].to_str().expect("id").to_owned();
    let socket = mesh.envoy.netns().tcp_connect(mesh.listener()).await.expect("connect");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.expect("handshake");
    let driver = tokio::spawn(connection.with_upgrades());
    let exchange = async {
        let mut answer = sender.send_request(request.map(Full::new)).await.expect("an answer");
        let (status, headers) = (answer.status(), answer.headers().clone());
        let mut broken = false;
        if status == 101 {
            let upgraded = hyper::upgrade::on(&mut answer).await.expect("upgraded");
            let mut upgraded = TokioIo::new(upgraded);
            let mut back = [0; 4];
            let echo = async {
                upgraded.write_all(b"ping").await?;
                upgraded.read_exact(&mut back).await
            };
            broken = echo.await.is_err() || &back != b"ping";
            if broken {
                // To its end, so that the fault does not meet the next request.
                let _ = upgraded.read_to_end(&mut Vec::new()).await;
            }
        }
        (id, status.as_str().to_owned(), headers, broken)
    };
    let seen = tokio::time::timeout(WITHIN, exchange).await.expect("the upgrade hangs");
    driver.abort();
    seen
}
