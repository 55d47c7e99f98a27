//! The bootstrap extension: the module's own timer, polls and page on the main thread.

use std::{
    collections::HashSet,
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
    envoy_log_error, envoy_log_info, envoy_log_warn,
};

use super::{
    config::{PollSource, StatusConfig},
    metrics::Metrics,
    page,
};
use crate::{
    shared::shared,
    watch::{
        Change, Source,
        admin::Parser,
        gap::{Gap, Look},
        poll::{Polled, Rhythm},
    },
};

/// The pulse of the main thread: deadlines are met within it, statistics are as old.
const TICK: Duration = Duration::from_millis(100);
/// Time that Envoy's own admin endpoint has to answer.
const CALLOUT_TIMEOUT_MS: u64 = 5_000;
/// The pause between polls while the validator speaks for every cluster that has tunnels.
const COVERED: Duration = Duration::from_secs(60);

const CLUSTERS_PATH: &[u8] = b"/clusters";
const CONNECTED_PATH: &[u8] = b"/stats?filter=%5Econtrol_plane.connected_state%24&usedonly";

/// The extension's configuration, which is also where its timer and call-outs arrive.
pub(crate) struct StatusExtensionConfig {
    config: StatusConfig,
    metrics: Metrics,
    tick: Box<dyn EnvoyBootstrapExtensionTimer>,
    running: Arc<AtomicBool>,
    state: Mutex<State>,
}

/// What changes. Main thread; the lock is never held across a call into Envoy.
struct State {
    rhythm: Rhythm,
    polled: Polled,
    /// The poll in flight.
    poll: Option<u64>,
    gap: Option<Gap>,
    next_look: Instant,
    /// The look at the control plane's connection in flight.
    look: Option<u64>,
    failing: bool,
    covered_until: Option<Instant>,
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
        let now = Instant::now();
        let state = State {
            rhythm: Rhythm::new(config.watch.min_interval.get(), config.watch.max_interval.get()),
            polled: Polled::default(),
            poll: None,
            gap: config.suspect_after.map(|after| Gap::new(after.get())),
            next_look: now,
            look: None,
            failing: false,
            covered_until: None,
        };
        Self { config, metrics, tick, running: Arc::default(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asks_admin(&self) -> bool {
        self.config.watch.source == PollSource::Admin && self.running.load(Ordering::Relaxed)
    }

    /// Starts what is due: a poll, a look at the control plane.
    fn ask(&self, envoy: &mut dyn EnvoyBootstrapExtensionConfig, now: Instant) {
        if !self.asks_admin() {
            return;
        }
        let (poll, look) = {
            let mut state = self.state();
            let covered = state.covered_until.is_some_and(|until| now < until);
            let poll = !covered && state.rhythm.start(now);
            let look = state.gap.is_some() && state.look.is_none() && now >= state.next_look;
            (poll, look)
        };
        if poll {
            match self.call(envoy, CLUSTERS_PATH) {
                Ok(id) => self.state().poll = Some(id),
                Err(why) => self.poll_failed(&why),
            }
        }
        if look {
            let called = self.call(envoy, CONNECTED_PATH);
            let mut state = self.state();
            state.next_look = now + state.gap.as_ref().map_or(TICK, Gap::pause);
            state.look = called.ok();
        }
    }

    fn call(&self, envoy: &mut dyn EnvoyBootstrapExtensionConfig, path: &[u8]) -> Result<u64, String> {
        let headers = vec![(":method", &b"GET"[..]), (":path", path), ("host", b"localhost")];
        match envoy.send_http_callout(&self.config.watch.cluster, headers, None, CALLOUT_TIMEOUT_MS) {
            (CalloutInitResult::Success, id) => Ok(id),
            (refused, _) => Err(format!("cluster \"{}\": {refused:?}", self.config.watch.cluster)),
        }
    }

    fn poll_failed(&self, why: &str) {
        shared().admin.errors.fetch_add(1, Ordering::Relaxed);
        let first = {
            let mut state = self.state();
            state.poll = None;
            state.rhythm.done(false);
            !std::mem::replace(&mut state.failing, true)
        };
        if first {
            envoy_log_warn!(
                "stale_guard: watch cannot poll the admin endpoint ({why}); endpoints that leave are not fenced until it \
                 can. Further failures are only counted."
            );
        }
    }

    fn polled(&self, body: &[EnvoyBuffer], now: Instant) {
        let mut parser = Parser::new();
        for chunk in body {
            parser.feed(chunk.as_slice());
        }
        let answer = match parser.finish() {
            Ok(answer) => answer,
            Err(error) => return self.poll_failed(&error.to_string()),
        };
        let (recovered, change) = {
            let mut state = self.state();
            let mut covered = false;
            let treated_as_removed: &HashSet<_> = &self.config.watch.treat_as_removed;
            let change = shared().watch(Source::Admin, |views, sink| {
                let change = state.polled.apply(answer, treated_as_removed, views, sink);
                covered = views.clusters(Source::Validator).next().is_some()
                    && views.clusters(Source::Admin).all(|cluster| views.is_empty(cluster));
                change
            });
            state.poll = None;
            state.rhythm.done(change != Change::default());
            state.covered_until = covered.then(|| now + COVERED);
            (std::mem::take(&mut state.failing), change)
        };
        if recovered {
            envoy_log_info!("stale_guard: watch can poll the admin endpoint again");
        }
        if change.removed > 0 {
            envoy_log_info!("stale_guard: a poll found {} endpoints removed, {} added", change.removed, change.added);
        }
    }

    fn looked(&self, body: &[EnvoyBuffer], now: Instant) {
        let text: Vec<u8> = body.iter().flat_map(|chunk| chunk.as_slice()).copied().collect();
        // "control_plane.connected_state: 1"; absent where the proxy's stats inclusion leaves it out.
        let connected = String::from_utf8_lossy(&text).lines().find_map(|line| {
            line.trim().strip_prefix("control_plane.connected_state:").map(|value| value.trim() == "1")
        });
        let Some(connected) = connected else {
            self.unseen();
            return;
        };
        let look = {
            let mut state = self.state();
            let look = state.gap.as_mut().map_or(Look::Quiet, |gap| gap.look(connected, now));
            state.next_look = now + state.gap.as_ref().map_or(TICK, Gap::pause);
            look
        };
        match look {
            Look::Quiet => {}
            Look::Suspect => {
                envoy_log_warn!("stale_guard: the control plane has been away for long: every endpoint is fenced");
                shared().suspect();
            }
            Look::Back => {
                envoy_log_warn!(
                    "stale_guard: the control plane is back after a long absence: every endpoint is fenced"
                );
                shared().suspect();
            }
        }
    }

    fn unseen(&self) {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            envoy_log_info!(
                "stale_guard: there is no gauge control_plane.connected_state, so a control-plane outage cannot be seen \
                 (suspect_after has no effect); on Istio, add the prefix control_plane to proxyStatsMatcher"
            );
        });
    }
}

