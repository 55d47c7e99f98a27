//! What the kernel has for the proxy's sockets: read back with `getsockopt`, from the sockets
//! themselves.

use std::net::SocketAddr;
use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use socket2::SockRef;

use super::Envoy;

/// The liveness options of one TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpLiveness {
    /// Its own address: tells which connection it is at the peer.
    pub local: SocketAddr,
    /// `TCP_USER_TIMEOUT`; none where the kernel decides.
    pub user_timeout: Option<Duration>,
    /// `SO_KEEPALIVE`.
    pub keepalive: bool,
    /// `TCP_KEEPIDLE`.
    pub idle: Duration,
    /// `TCP_KEEPINTVL`.
    pub interval: Duration,
    /// `TCP_KEEPCNT`.
    pub probes: u32,
}

// === impl Envoy ===

impl Envoy {
    /// The options of its connections to `peer`, through duplicates of the very sockets
    /// (`pidfd_getfd(2)`, which a parent may do to its child).
    ///
    /// # Errors
    /// The kernel does not let us, or a socket option cannot be read.
    pub fn tcp_liveness(&self, peer: SocketAddr) -> Result<Vec<TcpLiveness>> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("no process id")?;
        let process = pidfd_open(pid, PidfdFlags::empty()).context("pidfd_open")?;
        let mut found = Vec::new();
        for entry in std::fs::read_dir(format!("/proc/{}/fd", self.pid())).context("list Envoy's descriptors")? {
            let entry = entry?;
            // A descriptor may be closed while we look.
            let Ok(target) = std::fs::read_link(entry.path()) else { continue };
            if !target.to_string_lossy().starts_with("socket:") {
                continue;
            }
            let number: RawFd = entry.file_name().to_string_lossy().parse().context("no descriptor number")?;
            let socket: OwnedFd = match pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) {
                Ok(socket) => socket,
                Err(rustix::io::Errno::BADF) => continue,
                Err(error) => return Err(error).context("pidfd_getfd: may this process trace its children?"),
            };
            let socket = SockRef::from(&socket);
            let is_peer = socket.peer_addr().ok().and_then(|addr| addr.as_socket()) == Some(peer);
            if !is_peer {
                continue;
            }
            found.push(TcpLiveness {
                local: socket.local_addr()?.as_socket().context("no IP address")?,
                user_timeout: socket.tcp_user_timeout()?.filter(|timeout| !timeout.is_zero()),
                keepalive: socket.keepalive()?,
                idle: socket.tcp_keepalive_time()?,
                interval: socket.tcp_keepalive_interval()?,
                probes: socket.tcp_keepalive_retries()?,
            });
        }
        Ok(found)
    }
}
