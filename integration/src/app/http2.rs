//! The HTTP/2 side, on h2 itself: hyper offers neither REFUSED_STREAM nor GOAWAY on request.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use tokio::task::JoinSet;

use super::answer::{ANNOUNCED, Plan, SENT, head, plan};
use super::gate::{Gate, Gated};
use super::record::Digest;
use super::script::Behaviour;
use super::shared::{Shared, idle};
use crate::tcp::{Control, Ending, Order};

/// How long a connection stays readable after a GOAWAY, so that bytes on the way do not turn its
/// FIN into a RST, which could overtake the GOAWAY at the client.
const LINGER: Duration = Duration::from_secs(1);

pub(super) async fn serve(shared: &Arc<Shared>, stream: Gated, control: &Arc<Control>, gate: &Arc<Gate>) {
    let Ok(mut connection) = h2::server::Builder::new().enable_connect_protocol().handshake(stream).await else {
        return;
    };
    // Dropped with the connection, so no stream's task outlives it.
    let mut streams = JoinSet::new();
    let mut closing = false;
    loop {
        let accepted = tokio::select! {
            accepted = connection.accept() => accepted,
            () = control.draining(), if !closing => {
                closing = true;
                connection.graceful_shutdown();
                continue;
            }
            () = idle(shared, gate), if !closing => {
                closing = true;
                connection.graceful_shutdown();
                continue;
            }
            Behaviour::GoAwayBelow = gate.tripped(), if !closing => {
                // The request's HEADERS were withheld from h2, so the last stream id is below it.
                connection.abrupt_shutdown(Reason::NO_ERROR);
                let _ = connection.accept().await;
                tokio::time::sleep(LINGER).await;
                return;
            }
            Some(_) = streams.join_next(), if !streams.is_empty() => continue,
        };
        let Some(Ok((request, mut respond))) = accepted else {
            return;
        };
        let guard = gate.begin();
        let behaviour = shared.script.take_for_request();
        if behaviour == Behaviour::RefuseStream {
            respond.send_reset(Reason::REFUSED_STREAM);
            continue;
        }
        let (shared, control) = (Arc::clone(shared), Arc::clone(control));
        streams.spawn(async move {
            let _in_progress = guard;
            // A failed stream concerns its peer; the log of executions tells what was done.
            let _ = handle(&shared, &control, behaviour, request, respond).await;
        });
    }
}

async fn handle(
    shared: &Arc<Shared>,
    control: &Arc<Control>,
    behaviour: Behaviour,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> Result<(), h2::Error> {
    let (parts, mut from) = request.into_parts();
    let mut received = BytesMut::new();
    // An upgrade (extended CONNECT, RFC 8441) is a request without a body; what follows is no part of it.
    let upgrade = parts.method == Method::CONNECT;
    while let Some(chunk) = if upgrade { None } else { from.data().await } {
        let chunk = chunk?;
        from.flow_control().release_capacity(chunk.len())?;
        received.extend_from_slice(&chunk);
    }
    if !upgrade {
        from.trailers().await?;
    }
    let mut digest = Digest::default();
    digest.add(&received);
    shared.record(control, &parts, &digest);
    match plan(behaviour, &parts, &shared.spec.pod) {
        Plan::Answer { status, .. } if upgrade => {
            echo(from, respond.send_response(head(&shared.spec.pod, status, ()), false)?).await?
        }
        Plan::Answer { delay, status, body } => {
            tokio::time::sleep(delay).await;
            let mut response = head(&shared.spec.pod, status, ());
            response.headers_mut().insert(CONTENT_LENGTH, body.len().into());
            let empty = body.is_empty() || parts.method == Method::HEAD;
            let to = respond.send_response(response, empty)?;
            if !empty {
                send(to, body, End::Stream).await?;
            }
        }
        Plan::HangBeforeHeaders => {
            std::future::poll_fn(|cx| respond.poll_reset(cx)).await?;
        }
        Plan::HangBody => {
            let mut released = shared.released.subscribe();
            let to = respond.send_response(head(&shared.spec.pod, StatusCode::OK, ()), false)?;
            let first = Bytes::from(format!("{}\n", shared.spec.pod));
            let mut to = send(to, first, End::Open).await?;
            tokio::select! {
                _ = released.changed() => to.send_data(Bytes::new(), true)?,
                _ = std::future::poll_fn(|cx| to.poll_reset(cx)) => {}
            }
        }
        Plan::CloseUnanswered => control.give(Order::End(Ending::Fin)),
        Plan::ResetUnanswered => control.give(Order::End(Ending::Rst)),
        Plan::HeadersThenReset => {
            let mark = control.written();
            let mut response = head(&shared.spec.pod, StatusCode::OK, ());
            // An answer to HEAD, or to an upgrade, has no body that could be announced.
            let complete = parts.method == Method::HEAD;
            if !upgrade {
                response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static(ANNOUNCED));
            }
            let to = respond.send_response(response, complete)?;
            let _to = if complete { to } else { send(to, Bytes::from_static(SENT), End::Open).await? };
            control.settled_since(mark).await;
            control.give(Order::End(Ending::Rst));
        }
        Plan::GrpcEcho => {
            let response = grpc_head(shared, parts.headers.get(CONTENT_TYPE));
            let to = respond.send_response(response, false)?;
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
            send(to, received.freeze(), End::Trailers(trailers)).await?;
        }
        Plan::GrpcStatus(code) => {
            let mut response = grpc_head(shared, parts.headers.get(CONTENT_TYPE));
            response.headers_mut().insert("grpc-status", code.into());
            respond.send_response(response, true)?;
        }
    }
    Ok(())
}

/// What an upgraded stream brings goes back, until the peer ends it.
async fn echo(mut from: RecvStream, mut to: SendStream<Bytes>) -> Result<(), h2::Error> {
    while let Some(chunk) = from.data().await {
        let chunk = chunk?;
        from.flow_control().release_capacity(chunk.len())?;
        to = send(to, chunk, End::Open).await?;
    }
    to.send_data(Bytes::new(), true)
}

fn grpc_head(shared: &Shared, content_type: Option<&HeaderValue>) -> Response<()> {
    let mut response = head(&shared.spec.pod, StatusCode::OK, ());
    let content_type = content_type.cloned();
    let content_type = content_type.unwrap_or(HeaderValue::from_static("application/grpc"));
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

enum End {
    Open,
    Stream,
    Trailers(HeaderMap),
}

/// Sends `body` within the peer's flow control.
async fn send(mut to: SendStream<Bytes>, mut body: Bytes, end: End) -> Result<SendStream<Bytes>, h2::Error> {
    while !body.is_empty() {
        to.reserve_capacity(body.len());
        let capacity = match std::future::poll_fn(|cx| to.poll_capacity(cx)).await {
            Some(capacity) => capacity?,
            None => return Err(Reason::CANCEL.into()),
        };
        let part = body.split_to(capacity.min(body.len()));
        let last = body.is_empty() && matches!(end, End::Stream);
        to.send_data(part, last)?;
    }
    if let End::Trailers(trailers) = end {
        to.send_trailers(trailers)?;
    }
    Ok(to)
}
