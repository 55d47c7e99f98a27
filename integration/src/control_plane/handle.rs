//! The handle that tests hold: changes of the model, pushes, waits, faults.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use socket2::{Domain, Socket, Type};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::ads::Stream;
use super::ledger::{Answer, Push};
use super::model::{Endpoint, Health, Model, Raw, Service};
use super::server::{Serving, Shared, State, debounce, lock, serve};
use super::snapshot::Snapshot;
use crate::netns::Netns;

/// Bound on closing connections at an outage.
const CLOSE: Duration = Duration::from_secs(5);

/// How the control plane behaves.
#[derive(Clone, Debug)]
pub struct Params {
    /// Where it listens, in the proxy's namespace; port 0 picks one, see [`ControlPlane::addr`].
    pub listen: SocketAddr,
    /// A push waits for this long without further changes (istiod: `PILOT_DEBOUNCE_AFTER`, 100 ms).
    /// Zero: every change is a push of its own, made before the call that changes returns.
    pub debounce_after: Duration,
    /// A push waits no longer than this after the first change (istiod: `PILOT_DEBOUNCE_MAX`, 10 s).
    pub debounce_max: Duration,
    /// Send everything to a proxy that comes back, as istiod does; `false`: in the delta protocol, only
    /// what differs from the versions that the proxy says it has.
    pub resend_on_reconnect: bool,
}

/// The two protocols of one ADS server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// State of the world: `api_type: GRPC`.
    Sotw,
    /// Incremental: `api_type: DELTA_GRPC`.
    Delta,
}

/// A running control plane; dropping it closes its port and streams.
#[derive(Debug)]
pub struct ControlPlane {
    shared: Arc<Shared>,
    netns: Netns,
    addr: SocketAddr,
    serving: Mutex<Option<Serving>>,
    /// What holds the port during [`Self::black_hole`].
    black_hole: Mutex<Vec<Socket>>,
    debouncer: JoinHandle<()>,
}

// === impl Params ===

impl Default for Params {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 15010)),
            debounce_after: Duration::from_millis(100),
            debounce_max: Duration::from_secs(10),
            resend_on_reconnect: true,
        }
    }
}

impl Params {
    /// Every change is a push of its own, made before the call returns.
    pub fn immediate() -> Self {
        Self { debounce_after: Duration::ZERO, ..Self::default() }
    }
}

// === impl ControlPlane ===

impl ControlPlane {
    /// Starts in `netns`; call within a tokio runtime.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub async fn start(netns: &Netns, params: Params) -> Result<Self> {
        let listen = params.listen;
        let shared = Arc::new(Shared::new(params));
        let (serving, addr) = serve(&shared, netns, listen).context("start the control plane")?;
        let debouncer = tokio::spawn(debounce(Arc::clone(&shared)));
        Ok(Self {
            shared,
            netns: netns.clone(),
            addr,
            serving: Mutex::new(Some(serving)),
            black_hole: Mutex::default(),
            debouncer,
        })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    // --- the model ---

    /// Adds a service, or replaces it with all its endpoints.
    pub fn set_service(&self, service: Service) {
        self.change(|model| model.set_service(service));
    }

    /// Sends a service's cluster with another configuration, and its endpoints again, as istiod does.
    ///
    /// # Errors
    /// If there is no such cluster.
    pub fn note(&self, cluster: &str, note: &str) -> Result<()> {
        self.change(|model| model.edit_service(cluster, |service| note.clone_into(&mut service.note)))
            .with_context(|| format!("no such cluster: {cluster}"))
    }

    /// Takes a service away: its cluster (CDS) and its endpoints.
    ///
    /// # Errors
    /// If there is no such cluster.
    pub fn remove_service(&self, cluster: &str) -> Result<()> {
        let had = self.change(|model| model.remove_service(cluster));
        had.then_some(()).with_context(|| format!("no such cluster: {cluster}"))
    }

    /// Adds an endpoint at the end of the service's list.
    ///
    /// # Errors
    /// If there is no such cluster.
    pub fn add_endpoint(&self, cluster: &str, endpoint: Endpoint) -> Result<()> {
        self.edit_endpoints(cluster, |endpoints| endpoints.push(endpoint))
    }

    /// Takes an endpoint away.
    ///
    /// # Errors
    /// If there is no such cluster, or no such endpoint in it.
    pub fn remove_endpoint(&self, cluster: &str, addr: SocketAddr) -> Result<()> {
        let removed = self.edit_endpoints(cluster, |endpoints| {
            let before = endpoints.len();
            endpoints.retain(|endpoint| endpoint.addr() != addr);
            before - endpoints.len()
        })?;
        if removed == 0 {
            bail!("{cluster} has no endpoint {addr}");
        }
        Ok(())
    }

