//! What the matrix is made of: transports, requests, faults.

use bytes::Bytes;
use http::{Method, Request};
use lab::{app::Behaviour, mesh::Mesh};

/// Names that the table uses.
pub trait Every: Copy + 'static {
    const EVERY: &'static [Self];
}

/// How Envoy reaches the endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    Http1,
    H2c,
    Hbone,
}

/// A request, by what decides whether it may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Get,
    Head,
    Options,
    Trace,
    Put,
    Delete,
    Post,
    Patch,
    PostWithKey,
    GrpcDeclared,
    GrpcNotDeclared,
    WebSocket,
}

/// What the first attempt meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    Refused,
    ResetOnArrival,
    ResetAfterRead,
    FinCrossing,
    ResetAfterHeaders,
    RefusedStream,
    GoAwayBelow,
}

// === impl Transport ===

impl Transport {
    pub fn name(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1.1",
            Self::H2c => "h2c",
            Self::Hbone => "HBONE",
        }
    }
}

impl Every for Transport {
    const EVERY: &'static [Self] = &[Self::Http1, Self::H2c, Self::Hbone];
}

// === impl Kind ===

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Options => "OPTIONS",
            Self::Trace => "TRACE",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Post => "POST",
            Self::Patch => "PATCH",
            Self::PostWithKey => "POST with key",
            Self::GrpcDeclared => "gRPC declared",
            Self::GrpcNotDeclared => "gRPC not declared",
            Self::WebSocket => "WebSocket",
        }
    }

    pub fn is_grpc(self) -> bool {
        matches!(self, Self::GrpcDeclared | Self::GrpcNotDeclared)
    }

    fn method(self) -> Method {
        match self {
            Self::Get | Self::WebSocket => Method::GET,
            Self::Head => Method::HEAD,
            Self::Options => Method::OPTIONS,
            Self::Trace => Method::TRACE,
            Self::Put => Method::PUT,
            Self::Delete => Method::DELETE,
            Self::Post | Self::PostWithKey | Self::GrpcDeclared | Self::GrpcNotDeclared => Method::POST,
            Self::Patch => Method::PATCH,
        }
    }

    pub fn request(self, mesh: &Mesh, host: &str) -> Request<Bytes> {
        let path = match self {
            Self::GrpcDeclared => "/shop.Catalog/GetItem",
            Self::GrpcNotDeclared => "/shop.Orders/Place",
            _ => "/thing",
        };
        let builder = mesh.request(self.method(), host, path);
        let builder = match self {
            Self::PostWithKey => builder.header("idempotency-key", "\"one-key\""),
            Self::GrpcDeclared | Self::GrpcNotDeclared => {
                builder.header("content-type", "application/grpc").header("te", "trailers")
            }
            Self::WebSocket => builder
                .header("connection", "upgrade")
                .header("upgrade", "websocket")
                .header("sec-websocket-version", "13")
                .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            _ => builder,
        };
        let body = match self {
            Self::Put | Self::Post | Self::PostWithKey | Self::Patch => Bytes::from_static(b"one order"),
            // One empty message: not compressed, no bytes.
            Self::GrpcDeclared | Self::GrpcNotDeclared => Bytes::from_static(&[0; 5]),
            _ => Bytes::new(),
        };
        builder.body(body).expect("request")
    }
}

impl Every for Kind {
    const EVERY: &'static [Self] = &[
        Self::Get,
        Self::Head,
        Self::Options,
        Self::Trace,
        Self::Put,
        Self::Delete,
        Self::Post,
        Self::Patch,
        Self::PostWithKey,
        Self::GrpcDeclared,
        Self::GrpcNotDeclared,
        Self::WebSocket,
    ];
}

// === impl Fault ===

impl Fault {
    pub fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::ResetOnArrival => "RST before the request is read",
            Self::ResetAfterRead => "RST after it is read",
            Self::FinCrossing => "FIN crossing",
            Self::ResetAfterHeaders => "RST after response headers",
            Self::RefusedStream => "REFUSED_STREAM",
            Self::GoAwayBelow => "GOAWAY below the stream",
        }
    }

    pub fn behaviour(self) -> Option<Behaviour> {
        match self {
            Self::Refused => None,
            Self::ResetOnArrival => Some(Behaviour::ResetOnArrival),
            Self::ResetAfterRead => Some(Behaviour::ReadThenReset),
            Self::FinCrossing => Some(Behaviour::FinCrossing),
            Self::ResetAfterHeaders => Some(Behaviour::HeadersThenReset),
            Self::RefusedStream => Some(Behaviour::RefuseStream),
            Self::GoAwayBelow => Some(Behaviour::GoAwayBelow),
        }
    }

    pub fn needs_http2(self) -> bool {
        matches!(self, Self::RefusedStream | Self::GoAwayBelow)
    }
}

impl Every for Fault {
    const EVERY: &'static [Self] = &[
        Self::Refused,
        Self::ResetOnArrival,
        Self::ResetAfterRead,
        Self::FinCrossing,
        Self::ResetAfterHeaders,
        Self::RefusedStream,
        Self::GoAwayBelow,
    ];
}
