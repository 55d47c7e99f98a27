//! A small server in this process, and servers that break the connection.

use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use lab::history::ServerRecord;
use lab::load::{Connector, connector};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub type Body = BoxBody<Bytes, io::Error>;

/// What the server saw of one request.
#[derive(Clone, Debug)]
pub struct Seen {
    pub record: ServerRecord,
    pub host: String,
    pub body: Bytes,
    pub idempotency_key: Option<String>,
}

/// Answers by path: `/` at once, `/stall` when [`Server::open_gate`] was called, `/bye` with
/// `connection: close`, `/fail` with a service error, `/hang` with a body that stays open until the
/// gate opens. The pods' names are "pod-0" and "pod-1", in turn.
pub struct Server {
    pub addr: SocketAddr,
    state: Arc<State>,
    task: JoinHandle<()>,
}

struct State {
    seen: Mutex<Vec<Seen>>,
    connections: AtomicUsize,
    requests: AtomicUsize,
    gate: watch::Sender<bool>,
}

/// How a breaking server ends a connection once a request has arrived.
#[derive(Clone, Copy, Debug)]
pub enum Break {
    Fin,
    Rst,
    /// The head of a response and half of its body, then FIN.
    HalfBody,
}

impl Server {
    pub async fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let addr = listener.local_addr().expect("address");
        let state = Arc::new(State {
            seen: Mutex::default(),
            connections: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            gate: watch::Sender::new(false),
        });
        let shared = Arc::clone(&state);
        let task = tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    let service = service_fn(move |request| answer(Arc::clone(&shared), request));
                    let builder = auto::Builder::new(TokioExecutor::new());
                    // Ends with an error when the client goes away or `/fail` was asked for.
                    let _ = builder.serve_connection(TokioIo::new(tcp), service).await;
                });
            }
        });
        Server { addr, state, task }
    }

    pub fn connector(&self) -> Connector {
        let addr = self.addr;
        connector(move || TcpStream::connect(addr))
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().expect("lock").clone()
    }

    pub fn records(&self) -> Vec<ServerRecord> {
        self.seen().into_iter().map(|seen| seen.record).collect()
    }

    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    pub fn open_gate(&self) {
        self.state.gate.send_replace(true);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Body>, io::Error> {
    let number = state.requests.fetch_add(1, Ordering::SeqCst);
    let pod = format!("pod-{}", number % 2);
    let (head, body) = request.into_parts();
    let header = |name: &str| head.headers.get(name).map(|value| value.to_str().expect("ASCII").to_owned());
    let id = header("x-request-id").expect("every request carries an id");
    let host = header("host").or_else(|| head.uri.authority().map(ToString::to_string)).unwrap_or_default();
    let record = ServerRecord { id, pod: pod.clone(), at: Instant::now(), method: head.method.to_string() };
    let idempotency_key = header("idempotency-key");
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    state.seen.lock().expect("lock").push(Seen { record, host, body, idempotency_key });

    let mut gate = state.gate.subscribe();
    let response = Response::builder().header("x-pod", &pod).header("x-envoy-attempt-count", "1");
    let full = Full::new(Bytes::from(pod)).map_err(|never: Infallible| match never {}).boxed();
    let response = match head.uri.path() {
        "/stall" => {
            let _ = gate.wait_for(|open| *open).await;
            response.body(full)
        }
        "/bye" => response.header("connection", "close").body(full),
        "/fail" => return Err(io::Error::other("asked to fail")),
        "/hang" => {
            let first = futures::stream::iter([Ok(Frame::data(Bytes::from_static(b"open")))]);
            let rest = futures::stream::once(async move {
                let _ = gate.wait_for(|open| *open).await;
                Ok(Frame::data(Bytes::from_static(b"done")))
            });
            response.body(BodyExt::boxed(StreamBody::new(first.chain(rest))))
        }
        _ => response.body(full),
    };
    response.map_err(io::Error::other)
}

/// A server that reads a request and then breaks the connection. Runs until the runtime ends.
pub async fn breaking(how: Break) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let addr = listener.local_addr().expect("address");
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 16 * 1024];
                if !matches!(tcp.read(&mut buffer).await, Ok(read) if read > 0) {
                    return;
                }
                match how {
                    Break::Fin => {}
                    Break::Rst => tcp.set_zero_linger().expect("linger"),
                    Break::HalfBody => {
                        let half = b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nhalf";
                        tokio::io::AsyncWriteExt::write_all(&mut tcp, half).await.expect("write");
                    }
                }
            });
        }
    });
    addr
}

/// Waits for a condition; fails after ten seconds.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("not within 10 s: {what}");
}
