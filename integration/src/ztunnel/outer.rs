//! One outer connection: TLS, HTTP/2, and the CONNECTs on it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use h2::{Ping, PingPong, Reason};
use http::{Method, StatusCode};
use rustls::ServerConfig;
use rustls::server::ServerSessionMemoryCache;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::shared::{ConnectBehaviour, Pings, Shared, TlsBehaviour, Tunnel};
use super::tunnel;
use crate::tcp::{Control, Order, Stream};

/// ztunnel's SETTINGS, and its window for the whole connection.
const STREAMS: u32 = 200;
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
const FRAME: u32 = 1 << 20;
const HEADER_LIST: u32 = 64 << 10;

pub(super) async fn serve(shared: Arc<Shared>, stream: Stream) {
    let control = Arc::clone(stream.control());
    tokio::select! {
        // First: the order to end makes reads fail, which must not be taken for the peer's doing.
        biased;
        () = control.ended() => {}
        () = serve_outer(&shared, stream, &control) => {}
    }
}

/// Serves one outer connection. Errors end it; the connection's log tells why.
async fn serve_outer(shared: &Arc<Shared>, stream: Stream, control: &Arc<Control>) {
    let tls = shared.faults().tls;
    let config = match tls {
        TlsBehaviour::Normal => &shared.tls.normal,
        TlsBehaviour::RefuseClient => &shared.tls.refusing,
        TlsBehaviour::UntrustedServer => &shared.tls.untrusted,
        TlsBehaviour::NeverAnswer => {
            // Keeps the socket open until somebody ends it.
            let _open = stream;
            return control.draining().await;
        }
    };
    let handshake = TlsAcceptor::from(unused(config)).accept(stream).into_fallible();
    let handshake = tokio::select! {
        handshake = handshake => handshake,
        // No tunnel to wait for. (A process that is told to end finishes its handshakes.)
        () = control.draining_alone() => return,
    };
    let tls = match handshake {
        Ok(tls) => tls,
        Err((_, stream)) => return part(stream, control).await,
    };
    let (_entry, io) = shared.injections.enter(control.id, tls);
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_header_list_size(HEADER_LIST)
        .max_concurrent_streams(STREAMS);
    let Ok(mut outer) = builder.handshake::<_, bytes::Bytes>(io).await else {
        return;
    };
    let mut silent = pin!(silent(outer.ping_pong(), *shared.pings()));
    // Dropped with the connection, so no tunnel outlives it.
    let mut tunnels = JoinSet::new();
    let (mut drained, mut given_up) = (false, false);
    loop {
        let accepted = tokio::select! {
            accepted = outer.accept() => accepted,
            () = control.draining(), if !drained => {
                drained = true;
                outer.graceful_shutdown();
                if control.is_terminating() {
                    // From here on ztunnel accepts no stream any more: a CONNECT that crosses the GOAWAY
                    // counts as processed, and is never answered.
                    let _ = poll_fn(|cx| outer.poll_closed(cx)).await;
                    return;
                }
                continue;
            }
            () = &mut silent, if !given_up => {
                given_up = true;
                outer.abrupt_shutdown(Reason::NO_ERROR);
                continue;
            }
            Some(_) = tunnels.join_next(), if !tunnels.is_empty() => continue,
        };
        let Some(Ok((request, respond))) = accepted else {
            return;
        };
        let behaviour = shared.take_connect();
        if let ConnectBehaviour::EndConnection(ending) = behaviour {
            control.give(Order::End(ending));
            return;
        }
        let authority = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        let place = shared.tunnels.push(Tunnel {
            connection: control.id,
            peer: control.peer,
            authority: authority.clone(),
            opened: Instant::now(),
            status: None,
            closed: None,
        });
        let target = match request.method() {
            &Method::CONNECT => tunnel::target(&authority, control.local.ip()),
            _ => Err(StatusCode::BAD_REQUEST),
        };
        let record = tunnel::Record { shared: Arc::clone(shared), place };
        tunnels.spawn(tunnel::serve(record, behaviour, target, request.into_body(), respond));
    }
}

/// As ztunnel has it, a configuration of its own for every connection: no session can be resumed.
fn unused(config: &Arc<ServerConfig>) -> Arc<ServerConfig> {
    let mut config = ServerConfig::clone(config);
    config.session_storage = ServerSessionMemoryCache::new(1);
    Arc::new(config)
}

/// Returns when a PING was left unanswered for too long.
async fn silent(pings: Option<PingPong>, Pings { interval, timeout }: Pings) {
    let Some(mut pings) = pings else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(interval).await;
        match tokio::time::timeout(timeout, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            // The connection has ended, which its own task sees.
            Ok(Err(_)) => return std::future::pending().await,
            Err(_) => return,
        }
    }
}

/// Closes a connection whose handshake failed: FIN, and what the client still sends is read. Closing
/// at once would send a RST for it, which could overtake the alert at the client.
async fn part(mut stream: Stream, control: &Control) {
    const AT_MOST: Duration = Duration::from_secs(2);
    control.shutdown_write();
    let mut sink = tokio::io::sink();
    let drain = tokio::io::copy(&mut stream, &mut sink);
    let _ = tokio::time::timeout(AT_MOST, drain).await;
}
