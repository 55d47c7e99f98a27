//! One outer connection: TLS, HTTP/2, and the CONNECTs on it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::shared::{ConnectBehaviour, Shared, TlsBehaviour, Tunnel};
use super::tunnel;
use crate::tcp::{Control, Order, Stream};

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
    let handshake = TlsAcceptor::from(Arc::clone(config)).accept(stream).into_fallible();
    let handshake = tokio::select! {
        handshake = handshake => handshake,
        // No tunnel to wait for.
        () = control.draining() => return,
    };
    let tls = match handshake {
        Ok(tls) => tls,
        Err((_, stream)) => return part(stream, control).await,
    };
    let mut builder = h2::server::Builder::new();
    builder.initial_window_size(1 << 20).initial_connection_window_size(1 << 22);
    let Ok(mut outer) = builder.handshake::<_, bytes::Bytes>(tls).await else {
        return;
    };
    // Dropped with the connection, so no tunnel outlives it.
    let mut tunnels = JoinSet::new();
    let mut drained = false;
    loop {
        let accepted = tokio::select! {
            accepted = outer.accept() => accepted,
            () = control.draining(), if !drained => {
                drained = true;
                outer.graceful_shutdown();
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
        let behaviour = match behaviour {
            ConnectBehaviour::Normal if request.method() != Method::CONNECT => {
                ConnectBehaviour::Answer(StatusCode::METHOD_NOT_ALLOWED)
            }
            other => other,
        };
        let record = tunnel::Record { shared: Arc::clone(shared), place };
        tunnels.spawn(tunnel::serve(record, behaviour, authority, request.into_body(), respond));
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
