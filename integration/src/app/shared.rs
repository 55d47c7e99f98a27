//! What an application is, for those who serve its connections.

use std::time::Duration;

use http::request::Parts;
use tokio::sync::watch;

use super::gate::Gate;
use super::record::{Digest, Execution, execution};
use super::script::Script;
use crate::tcp::{Connections, Control, Log};

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

/// What the connections of one application share.
pub(super) struct Shared {
    pub(super) spec: AppSpec,
    pub(super) script: Script,
    pub(super) executions: Log<Execution>,
    pub(super) connections: Connections,
    /// Counts the calls of [`super::App::release`].
    pub(super) released: watch::Sender<u64>,
    /// Counts the calls of [`super::App::close_idle`].
    pub(super) idle_closed: watch::Sender<u64>,
}

// === impl Shared ===

impl Shared {
    /// Enters a request that was read to its end in the log.
    pub(super) fn record(&self, control: &Control, request: &Parts, body: &Digest) {
        let AppSpec { pod, port, keep_headers, .. } = &self.spec;
        self.executions.push(execution(pod, *port, *keep_headers, control, request, body));
    }
}

/// Returns when a connection has been idle for the keep-alive time, or is idle and
/// [`super::App::close_idle`] is called.
pub(super) async fn idle(shared: &Shared, gate: &Gate) {
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
