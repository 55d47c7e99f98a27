//! The client's ztunnel: an application's TCP connections to a service's address go out as HBONE tunnels to the
//! service's waypoint.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{Method, Request, StatusCode};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsConnector;

use crate::netns::Netns;

/// The outbound side of a ztunnel for one service; dropping it closes everything.
#[derive(Debug)]
pub struct Outbound {
    listener: SocketAddr,
    task: JoinHandle<()>,
}

#[derive(Clone)]
struct Tunnels {
    netns: Netns,
    waypoint: SocketAddr,
    service: SocketAddr,
    tls: Arc<ClientConfig>,
    /// One connection to the waypoint carries all tunnels, as ztunnel's pool has it.
    connection: Arc<tokio::sync::Mutex<Option<SendRequest<Bytes>>>>,
}

// === impl Outbound ===

impl Outbound {
    /// Listens on a loopback port of `netns`; each connection becomes a tunnel to `service` (its address and
    /// port) through `waypoint`.
    ///
    /// # Errors
    /// As `bind(2)`.
    pub fn start(netns: &Netns, waypoint: SocketAddr, service: SocketAddr, tls: Arc<ClientConfig>) -> Result<Self> {
        let listener = netns.tcp_listener((Ipv4Addr::LOCALHOST, 0).into())?;
        let addr = listener.local_addr()?;
        let tunnels = Tunnels { netns: netns.clone(), waypoint, service, tls, connection: Arc::default() };
        let task = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((application, _)) = listener.accept().await {
                let tunnels = tunnels.clone();
                open.spawn(async move {
                    // The application sees its connection end.
                    let _ = tunnels.serve(application).await;
                });
            }
        });
        Ok(Self { listener: addr, task })
    }

    /// What stands for the service's address: connect to it from within the namespace.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.listener
    }
}

impl Drop for Outbound {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// === impl Tunnels ===

impl Tunnels {
    async fn serve(&self, application: TcpStream) -> Result<()> {
        application.set_nodelay(true)?;
        let request = Request::builder().method(Method::CONNECT).uri(self.service.to_string()).body(())?;
        let (response, to_waypoint) = self.sender().await?.send_request(request, false)?;
        let response = response.await.context("CONNECT")?;
        ensure!(response.status() == StatusCode::OK, "the waypoint answers {}", response.status());
        let (read, write) = application.into_split();
        // Half-close: a side that ended well waits for the other.
        tokio::try_join!(upload(read, to_waypoint), download(response.into_body(), write))?;
        Ok(())
    }

    async fn sender(&self) -> Result<SendRequest<Bytes>> {
        let mut connection = self.connection.lock().await;
        if let Some(sender) = connection.clone()
            && let Ok(ready) = sender.ready().await
        {
            return Ok(ready);
        }
        let socket = self.netns.tcp_connect(self.waypoint).await.context("connect to the waypoint")?;
        socket.set_nodelay(true)?;
        let name = ServerName::IpAddress(self.waypoint.ip().into());
        let tls = TlsConnector::from(Arc::clone(&self.tls)).connect(name, socket).await.context("mTLS")?;
        let (sender, driver) = h2::client::handshake(tls).await?;
        tokio::spawn(driver);
        let ready = sender.ready().await?;
        *connection = Some(ready.clone());
        Ok(ready)
    }
}

async fn upload(mut from: OwnedReadHalf, mut to: SendStream<Bytes>) -> Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        let mut chunk = Bytes::copy_from_slice(buffer.get(..count).unwrap_or_default());
        if chunk.is_empty() {
            return Ok(to.send_data(chunk, true)?);
        }
        while !chunk.is_empty() {
            to.reserve_capacity(chunk.len());
            let capacity = std::future::poll_fn(|cx| to.poll_capacity(cx)).await.context("stream closed")??;
            to.send_data(chunk.split_to(capacity.min(chunk.len())), false)?;
        }
    }
}

async fn download(mut from: RecvStream, mut to: OwnedWriteHalf) -> Result<()> {
    while let Some(chunk) = from.data().await {
        let chunk = chunk?;
        from.flow_control().release_capacity(chunk.len())?;
        to.write_all(&chunk).await?;
    }
    Ok(to.shutdown().await?)
}
