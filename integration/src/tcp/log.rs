//! An append-mostly log that tests can wait on.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::watch;

/// How long a waiter waits before it reports failure. Far above what any event in the lab takes.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Entries in the order in which they were made. Clones share it.
#[derive(Debug)]
pub struct Log<T> {
    entries: Arc<watch::Sender<Vec<T>>>,
}

// === impl Log ===

impl<T> Log<T> {
    /// Adds an entry and returns its place, counted from 0.
    pub(crate) fn push(&self, entry: T) -> usize {
        let mut place = 0;
        self.entries.send_modify(|entries| {
            place = entries.len();
            entries.push(entry);
        });
        place
    }

    /// Changes one entry.
    pub(crate) fn update(&self, place: usize, change: impl FnOnce(&mut T)) {
        self.entries.send_modify(|entries| {
            if let Some(entry) = entries.get_mut(place) {
                change(entry);
            }
        });
    }

    /// Looks at the entries without a copy. Keep `look` short: writers wait for it.
    pub fn with<R>(&self, look: impl FnOnce(&[T]) -> R) -> R {
        look(&self.entries.borrow())
    }

    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.with(<[T]>::len)
    }

    /// Whether there is no entry yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until `found` returns something, looking again after every change.
    ///
    /// # Errors
    /// Nothing for [`DEADLINE`]; the message contains `what`.
    pub async fn wait_for<R>(&self, what: &str, mut found: impl FnMut(&[T]) -> Option<R>) -> anyhow::Result<R> {
        let mut changes = self.entries.subscribe();
        let search = async {
            loop {
                if let Some(result) = found(&changes.borrow_and_update()) {
                    return result;
                }
                // `self` holds the sender, so this cannot fail while the loop runs.
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::time::timeout(DEADLINE, search).await.with_context(|| format!("waited {DEADLINE:?} in vain for {what}"))
    }
}

impl<T: Clone> Log<T> {
    /// A copy of all entries.
    #[must_use]
    pub fn snapshot(&self) -> Vec<T> {
        self.with(<[T]>::to_vec)
    }
}

impl<T> Clone for Log<T> {
    fn clone(&self) -> Self {
        Self { entries: Arc::clone(&self.entries) }
    }
}

impl<T> Default for Log<T> {
    fn default() -> Self {
        Self { entries: Arc::new(watch::Sender::new(Vec::new())) }
    }
}