    /// Changes what is told of an endpoint's health.
    ///
    /// # Errors
    /// If there is no such cluster, or no such endpoint in it.
    pub fn set_health(&self, cluster: &str, addr: SocketAddr, health: Health) -> Result<()> {
        let changed = self.edit_endpoints(cluster, |endpoints| {
            let mut changed = 0;
            for endpoint in endpoints.iter_mut().filter(|e| e.addr() == addr) {
                endpoint.health = health;
                changed += 1;
            }
            changed
        })?;
        if changed == 0 {
            bail!("{cluster} has no endpoint {addr}");
        }
        Ok(())
    }

    /// Any change of one service's endpoints, as one event. The endpoints are pushed even if they are the
    /// same afterwards: istiod does so when a removal and a re-add meet within one debounce.
    ///
    /// # Errors
    /// If there is no such cluster.
    pub fn edit_endpoints<T>(&self, cluster: &str, edit: impl FnOnce(&mut Vec<Endpoint>) -> T) -> Result<T> {
        self.change(|model| model.edit_endpoints(cluster, edit)).with_context(|| format!("no such cluster: {cluster}"))
    }

    /// Serves `raw` in place of the service's EDS resource; `None` ends that.
    pub fn set_raw(&self, cluster: &str, raw: Option<Raw>) {
        self.change(|model| {
            match raw {
                Some(raw) => model.raw.insert(cluster.to_owned(), raw),
                None => model.raw.remove(cluster),
            };
            model.dirty_endpoints.insert(cluster.to_owned());
        });
    }

    /// Late EDS: while `true`, changes of the service's endpoints are kept back, and a proxy that asks
    /// for endpoints never sent gets no answer. May be called before the service exists.
    pub fn withhold_endpoints(&self, cluster: &str, withhold: bool) {
        self.change(|model| {
            match withhold {
                true => model.withheld.insert(cluster.to_owned()),
                false => model.withheld.remove(cluster),
            };
        });
    }

    /// While `true`, the EDS resource does not exist although its cluster does.
    pub fn vanish_endpoints(&self, cluster: &str, vanish: bool) {
        self.change(|model| {
            match vanish {
                true => model.vanished.insert(cluster.to_owned()),
                false => model.vanished.remove(cluster),
            };
            model.dirty_endpoints.insert(cluster.to_owned());
        });
    }

    // --- pushes ---

    /// Changes are collected, and nothing is pushed, until [`Self::release`].
    pub fn hold(&self) {
        self.shared.lock().held = true;
    }

    /// Pushes what was collected, in one push, and ends the hold. Returns [`Self::version`].
    pub fn release(&self) -> u64 {
        self.shared.lock().held = false;
        self.push_now()
    }

    /// Pushes pending changes without waiting for the debounce. Returns [`Self::version`].
    pub fn push_now(&self) -> u64 {
        self.shared.publish();
        self.version()
    }

    /// Sends everything once more under a new version, changed or not (istiod's full push).
    pub fn push_full(&self) -> u64 {
        self.shared.lock().model.touch_all();
        self.push_now()
    }

    /// Number of the latest push, from 1; 0 before the first. [`Self::restart`] begins anew.
    pub fn version(&self) -> u64 {
        self.shared.lock().snapshot.number
    }

    /// The bytes of a service's cluster and of its endpoints, as of the latest push.
    pub fn resources(&self, cluster: &str) -> Option<(Vec<u8>, Vec<u8>)> {
        let state = self.shared.lock();
        let (clusters, assignments) = (&state.snapshot.clusters, &state.snapshot.assignments);
        Some((clusters.get(cluster)?.body.value.clone(), assignments.get(cluster)?.body.value.clone()))
    }

    /// Every response since the start, oldest first.
    pub fn pushes(&self) -> Vec<Push> {
        self.shared.lock().ledger.pushes().to_vec()
    }

    /// Streams open now.
    pub fn connected(&self) -> usize {
        self.shared.lock().streams.len()
    }

    /// The protocols of the streams open now.
    pub fn protocols(&self) -> Vec<Protocol> {
        let state = self.shared.lock();
        let protocol = |stream: &Stream| match stream.is_delta() {
            true => Protocol::Delta,
            false => Protocol::Sotw,
        };
        state.streams.iter().map(protocol).collect()
    }

    /// Waits until at least one proxy is connected, push `version` was made, and every connected proxy
    /// has been sent all that is current and has answered all of it with ACK. An ACK means that Envoy's
    /// main thread has applied the update; its workers follow at once, but on their own.
    ///
    /// # Errors
    /// A proxy answered push `version` with NACK, or `within` is over.
    pub async fn wait_acked(&self, version: u64, within: Duration) -> Result<()> {
        let life = self.shared.lock().snapshot.life;
        self.wait(within, |state| {
            let nack = state.ledger.pushes().iter().rev().find_map(|push| {
                match (&push.answer, push.version == version && push.life == life) {
                    (Answer::Nacked(_, message), true) => Some(message.clone()),
                    _ => None,
                }
            });
            match nack {
                Some(message) => Some(Err(anyhow::anyhow!("push {version} was rejected: {message}"))),
                None => (state.snapshot.number >= version && state.is_settled()).then_some(Ok(())),
            }
        })
        .await
        .with_context(|| format!("wait for ACK of push {version}"))?
    }

