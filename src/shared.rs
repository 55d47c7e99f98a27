//! What all extension points of one process share.

use std::{
    net::IpAddr,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use crate::{
    endpoints::{Cluster, DEFAULT_CAPACITY, Endpoints},
    watch::{Change, Sink, Source, SourceStats, Views},
};

/// The parts that live as long as the process.
pub(crate) struct Shared {
    /// The registry of endpoints. Any thread.
    pub(crate) endpoints: Arc<Endpoints>,
    /// Counts of the config validator.
    pub(crate) validator: SourceStats,
    /// Counts of the admin polls.
    pub(crate) admin: SourceStats,
    /// Wakes the poller.
    pub(crate) hint: Hint,
    /// Whether the main thread has the module's pulse, so that deadlines can be met.
    pub(crate) ticking: AtomicBool,
    /// Times that every endpoint was fenced at once.
    pub(crate) suspected: AtomicU64,
    /// What is known of the control plane's connection.
    pub(crate) control_plane: ControlPlane,
    /// The control plane has been away for long, and what it has to say since was not seen yet.
    resync: AtomicBool,
    /// A poll has seen changes before a look saw the control plane that they come from.
    changed: AtomicBool,
    endpoints_at: Mutex<Option<Instant>>,
    views: Mutex<Views>,
}

/// What a source has to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    /// The validator: endpoints that Envoy is about to apply.
    Endpoints,
    /// The validator: clusters that Envoy is about to apply.
    Clusters,
    /// A poll: what Envoy has applied.
    Poll,
}

/// What is known of the control plane's connection, for the admin page.
#[derive(Debug, Default)]
pub(crate) struct ControlPlane {
    /// Whether Envoy has the gauge that tells.
    pub(crate) seen: AtomicBool,
    /// Whether it was connected when last looked at.
    pub(crate) connected: AtomicBool,
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

/// The registry as the end of the line for what a source sees.
pub(crate) struct ToEndpoints<'a> {
    endpoints: &'a Endpoints,
    now: Instant,
}

static SHARED: LazyLock<Shared> = LazyLock::new(|| Shared {
    endpoints: Endpoints::new(DEFAULT_CAPACITY),
    validator: SourceStats::default(),
    admin: SourceStats::default(),
    hint: Hint::default(),
    ticking: AtomicBool::new(false),
    suspected: AtomicU64::new(0),
    control_plane: ControlPlane { seen: AtomicBool::new(false), connected: AtomicBool::new(false) },
    resync: AtomicBool::new(false),
    changed: AtomicBool::new(false),
    endpoints_at: Mutex::new(None),
    views: Mutex::default(),
});

/// The parts that live as long as the process, made at first use.
#[must_use]
pub(crate) fn shared() -> &'static Shared {
    &SHARED
}

// === impl Shared ===

impl Shared {
    /// Applies what a source says to the listings and to the registry, and counts it. Main thread.
    /// `apply` runs under the lock of the listings: no call into Envoy from there.
    pub(crate) fn watch(&self, news: News, apply: impl FnOnce(&mut Views, &mut ToEndpoints<'_>) -> Change) -> Change {
        let now = Instant::now();
        // The first endpoints after a gap may list replacements as if nothing had happened. Clusters come
        // before them and say nothing of that.
        if news == News::Endpoints {
            *self.endpoints_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
            self.resync();
        }
        let change = apply(&mut self.views(), &mut ToEndpoints { endpoints: &self.endpoints, now });
        self.stats(news.source()).count(change, now);
        // A poll follows what Envoy has applied: a change while the control plane is there is its word.
        if news == News::Poll && change != Change::default() {
            self.changed.store(true, Ordering::Relaxed);
            if self.control_plane.connected.load(Ordering::Relaxed) {
                self.connected();
            }
        }
        change
    }

    /// When the validator last saw endpoints. Main thread.
    pub(crate) fn endpoints_at(&self) -> Option<Instant> {
        *self.endpoints_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the validator speaks for every EDS cluster that it was told of. Main thread.
    pub(crate) fn is_covered(&self) -> bool {
        self.views().is_covered()
    }

    /// The control plane has been away for so long that endpoints may have changed unseen: fences every
    /// one now, and once more with what it says when it is back, which may list replacements as if
    /// nothing had happened. Main thread.
    pub(crate) fn suspect(&self) {
        self.changed.store(false, Ordering::Relaxed);
        self.resync.store(true, Ordering::Relaxed);
        self.fence_all();
    }

    /// A look has seen the control plane: what polls have found since the gap began is its word. Main
    /// thread.
    pub(crate) fn connected(&self) {
        if self.changed.swap(false, Ordering::Relaxed) {
            self.resync();
        }
    }

    /// The control plane is back. Fences every endpoint, unless what it said has done so. Main thread.
    pub(crate) fn reconnected(&self, suspected: bool) {
        if self.resync.swap(false, Ordering::Relaxed) || !suspected {
            self.fence_all();
        }
    }

    fn resync(&self) {
        if self.resync.swap(false, Ordering::Relaxed) {
            self.fence_all();
        }
    }

    fn fence_all(&self) {
        self.suspected.fetch_add(1, Ordering::Relaxed);
        self.endpoints.suspect_all();
    }

    /// Addresses that at least one cluster lists.
    #[must_use]
    pub(crate) fn listed(&self) -> usize {
        self.views().endpoints()
    }

    fn stats(&self, source: Source) -> &SourceStats {
        match source {
            Source::Admin => &self.admin,
            Source::Validator => &self.validator,
        }
    }

    fn views(&self) -> MutexGuard<'_, Views> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl News ===

impl News {
    const fn source(self) -> Source {
        match self {
            Self::Endpoints | Self::Clusters => Source::Validator,
            Self::Poll => Source::Admin,
        }
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

    /// A poll begins: hints from now on are news.
    pub(crate) fn rearm(&self) {
        self.raised.store(false, Ordering::Release);
    }
}

// === impl ToEndpoints ===

impl Sink for ToEndpoints<'_> {
    fn added(&mut self, ip: IpAddr, cluster: &str) {
        self.endpoints.added(ip, Cluster::named(cluster));
    }

    fn removed(&mut self, ip: IpAddr, cluster: &str, still_listed: bool) {
        self.endpoints.removed(ip, Cluster::named(cluster), still_listed, self.now);
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
