//! The handle that tests hold, and the gRPC service behind it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use envoy_types::pb::envoy::service::discovery::v3 as xds;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server as ads_server;
use futures::StreamExt;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use super::ads::{Outlet, Stream};
use super::ledger::{Answer, Ledger, Push};
use super::model::{Endpoint, Health, Model, Raw, Service};
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
    debouncer: JoinHandle<()>,
}

#[derive(Debug)]
struct Serving {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    params: Params,
    state: Mutex<State>,
    /// A change waits for the debouncer.
    changed: Notify,
    /// Ticks at every push, answer, and change of streams.
    events: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    model: Model,
    snapshot: Snapshot,
    streams: Vec<Stream>,
    ledger: Ledger,
    next_stream: u64,
    held: bool,
    accepting: bool,
    first_change: Option<Instant>,
    last_change: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Ads(Arc<Shared>);

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
        let shared =
            Arc::new(Shared { params, state: Mutex::default(), changed: Notify::new(), events: watch::Sender::new(0) });
        shared.lock().snapshot.life = 1;
        let (serving, addr) = serve(&shared, netns, listen).context("start the control plane")?;
        let debouncer = tokio::spawn(debounce(Arc::clone(&shared)));
        Ok(Self { shared, netns: netns.clone(), addr, serving: Mutex::new(Some(serving)), debouncer })
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

    /// Ends an outage, on the same address.
    ///
    /// # Errors
    /// If the address cannot be listened on again.
    pub async fn recover(&self) -> Result<()> {
        if lock(&self.serving).is_some() {
            return Ok(());
        }
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

// === impl State ===

impl State {
    fn is_settled(&self) -> bool {
        !self.streams.is_empty()
            && self
                .streams
                .iter()
                .all(|stream| stream.has_all(&self.snapshot) && !self.ledger.is_outstanding(stream.id))
    }
}

// === impl Shared ===

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn tick(&self) {
        self.events.send_modify(|tick| *tick += 1);
    }

    /// Makes pending changes visible, if there are any.
    fn publish(&self) {
        {
            let mut state = self.lock();
            let State { model, snapshot, streams, ledger, first_change, last_change, .. } = &mut *state;
            (*first_change, *last_change) = (None, None);
            if !model.is_dirty() {
                return;
            }
            *snapshot = snapshot.next(model);
            for stream in streams {
                stream.publish(snapshot, ledger);
            }
        }
        self.tick();
    }

    fn open(&self, outlet: Outlet) -> Result<u64, Status> {
        let mut state = self.lock();
        if !state.accepting {
            return Err(Status::unavailable("the control plane is going away"));
        }
        state.next_stream += 1;
        let id = state.next_stream;
        let stream = Stream::new(id, outlet, self.params.resend_on_reconnect);
        state.streams.push(stream);
        Ok(id)
    }

    fn on_request(&self, id: u64, handle: impl FnOnce(&mut Stream, &Snapshot, &mut Ledger)) {
        {
            let mut state = self.lock();
            let State { snapshot, streams, ledger, .. } = &mut *state;
            if let Some(stream) = streams.iter_mut().find(|stream| stream.id == id) {
                handle(stream, snapshot, ledger);
            }
        }
        self.tick();
    }

    fn close(&self, id: u64) {
        {
            let mut state = self.lock();
            state.streams.retain(|stream| stream.id != id);
            state.ledger.stream_closed(id);
        }
        self.tick();
    }
}

// === impl Ads ===

#[tonic::async_trait]
impl ads_server::AggregatedDiscoveryService for Ads {
    type StreamAggregatedResourcesStream = UnboundedReceiverStream<Result<xds::DiscoveryResponse, Status>>;
    type DeltaAggregatedResourcesStream = UnboundedReceiverStream<Result<xds::DeltaDiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<xds::DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let id = self.0.open(Outlet::Sotw(sender))?;
        let shared = Arc::clone(&self.0);
        let mut requests = request.into_inner();
        tokio::spawn(async move {
            while let Some(Ok(request)) = requests.next().await {
                shared.on_request(id, |stream, snapshot, ledger| {
                    stream.on_sotw(request, snapshot, ledger);
                });
            }
            shared.close(id);
        });
        Ok(Response::new(UnboundedReceiverStream::new(receiver)))
    }

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<xds::DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let id = self.0.open(Outlet::Delta(sender))?;
        let shared = Arc::clone(&self.0);
        let mut requests = request.into_inner();
        tokio::spawn(async move {
            while let Some(Ok(request)) = requests.next().await {
                shared.on_request(id, |stream, snapshot, ledger| {
                    stream.on_delta(request, snapshot, ledger);
                });
            }
            shared.close(id);
        });
        Ok(Response::new(UnboundedReceiverStream::new(receiver)))
    }
}

fn serve(shared: &Arc<Shared>, netns: &Netns, addr: SocketAddr) -> Result<(Serving, SocketAddr)> {
    let listener = netns.tcp_listener(addr).with_context(|| format!("listen on {addr}"))?;
    let addr = listener.local_addr()?;
    shared.lock().accepting = true;
    let incoming = TcpListenerStream::new(listener).inspect(|socket| {
        if let Ok(socket) = socket {
            // Costs latency only, if it fails.
            let _ = socket.set_nodelay(true);
        }
    });
    let (stop, stopped) = oneshot::channel::<()>();
    let service = ads_server::AggregatedDiscoveryServiceServer::new(Ads(Arc::clone(shared)));
    let task = tokio::spawn(async move {
        let server = tonic::transport::Server::builder().add_service(service).serve_with_incoming_shutdown(
            incoming,
            async move {
                let _ = stopped.await;
            },
        );
        // An error here closes the port, which the next waiter reports with what it waited for.
        let _ = server.await;
    });
    Ok((Serving { stop, task }, addr))
}

/// istiod's debounce: a push leaves once changes pause for `after`, and at the latest `max` after the first.
async fn debounce(shared: Arc<Shared>) {
    loop {
        shared.changed.notified().await;
        loop {
            let due = {
                let state = shared.lock();
                match (state.first_change, state.last_change) {
                    (Some(first), Some(last)) if !state.held => {
                        Some((last + shared.params.debounce_after).min(first + shared.params.debounce_max))
                    }
                    // Pushed by hand meanwhile, or held: the release pushes.
                    _ => None,
                }
            };
            match due {
                None => break,
                Some(due) if due <= Instant::now() => shared.publish(),
                Some(due) => sleep_until(due).await,
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
