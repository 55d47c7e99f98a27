//! A running application: its listener, and what each connection meets first.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use tokio::sync::watch;

use super::gate::{Gate, Gated, Protocol};
use super::record::Execution;
use super::script::{Behaviour, Script};
use super::shared::{AppSpec, Shared, idle};
use super::{http1, http2};
use crate::netns::Netns;
use crate::tcp::{Connections, Ending, Listener, Log, Order, Stream};

/// A running application. Clones share it.
#[derive(Clone)]
pub struct App {
    shared: Arc<Shared>,
    listener: Arc<Listener>,
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