impl BootstrapExtensionConfig for StatusExtensionConfig {
    fn new_bootstrap_extension(&self, _envoy: &mut dyn EnvoyBootstrapExtension) -> Box<dyn BootstrapExtension> {
        Box::new(StatusExtension { running: Arc::clone(&self.running) })
    }

    fn on_timer_fired(&self, envoy: &mut dyn EnvoyBootstrapExtensionConfig, _timer: &dyn EnvoyBootstrapExtensionTimer) {
        let now = Instant::now();
        shared().endpoints.close_removed(now);
        self.metrics.publish(envoy, shared(), now);
        self.ask(envoy, now);
        self.tick.enable(TICK);
    }

    fn on_scheduled(&self, envoy: &mut dyn EnvoyBootstrapExtensionConfig, _event_id: u64) {
        if shared().hint.take() {
            self.state().rhythm.hint();
            self.ask(envoy, Instant::now());
        }
    }

    fn on_http_callout_done(
        &self,
        _envoy: &mut dyn EnvoyBootstrapExtensionConfig,
        callout_id: u64,
        result: CalloutResult,
        response_headers: Option<&[(EnvoyBuffer, EnvoyBuffer)]>,
        response_body: Option<&[EnvoyBuffer]>,
    ) {
        let ok = result == CalloutResult::Success && has_status_200(response_headers.unwrap_or_default());
        let body = response_body.unwrap_or_default();
        let looking = {
            let mut state = self.state();
            let looking = state.look == Some(callout_id);
            if looking {
                state.look = None;
            }
            looking
        };
        match (looking, ok) {
            (true, true) => self.looked(body, Instant::now()),
            (true, false) => {}
            (false, true) => self.polled(body, Instant::now()),
            (false, false) => self.poll_failed(&format!("{result:?}")),
        }
    }

    fn on_admin_request(
        &self,
        _envoy: &mut dyn EnvoyBootstrapExtensionConfig,
        _method: &str,
        path: &str,
        _body: &[u8],
    ) -> (u32, String) {
        let sources = [("validator", &shared().validator), ("admin", &shared().admin)];
        (200, page::render(path, &shared().endpoints, shared().listed(), &sources, Instant::now()))
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

fn has_status_200(headers: &[(EnvoyBuffer, EnvoyBuffer)]) -> bool {
    headers.iter().any(|(name, value)| name.as_slice() == b":status" && value.as_slice() == b"200")
}
