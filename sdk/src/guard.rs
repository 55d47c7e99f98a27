//! Panics end here: none crosses into Envoy.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

static CAUGHT: AtomicU64 = AtomicU64::new(0);

/// How many panics of module code the hooks have caught since the module was loaded.
pub fn panics_caught() -> u64 {
    CAUGHT.load(Ordering::Relaxed)
}

/// Runs `body`; a panic in it is counted, logged and becomes `None`.
pub(crate) fn guard<R>(hook: &'static str, body: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => Some(value),
        Err(payload) => {
            report(hook, payload);
            None
        }
    }
}

/// Drops a user's value; a panic in its `Drop` stays here.
pub(crate) fn drop_guarded<T>(hook: &'static str, value: T) {
    let _ = guard(hook, move || drop(value));
}

/// Counts the panic, and logs the 1st, 2nd, 4th, 8th… of the process, so that a hook that panics
/// for each request does not fill the log.
fn report(hook: &'static str, payload: Box<dyn Any + Send>) {
    let count = CAUGHT.fetch_add(1, Ordering::Relaxed).saturating_add(1);
    if count.is_power_of_two() {
        let text = payload
            .downcast_ref::<&'static str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("(no message)");
        crate::envoy_log_error!("panic number {count} caught in {hook}: {text}");
    }
    // A payload's own Drop may panic; that second payload is leaked, not dropped.
    if let Err(second) = catch_unwind(AssertUnwindSafe(move || drop(payload))) {
        std::mem::forget(second);
    }
}
