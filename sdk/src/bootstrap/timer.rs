//! Timers of the main thread's dispatcher.

use std::ffi::c_void;
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::abi::{callbacks, envoy};

/// A timer. It works on the thread that made it, the main thread: elsewhere its methods change
/// nothing and say so in the log, and a drop leaks the timer, since Envoy allows none of it there.
/// Hold it in the configuration object, whose hooks and drop run on the main thread.
pub trait EnvoyBootstrapExtensionTimer: Send + Sync {
    /// Which timer this is, among those of the extension.
    fn id(&self) -> usize;
    /// Arms the timer, once; an armed one starts anew. Whole milliseconds.
    fn enable(&self, delay: Duration);
    /// Disarms the timer.
    fn disable(&self);
    /// Whether the timer is armed.
    fn enabled(&self) -> bool;
}

/// A timer of Envoy's; deleted with this object if it is the owner.
pub(crate) struct Timer {
    raw: *mut c_void,
    owned: bool,
    thread: ThreadId,
}

// SAFETY: Envoy is asked only on the thread that made the timer (`usable`); the rest is plain data.
unsafe impl Send for Timer {}
// SAFETY: as above.
unsafe impl Sync for Timer {}

impl Timer {
    pub(crate) fn create(config: *mut c_void) -> Self {
        let raw = match callbacks().bootstrap_extension_timer_new {
            // SAFETY: `config` is that of the hook in progress.
            Some(new) if !config.is_null() => unsafe { new(config) },
            _ => std::ptr::null_mut(),
        };
        Self { raw, owned: true, thread: thread::current().id() }
    }

    /// A reference to the timer that fired.
    pub(crate) fn borrowed(raw: *mut c_void) -> Self {
        Self { raw, owned: false, thread: thread::current().id() }
    }

    /// Whether Envoy may be asked here.
    fn usable(&self, what: &str) -> bool {
        if self.raw.is_null() {
            return false;
        }
        let here = thread::current().id() == self.thread;
        if !here {
            crate::envoy_log_error!("a timer was {what} on another thread than its own, which has no effect");
        }
        here
    }
}

impl EnvoyBootstrapExtensionTimer for Timer {
    fn id(&self) -> usize {
        self.raw.addr()
    }
    fn enable(&self, delay: Duration) {
        if self.usable("armed") {
            let milliseconds = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
            envoy!(bootstrap_extension_timer_enable(self.raw, milliseconds) or ());
        }
    }
    fn disable(&self) {
        if self.usable("disarmed") {
            envoy!(bootstrap_extension_timer_disable(self.raw) or ());
        }
    }
    fn enabled(&self) -> bool {
        self.usable("read") && envoy!(bootstrap_extension_timer_enabled(self.raw) or false)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if self.owned && self.usable("dropped") {
            envoy!(bootstrap_extension_timer_delete(self.raw) or ());
        }
    }
}

impl EnvoyBootstrapExtensionTimer for Box<dyn EnvoyBootstrapExtensionTimer> {
    fn id(&self) -> usize {
        (**self).id()
    }
    fn enable(&self, delay: Duration) {
        (**self).enable(delay);
    }
    fn disable(&self) {
        (**self).disable();
    }
    fn enabled(&self) -> bool {
        (**self).enabled()
    }
}
