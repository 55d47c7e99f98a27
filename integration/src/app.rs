//! The application in a pod: HTTP/1.1 and h2c (prior knowledge) on one port, plain text.
//!
//! It records every [`Execution`] once the request was read to its end and before it answers, so
//! that the log tells what a server did, whatever became of the answer. What it does with a request
//! follows from its [`Script`], else from the query of the request:
//!
//! | query | effect |
//! |---|---|
//! | `delay_ms=N` | answers N milliseconds later |
//! | `status=N` | answers N |
//! | `bytes=N` | a body of N bytes instead of the pod's name |
//! | `hang=headers` | reads the request and never answers |
//! | `hang=body` | answers 200 and keeps the body open until [`App::release`] |
//!
//! An `Upgrade` request (RFC 9110, section 7.8) is answered by 101, an extended CONNECT (RFC 8441) by
//! 200, and the bytes are echoed. A
//! request with `content-type: application/grpc` gets its own body back and `grpc-status: 0`.

mod answer;
mod gate;
mod http1;
mod http2;
mod record;
mod script;

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::netns::Netns;
use crate::pod::{Connections, Ending, Listener, Log, Order, Stream};
use gate::{Gate, Gated, Protocol};

pub use record::{Execution, hash_of};
pub use script::{Behaviour, Script};

/// What an application is started with.
#[derive(Debug, Clone)]
pub struct AppSpec {
    /// The pod's name: answered in `x-pod` and, where nothing else is asked for, as the body.
    pub pod: String,
    /// The port it listens on, on all addresses of the namespace.
    pub port: u16,
    /// After this long without a request a connection is closed, with FIN. None: never.
    pub keep_alive: Option<Duration>,
    /// Whether executions keep all headers.
    pub keep_headers: bool,
}

/// A running application. Clones share it.
#[derive(Clone)]
pub struct App {
    shared: Arc<Shared>,
    listener: Arc<Listener>,
}

pub(crate) struct Shared {
    pub(crate) spec: AppSpec,
    pub(crate) script: Script,
    pub(crate) executions: Log<Execution>,
    pub(crate) connections: Connections,
    /// Counts the calls of [`App::release`].
    pub(crate) released: watch::Sender<u64>,
    /// Counts the calls of [`App::close_idle`].
    pub(crate) idle_closed: watch::Sender<u64>,
}

// === impl App ===

impl App {
    /// Listens on `spec.port`. `executions` may be shared by the ports of a pod. Call within a tokio
    /// runtime.
    ///
    /// # Errors
    /// The port is taken.
    pub fn start(ns: &Netns, spec: AppSpec, script: Script, executions: Log<Execution>) -> anyhow::Result<Self> {
        let connections = Connections::default();
        let addr = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), spec.port);
        let shared = Arc::new(Shared {
            spec,
            script,
            executions,
            connections: connections.clone(),
            released: watch::Sender::new(0),
            idle_closed: watch::Sender::new(0),
        });
        let serving = Arc::clone(&shared);
        let listener = Listener::start(ns, addr, connections, move |stream| serve(Arc::clone(&serving), stream))?;
        Ok(Self { shared, listener: Arc::new(listener) })
    }

    /// What it does with the next requests.
    #[must_use]
    pub fn script(&self) -> &Script {
        &self.shared.script
    }

    /// The connections to it: in HBONE, those of the in-pod ztunnel.
    #[must_use]
    pub fn connections(&self) -> &Connections {
        &self.shared.connections
    }

    /// Ends the bodies that are open now, properly.
    pub fn release(&self) {
        self.shared.released.send_modify(|count| *count += 1);
    }

    /// Closes the connections that have no request in progress: FIN, or GOAWAY and FIN.
    pub fn close_idle(&self) {
        self.shared.idle_closed.send_modify(|count| *count += 1);
    }

    /// Closes the listening socket: connections are refused. Accepted ones live on.
    pub async fn refuse(&self) {
        self.listener.close().await;
    }

    /// Listens again after [`App::refuse`].
    ///
    /// # Errors
    /// The port is taken.
    pub fn listen(&self) -> anyhow::Result<()> {
        self.listener.open()
    }

    /// Stops accepting, ends open bodies, finishes the requests in progress, closes with FIN.
    ///
    /// # Errors
    /// A request was still in progress at the deadline.
    pub async fn drain(&self) -> anyhow::Result<()> {
        self.refuse().await;
        self.connections().order_all(Order::Drain);
        self.release();
        self.connections().wait_all_closed().await
    }
}

async fn serve(shared: Arc<Shared>, stream: Stream) {
    let control = Arc::clone(stream.control());
    if let Some(ending) = shared.script.take_for_connection() {
        control.give(Order::End(ending));
        return;
    }
    let gate = Arc::new(Gate::new(shared.script.clone()));
    let mut stream = Gated::new(stream, Arc::clone(&gate));
    let serving = async {
        let protocol = tokio::select! {
            protocol = stream.sniff() => protocol,
            () = control.draining() => return,
            () = idle(&shared, &gate) => return,
        };
        match protocol {
            Ok(Protocol::Http1) => http1::serve(&shared, stream, &control, &gate).await,
            Ok(Protocol::Http2) => http2::serve(&shared, stream, &control, &gate).await,
            Err(_) => {}
        }
    };
    let faults = async {
        match gate.tripped().await {
            Behaviour::ResetOnArrival => control.give(Order::End(Ending::Rst)),
            Behaviour::FinCrossing => {
                control.shutdown_write();
                std::future::pending::<()>().await;
            }
            // GOAWAY is the HTTP/2 side's business.
            _ => std::future::pending::<()>().await,
        }
    };
    tokio::select! {
        // First: the order to end makes reads fail, which must not be taken for the peer's doing.
        biased;
        () = control.ended() => {}
        () = faults => {}
        () = serving => {}
    }
}

/// Returns when a connection has been idle for the keep-alive time, or is idle and
/// [`App::close_idle`] is called.
async fn idle(shared: &Shared, gate: &Gate) {
    let mut activity = gate.activity();
    let mut closes = shared.idle_closed.subscribe();
    loop {
        let now = *activity.borrow_and_update();
        let expiry = async {
            match shared.spec.keep_alive {
                Some(time) if now.requests == 0 => {
                    tokio::time::sleep_until((now.since + time).into()).await;
                }
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            () = expiry => return,
            _ = activity.changed() => {}
            _ = closes.changed() => if now.requests == 0 { return },
        }
    }
}
