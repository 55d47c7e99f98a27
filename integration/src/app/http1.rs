//! The HTTP/1.1 side, on hyper.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::StreamExt as _;
use http::header::{CONNECTION, CONTENT_LENGTH, UPGRADE};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use super::answer::{ANNOUNCED, Plan, SENT, head, plan};
use super::gate::{Gate, Gated, InProgress};
use super::record::Digest;
use super::script::Behaviour;
use super::shared::{Shared, idle};
use crate::tcp::{Control, Ending, Order};

type ResponseBody = Tracked<UnsyncBoxBody<Bytes, Infallible>>;

pub(super) async fn serve(shared: &Arc<Shared>, stream: Gated, control: &Arc<Control>, gate: &Arc<Gate>) {
    let service = service_fn(|request| handle(Arc::clone(shared), Arc::clone(control), Arc::clone(gate), request));
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let mut closing = false;
    loop {
        tokio::select! {
            _ = connection.as_mut() => return,
            () = control.draining(), if !closing => {}
            () = idle(shared, gate), if !closing => {}
        }
        closing = true;
        connection.as_mut().graceful_shutdown();
    }
}

async fn handle(
    shared: Arc<Shared>,
    control: Arc<Control>,
    gate: Arc<Gate>,
    mut request: Request<Incoming>,
) -> Result<Response<ResponseBody>, Infallible> {
    let guard = gate.begin();
    let behaviour = shared.script.take_for_request();
    if request.headers().contains_key(UPGRADE) {
        return upgrade(&shared, &control, guard, behaviour, &mut request).await;
    }
    let (parts, mut body) = request.into_parts();
    let mut digest = Digest::default();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => digest.add(frame.data_ref().map_or(&[], |data| data)),
            // Cut off: not executed, and nobody is there to answer.
            Err(_) => return std::future::pending().await,
        }
    }
    if behaviour == Behaviour::RefuseStream {
        let text = Full::from("REFUSED_STREAM needs HTTP/2").boxed_unsync();
        return Ok(head(&shared.spec.pod, StatusCode::NOT_IMPLEMENTED, Tracked::new(text, guard)));
    }
    shared.record(&control, &parts, &digest);
    let (status, body) = match plan(behaviour, &parts, &shared.spec.pod) {
        Plan::Answer { delay, status, body } => {
            tokio::time::sleep(delay).await;
            (status, Full::from(body).boxed_unsync())
        }
        Plan::HangBeforeHeaders => return std::future::pending().await,
        Plan::HangBody => (StatusCode::OK, open_body(&shared)),
        Plan::CloseUnanswered => return end(&control, Ending::Fin).await,
        Plan::ResetUnanswered => return end(&control, Ending::Rst).await,
        Plan::HeadersThenReset => {
            let mut response = head(&shared.spec.pod, StatusCode::OK, cut_body(control));
            response.headers_mut().insert(CONTENT_LENGTH, ANNOUNCED.parse().unwrap_or(0.into()));
            return Ok(response.map(|body| Tracked::new(body, guard)));
        }
        Plan::GrpcEcho | Plan::GrpcStatus(_) => {
            (StatusCode::HTTP_VERSION_NOT_SUPPORTED, Full::from("gRPC needs HTTP/2").boxed_unsync())
        }
    };
    Ok(head(&shared.spec.pod, status, Tracked::new(body, guard)))
}

async fn end<T>(control: &Control, ending: Ending) -> T {
    control.give(Order::End(ending));
    std::future::pending().await
}

/// Answers 101 and echoes what follows, unless the script has another plan.
async fn upgrade(
    shared: &Arc<Shared>,
    control: &Arc<Control>,
    guard: InProgress,
    behaviour: Behaviour,
    request: &mut Request<Incoming>,
) -> Result<Response<ResponseBody>, Infallible> {
    let upgraded = hyper::upgrade::on(&mut *request);
    let mut copy = Request::new(());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    let parts = copy.into_parts().0;
    shared.record(control, &parts, &Digest::default());
    let plan = plan(behaviour, &parts, &shared.spec.pod);
    match plan {
        Plan::CloseUnanswered => return end(control, Ending::Fin).await,
        Plan::ResetUnanswered => return end(control, Ending::Rst).await,
        _ => {}
    }
    let protocol = request.headers().get(UPGRADE).cloned();
    let (control, mark) = (Arc::clone(control), control.written());
    tokio::spawn(async move {
        let _in_progress = guard;
        if let Ok(upgraded) = upgraded.await {
            if plan == Plan::HeadersThenReset {
                control.settled_since(mark).await;
                control.give(Order::End(Ending::Rst));
                return;
            }
            let (mut read, mut write) = tokio::io::split(TokioIo::new(upgraded));
            let _ = tokio::io::copy(&mut read, &mut write).await;
            let _ = tokio::io::AsyncWriteExt::shutdown(&mut write).await;
        }
    });
    let body = Tracked { body: Empty::new().boxed_unsync(), _guard: None };
    let mut response = head(&shared.spec.pod, StatusCode::SWITCHING_PROTOCOLS, body);
    response.headers_mut().insert(CONNECTION, http::HeaderValue::from_static("upgrade"));
    if let Some(protocol) = protocol {
        response.headers_mut().insert(UPGRADE, protocol);
    }
    Ok(response)
}

/// The pod's name, and then nothing until [`super::App::release`].
fn open_body(shared: &Arc<Shared>) -> UnsyncBoxBody<Bytes, Infallible> {
    let first = Ok(Frame::data(Bytes::from(format!("{}\n", shared.spec.pod))));
    let mut released = shared.released.subscribe();
    let wait = futures::stream::once(async move {
        let _ = released.changed().await;
    });
    let end = wait.filter_map(|()| async { None });
    StreamBody::new(futures::stream::iter([first]).chain(end)).boxed_unsync()
}

/// Ten bytes, and a reset once they are on the wire.
fn cut_body(control: Arc<Control>) -> UnsyncBoxBody<Bytes, Infallible> {
    let mark = control.written();
    let reset = futures::stream::once(async move {
        control.settled_since(mark).await;
        control.give(Order::End(Ending::Rst));
        std::future::pending::<()>().await;
    });
    let end = reset.filter_map(|()| async { None });
    let first = Ok(Frame::data(Bytes::from_static(SENT)));
    StreamBody::new(futures::stream::iter([first]).chain(end)).boxed_unsync()
}

/// A body that tells the gate when it is done.
struct Tracked<B> {
    body: B,
    _guard: Option<InProgress>,
}

impl<B> Tracked<B> {
    fn new(body: B, guard: InProgress) -> Self {
        Self { body, _guard: Some(guard) }
    }
}

impl<B: Body + Unpin> Body for Tracked<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
