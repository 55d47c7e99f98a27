//! A cable that takes time: frames are carried by threads of this process between two interfaces, each
//! after a delay. Needs `AF_PACKET` alone (packet(7)), which every kernel has, not netem.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::ifaddrs::getifaddrs;
use nix::libc;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SetSockOpt as _, SockFlag, SockProtocol, SockType, bind, recv, send, socket,
    sockopt::ReceiveTimeout,
};
use nix::sys::time::TimeVal;
use nix::{setsockopt_impl, sockopt_impl};

use super::namespace::Netns;

// Offloads of veth leave checksums and segmentation to the receiving end; this header, before each frame,
// carries what is still to be done, so that it can be handed on.
sockopt_impl!(VnetHeader, SetOnly, libc::SOL_PACKET, libc::PACKET_VNET_HDR, bool);
sockopt_impl!(IgnoreOutgoing, SetOnly, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, bool);

/// A segmented frame of the largest size, with its headers.
const FRAME: usize = 1 << 17;

/// How often a thread looks whether it shall end.
const LOOK: i64 = 100_000;

/// Ends the threads when it is dropped.
pub(super) struct Delay {
    stop: Arc<AtomicBool>,
}

// === impl Delay ===

impl Delay {
    /// Joins two interfaces of `ns`, each way with this delay.
    pub(super) fn between(ns: &Netns, one: &str, other: &str, delay: Duration) -> Result<Self> {
        let names = [one.to_owned(), other.to_owned()];
        let [one, other] = ns.run(move || anyhow::Ok([open(&names[0])?, open(&names[1])?]))?.map(Arc::new);
        let stop = Arc::new(AtomicBool::new(false));
        for (from, to) in [(Arc::clone(&one), Arc::clone(&other)), (other, one)] {
            let (late, due) = mpsc::channel::<(Instant, Vec<u8>)>();
            let stop = Arc::clone(&stop);
            let receive = move || {
                let mut frame = vec![0; FRAME];
                while !stop.load(Ordering::SeqCst) {
                    match recv(from.as_raw_fd(), &mut frame, MsgFlags::empty()) {
                        Ok(length) => {
                            let frame = frame.get(..length).unwrap_or_default().to_vec();
                            if late.send((Instant::now() + delay, frame)).is_err() {
                                return;
                            }
                        }
                        Err(nix::Error::EAGAIN | nix::Error::EINTR) => {}
                        // The interface is gone.
                        Err(_) => return,
                    }
                }
            };
            let deliver = move || {
                for (at, frame) in due {
                    thread::sleep(at.saturating_duration_since(Instant::now()));
                    // Lost, if the other interface is gone or down.
                    let _ = send(to.as_raw_fd(), &frame, MsgFlags::empty());
                }
            };
            thread::Builder::new().name("delay: receive".to_owned()).spawn(receive)?;
            thread::Builder::new().name("delay: deliver".to_owned()).spawn(deliver)?;
        }
        Ok(Self { stop })
    }
}

impl Drop for Delay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

/// A packet socket on an interface of the calling thread's namespace.
fn open(interface: &str) -> Result<OwnedFd> {
    let address: LinkAddr = getifaddrs()?
        .filter(|entry| entry.interface_name == interface)
        .find_map(|entry| entry.address?.as_link_addr().copied())
        .with_context(|| format!("no interface {interface}"))?;
    let opened = || -> io::Result<OwnedFd> {
        let packets = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)?;
        VnetHeader.set(&packets.as_fd(), &true)?;
        IgnoreOutgoing.set(&packets.as_fd(), &true)?;
        ReceiveTimeout.set(&packets.as_fd(), &TimeVal::new(0, LOOK))?;
        bind(packets.as_raw_fd(), &address)?;
        // What came between the socket's making and its binding may be from any interface.
        let mut frame = [0; 1];
        while recv(packets.as_raw_fd(), &mut frame, MsgFlags::MSG_DONTWAIT).is_ok() {}
        Ok(packets)
    };
    opened().with_context(|| format!("packet socket on {interface}"))
}
