//! pilot-agent's part between Envoy and istiod: a Unix socket on which Envoy's connections always succeed, and
//! the way from there to istiod, which may be cut or lead nowhere.
//!
//! The real one speaks gRPC on both sides; this one carries bytes. What Envoy sees is the same: its connection
//! is accepted at once, and what happens to istiod shows only in the stream on it.

use std::net::SocketAddr;
use std::path::Path as FilePath;

use anyhow::{Context, Result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::netns::Netns;

/// Where Envoy's streams lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// To istiod.
    Istiod(SocketAddr),
    /// Nowhere, and the agent knows: it ends each stream at once.
    Refused,
    /// Nowhere, and nobody knows: bytes are taken and never answered.
    BlackHole,
}

/// The agent; dropping it closes its socket and all connections.
#[derive(Debug)]
pub struct Agent {
    path: watch::Sender<Path>,
    task: JoinHandle<()>,
}

// === impl Agent ===

impl Agent {
    /// Listens on `socket`, and leads to istiod in `netns`.
    ///
    /// # Errors
    /// As `bind(2)`.
    pub fn start(socket: &FilePath, netns: &Netns, istiod: SocketAddr) -> Result<Self> {
        let listener = UnixListener::bind(socket).with_context(|| format!("listen on {}", socket.display()))?;
        let (path, paths) = watch::channel(Path::Istiod(istiod));
        let netns = netns.clone();
        let task = tokio::spawn(async move {
            // Dropped with the task, so no connection outlives it.
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((envoy, _)) = listener.accept().await {
                connections.spawn(carry(netns.clone(), envoy, paths.clone()));
            }
        });
        Ok(Self { path, task })
    }

    /// Changes where streams lead. Open ones end, but for a black hole, into which they fall as they are.
    pub fn set(&self, path: Path) {
        self.path.send_replace(path);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(netns: Netns, envoy: UnixStream, mut paths: watch::Receiver<Path>) {
    let path = *paths.borrow_and_update();
    let (from_envoy, to_envoy) = envoy.into_split();
    match path {
        Path::Refused => {}
        Path::BlackHole => fall(from_envoy, &mut paths).await,
        Path::Istiod(istiod) => {
            let Ok(istiod) = netns.tcp_connect(istiod).await else { return };
            let (from_istiod, to_istiod) = istiod.into_split();
            let up = pump(from_envoy, to_istiod, paths.clone());
            let down = pump(from_istiod, to_envoy, paths.clone());
            tokio::join!(up, down);
        }
    }
}

/// Carries bytes until either side ends or the path changes.
async fn pump(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, mut paths: watch::Receiver<Path>) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = tokio::select! {
            read = from.read(&mut buffer) => read,
            _ = paths.changed() => {
                if *paths.borrow() == Path::BlackHole {
                    fall(from, &mut paths).await;
                }
                return;
            }
        };
        let Ok(count @ 1..) = read else { return };
        if to.write_all(buffer.get(..count).unwrap_or_default()).await.is_err() {
            return;
        }
    }
}

/// Takes what comes and answers nothing, until the path leads elsewhere.
async fn fall(mut from: impl AsyncRead + Unpin, paths: &mut watch::Receiver<Path>) {
    let mut sink = tokio::io::sink();
    tokio::select! {
        _ = tokio::io::copy(&mut from, &mut sink) => {}
        _ = paths.wait_for(|path| *path != Path::BlackHole) => {}
    }
}
