//! A listening socket that can be closed and opened again.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::connections::Connections;
use super::control::{Ending, Order};
use super::stream::Stream;
use crate::netns::Netns;

type Serve = Arc<dyn Fn(Stream) -> BoxFuture<'static, ()> + Send + Sync>;

/// Accepts connections in a namespace and serves each in a task of its own.
pub(crate) struct Listener {
    ns: Netns,
    addr: SocketAddr,
    connections: Connections,
    serve: Serve,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

// === impl Listener ===

impl Listener {
    pub(crate) fn start<F>(
        ns: &Netns,
        addr: SocketAddr,
        connections: Connections,
        serve: impl Fn(Stream) -> F + Send + Sync + 'static,
    ) -> anyhow::Result<Self>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let serve: Serve = Arc::new(move |stream| Box::pin(serve(stream)));
        let listener = Self { ns: ns.clone(), addr, connections, serve, accepting: Mutex::default() };
        listener.open()?;
        Ok(listener)
    }

    /// Listens again; nothing to do if it does already.
    pub(crate) fn open(&self) -> anyhow::Result<()> {
        let mut accepting = self.accepting.lock().unwrap_or_else(PoisonError::into_inner);
        if accepting.is_none() {
            let socket = self.ns.tcp_listener(self.addr)?;
            let accept = accept(socket, self.connections.clone(), Arc::clone(&self.serve));
            *accepting = Some(tokio::spawn(accept));
        }
        Ok(())
    }

    /// Closes the listening socket: new connections are refused. Accepted ones live on.
    pub(crate) async fn close(&self) {
        let accepting = self.accepting.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(accepting) = accepting {
            accepting.abort();
            // The socket is closed when the task is gone.
            let _ = accepting.await;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let accepting = self.accepting.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(accepting) = accepting.take() {
            accepting.abort();
        }
        self.connections.order_all(Order::End(Ending::Rst));
    }
}

async fn accept(listener: TcpListener, connections: Connections, serve: Serve) {
    loop {
        // An error here concerns one connection that went away before it was accepted.
        let Ok((socket, peer)) = listener.accept().await else {
            tokio::task::yield_now().await;
            continue;
        };
        let _ = socket.set_nodelay(true);
        if let Ok(stream) = connections.admit(socket, peer) {
            tokio::spawn(serve(stream));
        }
    }
}
