//! The control plane's side of ZDS, by which istio-cni hands pods to a shared ztunnel (ztunnel's
//! `proto/zds.proto`): one message a packet over a `SOCK_SEQPACKET` socket, a pod's network namespace beside
//! its message as a file descriptor, and an answer to each before the next.

use std::io::{self, IoSlice, Read as _};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use prost::{Message, Oneof};
use socket2::{Domain, SockAddr, Socket, Type};

/// How long ztunnel may take for an answer.
const ANSWER: Duration = Duration::from_secs(30);

/// The first message, ztunnel's.
#[derive(Clone, PartialEq, Message)]
pub struct ZdsHello {
    /// 1, the only version that there is.
    #[prost(int32, tag = "1")]
    pub version: i32,
}

/// Which workload a pod is.
#[derive(Clone, PartialEq, Message)]
pub struct WorkloadInfo {
    /// The pod's name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its Kubernetes namespace.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Its service account.
    #[prost(string, tag = "3")]
    pub service_account: String,
}

/// A pod has come.
#[derive(Clone, PartialEq, Message)]
pub struct AddWorkload {
    /// The pod's id, unique per instance.
    #[prost(string, tag = "1")]
    pub uid: String,
    /// Which workload it is.
    #[prost(message, optional, tag = "2")]
    pub workload_info: Option<WorkloadInfo>,
}

/// A pod has gone.
#[derive(Clone, PartialEq, Message)]
pub struct DelWorkload {
    /// The pod's id.
    #[prost(string, tag = "2")]
    pub uid: String,
}

/// All pods that there are were sent.
#[derive(Clone, PartialEq, Message)]
pub struct SnapshotSent {}

/// What ztunnel is told.
#[derive(Clone, PartialEq, Message)]
pub struct WorkloadRequest {
    /// One of them.
    #[prost(oneof = "Payload", tags = "1, 2, 3")]
    pub payload: Option<Payload>,
}

/// See [`WorkloadRequest`].
#[derive(Clone, PartialEq, Oneof)]
pub enum Payload {
    /// A pod has come.
    #[prost(message, tag = "1")]
    Add(AddWorkload),
    /// A pod has gone.
    #[prost(message, tag = "2")]
    Del(DelWorkload),
    /// All were sent.
    #[prost(message, tag = "3")]
    SnapshotSent(SnapshotSent),
}

/// ztunnel's answer.
#[derive(Clone, PartialEq, Message)]
pub struct WorkloadResponse {
    /// The only kind that there is.
    #[prost(message, optional, tag = "1")]
    pub ack: Option<Ack>,
}

/// See [`WorkloadResponse`].
#[derive(Clone, PartialEq, Message)]
pub struct Ack {
    /// What went wrong; empty if nothing did.
    #[prost(string, tag = "1")]
    pub error: String,
}

/// The socket that ztunnel connects to (`INPOD_UDS`). Blocking.
pub struct Listener {
    socket: Socket,
}

/// A ztunnel that has said hello. Blocking.
pub struct Peer {
    socket: Socket,
}

// === impl Listener ===

impl Listener {
    /// Listens at `path`.
    ///
    /// # Errors
    /// As `bind(2)`.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
        socket.bind(&SockAddr::unix(path)?)?;
        socket.listen(1)?;
        socket.set_read_timeout(Some(ANSWER))?;
        Ok(Self { socket })
    }

    /// Waits for ztunnel and its hello.
    ///
    /// # Errors
    /// It does not come, or speaks another version.
    pub fn accept(&self) -> Result<Peer> {
        let (socket, _) = self.socket.accept().context("ztunnel does not connect to the ZDS socket")?;
        socket.set_read_timeout(Some(ANSWER))?;
        let mut peer = Peer { socket };
        let hello: ZdsHello = peer.read().context("ztunnel's hello")?;
        if hello.version != 1 {
            bail!("ztunnel speaks version {} of ZDS", hello.version);
        }
        Ok(peer)
    }
}

// === impl Peer ===

impl Peer {
    /// Hands a pod to ztunnel.
    ///
    /// # Errors
    /// ztunnel does not answer, or with an error.
    pub fn add(&mut self, uid: &str, info: WorkloadInfo, netns: BorrowedFd<'_>) -> Result<()> {
        let add = AddWorkload { uid: uid.to_owned(), workload_info: Some(info) };
        self.ask(Payload::Add(add), Some(netns)).with_context(|| format!("AddWorkload {uid}"))
    }

    /// Takes a pod from ztunnel.
    ///
    /// # Errors
    /// ztunnel does not answer, or with an error.
    pub fn remove(&mut self, uid: &str) -> Result<()> {
        let payload = Payload::Del(DelWorkload { uid: uid.to_owned() });
        self.ask(payload, None).with_context(|| format!("DelWorkload {uid}"))
    }

    /// Says that all pods were sent.
    ///
    /// # Errors
    /// ztunnel does not answer, or with an error.
    pub fn snapshot_sent(&mut self) -> Result<()> {
        self.ask(Payload::SnapshotSent(SnapshotSent {}), None).context("SnapshotSent")
    }

