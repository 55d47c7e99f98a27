//! Pushes: when they leave, what they said, and what proxies answered.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::time::timeout;

use super::ads::Stream;
use super::handle::ControlPlane;
use super::ledger::{Answer, Push};
use super::params::Protocol;
use super::server::State;

// === impl ControlPlane ===

impl ControlPlane {
    /// Changes are collected, and nothing is pushed, until [`Self::release`].
    pub fn hold(&self) {
        self.shared.lock().held = true;
    }

    /// Pushes what was collected, in one push, and ends the hold. Returns [`Self::version`].
    pub fn release(&self) -> u64 {
        self.shared.lock().held = false;
        self.push_now()
    }

    /// Pushes pending changes without waiting for the debounce. Returns [`Self::version`].
    pub fn push_now(&self) -> u64 {
        self.shared.publish();
        self.version()
    }

    /// Sends everything once more under a new version, changed or not (istiod's full push).
    pub fn push_full(&self) -> u64 {
        self.shared.lock().model.touch_all();
        self.push_now()
    }

    /// Number of the latest push, from 1; 0 before the first. [`Self::restart`] begins anew.
    pub fn version(&self) -> u64 {
        self.shared.lock().snapshot.number
    }

    /// The bytes of a service's cluster and of its endpoints, as of the latest push.
    pub fn resources(&self, cluster: &str) -> Option<(Vec<u8>, Vec<u8>)> {
        let state = self.shared.lock();
        let (clusters, assignments) = (&state.snapshot.clusters, &state.snapshot.assignments);
        Some((clusters.get(cluster)?.body.value.clone(), assignments.get(cluster)?.body.value.clone()))
    }

    /// Every response since the start, oldest first.
    pub fn pushes(&self) -> Vec<Push> {
        self.shared.lock().ledger.pushes().to_vec()
    }

    /// Streams open now.
    pub fn connected(&self) -> usize {
        self.shared.lock().streams.len()
    }

    /// The protocols of the streams open now.
    pub fn protocols(&self) -> Vec<Protocol> {
        let state = self.shared.lock();
        let protocol = |stream: &Stream| match stream.is_delta() {
            true => Protocol::Delta,
            false => Protocol::Sotw,
        };
        state.streams.iter().map(protocol).collect()
    }

    /// Waits until at least one proxy is connected, push `version` was made, and every connected proxy
    /// has been sent all that is current and has answered all of it with ACK. An ACK means that Envoy's
    /// main thread has applied the update; its workers follow at once, but on their own.
    ///
    /// # Errors
    /// A proxy answered push `version` with NACK, or `within` is over.
    pub async fn wait_acked(&self, version: u64, within: Duration) -> Result<()> {
        let life = self.shared.lock().snapshot.life;
        self.wait(within, |state| {
            let nack = state.ledger.pushes().iter().rev().find_map(|push| {
                match (&push.answer, push.version == version && push.life == life) {
                    (Answer::Nacked(_, message), true) => Some(message.clone()),
                    _ => None,
                }
            });
            match nack {
                Some(message) => Some(Err(anyhow::anyhow!("push {version} was rejected: {message}"))),
                None => (state.snapshot.number >= version && state.is_settled()).then_some(Ok(())),
            }
        })
        .await
        .with_context(|| format!("wait for ACK of push {version}"))?
    }

    /// Waits for a NACK of push `version` or a later one, and returns its message.
    ///
    /// # Errors
    /// `within` is over.
    pub async fn wait_nacked(&self, version: u64, within: Duration) -> Result<String> {
        self.wait(within, |state| {
            state.ledger.pushes().iter().find_map(|push| match &push.answer {
                Answer::Nacked(_, message) if push.version >= version => Some(message.clone()),
                _ => None,
            })
        })
        .await
        .with_context(|| format!("wait for NACK of push {version}"))
    }

    /// Waits until exactly `count` streams are open.
    ///
    /// # Errors
    /// `within` is over.
    pub async fn wait_connected(&self, count: usize, within: Duration) -> Result<()> {
        self.wait(within, |state| (state.streams.len() == count).then_some(()))
            .await
            .with_context(|| format!("wait for {count} connected proxies"))
    }

    async fn wait<T>(&self, within: Duration, check: impl Fn(&State) -> Option<T>) -> Result<T> {
        let mut events = self.shared.events.subscribe();
        let found = timeout(within, async {
            loop {
                events.borrow_and_update();
                if let Some(found) = check(&self.shared.lock()) {
                    return Some(found);
                }
                if events.changed().await.is_err() {
                    return None;
                }
            }
        })
        .await;
        match found {
            Ok(Some(found)) => Ok(found),
            Ok(None) | Err(_) => {
                let state = self.shared.lock();
                bail!(
                    "not within {within:?}; push {}, {} streams, last responses: {:#?}",
                    state.snapshot.number,
                    state.streams.len(),
                    state.ledger.pushes().iter().rev().take(4).collect::<Vec<_>>()
                )
            }
        }
    }
}
