//! Ends connections of this process that Envoy's ABI cannot close, by their own sockets.
//!
//! A network filter can have Envoy set a socket option on an upstream connection before it connects, and
//! nothing else: the connections of an ORIGINAL_DST cluster can be neither listed nor closed by a module.
//! But they are sockets of this process. So the filter gives them a *tag*, a value of `SO_SNDTIMEO`
//! (socket(7)), an option that does nothing to a socket that never blocks, as Envoy's never do. A
//! search through the process's own descriptors finds the tag again.
//!
//! # Invariants
//! - NEVER: a socket is touched whose tag is not one that [`SocketTag::option`] makes, or whose peer the caller was
//!   not shown. Tag and peer are read from a copy of the descriptor, which nobody else can close or
//!   replace; what is shut down is that copy.
//! - NEVER: a new descriptor is needed for a search, so it works when the process has none left.
//! - ALWAYS: only the receiving side is shut down. Envoy reads the end of the stream and closes the connection
//!   itself, after what it had queued, as if the peer had ended it.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd},
    time::Duration,
};

use rustix::{
    fs::{Dir, Mode, OFlags},
    io::DupFlags,
    net::{Shutdown, sockopt},
};

/// Protocol level of [`SO_SNDTIMEO`], for `set_socket_option_bytes`.
pub const SOL_SOCKET: i64 = 1;
/// The option that carries a tag. Linux, `include/uapi/asm-generic/socket.h`.
pub const SO_SNDTIMEO: i64 = 21;

/// What a connection is found by: any number below 2⁵³.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketTag(u64);

/// What is to be done with a connection that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It goes on.
    Leave,
    /// Its receiving side is shut down, so that Envoy closes it.
    ShutDown,
}

/// The descriptors of this process, ready to be searched. One thread at a time.
pub struct TaggedSockets {
    /// `/proc/self/fd`, kept open.
    descriptors: Dir,
    /// Where each socket is copied to.
    copy: OwnedFd,
    /// What `copy` holds between two sockets, so that it keeps none of them open.
    nothing: OwnedFd,
}

// === impl SocketTag ===

impl SocketTag {
    /// Set in the seconds of every tag: no timeout that anybody means is 285 million years long. Linux
    /// keeps whole seconds up to 2⁶³ / `CONFIG_HZ`, which is 2⁵³ where it is 1000.
    const MARK: u64 = 1 << 52;
    /// Numbers that a tag can carry.
    const MAX: u64 = Self::MARK - 1;

    /// The tag of this number; `None` if it is too large.
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        if number <= Self::MAX { Some(Self(number)) } else { None }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    fn read(timeout: Duration) -> Option<Self> {
        let seconds = timeout.as_secs();
        (seconds & Self::MARK != 0 && seconds <= Self::MARK | Self::MAX).then_some(Self(seconds & Self::MAX))
    }

    /// The value of [`SO_SNDTIMEO`] that tags a socket: a `struct timeval` of two 64-bit numbers.
    #[must_use]
    pub fn option(self) -> [u8; 16] {
        let mut timeval = [0; 16];
        let (seconds, _microseconds) = timeval.split_at_mut(8);
        seconds.copy_from_slice(&(Self::MARK | self.0).to_ne_bytes());
        timeval
    }
}

// === impl TaggedSockets ===

impl TaggedSockets {
    /// Opens the three descriptors that searches need.
    ///
    /// # Errors
    /// Those of `open(2)`: no descriptor is left, or `/proc` is not mounted.
    pub fn open() -> io::Result<Self> {
        let flags = OFlags::CLOEXEC | OFlags::RDONLY;
        let nothing = rustix::fs::open("/dev/null", flags, Mode::empty())?;
        let copy = rustix::io::fcntl_dupfd_cloexec(&nothing, 0)?;
        let descriptors = Dir::new(rustix::fs::open("/proc/self/fd", flags | OFlags::DIRECTORY, Mode::empty())?)?;
        Ok(Self { descriptors, copy, nothing })
    }

    /// Shows each tagged connection of this process to `judge`, and shuts down those that it names.
    /// Returns how many these were.
    ///
    /// A socket that is not connected yet has no peer and is passed over. A descriptor that another thread closes
    /// or opens meanwhile may be missed. The cost grows with the process's descriptors, about a
    /// microsecond and a half each.
    ///
    /// # Errors
    /// If the descriptors cannot be read.
    pub fn search(&mut self, judge: &mut dyn FnMut(SocketTag, IpAddr) -> Found) -> io::Result<usize> {
        let mut shut_down = 0;
        self.descriptors.rewind();
        while let Some(entry) = self.descriptors.read() {
            // "." and ".." are no numbers.
            let Some(number) = entry?.file_name().to_str().ok().and_then(|name| name.parse().ok()) else { continue };
            if tag_of(borrowed(number)).is_none() || self.copy_of(number).is_err() {
                continue;
            }
            shut_down += usize::from(self.judged(judge));
            // Even the copy of a connection that goes on would keep it open after Envoy closes it.
            rustix::io::dup3(&self.nothing, &mut self.copy, DupFlags::CLOEXEC)?;
        }
        Ok(shut_down)
    }

    fn copy_of(&mut self, number: RawFd) -> io::Result<()> {
        Ok(rustix::io::dup3(borrowed(number), &mut self.copy, DupFlags::CLOEXEC)?)
    }

