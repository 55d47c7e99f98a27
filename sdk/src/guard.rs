//! Panics end here: none crosses into Envoy, and none floods the log.
//!
//! What cannot be caught: a panic in a `Drop` that runs while another panic unwinds the same hook.
//! Rust aborts the process then, whatever stands around it.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static CAUGHT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Guards that this thread is inside of.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Where the last panic under a guard came from.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// How many panics of module code the hooks have caught since the module was loaded. Any thread.
pub fn panics_caught() -> u64 {
    CAUGHT.load(Ordering::Relaxed)
}

/// Has panics under a guard noted instead of printed: the standard hook writes each of them to
/// stderr, under a lock. A panic elsewhere (a thread of the module's own) goes to the hook that was
/// there before. The hook is that of this copy of the standard library, so of this module alone.
pub(crate) fn quiet_guarded_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !note(info) {
                previous(info)
            }
        }));
    });
}

/// Notes where a panic under a guard came from; `false` for any other panic. Must not panic itself.
fn note(info: &PanicHookInfo<'_>) -> bool {
    if DEPTH.try_with(Cell::get).unwrap_or(0) == 0 {
        return false;
    }
    let place = info.location().map(ToString::to_string);
    let _ = PLACE.try_with(|noted| noted.try_borrow_mut().map(|mut noted| *noted = place));
    true
}

/// Runs `body`; a panic in it is counted, logged and becomes `None`.
pub(crate) fn guard<R>(hook: &'static str, body: impl FnOnce() -> R) -> Option<R> {
    DEPTH.with(|depth| depth.set(depth.get().saturating_add(1)));
    let outcome = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(value) => Some(value),
        Err(payload) => {
            report(hook, payload);
            None
        }
    };
    DEPTH.with(|depth| depth.set(depth.get().saturating_sub(1)));
    outcome
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
        let place = PLACE.take().unwrap_or_else(|| "an unknown place".to_owned());
        crate::envoy_log_error!("panic number {count} caught in {hook}, at {place}: {text}");
    }
    // A payload's own Drop may panic; that second payload is leaked, not dropped.
    if let Err(second) = catch_unwind(AssertUnwindSafe(move || drop(payload))) {
        std::mem::forget(second);
    }
}

#[cfg(test)]
#[allow(clippy::panic, reason = "tests")]
mod tests {
    use super::*;
    use crate::testing::{fake_callbacks, install, with_fake};

    thread_local! {
        static PRINTED: Cell<u32> = const { Cell::new(0) };
    }

    #[test]
    fn a_guarded_panic_is_logged_with_its_place_and_not_printed() {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PRINTED.set(PRINTED.get() + 1);
            others(info);
        }));
        quiet_guarded_panics();
        install(fake_callbacks());
        let line = line!() + 3;
        // Among this many, whatever other tests count meanwhile, some count is a power of two.
        for _ in 0..panics_caught() + 64 {
            assert_eq!(guard("a_hook", || panic!("on purpose")), None::<()>);
        }
        assert_eq!(PRINTED.get(), 0, "a panic under a guard reached the standard hook");
        let logged = with_fake(|fake| fake.log.clone());
        let expected = format!("{}:{line}", file!());
        assert!(!logged.is_empty(), "a guarded panic was never logged");
        assert!(logged.iter().all(|(_, text)| text.contains(&expected)), "the place is missing: {logged:?}");
        assert!(logged.len() < 16, "each panic is logged: {}", logged.len());
        assert!(catch_unwind(|| panic!("elsewhere")).is_err());
        assert_eq!(PRINTED.get(), 1, "a panic outside of hooks was hidden");
    }
}
