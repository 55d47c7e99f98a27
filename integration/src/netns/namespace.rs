//! One network namespace, held open by a thread that lives in it.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Child, Command};
use std::sync::{Arc, mpsc};
use std::thread;

use anyhow::Context as _;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Pid, gettid};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::netlink::{Netlink, set_loopback_up};
use super::sandbox;

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace with its loopback up. Clones share it.
///
/// A thread of this process lives in it. Sockets and processes made on that thread belong to the
/// namespace for life, whichever thread uses them later. When the last clone is dropped the thread
/// ends; the kernel removes the namespace once the last socket or process in it is gone too.
#[derive(Clone)]
pub struct Netns {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<thread::JoinHandle<()>>,
    tid: Pid,
    handle: File,
}

// === impl Netns ===

impl Netns {
    /// Makes a namespace. `name` is for people: thread name, messages, hints.
    ///
    /// # Errors
    /// The process is not isolated (see [`super::sandbox`]), or the kernel refuses.
    pub fn new(name: &str) -> anyhow::Result<Self> {
        sandbox::status()?;
        let (jobs, queue) = mpsc::channel::<Job>();
        let (ready, started) = mpsc::channel();
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let setup = enter_new_namespace();
                let failed = setup.is_err();
                if ready.send(setup).is_err() || failed {
                    return;
                }
                for job in queue {
                    job();
                }
            })
            .with_context(|| format!("thread for namespace {name}"))?;
        let (tid, handle) = started
            .recv()
            .context("the namespace's thread ended early")?
            .with_context(|| format!("network namespace {name}"))?;
        let inner = Inner { name: name.to_owned(), jobs: Some(jobs), thread: Some(thread), tid, handle };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The name given to [`Netns::new`].
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Runs `f` on the namespace's own thread and waits for it. Sockets that `f` makes belong to the
    /// namespace. If the caller is inside a tokio runtime, so is `f`. Keep `f` short: jobs of one
    /// namespace run one after another, and the caller's thread is blocked meanwhile.
    ///
    /// # Panics
    /// If `f` panics, with the same payload.
    pub fn run<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> T {
        if gettid() == self.inner.tid {
            return f();
        }
        let runtime = tokio::runtime::Handle::try_current().ok();
        let (reply, result) = mpsc::sync_channel(1);
        let job: Job = Box::new(move || {
            let _inside = runtime.as_ref().map(|runtime| runtime.enter());
            let _ = reply.send(catch_unwind(AssertUnwindSafe(f)));
        });
        let sent = self.inner.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        match result.recv() {
            Ok(Ok(value)) => value,
            Ok(Err(payload)) => resume_unwind(payload),
            // The thread catches every panic and outlives all clones, so this is unreachable in
            // practice; a panic with a name beats a hang.
            Err(_) => panic!("thread of namespace {} is gone (job sent: {sent})", self.inner.name),
        }
    }

    /// Starts `command` inside the namespace.
    ///
    /// # Errors
    /// As [`Command::spawn`].
    pub fn spawn(&self, mut command: Command) -> anyhow::Result<Child> {
        command.env(sandbox::MARKER, "1");
        let what = format!("{:?} in namespace {}", command.get_program(), self.inner.name);
        self.run(move || command.spawn()).context(what)
    }

    /// Listens on `addr` (port 0: any), with `SO_REUSEADDR`. Call within a tokio runtime.
    ///
    /// # Errors
    /// As `bind(2)` and `listen(2)`.
    pub fn tcp_listener(&self, addr: SocketAddr) -> anyhow::Result<TcpListener> {
        self.run(move || {
            let socket = tcp_socket(addr)?;
            socket.set_reuseaddr(true)?;
            socket.bind(addr)?;
            socket.listen(1024)
        })
        .with_context(|| format!("listener on {addr} in namespace {}", self.inner.name))
    }

    /// Connects to `addr` from inside the namespace. Call within a tokio runtime.
    ///
    /// # Errors
    /// As `connect(2)`.
    pub async fn tcp_connect(&self, addr: SocketAddr) -> io::Result<TcpStream> {
        self.run(move || tcp_socket(addr))?.connect(addr).await
    }

    /// A command line that opens a shell in this namespace, for debugging a paused test.
    #[must_use]
    pub fn enter_hint(&self) -> String {
        let user = match sandbox::status() {
            Ok(sandbox::Kind::UserNamespace) => " -U --preserve-credentials",
            _ => "",
        };
        let (pid, tid) = (std::process::id(), self.inner.tid);
        format!("nsenter -t {pid}{user} -m --net=/proc/{pid}/task/{tid}/ns/net  # {}", self.inner.name)
    }

    /// A descriptor of the namespace, valid as long as `self`.
    pub(super) fn fd(&self) -> RawFd {
        self.inner.handle.as_raw_fd()
    }

    /// A netlink connection to the namespace, served by the current tokio runtime.
    pub(super) fn netlink(&self) -> anyhow::Result<Netlink> {
        self.run(Netlink::open).with_context(|| format!("netlink in namespace {}", self.inner.name))
    }
}

impl std::fmt::Debug for Netns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Netns").field("name", &self.inner.name).field("tid", &self.inner.tid).finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.jobs = None;
        if gettid() != self.tid
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn tcp_socket(addr: SocketAddr) -> io::Result<TcpSocket> {
    if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }
}

fn enter_new_namespace() -> anyhow::Result<(Pid, File)> {
    unshare(CloneFlags::CLONE_NEWNET).context("unshare(CLONE_NEWNET)")?;
    let handle = File::open("/proc/thread-self/ns/net").context("/proc/thread-self/ns/net")?;
    set_loopback_up()?;
    Ok((gettid(), handle))
}
