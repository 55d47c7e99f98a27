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
    calls::{Call, Calls, Failure},
    config::{self, PollSource, StatusConfig},
    control_plane_probe::{self, Probe},
    metrics::Metrics,
    page,
};
use crate::{
    closing::Closer,
    config::ConfigError,
    note::{Note, log},
    shared::shared,
    watch::{
        Watch,
        polls::{Answer, Polls},
    },
};

/// The period of the main thread's timer: deadlines are met within it, statistics are as old.
const TICK: Duration = Duration::from_millis(100);
/// Time that Envoy's own admin endpoint has to answer.
const CALLOUT_TIMEOUT_MS: u64 = 5_000;

const CLUSTERS_PATH: &[u8] = b"/clusters";

/// Whether a process has its one `status` extension.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The right to be the process's one `status` extension, until it is dropped.
struct Only;

/// The extension's configuration, which is also where its timer and call-outs arrive.
pub(crate) struct StatusExtensionConfig {
    config: StatusConfig,
    metrics: Metrics,
    tick: Box<dyn EnvoyBootstrapExtensionTimer>,
    closer: Mutex<Closer>,
    running: Arc<AtomicBool>,
    state: Mutex<State>,
    _only: Only,
}

/// What changes. Main thread; the lock is never held across a call into Envoy.
struct State {
    polls: Polls,
    probe: Probe,
    calls: Calls,
    /// The main thread's processor time when the poll in flight began.
    poll_began: Duration,
}

/// The extension proper: the server's life.
struct StatusExtension {
    running: Arc<AtomicBool>,
}

// === impl Only ===

impl Only {
    fn take() -> Result<Self, ConfigError> {
        if TAKEN.swap(true, Ordering::AcqRel) {
            return Err(ConfigError::new(
                config::NAME,
                ".",
                &serde_json::Value::Null,
                "this proxy has the bootstrap extension \"status\" twice: a second one would poll and count the same",
            ));
        }
        Ok(Self)
    }
}

impl Drop for Only {
    fn drop(&mut self) {
        TAKEN.store(false, Ordering::Release);
    }
}

// === impl StatusExtensionConfig ===

