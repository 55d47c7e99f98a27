//! A proxy's place in the fabric, and small clients that show what is on the wire.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{Method, Request, StatusCode};
use lab::certs::{Authority, spiffe_id};
use lab::netns::{Fabric, Link, Netns};
use lab::pod::{Pod, PodSpec};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Far above what any answer takes.
pub const GENEROUS: Duration = Duration::from_secs(20);
/// How long the wire must stay silent before a test calls it silence.
pub const QUIET: Duration = Duration::from_millis(600);

pub struct World {
    pub fabric: Fabric,
    pub authority: Authority,
    pub proxy: Netns,
    client: Arc<rustls::ClientConfig>,
    _link: Link,
}

impl World {
    pub async fn new() -> World {
        let fabric = Fabric::new().await.expect("fabric");
        let authority = Authority::new().expect("authority");
        let identity = authority.issue(&spiffe_id("default", "waypoint")).expect("identity");
        let client = authority.client_config(&identity).expect("client config");
        let proxy = Netns::new("proxy").expect("namespace");
        let addrs = [ip("10.244.0.2"), ip("fd00:244::2")];
        let _link = fabric.attach(&proxy, &addrs).await.expect("attach");
        World { fabric, authority, proxy, client, _link }
    }

    /// The same for a ztunnel with certificates of its own, of which a client's are in `ZTUNNEL_TLS`.
    pub async fn of_real_ztunnel() -> World {
        let folder = std::env::var_os("ZTUNNEL_TLS").expect("ZTUNNEL_TLS names a folder with a client's certificate");
        let client = lab::certs::client_config_of(folder.as_ref()).expect("a client's certificate");
        World { client, ..World::new().await }
    }

    /// A pod that speaks HBONE.
    pub async fn pod(&self, name: &str, addr: &str) -> Pod {
        self.start(PodSpec::new(name, ip(addr))).await
    }

    /// A pod whose application is reached directly.
    pub async fn plain_pod(&self, name: &str, addr: &str) -> Pod {
        self.start(PodSpec { hbone: false, ..PodSpec::new(name, ip(addr)) }).await
    }

    pub async fn start(&self, spec: PodSpec) -> Pod {
        Pod::start(&self.fabric, &self.authority, spec).await.expect("pod")
    }

    pub async fn tcp(&self, addr: SocketAddr) -> TcpStream {
        timeout(GENEROUS, self.proxy.tcp_connect(addr)).await.expect("an answer").expect("connect")
    }

    pub async fn outer(&self, addr: SocketAddr) -> Outer {
        self.try_outer(addr).await.expect("HBONE connection")
    }

    pub async fn try_outer(&self, addr: SocketAddr) -> io::Result<Outer> {
        let tcp = self.proxy.tcp_connect(addr).await?;
        let local = tcp.local_addr()?;
        let name = ServerName::from(addr.ip());
        let tls = TlsConnector::from(self.client_config()).connect(name, tcp).await?;
        let (send, connection) = h2::client::handshake(tls).await.map_err(io::Error::other)?;
        let mut outer = Outer { send, local, connection: tokio::spawn(connection) };
        // TLS 1.3: a refusal of the client's certificate arrives after the handshake.
        let ready = outer.send.clone().ready().await;
        outer.send = ready.map_err(io::Error::other)?;
        Ok(outer)
    }

    /// A client configuration of the proxy's identity, with an empty store for tickets, which clones share.
    pub fn client_config(&self) -> Arc<rustls::ClientConfig> {
        let mut config = rustls::ClientConfig::clone(&self.client);
        config.resumption = rustls::client::Resumption::in_memory_sessions(8);
        Arc::new(config)
    }

    pub async fn h2c(&self, addr: SocketAddr) -> Outer {
        let tcp = self.tcp(addr).await;
        let local = tcp.local_addr().expect("local address");
        let (send, connection) = h2::client::handshake(tcp).await.expect("handshake");
        Outer { send, local, connection: tokio::spawn(connection) }
    }
}

/// An HTTP/2 connection: an outer connection, or h2c to an application.
pub struct Outer {
    pub send: SendRequest<Bytes>,
    pub local: SocketAddr,
    pub connection: JoinHandle<Result<(), h2::Error>>,
}

