//! What all extension points of one process share.

use std::sync::{
    Arc, LazyLock, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use crate::{
    endpoints::{DEFAULT_CAPACITY, Endpoints},
    watch::Watch,
};

/// The parts that live as long as the process.
pub(crate) struct Shared {
    /// The registry of endpoints. Any thread.
    pub(crate) endpoints: Arc<Endpoints>,
    /// Wakes the main thread for a poll. Any thread.
    pub(crate) hint: Hint,
    /// Whether the main thread has the timer of the `status` extension, so that deadlines can be met.
    pub(crate) ticking: AtomicBool,
    /// What the control plane lists. Main thread only, so that no worker ever waits for it.
    pub(crate) watch: Mutex<Watch>,
}

/// Tells the main thread, from any other, that a poll may be worth its cost now: a pool has closed
/// the inner connection of a tunnel, as it does when the endpoint leaves. Pools also do so in everyday
/// traffic, so a hint wakes the main thread once for each poll, and only while polls are needed.
#[derive(Default)]
pub(crate) struct Hint {
    wanted: AtomicBool,
    raised: AtomicBool,
    wake: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
}

static SHARED: LazyLock<Shared> = LazyLock::new(|| {
    let endpoints = Endpoints::new(DEFAULT_CAPACITY);
    Shared {
        watch: Mutex::new(Watch::new(Arc::clone(&endpoints))),
        endpoints,
        hint: Hint::default(),
        ticking: AtomicBool::new(false),
    }
});

/// The parts that live as long as the process, made at first use.
#[must_use]
pub(crate) fn shared() -> &'static Shared {
    &SHARED
}

// === impl Shared ===

impl Shared {
    /// What the control plane lists. Main thread only, so that no worker ever waits for it.
    pub(crate) fn watch(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Hint ===

impl Hint {
    /// Whether hints are of use now.
    pub(crate) fn want(&self, wanted: bool) {
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    /// Sets what wakes the main thread; called on the raising thread.
    pub(crate) fn connect(&self, wake: Option<Arc<dyn Fn() + Send + Sync>>) {
        *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = wake;
    }

    /// Wakes the main thread, unless it was woken since the last poll began.
    pub(crate) fn raise(&self) {
        if !self.wanted.load(Ordering::Relaxed) || self.raised.swap(true, Ordering::AcqRel) {
            return;
        }
        // Cloned out, so that no lock is held across the call into Envoy.
        let wake = self.wake.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(wake) = wake {
            wake();
        }
    }

    /// A poll begins: hints from now on may be younger than its answer.
    pub(crate) fn rearm(&self) {
        self.raised.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn hints_wake_once_for_each_poll_and_only_while_they_are_wanted() {
        let (hint, woken) = (Hint::default(), Arc::new(AtomicUsize::new(0)));
        let counter = Arc::clone(&woken);
        hint.connect(Some(Arc::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        })));
        let raise_thrice = || {
            for _ in 0..3 {
                hint.raise();
            }
            woken.load(Ordering::Relaxed)
        };
        assert_eq!(raise_thrice(), 0, "nobody polls");
        hint.want(true);
        assert_eq!(raise_thrice(), 1);
        hint.rearm();
        assert_eq!(raise_thrice(), 2);
    }
}
