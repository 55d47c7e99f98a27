//! What is logged once, and only counted from then on.

use super::xds::Read;
use crate::note::Note;

/// What was logged already.
#[derive(Debug, Default)]
pub(super) struct Once {
    unreadable: bool,
    leds: bool,
    unexpected_type: bool,
    /// Whether a CDS response was seen, and EDS responses before the first.
    clusters: bool,
    endpoints: u32,
    /// Whether the last poll failed, and whether that was logged as harmful.
    polls_fail: bool,
    polls_harm: bool,
}

// === impl Once ===

impl Once {
    /// EDS responses without a CDS response after which the validator for clusters is taken for missing.
    const ENOUGH: u32 = 3;

    pub(super) fn read(&mut self, read: &Read) -> Vec<Note> {
        let mut notes = Vec::new();
        if let Some((name, error)) = read.unreadable.first()
            && !std::mem::replace(&mut self.unreadable, true)
        {
            notes.push(Note::Warn(format!(
                "the resource \"{name}\" cannot be read ({error}); it is accepted, and its endpoints are as before. \
                 Further ones are only counted."
            )));
        }
        if let Some(cluster) = &read.leds
            && !std::mem::replace(&mut self.leds, true)
        {
            notes.push(Note::Warn(format!(
                "cluster \"{cluster}\" gets endpoints by LEDS, which are not followed: they are not fenced"
            )));
        }
        notes
    }

    pub(super) fn unexpected_type(&mut self, type_url: &str) -> Option<Note> {
        let first = !std::mem::replace(&mut self.unexpected_type, true);
        first.then(|| {
            Note::Warn(format!(
                "the config validator \"watch\" is configured for {type_url}; it reads clusters and endpoints only"
            ))
        })
    }

    pub(super) fn clusters_seen(&mut self) {
        self.clusters = true;
    }

    pub(super) fn missing_clusters(&mut self) -> Option<Note> {
        self.endpoints = self.endpoints.saturating_add(1);
        (!self.clusters && self.endpoints == Self::ENOUGH).then(|| {
            Note::Warn(
                "the config validator \"watch\" is configured for endpoints but not for clusters \
                 (envoy.config.cluster.v3.Cluster): only polls notice a cluster that goes away"
                    .to_owned(),
            )
        })
    }

    pub(super) fn poll_failed(&mut self, why: &str, covered: bool) -> Option<Note> {
        let first = !std::mem::replace(&mut self.polls_fail, true);
        if covered {
            return first.then(|| {
                Note::Info(format!(
                    "the admin endpoint cannot be polled ({why}); nothing is missed, since the config validator reports \
                     every cluster"
                ))
            });
        }
        (!std::mem::replace(&mut self.polls_harm, true)).then(|| {
            Note::Warn(format!(
                "the admin endpoint cannot be polled ({why}); endpoints that leave are not fenced until it can. Further \
                 failures are only counted."
            ))
        })
    }

    pub(super) fn poll_read(&mut self) -> Option<Note> {
        self.polls_harm = false;
        std::mem::take(&mut self.polls_fail).then(|| Note::Info("the admin endpoint can be polled again".to_owned()))
    }
}
