//! The bootstrap extension: the module's own timer, call-outs and page on the main thread.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use envoy_proxy_dynamic_modules_rust_sdk::{
    BootstrapExtension, BootstrapExtensionConfig, CompletionCallback, EnvoyBootstrapExtension,
    EnvoyBootstrapExtensionConfig, EnvoyBootstrapExtensionConfigScheduler, EnvoyBootstrapExtensionTimer, EnvoyBuffer,
    abi::{
        envoy_dynamic_module_type_http_callout_init_result as CalloutInitResult,
        envoy_dynamic_module_type_http_callout_result as CalloutResult,
    },
    envoy_log_error,
};

use super::{
    config::{PollSource, StatusConfig},
    connection::{self, Connection},
    metrics::Metrics,
    note::Note,
    page,
    poller::{Failure, Poller},
};
use crate::{closing::Closer, shared::shared, watch::gap::Gap};

/// The pulse of the main thread: deadlines are met within it, statistics are as old.
const TICK: Duration = Duration::from_millis(100);
/// Time that Envoy's own admin endpoint has to answer.
const CALLOUT_TIMEOUT_MS: u64 = 5_000;

const CLUSTERS_PATH: &[u8] = b"/clusters";

/// The extension's configuration, which is also where its timer and call-outs arrive.
pub(crate) struct StatusExtensionConfig {
    config: StatusConfig,
    metrics: Metrics,
    tick: Box<dyn EnvoyBootstrapExtensionTimer>,
    closer: Mutex<Closer>,
    running: Arc<AtomicBool>,
    state: Mutex<State>,
}

/// What changes. Main thread; the lock is never held across a call into Envoy.
struct State {
    poller: Poller,
    connection: Option<Connection>,
    /// The call-outs in flight, and one that is being sent, whose id is not known yet.
    in_flight: Vec<(u64, Call)>,
    sending: Option<Call>,
}

/// What a call-out asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Poll,
    Look,
}

/// The extension proper: the server's life.
struct StatusExtension {
    running: Arc<AtomicBool>,
}

// === impl StatusExtensionConfig ===