    /// Judges the connection that `copy` holds now.
    fn judged(&self, judge: &mut dyn FnMut(SocketTag, IpAddr) -> Found) -> bool {
        let Some((tag, peer)) = tag_of(self.copy.as_fd()).zip(peer_of(self.copy.as_fd())) else { return false };
        match judge(tag, peer) {
            Found::Leave => false,
            Found::ShutDown => rustix::net::shutdown(&self.copy, Shutdown::Read).is_ok(),
        }
    }
}

fn tag_of(socket: BorrowedFd<'_>) -> Option<SocketTag> {
    // Whatever is no socket answers ENOTSOCK, and a number that is no descriptor any more EBADF.
    SocketTag::read(sockopt::socket_timeout(socket, sockopt::Timeout::Send).ok()??)
}

fn peer_of(socket: BorrowedFd<'_>) -> Option<IpAddr> {
    let peer = SocketAddr::try_from(rustix::net::getpeername(socket).ok()??).ok()?;
    Some(peer.ip().to_canonical())
}

/// The descriptor of this number, for a system call that harms none: `getsockopt`, or as the source of
/// `dup3`.
fn borrowed<'a>(number: RawFd) -> BorrowedFd<'a> {
    // SAFETY: `number` came from a listing of descriptors, so it is not -1. Another thread may close it, or open
    // something else under it, at any moment. Both calls that it is used for only look: on a
    // closed one they fail, on another one they read its option or copy it, and the copy is
    // dropped unless its own tag and peer are right.
    unsafe { BorrowedFd::borrow_raw(number) }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    /// A connection over loopback, tagged as Envoy would tag it, and its other end.
    fn connection(tag: Option<u64>) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let near = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        if let Some(tag) = tag {
            tag_socket(&near, tag);
        }
        (near, listener.accept().expect("its other end").0)
    }

    fn tag_socket(socket: &impl AsFd, number: u64) {
        let tag = SocketTag::new(number).expect("in range");
        let value = tag.option();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&socket.as_fd());
        // SAFETY: the value is as long as it says, and the descriptor is open.
        let set = unsafe {
            libc::setsockopt(
                fd,
                1,
                libc::SO_SNDTIMEO,
                value.as_ptr().cast(),
                libc::socklen_t::try_from(value.len()).expect("16"),
            )
        };
        assert_eq!(set, 0, "Linux takes any number of seconds up to {}", SocketTag::MARK | SocketTag::MAX);
    }

    /// Whether a reader would go on waiting.
    fn is_open((near, _): &mut (TcpStream, TcpStream)) -> bool {
        near.set_nonblocking(true).expect("as Envoy has it");
        near.read(&mut [0; 8]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    #[test]
    fn only_a_connection_whose_tag_and_peer_both_match_is_shut_down() {
        let here = IpAddr::from([127, 0, 0, 1]);
        let (mut wanted, mut other, mut untagged) =
            (connection(Some(1_007)), connection(Some(1_008)), connection(None));
        let mut sockets = TaggedSockets::open().expect("descriptors");
        let mut seen = Vec::new();
        let shut_down = sockets.search(&mut |tag, peer| {
            seen.push((tag.get(), peer));
            if tag.get() == 1_007 && peer == here { Found::ShutDown } else { Found::Leave }
        });
        assert_eq!(shut_down.expect("a search"), 1);
        for tag in [1_007, 1_008] {
            assert!(seen.contains(&(tag, here)), "tag {tag} and its peer are found: {seen:?}");
        }
        assert!(!is_open(&mut wanted), "Envoy would read the end of the stream");
        wanted.0.write_all(b"bye").expect("and can still send what it has");
        assert!(is_open(&mut other) && is_open(&mut untagged), "nothing else is touched");
    }

    #[test]
    fn the_largest_tag_is_kept_by_the_kernel() {
        let (near, _far) = connection(Some(SocketTag::MAX));
        assert_eq!(tag_of(near.as_fd()), SocketTag::new(SocketTag::MAX));
        assert_eq!(SocketTag::new(SocketTag::MAX + 1), None);
    }

    #[test]
    fn a_timeout_that_somebody_means_is_no_tag() {
        let (near, _far) = connection(None);
        assert_eq!(tag_of(near.as_fd()), None);
        near.set_write_timeout(Some(Duration::from_secs(86_400 * 365 * 100))).expect("a century");
        assert_eq!(tag_of(near.as_fd()), None);
    }

    #[test]
    fn a_socket_without_a_peer_is_passed_over() {
        let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None)
            .expect("a socket");
        tag_socket(&socket, 1_009);
        let mut sockets = TaggedSockets::open().expect("descriptors");
        sockets
            .search(&mut |tag, _| {
                assert_ne!(tag.get(), 1_009, "it has no peer to be compared with");
                Found::Leave
            })
            .expect("a search");
    }

    #[test]
    fn no_copy_is_kept_and_no_descriptor_is_needed() {
        let mut sockets = TaggedSockets::open().expect("descriptors");
        let mut found = connection(Some(1_010));
        sockets.search(&mut |_, _| Found::Leave).expect("a search");
        drop(found.0);
        let end = found.1.read(&mut [0; 1]).expect("an orderly end");
        assert_eq!(end, 0, "the connection ends with its owner's descriptor");
    }
}