    /// Waits for a NACK of push `version` or a later one, and returns its message.
    ///
    /// # Errors
    /// `within` is over.
    pub async fn wait_nacked(&self, version: u64, within: Duration) -> Result<String> {
        self.wait(within, |state| {
            state.ledger.pushes().iter().find_map(|push| match &push.answer {
                Answer::Nacked(_, message) if push.version >= version => Some(message.clone()),
                _ => None,
            })
        })
        .await
        .with_context(|| format!("wait for NACK of push {version}"))
    }

    /// Waits until exactly `count` streams are open.
    ///
    /// # Errors
    /// `within` is over.
    pub async fn wait_connected(&self, count: usize, within: Duration) -> Result<()> {
        self.wait(within, |state| (state.streams.len() == count).then_some(()))
            .await
            .with_context(|| format!("wait for {count} connected proxies"))
    }

    async fn wait<T>(&self, within: Duration, check: impl Fn(&State) -> Option<T>) -> Result<T> {
        let mut events = self.shared.events.subscribe();
        let found = timeout(within, async {
            loop {
                events.borrow_and_update();
                if let Some(found) = check(&self.shared.lock()) {
                    return Some(found);
                }
                if events.changed().await.is_err() {
                    return None;
                }
            }
        })
        .await;
        match found {
            Ok(Some(found)) => Ok(found),
            Ok(None) | Err(_) => {
                let state = self.shared.lock();
                bail!(
                    "not within {within:?}; push {}, {} streams, last responses: {:#?}",
                    state.snapshot.number,
                    state.streams.len(),
                    state.ledger.pushes().iter().rev().take(4).collect::<Vec<_>>()
                )
            }
        }
    }

    // --- faults ---

    /// The control plane goes away: streams end, connections close, the port refuses. The model lives on
    /// and can be changed meanwhile.
    pub async fn outage(&self) {
        {
            let mut state = self.shared.lock();
            state.accepting = false;
            for stream in std::mem::take(&mut state.streams) {
                state.ledger.stream_closed(stream.id);
            }
        }
        self.shared.tick();
        let serving = lock(&self.serving).take();
        if let Some(Serving { stop, mut task }) = serving {
            let _ = stop.send(());
            if timeout(CLOSE, &mut task).await.is_err() {
                task.abort();
            }
        }
    }

    /// An outage in which the port does not refuse: nothing answers a SYN. [`Self::recover`] ends it.
    ///
    /// # Errors
    /// If the port cannot be taken over.
    pub async fn black_hole(&self) -> Result<()> {
        self.outage().await;
        let addr = self.addr;
        let sockets = self.netns.run(move || full_queue(addr)).context("take the port over")?;
        *lock(&self.black_hole) = sockets;
        Ok(())
    }

    /// Ends an outage, on the same address.
    ///
    /// # Errors
    /// If the address cannot be listened on again.
    pub async fn recover(&self) -> Result<()> {
        if lock(&self.serving).is_some() {
            return Ok(());
        }
        lock(&self.black_hole).clear();
        let (serving, _) = serve(&self.shared, &self.netns, self.addr).context("bring the control plane back")?;
        *lock(&self.serving) = Some(serving);
        Ok(())
    }

    /// An outage after which the control plane has forgotten what it ever sent: versions begin anew.
    ///
    /// # Errors
    /// If the address cannot be listened on again.
    pub async fn restart(&self) -> Result<()> {
        self.outage().await;
        {
            let mut state = self.shared.lock();
            let life = state.snapshot.life + 1;
            state.snapshot = Snapshot { life, ..Snapshot::default() };
            state.model.touch_all();
        }
        self.shared.publish();
        self.recover().await
    }

    fn change<T>(&self, change: impl FnOnce(&mut Model) -> T) -> T {
        let (result, at_once) = {
            let mut state = self.shared.lock();
            let result = change(&mut state.model);
            let now = Instant::now();
            state.first_change.get_or_insert(now);
            state.last_change = Some(now);
            let at_once = self.shared.params.debounce_after.is_zero() && !state.held;
            (result, at_once)
        };
        match at_once {
            true => self.shared.publish(),
            false => self.shared.changed.notify_one(),
        }
        result
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.debouncer.abort();
        let mut state = self.shared.lock();
        state.accepting = false;
        // Ends the response streams; the dropped `stop` sender ends the server.
        state.streams.clear();
    }
}

/// A listener that never accepts and whose queue is full: the kernel drops further SYNs as if nobody
/// were there.
fn full_queue(addr: SocketAddr) -> std::io::Result<Vec<Socket>> {
    const FILL: usize = 8;
    let listener = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    listener.set_reuse_address(true)?;
    listener.bind(&addr.into())?;
    listener.listen(0)?;
    let mut sockets = vec![listener];
    for _ in 0..FILL {
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        // In progress; most of them for good.
        let _ = socket.connect(&addr.into());
        sockets.push(socket);
    }
    Ok(sockets)
}
