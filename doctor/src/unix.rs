//! HTTP over a Unix domain socket: an admin endpoint that is a pipe.
//!
//! The transports of the HTTP client are outside of its promise of stability; `Cargo.lock` fixes what this was
//! written for.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use ureq::{
    Error,
    unversioned::transport::{
        Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, ShutdownHandle, Transport,
    },
};

/// Connects to one socket, whatever the URL's host.
#[derive(Debug)]
pub(crate) struct UnixConnector(pub(crate) PathBuf);

/// A connection.
pub(crate) struct UnixTransport {
    stream: Arc<Stream>,
    buffers: LazyBuffers,
}

#[derive(Debug)]
struct Stream(UnixStream);

// === impl UnixConnector ===

impl Connector<()> for UnixConnector {
    type Out = UnixTransport;

    fn connect(&self, details: &ConnectionDetails<'_>, _: Option<()>) -> Result<Option<Self::Out>, Error> {
        let stream = Arc::new(Stream(UnixStream::connect(&self.0)?));
        let (input, output) = (details.config.input_buffer_size(), details.config.output_buffer_size());
        let shared: Arc<dyn ShutdownHandle> = stream.clone();
        (details.register_shutdown)(Arc::downgrade(&shared))?;
        Ok(Some(UnixTransport { stream, buffers: LazyBuffers::new(input, output) }))
    }
}

// === impl Stream ===

impl ShutdownHandle for Stream {
    fn shutdown(&self) {
        // Fails only if it has ended already.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

// === impl UnixTransport ===

impl std::fmt::Debug for UnixTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UnixTransport").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl Transport for UnixTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.stream.0.set_write_timeout(timeout.not_zero().map(|after| *after))?;
        let output = self.buffers.output().get(..amount).unwrap_or_default();
        (&self.stream.0).write_all(output).map_err(|error| timed(error, timeout))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.stream.0.set_read_timeout(timeout.not_zero().map(|after| *after))?;
        let read = (&self.stream.0).read(self.buffers.input_append_buf()).map_err(|error| timed(error, timeout))?;
        self.buffers.input_appended(read);
        Ok(read > 0)
    }

    fn is_open(&mut self) -> bool {
        // Nothing is asked for a second time over the same connection.
        false
    }
}

fn timed(error: io::Error, timeout: NextTimeout) -> Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Error::Timeout(timeout.reason),
        _ => error.into(),
    }
}
