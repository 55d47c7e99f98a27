//! A slot: the memory behind a `*_module_ptr` of a filter or an extension.
//!
//! ALWAYS
//! - one hook at a time holds the user's object: the outermost one;
//! - a hook that Envoy runs inside another hook of the same object (`send_response` runs
//!   `local_reply`) does not touch the object: one that wants an answer gets the default one; one
//!   that only tells something is kept and delivered when the outer hook has returned;
//! - an object destroyed inside one of its own hooks (Envoy up to 1.39 does that) lives on until
//!   that hook has returned and what was kept is delivered, but its handle to Envoy goes null at once;
//! - after a panic in a hook the object is never run again; it is dropped with its slot.
//!
//! NEVER
//! - is a `&mut` to the object handed out twice;
//! - does a call through the handle reach an Envoy object that is gone;
//! - is a lock held while the object, or Envoy, runs.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::guard::{drop_guarded, guard};

const IDLE: u8 = 0;
const BUSY: u8 = 1;
/// Destroyed by Envoy while a hook runs: that hook frees the slot when it returns.
const DOOMED: u8 = 2;
/// A hook panicked, or the object never came to be.
const INERT: u8 = 3;

/// What lives in a slot.
pub(crate) trait Occupant: Sized {
    /// What a hook that wants no answer tells; kept while another hook of the same object runs.
    type Event: Copy + Send;

    /// Runs the hook of an event.
    fn deliver(&mut self, handle: &Handle, event: Self::Event);

    /// A hook has panicked; the object will run no more. For what must not wait for it for ever.
    fn after_panic(&mut self, _handle: &Handle) {}
}

/// One user object and its state. Hooks of one object run on one thread; the state is atomic all the
/// same, so that a hook on a thread of its own meets a busy slot, not a data race.
pub(crate) struct Slot<T: Occupant> {
    state: AtomicU8,
    handle: Handle,
    /// Events that arrived while a hook ran.
    kept: Mutex<Vec<T::Event>>,
    object: UnsafeCell<Option<T>>,
}

/// Envoy's pointer for a slot's object; null once Envoy has destroyed it.
pub(crate) struct Handle(AtomicPtr<c_void>);

// === impl Handle ===

impl Handle {
    pub(crate) fn get(&self) -> *mut c_void {
        self.0.load(Ordering::Relaxed)
    }

    fn clear(&self) {
        self.0.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

// === impl Slot ===

impl<T: Occupant> Slot<T> {
    /// Makes the slot, then its object by `make`, which may already use the handle. A panic in
    /// `make` leaves an inert slot: all hooks give their default answers.
    pub(crate) fn create(
        hook: &'static str,
        envoy: *mut c_void,
        make: impl FnOnce(&Handle) -> Option<T>,
    ) -> *const c_void {
        let slot = Box::new(Self {
            state: AtomicU8::new(BUSY),
            handle: Handle(AtomicPtr::new(envoy)),
            kept: Mutex::default(),
            object: UnsafeCell::new(None),
        });
        let object = guard(hook, || make(&slot.handle)).flatten();
        let state = if object.is_some() { IDLE } else { INERT };
        // SAFETY: nobody else knows the slot yet.
        unsafe { *slot.object.get() = object };
        slot.state.store(state, Ordering::Release);
        Box::into_raw(slot).cast_const().cast()
    }

    /// Runs a hook on the object; `default` if the object is busy, inert, or not there.
    ///
    /// # Safety
    /// `slot` is null or came from [`Slot::create`] of the same `T`, and was not destroyed before
    /// this call began.
    pub(crate) unsafe fn run<R>(
        hook: &'static str,
        slot: *const c_void,
        envoy: *mut c_void,
        default: R,
        body: impl FnOnce(&mut T, &Handle) -> R,
    ) -> R {
        let raw = slot.cast::<Self>();
        // SAFETY: the caller's promise; a destroy in the meantime is deferred while we are BUSY.
        let Some(slot) = (unsafe { raw.as_ref() }) else {
            return default;
        };
        if slot.state.compare_exchange(IDLE, BUSY, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return default;
        }
        if !envoy.is_null() {
            slot.handle.0.store(envoy, Ordering::Relaxed);
        }
        let outcome = guard(hook, || slot.with_object(body));
        let mut alive = outcome.is_some();
        while alive && let Some(event) = slot.next_kept() {
            alive = guard(hook, || slot.with_object(|object, handle| object.deliver(handle, event))).is_some();
        }
        if !alive {
            let _ = guard(hook, || slot.with_object(T::after_panic));
        }
        let next = if alive { IDLE } else { INERT };
        if slot.state.compare_exchange(BUSY, next, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: DOOMED: Envoy has given the slot up and left it to us.
            unsafe { Self::free(hook, raw) };
        }
        outcome.flatten().unwrap_or(default)
    }

    /// Runs the hook of an event: now if the object is idle, after the hook in progress if it is busy.
    ///
    /// # Safety
    /// As for [`Slot::run`].
    pub(crate) unsafe fn notify(hook: &'static str, slot_ptr: *const c_void, envoy: *mut c_void, event: T::Event) {
        // SAFETY: the caller's promise.
        let Some(slot) = (unsafe { slot_ptr.cast::<Self>().as_ref() }) else {
            return;
        };
        if slot.state.load(Ordering::Acquire) == BUSY {
            slot.kept.lock().unwrap_or_else(PoisonError::into_inner).push(event);
            return;
        }
        // SAFETY: passed on.
        unsafe { Self::run(hook, slot_ptr, envoy, (), |object, handle| object.deliver(handle, event)) };
    }

    /// Envoy's side is going away: from now on the handle is null.
    ///
    /// # Safety
    /// As for [`Slot::run`].
    pub(crate) unsafe fn retire(slot: *const c_void) {
        // SAFETY: the caller's promise.
        if let Some(slot) = unsafe { slot.cast::<Self>().as_ref() } {
            slot.handle.clear();
        }
    }

    /// Envoy gives the object up: frees it now, or when the hook in progress has returned.
    ///
    /// # Safety
    /// As for [`Slot::run`], and Envoy uses the pointer no more.
    pub(crate) unsafe fn destroy(hook: &'static str, slot_ptr: *const c_void) {
        let raw = slot_ptr.cast::<Self>();
        // SAFETY: the caller's promise.
        let Some(slot) = (unsafe { raw.as_ref() }) else {
            return;
        };
        // SAFETY: passed on.
        unsafe { Self::retire(slot_ptr) };
        if slot.state.compare_exchange(BUSY, DOOMED, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: no hook runs, and Envoy will call none any more.
            unsafe { Self::free(hook, raw) };
        }
    }

    /// The object, for the hook that has made the slot BUSY.
    fn with_object<R>(&self, body: impl FnOnce(&mut T, &Handle) -> R) -> Option<R> {
        // SAFETY: BUSY gives the hook that set it, and no other, the object; that hook is the caller.
        let object = unsafe { (*self.object.get()).as_mut() };
        object.map(|object| body(object, &self.handle))
    }

    /// The oldest event that was kept.
    fn next_kept(&self) -> Option<T::Event> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_empty() { None } else { Some(kept.remove(0)) }
    }

    /// # Safety
    /// Nobody holds or will use the slot.
    unsafe fn free(hook: &'static str, raw: *const Self) {
        // SAFETY: made by `Box::into_raw` in `create`.
        let slot = unsafe { Box::from_raw(raw.cast_mut()) };
        drop_guarded(hook, slot.object.into_inner());
    }
}
