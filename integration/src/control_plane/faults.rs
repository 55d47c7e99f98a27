//! What can befall the control plane itself.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::{Domain, Socket, Type};
use tokio::time::timeout;

use super::handle::ControlPlane;
use super::server::{Serving, lock, serve};
use super::snapshot::Snapshot;

/// Bound on closing connections at an outage.
const CLOSE: Duration = Duration::from_secs(5);

// === impl ControlPlane ===

impl ControlPlane {
    /// The control plane goes away: streams end, connections close, the port refuses. The model lives on
    /// and can be changed meanwhile.
    pub async fn outage(&self) {
        {
            let mut state = self.shared.lock();
            state.accepting = false;
            for stream in std::mem::take(&mut state.streams) {
                state.ledger.stream_closed(stream.id);
            }
        }
        self.shared.tick();
        let serving = lock(&self.serving).take();
        if let Some(Serving { stop, mut task }) = serving {
            let _ = stop.send(());
            if timeout(CLOSE, &mut task).await.is_err() {
                task.abort();
            }
        }
    }

    /// An outage in which the port does not refuse: nothing answers a SYN. [`Self::recover`] ends it.
    ///
    /// # Errors
    /// If the port cannot be taken over.
    pub async fn black_hole(&self) -> Result<()> {
        self.outage().await;
        let addr = self.addr;
        let sockets = self.netns.run(move || full_queue(addr)).context("take the port over")?;
        *lock(&self.black_hole) = sockets;
        Ok(())
    }

    /// Ends an outage, on the same address.
    ///
    /// # Errors
    /// If the address cannot be listened on again.
    pub async fn recover(&self) -> Result<()> {
        if lock(&self.serving).is_some() {
            return Ok(());
        }
        lock(&self.black_hole).clear();
        let (serving, _) = serve(&self.shared, &self.netns, self.addr).context("bring the control plane back")?;
        *lock(&self.serving) = Some(serving);
        Ok(())
    }

    /// An outage after which the control plane has forgotten what it ever sent: versions begin anew.
    ///
    /// # Errors
    /// If the address cannot be listened on again.
    pub async fn restart(&self) -> Result<()> {
        self.outage().await;
        {
            let mut state = self.shared.lock();
            let life = state.snapshot.life + 1;
            state.snapshot = Snapshot { life, ..Snapshot::default() };
            state.model.touch_all();
        }
        self.shared.publish();
        self.recover().await
    }
}

/// A listener that never accepts and whose queue is full: the kernel drops further SYNs as if nobody
/// were there.
fn full_queue(addr: SocketAddr) -> std::io::Result<Vec<Socket>> {
    const FILL: usize = 8;
    let listener = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    listener.set_reuse_address(true)?;
    listener.bind(&addr.into())?;
    listener.listen(0)?;
    let mut sockets = vec![listener];
    for _ in 0..FILL {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        // In progress; most of them for good.
        let _ = socket.connect(&addr.into());
        sockets.push(socket);
    }
    Ok(sockets)
}
