//! The handle that tests hold.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use socket2::Socket;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::model::Model;
use super::params::Params;
use super::server::{Serving, Shared, debounce, serve};
use crate::netns::Netns;

/// A running control plane; dropping it closes its port and streams.
#[derive(Debug)]
pub struct ControlPlane {
    pub(super) shared: Arc<Shared>,
    pub(super) netns: Netns,
    pub(super) addr: SocketAddr,
    pub(super) serving: Mutex<Option<Serving>>,
    /// What holds the port during [`Self::black_hole`].
    pub(super) black_hole: Mutex<Vec<Socket>>,
    debouncer: JoinHandle<()>,
}

// === impl ControlPlane ===

impl ControlPlane {
    /// Starts in `netns`; call within a tokio runtime.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub async fn start(netns: &Netns, params: Params) -> Result<Self> {
        let listen = params.listen;
        let shared = Arc::new(Shared::new(params));
        let (serving, addr) = serve(&shared, netns, listen).context("start the control plane")?;
        let debouncer = tokio::spawn(debounce(Arc::clone(&shared)));
        Ok(Self {
            shared,
            netns: netns.clone(),
            addr,
            serving: Mutex::new(Some(serving)),
            black_hole: Mutex::default(),
            debouncer,
        })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Changes the model, and pushes at once or by the debounce.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Model) -> T) -> T {
        let (result, at_once) = {
            let mut state = self.shared.lock();
            let result = change(&mut state.model);
            let now = Instant::now();
            state.first_change.get_or_insert(now);
            state.last_change = Some(now);
            let at_once = self.shared.params.debounce_after.is_zero() && !state.held;
            (result, at_once)
        };
        match at_once {
            true => self.shared.publish(),
            false => self.shared.changed.notify_one(),
        }
        result
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.debouncer.abort();
        let mut state = self.shared.lock();
        state.accepting = false;
        // Ends the response streams; the dropped `stop` sender ends the server.
        state.streams.clear();
    }
}