    fn ask(&mut self, payload: Payload, netns: Option<BorrowedFd<'_>>) -> Result<()> {
        let packet = WorkloadRequest { payload: Some(payload) }.encode_to_vec();
        let descriptors: Vec<_> = netns.iter().map(|netns| netns.as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&descriptors)];
        let beside = if descriptors.is_empty() { &[][..] } else { &rights[..] };
        let packet = [IoSlice::new(&packet)];
        sendmsg::<()>(self.socket.as_raw_fd(), &packet, beside, MsgFlags::empty(), None)?;
        let answer: WorkloadResponse = self.read()?;
        match answer.ack {
            Some(Ack { error }) if error.is_empty() => Ok(()),
            Some(Ack { error }) => bail!("ztunnel answers: {error}"),
            None => bail!("ztunnel's answer is no acknowledgement"),
        }
    }

    /// One packet, which holds one message.
    fn read<M: Message + Default>(&mut self) -> Result<M> {
        let mut packet = [0; 4096];
        let length = self.socket.read(&mut packet).context("no answer")?;
        if length == 0 {
            bail!("ztunnel has closed the ZDS socket");
        }
        Ok(M::decode(packet.get(..length).unwrap_or_default())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{IoSliceMut, Write as _};
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::MetadataExt as _;
    use std::thread;

    use nix::sys::socket::{ControlMessageOwned, recvmsg};

    fn info() -> WorkloadInfo {
        WorkloadInfo { name: "pod-1".into(), namespace: "default".into(), service_account: "web".into() }
    }

    #[test]
    fn messages_are_on_the_wire_as_ztunnel_reads_them() {
        let add = AddWorkload { uid: "uid0".into(), workload_info: Some(info()) };
        let wire = [
            &[0x0a, 29, 0x0a, 4][..],
            b"uid0",
            &[0x12, 21, 0x0a, 5],
            b"pod-1",
            &[0x12, 7],
            b"default",
            &[0x1a, 3],
            b"web",
        ];
        let wire = wire.concat();
        let request = |payload| WorkloadRequest { payload: Some(payload) }.encode_to_vec();
        assert_eq!(request(Payload::Add(add)), wire);
        assert_eq!(request(Payload::Del(DelWorkload { uid: "u".into() })), [0x12, 3, 0x12, 1, b'u']);
        assert_eq!(request(Payload::SnapshotSent(SnapshotSent {})), [0x1a, 0]);
        assert_eq!(ZdsHello::decode(&[0x08, 1][..]).unwrap().version, 1);
        assert_eq!(WorkloadResponse::decode(&[0x0a, 0][..]).unwrap().ack, Some(Ack::default()));
    }

    /// What ztunnel does, as far as this socket shows it: hello, then an answer for each request.
    /// Gives the requests, and which file came beside each.
    fn ztunnel(path: &Path, answers: Vec<&'static str>) -> Vec<(WorkloadRequest, Option<u64>)> {
        let mut socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        socket.connect(&SockAddr::unix(path).unwrap()).unwrap();
        socket.write_all(&ZdsHello { version: 1 }.encode_to_vec()).unwrap();
        let mut seen = Vec::new();
        for error in answers {
            let (mut packet, mut space) = ([0; 1024], nix::cmsg_space!(i32));
            let mut parts = [IoSliceMut::new(&mut packet)];
            let message =
                recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC).unwrap();
            let netns = message.cmsgs().unwrap().find_map(|beside| match beside {
                ControlMessageOwned::ScmRights(rights) => rights.first().copied(),
                _ => None,
            });
            let netns = netns.map(|fd| {
                let inode = std::fs::metadata(format!("/proc/self/fd/{fd}")).unwrap().ino();
                nix::unistd::close(fd).unwrap();
                inode
            });
            let length = message.bytes;
            seen.push((WorkloadRequest::decode(&packet[..length]).unwrap(), netns));
            let answer = WorkloadResponse { ack: Some(Ack { error: error.to_owned() }) };
            socket.write_all(&answer.encode_to_vec()).unwrap();
        }
        seen
    }

    #[test]
    fn pods_are_handed_over_with_their_namespace_and_each_answer_is_awaited() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ztunnel.sock");
        let listener = Listener::bind(&path).unwrap();
        let peer = thread::spawn(move || ztunnel(&path, vec!["", "", "", "no such pod"]));
        let netns = File::open("/proc/self/ns/net").unwrap();
        let mut zds = listener.accept().unwrap();
        zds.add("uid0", info(), netns.as_fd()).unwrap();
        zds.snapshot_sent().unwrap();
        zds.remove("uid0").unwrap();
        let refused = format!("{:#}", zds.remove("uid0").unwrap_err());
        assert!(refused.contains("DelWorkload uid0") && refused.contains("no such pod"), "{refused}");
        let seen = peer.join().unwrap();
        assert_eq!(seen[0].1, Some(netns.metadata().unwrap().ino()), "the pod's very namespace");
        assert!(seen[1..].iter().all(|(_, netns)| netns.is_none()));
        assert!(matches!(&seen[3].0.payload, Some(Payload::Del(del)) if del.uid == "uid0"));
    }
}
