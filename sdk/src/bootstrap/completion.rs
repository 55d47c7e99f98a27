//! The promise to tell Envoy that shutdown may go on.

use std::ffi::c_void;

use crate::abi::envoy_dynamic_module_type_event_cb as EventCallback;

/// Tells Envoy, exactly once, that the extension's shutdown is complete: by [`done`](Self::done), or
/// when dropped, a panic included. On the main thread, where the hook gave it.
pub struct CompletionCallback {
    callback: EventCallback,
    context: *mut c_void,
}

// SAFETY: the callback is Envoy's, to be called from wherever the module's clean-up ends.
unsafe impl Send for CompletionCallback {}

impl CompletionCallback {
    pub(crate) fn new(callback: EventCallback, context: *mut c_void) -> Self {
        Self { callback, context }
    }

    /// Shutdown may go on.
    pub fn done(self) {
        drop(self);
    }
}

impl Drop for CompletionCallback {
    fn drop(&mut self) {
        if let Some(callback) = self.callback.take() {
            // SAFETY: Envoy gave both for one call; `take` makes it one.
            unsafe { callback(self.context) };
        }
    }
}
