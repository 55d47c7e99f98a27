//! An accepted socket that obeys its remote control, and reports its end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::control::{Control, Ending, Order};

/// Why a connection is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// The server was done, or a fault ended the connection.
    Local(Ending),
    /// The peer sent FIN.
    PeerFin,
    /// The peer, or its kernel, sent RST.
    PeerRst,
    /// The socket failed otherwise (`ETIMEDOUT`, `EHOSTUNREACH`).
    Failed(io::ErrorKind),
}

/// An accepted socket that obeys its [`Control`] and reports its end.
pub(crate) struct Stream {
    /// None only within `drop`, which closes the socket before the log says so.
    tcp: Option<TcpStream>,
    control: Arc<Control>,
    cause: Option<Cause>,
    /// Told once, when the socket is closed.
    ended: Option<Box<dyn FnOnce(Cause) + Send>>,
}

// === impl Stream ===

impl Stream {
    pub(super) fn new(tcp: TcpStream, control: Arc<Control>, ended: impl FnOnce(Cause) + Send + 'static) -> Self {
        Self { tcp: Some(tcp), control, cause: None, ended: Some(Box::new(ended)) }
    }

    pub(crate) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    fn tcp(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        self.tcp.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn saw(&mut self, error: &io::Error) {
        let cause = match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Cause::PeerRst,
            other => Cause::Failed(other),
        };
        self.cause = Some(cause);
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        futures::ready!(this.control.may_read(cx))?;
        let before = buf.filled().len();
        let result = futures::ready!(this.tcp()?.poll_read(cx, buf));
        match &result {
            Err(error) => this.saw(error),
            Ok(()) if buf.filled().len() == before && buf.remaining() > 0 => {
                this.cause.get_or_insert(Cause::PeerFin);
            }
            Ok(()) => {}
        }
        Poll::Ready(result)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        futures::ready!(this.control.may_write(cx))?;
        let result = futures::ready!(this.tcp()?.poll_write(cx, buf));
        match &result {
            Err(error) => this.saw(error),
            Ok(count) => {
                this.control.wrote(*count as u64);
            }
        }
        Poll::Ready(result)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().tcp()?.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        futures::ready!(this.control.may_write(cx))?;
        this.tcp()?.poll_shutdown(cx)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let cause = match self.control.order() {
            Order::End(ending) => Cause::Local(ending),
            _ => self.cause.take().unwrap_or(Cause::Local(Ending::Fin)),
        };
        self.control.forget_socket();
        if let Some(tcp) = self.tcp.take() {
            match cause {
                Cause::Local(Ending::Rst) => {
                    let _ = SockRef::from(&tcp).set_linger(Some(Duration::ZERO));
                }
                // Unread bytes would turn the FIN into a RST.
                Cause::Local(Ending::Fin) => while matches!(tcp.try_read(&mut [0; 4096]), Ok(1..)) {},
                _ => {}
            }
        }
        if let Some(ended) = self.ended.take() {
            ended(cause);
        }
    }
}
