//! HTTP/2 by hand over mTLS: shows every frame of the server, and sends what no library would.

use std::io::ErrorKind;
use std::net::SocketAddr;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::client::{GENEROUS, QUIET, World};

pub const DATA: u8 = 0x0;
pub const HEADERS: u8 = 0x1;
pub const RST_STREAM: u8 = 0x3;
pub const SETTINGS: u8 = 0x4;
pub const PING: u8 = 0x6;
pub const GOAWAY: u8 = 0x7;
pub const WINDOW_UPDATE: u8 = 0x8;
const ACK: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// What comes next from the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    Frame {
        kind: u8,
        flags: u8,
        stream: u32,
        payload: Vec<u8>,
    },
    /// TLS says that the connection ends here, then FIN.
    CloseNotify,
    /// FIN, and TLS said nothing.
    Cut,
    Reset,
    Nothing,
}

pub struct Raw {
    pub io: TlsStream<TcpStream>,
}

impl Raw {
    /// A connection whose SETTINGS are exchanged but for the server's, which come first.
    pub async fn connect(world: &World, to: SocketAddr) -> Raw {
        let tcp = world.tcp(to).await;
        let connector = TlsConnector::from(world.client_config());
        let mut io = connector.connect(ServerName::from(to.ip()), tcp).await.expect("TLS");
        io.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("preface");
        let mut raw = Raw { io };
        raw.send(SETTINGS, 0, 0, &[]).await;
        raw
    }

    pub async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let mut frame = u32::try_from(payload.len()).expect("short").to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.io.write_all(&frame).await.expect("the kernel takes the bytes");
        self.io.flush().await.expect("the kernel takes the bytes");
    }

    /// CONNECT, in literal header fields (RFC 7541, section 6.2.2).
    pub async fn open(&mut self, stream: u32, authority: SocketAddr) {
        let mut block = Vec::new();
        for (name, value) in [(":method", "CONNECT"), (":authority", &authority.to_string())] {
            block.push(0);
            for text in [name, value] {
                block.push(u8::try_from(text.len()).expect("short"));
                block.extend(text.as_bytes());
            }
        }
        self.send(HEADERS, END_HEADERS, stream, &block).await;
    }

    /// Acknowledges a PING or SETTINGS.
    pub async fn acknowledge(&mut self, kind: u8, payload: &[u8]) {
        self.send(kind, ACK, 0, payload).await;
    }

    /// What comes next, acknowledgements and window updates left out.
    pub async fn next(&mut self) -> Next {
        loop {
            match timeout(GENEROUS, self.any()).await.expect("something comes") {
                Next::Frame { kind: SETTINGS | PING, flags: ACK, .. } => {}
                Next::Frame { kind: WINDOW_UPDATE, .. } => {}
                Next::Frame { kind: SETTINGS, .. } => self.acknowledge(SETTINGS, &[]).await,
                next => return next,
            }
        }
    }

    /// The same, or [`Next::Nothing`] if the wire stays quiet.
    pub async fn next_if_any(&mut self) -> Next {
        timeout(QUIET, self.next()).await.unwrap_or(Next::Nothing)
    }

    /// What comes next, whatever it is.
    pub async fn any(&mut self) -> Next {
        let mut head = [0; 9];
        if let Err(error) = self.io.read_exact(&mut head).await {
            return match error.kind() {
                ErrorKind::UnexpectedEof if error.to_string().contains("close_notify") => Next::Cut,
                ErrorKind::UnexpectedEof => Next::CloseNotify,
                ErrorKind::ConnectionReset => Next::Reset,
                _ => panic!("{error:?}"),
            };
        }
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.io.read_exact(&mut payload).await.expect("a whole frame");
        Next::Frame { kind, flags, stream: u32::from_be_bytes(stream), payload }
    }

    /// The next frame is a GOAWAY; its last stream and its code.
    pub async fn go_away(&mut self) -> (u32, u32) {
        let next = self.next().await;
        let Next::Frame { kind: GOAWAY, payload, .. } = &next else { panic!("no GOAWAY: {next:?}") };
        let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().expect("four bytes"));
        (number(0), number(4))
    }

    /// The next frame is one of this kind; its stream and its payload.
    pub async fn frame(&mut self, wanted: u8) -> (u32, Vec<u8>) {
        match self.next().await {
            Next::Frame { kind, stream, payload, .. } if kind == wanted => (stream, payload),
            next => panic!("no frame of type {wanted}: {next:?}"),
        }
    }
}