impl Outer {
    pub async fn connect(&mut self, to: SocketAddr) -> Result<Tunnel, h2::Error> {
        self.connect_to(&to.to_string()).await
    }

    pub async fn connect_to(&mut self, authority: &str) -> Result<Tunnel, h2::Error> {
        let request = Request::builder().method(Method::CONNECT).uri(authority).body(());
        let (response, to) = self.send.send_request(request.expect("CONNECT"), false)?;
        let response = response.await?;
        let status = response.status();
        Ok(Tunnel { status, to, from: response.into_body(), rest: Vec::new() })
    }

    /// A whole request; the body is the answer's.
    pub async fn request(&mut self, method: Method, path: &str, id: &str) -> Result<(StatusCode, Vec<u8>), h2::Error> {
        let request =
            Request::builder().method(method).uri(format!("http://app{path}")).header("x-request-id", id).body(());
        let (response, _) = self.send.send_request(request.expect("request"), true)?;
        let response = response.await?;
        let status = response.status();
        Ok((status, collect(response.into_body()).await?))
    }

    /// The error that ended the connection, or none if it ended well.
    pub async fn end(self) -> Option<h2::Error> {
        drop(self.send);
        timeout(GENEROUS, self.connection).await.expect("an end").expect("no panic").err()
    }

    pub async fn is_silent(&mut self) -> bool {
        timeout(QUIET, &mut self.connection).await.is_err()
    }
}

pub async fn collect(mut body: RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut all = Vec::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        all.extend_from_slice(&chunk);
    }
    Ok(all)
}

/// What ends a body that should bring no more bytes: nothing (END_STREAM), or an error.
pub async fn end_of(body: &mut RecvStream) -> Option<h2::Error> {
    loop {
        match timeout(GENEROUS, body.data()).await.expect("an end") {
            None => return None,
            Some(Err(error)) => return Some(error),
            Some(Ok(chunk)) => assert!(chunk.is_empty(), "unexpected bytes: {chunk:?}"),
        }
    }
}

/// A tunnel, with HTTP/1.1 in it.
pub struct Tunnel {
    pub status: StatusCode,
    pub to: SendStream<Bytes>,
    pub from: RecvStream,
    rest: Vec<u8>,
}

impl Tunnel {
    pub fn send(&mut self, method: &str, path: &str, id: &str) -> Result<(), h2::Error> {
        self.to.send_data(head(method, path, id).into(), false)
    }

    /// Reads until `wanted` was seen.
    pub async fn expect(&mut self, wanted: &str) -> Result<(), h2::Error> {
        while !String::from_utf8_lossy(&self.rest).contains(wanted) {
            let chunk = timeout(GENEROUS, self.from.data()).await.expect("an answer");
            let chunk = chunk.expect("the tunnel ended early")?;
            self.rest.extend_from_slice(&chunk);
        }
        self.rest.clear();
        Ok(())
    }

    pub async fn get(&mut self, path: &str, id: &str) -> Result<(), h2::Error> {
        self.send("GET", path, id)?;
        self.expect("HTTP/1.1 200").await
    }
}

pub fn head(method: &str, path: &str, id: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: app\r\nx-request-id: {id}\r\n\r\n")
}

/// What followed a request on a plain connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Wire {
    Fin(String),
    Rst(String),
    Silence(String),
}

/// Reads until the connection ends, or is quiet.
pub async fn read_all(stream: &mut TcpStream) -> Wire {
    let mut seen = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = || String::from_utf8_lossy(&seen).into_owned();
        match timeout(QUIET, stream.read(&mut buffer)).await {
            Err(_) => return Wire::Silence(text()),
            Ok(Ok(0)) => return Wire::Fin(text()),
            Ok(Ok(count)) => seen.extend_from_slice(buffer.get(..count).expect("count")),
            Ok(Err(error)) => {
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
                return Wire::Rst(text());
            }
        }
    }
}

/// A request on a connection, and what follows.
pub async fn exchange(stream: &mut TcpStream, method: &str, path: &str, id: &str) -> Wire {
    stream.write_all(head(method, path, id).as_bytes()).await.expect("the kernel takes the bytes");
    read_all(stream).await
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an IP address")
}

/// The kind of the I/O error under an HTTP/2 error.
pub fn io_kind(error: &h2::Error) -> Option<io::ErrorKind> {
    error.get_io().map(io::Error::kind)
}
