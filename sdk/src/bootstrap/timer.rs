//! Timers of the main thread's dispatcher.

use std::ffi::c_void;
use std::time::Duration;

use crate::abi::{callbacks, envoy};

/// A timer. It is to be used and dropped on the main thread only; hold it in the configuration
/// object, whose hooks and drop run there.
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
}

// SAFETY: the trait's documentation binds users to the main thread; `Send` is needed since the
// objects that hold timers are.
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
        Self { raw, owned: true }
    }

    /// A reference to the timer that fired.
    pub(crate) fn borrowed(raw: *mut c_void) -> Self {
        Self { raw, owned: false }
    }
}

impl EnvoyBootstrapExtensionTimer for Timer {
    fn id(&self) -> usize {
        self.raw.addr()
    }
    fn enable(&self, delay: Duration) {
        if !self.raw.is_null() {
            let milliseconds = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
            envoy!(bootstrap_extension_timer_enable(self.raw, milliseconds) or ());
        }
    }
    fn disable(&self) {
        if !self.raw.is_null() {
            envoy!(bootstrap_extension_timer_disable(self.raw) or ());
        }
    }
    fn enabled(&self) -> bool {
        !self.raw.is_null() && envoy!(bootstrap_extension_timer_enabled(self.raw) or false)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if self.owned && !self.raw.is_null() {
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