impl StatusExtensionConfig {
    pub(crate) fn new(config: StatusConfig, envoy: &mut dyn EnvoyBootstrapExtensionConfig) -> Self {
        shared().endpoints.set_capacity(config.capacity.get() as usize);
        shared().ticking.store(true, Ordering::Relaxed);
        let metrics = Metrics::define(envoy);
        let page = config.admin_path.as_str();
        if !envoy.register_admin_handler(page, "Stale Guard: endpoints, connections, generations", true, false) {
            envoy_log_error!("stale_guard: the admin page {page} could not be registered: is the path taken?");
        }
        let scheduler: Arc<dyn EnvoyBootstrapExtensionConfigScheduler> = Arc::from(envoy.new_scheduler());
        shared().hint.connect(Some(Arc::new(move || scheduler.commit(0))));
        let tick = envoy.new_timer();
        tick.enable(TICK);
        envoy.signal_init_complete();
        let watch = &config.watch;
        let poller = Poller::new(watch.min_interval.get(), watch.max_interval.get(), watch.treat_as_removed.clone());
        let connection = config.suspect_after.map(|after| Connection::new(Gap::new(after.get()), Instant::now()));
        let state = State { poller, connection, in_flight: Vec::new(), sending: None };
        Self { config, metrics, tick, closer: Mutex::new(Closer::new()), running: Arc::default(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts what is due, and arms the timer for what is due next.
    fn ask(&self, envoy: &mut dyn EnvoyBootstrapExtensionConfig, now: Instant) {
        if !self.running.load(Ordering::Relaxed) {
            return;
        }
        let (poll, look) = {
            let mut state = self.state();
            let poll = self.polls() && state.poller.start(now);
            (poll, state.connection.as_mut().is_some_and(|connection| connection.start(now)))
        };
        if poll {
            self.call(envoy, Call::Poll);
        }
        if look {
            self.call(envoy, Call::Look);
        }
        let wait = self.state().poller.wait(now);
        if let Some(wait) = wait.filter(|wait| self.polls() && *wait < TICK) {
            // At least a millisecond: a timer of zero would come back before time has moved on.
            self.tick.enable(wait.max(Duration::from_millis(1)));
        }
    }

    fn polls(&self) -> bool {
        self.config.watch.source == PollSource::Admin
    }

    fn call(&self, envoy: &mut dyn EnvoyBootstrapExtensionConfig, call: Call) {
        let path = match call {
            Call::Poll => CLUSTERS_PATH,
            Call::Look => connection::PATH,
        };
        let headers = vec![(":method", &b"GET"[..]), (":path", path), ("host", b"localhost")];
        self.state().sending = Some(call);
        let (sent, id) = envoy.send_http_callout(self.config.watch.cluster.as_str(), headers, None, CALLOUT_TIMEOUT_MS);
        let mut state = self.state();
        // Envoy may have reported the end already, from within the call.
        if state.sending.take().is_none() {
            return;
        }
        let notes = match sent {
            CalloutInitResult::Success => {
                state.in_flight.push((id, call));
                Vec::new()
            }
            refused => {
                let why = format!("cluster \"{}\": {refused:?}", self.config.watch.cluster.as_str());
                state.ended(call, Err(Failure::Other(why)), Instant::now())
            }
        };
        drop(state);
        notes.iter().for_each(Note::say);
    }
}

// === impl State ===

impl State {
    /// A call-out is over: its body, or why there is none. Gives what is to be said of that.
    fn ended(&mut self, call: Call, result: Result<&[EnvoyBuffer], Failure>, now: Instant) -> Vec<Note> {
        match (call, result) {
            (Call::Poll, Ok(body)) => self.poller.answered(body, now),
            (Call::Poll, Err(why)) => self.poller.failed(&why, now),
            (Call::Look, result) => {
                let connection = self.connection.as_mut();
                let note = connection.and_then(|connection| match result {
                    Ok(body) => connection.answered(body, now),
                    Err(why) => connection.failed(&why.to_string(), now),
                });
                note.into_iter().collect()
            }
        }
    }

    /// What the call-out with this id asked.
    fn take(&mut self, id: u64) -> Option<Call> {
        match self.in_flight.iter().position(|(known, _)| *known == id) {
            Some(index) => Some(self.in_flight.swap_remove(index).1),
            None => self.sending.take(),
        }
    }
}

impl BootstrapExtensionConfig for StatusExtensionConfig {
    fn new_bootstrap_extension(&self, _envoy: &mut dyn EnvoyBootstrapExtension) -> Box<dyn BootstrapExtension> {
        Box::new(StatusExtension { running: Arc::clone(&self.running) })
    }

    fn on_timer_fired(&self, envoy: &mut dyn EnvoyBootstrapExtensionConfig, _timer: &dyn EnvoyBootstrapExtensionTimer) {
        // First, so that a panic below does not end the pulse.
        self.tick.enable(TICK);
        let now = Instant::now();
        shared().endpoints.close_removed(now);
        let mut closer = self.closer.lock().unwrap_or_else(PoisonError::into_inner);
        closer.tick(&shared().endpoints, now);
        let (closed, left_behind) = (closer.total(), closer.left_behind());
        drop(closer);
        self.metrics.publish(envoy, shared(), now);
        self.metrics.publish_closing(envoy, closed, left_behind);
        self.ask(envoy, now);
    }

    fn on_scheduled(&self, envoy: &mut dyn EnvoyBootstrapExtensionConfig, _event_id: u64) {
        self.state().poller.hint();
        self.ask(envoy, Instant::now());
    }

    fn on_http_callout_done(
        &self,
        _envoy: &mut dyn EnvoyBootstrapExtensionConfig,
        callout_id: u64,
        result: CalloutResult,
        response_headers: Option<&[(EnvoyBuffer, EnvoyBuffer)]>,
        response_body: Option<&[EnvoyBuffer]>,
    ) {
        let result = match result {
            CalloutResult::Success => match status(response_headers.unwrap_or_default()) {
                "200" => Ok(response_body.unwrap_or_default()),
                status => Err(Failure::Other(format!("it answers with status {status}"))),
            },
            CalloutResult::ExceedResponseBufferLimit => Err(Failure::TooLarge),
            other => Err(Failure::Other(format!("{other:?}"))),
        };
        let mut state = self.state();
        let call = state.take(callout_id);
        let notes = call.map(|call| state.ended(call, result, Instant::now()));
        drop(state);
        notes.iter().flatten().for_each(Note::say);
    }

    fn on_admin_request(
        &self,
        _envoy: &mut dyn EnvoyBootstrapExtensionConfig,
        _method: &str,
        path: &str,
        _body: &[u8],
    ) -> (u32, String) {
        (200, page::render(path, &page::State::of(shared()), Instant::now()))
    }
}

// === impl StatusExtension ===

impl BootstrapExtension for StatusExtension {
    fn on_server_initialized(&mut self, _envoy: &mut dyn EnvoyBootstrapExtension) {
        self.running.store(true, Ordering::Relaxed);
    }

    fn on_shutdown(&mut self, _envoy: &mut dyn EnvoyBootstrapExtension, completion: CompletionCallback) {
        self.running.store(false, Ordering::Relaxed);
        shared().hint.connect(None);
        completion.done();
    }
}

fn status<'a>(headers: &'a [(EnvoyBuffer, EnvoyBuffer)]) -> &'a str {
    let status = headers.iter().find(|(name, _)| name.as_slice() == b":status");
    status.and_then(|(_, value)| std::str::from_utf8(value.as_slice()).ok()).unwrap_or("none")
}
