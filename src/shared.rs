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
    /// The control plane is away: the validator fences once more with its first update.
    resync: AtomicBool,
    views: Mutex<Views>,
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
/// the inner connection of a tunnel, as it does when the endpoint leaves.
#[derive(Default)]
pub(crate) struct Hint {
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
    pub(crate) fn watch(
        &self,
        source: Source,
        apply: impl FnOnce(&mut Views, &mut ToEndpoints<'_>) -> Change,
    ) -> Change {
        if source == Source::Validator && self.resync.swap(false, Ordering::AcqRel) {
            self.fence_all();
        }
        let now = Instant::now();
        let change = apply(&mut self.views(), &mut ToEndpoints { endpoints: &self.endpoints, now });
        self.stats(source).count(change, now);
        change
    }

    /// Envoy has removed a cluster; nothing happens if its endpoints were reported as removed already.
    /// Main thread.
    pub(crate) fn cluster_gone(&self, cluster: &str) {
        let now = Instant::now();
        let mut views = self.views();
        let gone = views.cluster_gone(cluster, &mut ToEndpoints { endpoints: &self.endpoints, now });
        drop(views);
        if let Some((source, change)) = gone {
            self.stats(source).add(change);
        }
    }

    /// The control plane has been away for so long that endpoints may have changed unseen: fences every
    /// one now, and once more with the next update, which may list replacements as if nothing had
    /// happened. Main thread.
    pub(crate) fn suspect(&self) {
        self.resync.store(true, Ordering::Release);
        self.fence_all();
    }

    /// The control plane is back; it was last seen at `since`. Fences every endpoint, unless the update
    /// that came with it has done so. Main thread.
    pub(crate) fn reconnected(&self, suspected: bool, since: Instant) {
        if suspected && !self.resync.load(Ordering::Acquire) {
            return;
        }
        let answered = self.validator.updated_at().is_none_or(|at| at > since);
        self.resync.store(!answered, Ordering::Release);
        self.fence_all();
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

// === impl Hint ===

impl Hint {
    /// Sets what wakes the main thread; called on the raising thread.
    pub(crate) fn connect(&self, wake: Option<Arc<dyn Fn() + Send + Sync>>) {
        *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = wake;
    }

    /// Wakes the main thread, unless it was woken and has not looked yet.
    pub(crate) fn raise(&self) {
        if self.raised.swap(true, Ordering::AcqRel) {
            return;
        }
        // Cloned out, so that no lock is held across the call into Envoy.
        let wake = self.wake.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(wake) = wake {
            wake();
        }
    }

    /// The main thread looks: hints from now on wake it again.
    pub(crate) fn take(&self) -> bool {
        self.raised.swap(false, Ordering::AcqRel)
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