impl StatusExtensionConfig {
    /// Puts a configuration in force. Main thread.
    ///
    /// # Errors
    /// If the process has such an extension already.
    pub(crate) fn new(
        config: StatusConfig,
        envoy: &mut dyn EnvoyBootstrapExtensionConfig,
    ) -> Result<Self, ConfigError> {
        let only = Only::take()?;
        shared().endpoints.set_capacity(config.capacity.get() as usize);
        shared().ticking.store(true, Ordering::Relaxed);
        shared().watch().suspect_after(config.suspect_after.map(crate::config::Span::get));
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
        let polls = Polls::new(config.watch.min_interval.get(), config.watch.max_interval.get(), now);
        let state = State { polls, probe: Probe::new(now), calls: Calls::default(), poll_began: Duration::ZERO };
        Ok(Self {
            config,
            metrics,
            tick,
            closer: Mutex::new(Closer::new()),
            running: Arc::default(),
            state: Mutex::new(state),
            _only: only,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what is due, and arms the timer for what is due next.
    fn ask(&self, envoy: &mut dyn EnvoyBootstrapExtensionConfig, now: Instant) {
        if !self.running.load(Ordering::Relaxed) {
            return;
        }
        if self.is_poll_due(now) {
            self.send(envoy, Call::Poll);
        }
        if self.is_look_due(now) {
            self.send(envoy, Call::Look);
        }
        let wait = if self.polls() { self.state().polls.due_in(now) } else { None };
        if let Some(wait) = wait.filter(|wait| *wait < TICK) {
            // At least a millisecond: a timer of zero would come back before time has moved on.
            self.tick.enable(wait.max(Duration::from_millis(1)));
        }
    }

    fn polls(&self) -> bool {
        self.config.watch.source == PollSource::Admin
    }

    fn is_poll_due(&self, now: Instant) -> bool {
        if !self.polls() {
            return false;
        }
        let mut state = self.state();
        let due = state.polls.start(|| shared().watch().is_covered(), now);
        if due {
            state.poll_began = processor_time();
            shared().hint.rearm();
        }
        shared().hint.want(state.polls.takes_hints());
        due
    }

    fn is_look_due(&self, now: Instant) -> bool {
        let Some(pause) = shared().watch().pause_between_looks() else { return false };
        let mut state = self.state();
        let due = state.probe.is_due(now) && !state.calls.is_under_way(Call::Look);
        if due {
            state.probe.sent(pause, now);
        }
        due
    }

    fn send(&self, envoy: &mut dyn EnvoyBootstrapExtensionConfig, call: Call) {
        let path = match call {
            Call::Poll => CLUSTERS_PATH,
            Call::Look => control_plane_probe::PATH,
        };
        let headers = vec![(":method", &b"GET"[..]), (":path", path), ("host", b"localhost")];
        self.state().calls.send(call);
        let (sent, id) = envoy.send_http_callout(self.config.watch.cluster.as_str(), headers, None, CALLOUT_TIMEOUT_MS);
        let accepted = matches!(sent, CalloutInitResult::Success);
        let unended = self.state().calls.sent(accepted.then_some(id));
        if unended && !accepted {
            let why = format!("cluster \"{}\": {sent:?}", self.config.watch.cluster.as_str());
            log(self.ended(call, Err(Failure::Other(why)), Instant::now()));
        }
    }

    /// A call-out has ended: its body, or why there is none. Gives what is to be logged of that.
    fn ended(&self, call: Call, result: Result<&[EnvoyBuffer], Failure>, now: Instant) -> Vec<Note> {
        match call {
            Call::Poll => self.polled(result, now),
            Call::Look => self.looked(result, now).into_iter().collect(),
        }
    }

    fn polled(&self, result: Result<&[EnvoyBuffer], Failure>, now: Instant) -> Vec<Note> {
        let mut watch = shared().watch();
        let (answer, notes) = match result {
            Ok(body) => {
                let chunks = body.iter().map(EnvoyBuffer::as_slice);
                watch.poll_answer(chunks, &self.config.watch.treat_as_removed, now)
            }
            Err(why) => {
                let answer = if why == Failure::TooLarge { Answer::TooLarge } else { Answer::Failed };
                (answer, watch.poll_failed(&why.to_string()).into_iter().collect())
            }
        };
        let mut state = self.state();
        let cost = processor_time().saturating_sub(state.poll_began);
        watch.poll_took(cost);
        state.polls.ended(answer, cost, now);
        shared().hint.want(state.polls.takes_hints());
        notes
    }

    fn looked(&self, result: Result<&[EnvoyBuffer], Failure>, now: Instant) -> Option<Note> {
        let mut watch = shared().watch();
        let (connected, why) = match result {
            Ok(body) => {
                let text: Vec<u8> = body.iter().flat_map(|chunk| chunk.as_slice()).copied().collect();
                (control_plane_probe::connected(&text), None)
            }
            Err(why) => (None, Some(why.to_string())),
        };
        let fence = watch.look(connected, now);
        let pause = watch.pause_between_looks().unwrap_or(TICK);
        drop(watch);
        let mut state = self.state();
        if connected.is_some() {
            state.probe.told(pause, now);
            return fence;
        }
        state.probe.is_blind(why.as_deref(), now)
    }
}

impl BootstrapExtensionConfig for StatusExtensionConfig {
    fn new_bootstrap_extension(&self, _envoy: &mut dyn EnvoyBootstrapExtension) -> Box<dyn BootstrapExtension> {
        Box::new(StatusExtension { running: Arc::clone(&self.running) })
    }

    fn on_timer_fired(&self, envoy: &mut dyn EnvoyBootstrapExtensionConfig, _timer: &dyn EnvoyBootstrapExtensionTimer) {
        // First, so that a panic below does not end the timer.
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
        self.state().polls.hint();
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
        let call = self.state().calls.take(callout_id);
        if let Some(call) = call {
            log(self.ended(call, result, Instant::now()));
        }
    }

    fn on_admin_request(
        &self,
        _envoy: &mut dyn EnvoyBootstrapExtensionConfig,
        _method: &str,
        path: &str,
        _body: &[u8],
    ) -> (u32, String) {
        let watch: MutexGuard<'_, Watch> = shared().watch();
        page::respond(path, &shared().endpoints, &watch, Instant::now())
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

/// What the calling thread has used of the processor.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_status_extension_is_refused_until_the_first_is_gone() {
        let first = Only::take().expect("the first");
        let refused = Only::take().err().expect("the second").to_string();
        assert!(refused.contains("twice"), "{refused}");
        drop(first);
        assert!(Only::take().is_ok());
    }
}
