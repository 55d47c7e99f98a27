//! One tunnel: a CONNECT stream, and the socket to the application behind it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{Response, StatusCode};
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::shared::{ConnectBehaviour, Shared};

/// The tunnel's place in the log; closes the entry on drop.
pub(super) struct Record {
    pub(super) shared: Arc<Shared>,
    pub(super) place: usize,
}

impl Record {
    fn answered(&self, status: StatusCode) {
        self.shared.tunnels.update(self.place, |tunnel| tunnel.status = Some(status));
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let at = Instant::now();
        self.shared.tunnels.update(self.place, |tunnel| tunnel.closed = Some(at));
    }
}

pub(super) async fn serve(
    record: Record,
    behaviour: ConnectBehaviour,
    authority: String,
    from_client: RecvStream,
    mut respond: SendResponse<Bytes>,
) {
    let refusal = match behaviour {
        ConnectBehaviour::Answer(status) => Some(status),
        ConnectBehaviour::NeverAnswer => {
            // The stream is kept open until the peer resets it, or the connection ends.
            let _ = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
            return;
        }
        ConnectBehaviour::Normal | ConnectBehaviour::EndConnection(_) => None,
    };
    let application = match (refusal, authority.parse::<SocketAddr>()) {
        (Some(status), _) => Err(status),
        (None, Err(_)) => Err(StatusCode::BAD_REQUEST),
        // Within the namespace the pod's own address is local, so this never leaves it.
        (None, Ok(addr)) => record.shared.ns.tcp_connect(addr).await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE),
    };
    let (status, application) = match application {
        Ok(socket) => (StatusCode::OK, Some(socket)),
        Err(status) => (status, None),
    };
    let mut response = Response::new(());
    *response.status_mut() = status;
    record.answered(status);
    let Ok(to_client) = respond.send_response(response, application.is_none()) else {
        return;
    };
    let Some(application) = application else {
        return;
    };
    let _ = application.set_nodelay(true);
    let (read, write) = application.into_split();
    let mut upstream = std::pin::pin!(pump_to_application(from_client, write));
    let mut downstream = std::pin::pin!(pump_to_client(read, to_client));
    // Half-close: a side that ended well waits for the other; one that broke ends both.
    tokio::select! {
        ended = &mut upstream => if ended.is_ok() { let _ = downstream.await; },
        ended = &mut downstream => if ended.is_ok() { let _ = upstream.await; },
    }
}

/// The other side is gone; there is nobody to tell more.
struct Broken;

/// DATA frames to the application. A reset of the stream resets the application's connection
/// (RFC 9113, section 8.5).
async fn pump_to_application(mut from: RecvStream, mut to: OwnedWriteHalf) -> Result<(), Broken> {
    while let Some(chunk) = from.data().await {
        let Ok(chunk) = chunk else {
            let _ = SockRef::from(to.as_ref()).set_linger(Some(Duration::ZERO));
            return Err(Broken);
        };
        let _ = from.flow_control().release_capacity(chunk.len());
        // An application that takes no more is told by its own half.
        if to.write_all(&chunk).await.is_err() {
            return Ok(());
        }
    }
    let _ = to.shutdown().await;
    Ok(())
}

/// The application's bytes to the client. Its FIN is END_STREAM, and so is its RST, as the real ztunnel has it
/// (RFC 9113, section 8.5, would have RST_STREAM with `CONNECT_ERROR`).
async fn pump_to_client(mut from: OwnedReadHalf, mut to: SendStream<Bytes>) -> Result<(), Broken> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read,
            _ = std::future::poll_fn(|cx| to.poll_reset(cx)) => {
                let _ = SockRef::from(from.as_ref()).set_linger(Some(Duration::ZERO));
                return Err(Broken);
            }
        };
        let mut chunk = match read {
            Ok(0) | Err(_) => return to.send_data(Bytes::new(), true).map_err(|_| Broken),
            Ok(count) => Bytes::copy_from_slice(buffer.get(..count).unwrap_or_default()),
        };
        while !chunk.is_empty() {
            to.reserve_capacity(chunk.len());
            match std::future::poll_fn(|cx| to.poll_capacity(cx)).await {
                Some(Ok(capacity)) => {
                    let part = chunk.split_to(capacity.min(chunk.len()));
                    to.send_data(part, false).map_err(|_| Broken)?;
                }
                _ => return Err(Broken),
            }
        }
    }
}
