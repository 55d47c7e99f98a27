//! The gRPC service: one shared state, streams that read it, and the debounce in front of it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use envoy_types::pb::envoy::service::discovery::v3 as xds;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server as ads_server;
use envoy_types::pb::envoy::service::endpoint::v3::endpoint_discovery_service_server as eds_server;
use futures::StreamExt;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tonic::{Request, Response, Status, Streaming};

use super::ads::{Outlet, Stream};
use super::ledger::Ledger;
use super::model::Model;
use super::params::Params;
use super::snapshot::{ENDPOINT_TYPE, Snapshot};
use crate::netns::Netns;

/// A listening server; dropping `stop` ends it.
#[derive(Debug)]
pub(super) struct Serving {
    pub(super) stop: oneshot::Sender<()>,
    pub(super) task: JoinHandle<()>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) params: Params,
    state: Mutex<State>,
    /// A change waits for the debouncer.
    pub(super) changed: Notify,
    /// Ticks at every push, answer, and change of streams.
    pub(super) events: watch::Sender<u64>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) model: Model,
    pub(super) snapshot: Snapshot,
    pub(super) streams: Vec<Stream>,
    pub(super) ledger: Ledger,
    next_stream: u64,
    pub(super) held: bool,
    pub(super) accepting: bool,
    pub(super) first_change: Option<Instant>,
    pub(super) last_change: Option<Instant>,
}

type Responses<T> = UnboundedReceiverStream<Result<T, Status>>;

#[derive(Clone, Debug)]
struct Ads(Arc<Shared>);

// === impl State ===

impl State {
    pub(super) fn is_settled(&self) -> bool {
        !self.streams.is_empty()
            && self
                .streams
                .iter()
                .all(|stream| stream.has_all(&self.snapshot) && !self.ledger.is_outstanding(stream.id))
            && self.snapshot.own_source.iter().all(|name| self.streams.iter().any(|stream| stream.follows(name)))
    }
}

// === impl Shared ===

impl Shared {
    pub(super) fn new(params: Params) -> Self {
        let mut state = State::default();
        state.snapshot.life = 1;
        Self { params, state: Mutex::new(state), changed: Notify::new(), events: watch::Sender::new(0) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn tick(&self) {
        self.events.send_modify(|tick| *tick += 1);
    }

    /// Makes pending changes visible, if there are any.
    pub(super) fn publish(&self) {
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

    fn open(&self, outlet: Outlet, endpoints_only: bool) -> Result<u64, Status> {
        let mut state = self.lock();
        if !state.accepting {
            return Err(Status::unavailable("the control plane is going away"));
        }
        state.next_stream += 1;
        let id = state.next_stream;
        let stream = Stream::new(id, outlet, endpoints_only, self.params.resend_on_reconnect);
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

impl Ads {
    fn sotw(
        &self,
        mut requests: Streaming<xds::DiscoveryRequest>,
        endpoints_only: bool,
    ) -> Result<Response<Responses<xds::DiscoveryResponse>>, Status> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let id = self.0.open(Outlet::Sotw(sender), endpoints_only)?;
        let shared = Arc::clone(&self.0);
        tokio::spawn(async move {
            while let Some(Ok(mut request)) = requests.next().await {
                name_type(&mut request.type_url, endpoints_only);
                shared.on_request(id, |stream, snapshot, ledger| {
                    stream.on_sotw(request, snapshot, ledger);
                });
            }
            shared.close(id);
        });
        Ok(Response::new(UnboundedReceiverStream::new(receiver)))
    }

    fn delta(
        &self,
        mut requests: Streaming<xds::DeltaDiscoveryRequest>,
        endpoints_only: bool,
    ) -> Result<Response<Responses<xds::DeltaDiscoveryResponse>>, Status> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let id = self.0.open(Outlet::Delta(sender), endpoints_only)?;
        let shared = Arc::clone(&self.0);
        tokio::spawn(async move {
            while let Some(Ok(mut request)) = requests.next().await {
                name_type(&mut request.type_url, endpoints_only);
                shared.on_request(id, |stream, snapshot, ledger| {
                    stream.on_delta(request, snapshot, ledger);
                });
            }
            shared.close(id);
        });
        Ok(Response::new(UnboundedReceiverStream::new(receiver)))
    }
}

/// On a stream for one type its URL may be left out.
fn name_type(type_url: &mut String, endpoints_only: bool) {
    if endpoints_only && type_url.is_empty() {
        ENDPOINT_TYPE.clone_into(type_url);
    }
}

#[tonic::async_trait]
impl ads_server::AggregatedDiscoveryService for Ads {
    type StreamAggregatedResourcesStream = Responses<xds::DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = Responses<xds::DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<xds::DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        self.sotw(request.into_inner(), false)
    }

    async fn delta_aggregated_resources(
        &self,
        request: Request<Streaming<xds::DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        self.delta(request.into_inner(), false)
    }
}

#[tonic::async_trait]
impl eds_server::EndpointDiscoveryService for Ads {
    type StreamEndpointsStream = Responses<xds::DiscoveryResponse>;
    type DeltaEndpointsStream = Responses<xds::DeltaDiscoveryResponse>;

    async fn stream_endpoints(
        &self,
        request: Request<Streaming<xds::DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamEndpointsStream>, Status> {
        self.sotw(request.into_inner(), true)
    }

    async fn delta_endpoints(
        &self,
        request: Request<Streaming<xds::DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaEndpointsStream>, Status> {
        self.delta(request.into_inner(), true)
    }

    async fn fetch_endpoints(
        &self,
        _request: Request<xds::DiscoveryRequest>,
    ) -> Result<Response<xds::DiscoveryResponse>, Status> {
        Err(Status::unimplemented("endpoints are streamed"))
    }
}

pub(super) fn serve(shared: &Arc<Shared>, netns: &Netns, addr: SocketAddr) -> Result<(Serving, SocketAddr)> {
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
    let aggregated = ads_server::AggregatedDiscoveryServiceServer::new(Ads(Arc::clone(shared)));
    let endpoints = eds_server::EndpointDiscoveryServiceServer::new(Ads(Arc::clone(shared)));
    let task = tokio::spawn(async move {
        let services = tonic::transport::Server::builder().add_service(aggregated).add_service(endpoints);
        let server = services.serve_with_incoming_shutdown(incoming, async move {
            let _ = stopped.await;
        });
        // An error here closes the port, which the next waiter reports with what it waited for.
        let _ = server.await;
    });
    Ok((Serving { stop, task }, addr))
}

/// istiod's debounce: a push leaves once changes pause for `after`, and at the latest `max` after the first.
pub(super) async fn debounce(shared: Arc<Shared>) {
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

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
