//! One ADS stream's state, for both protocols: what the proxy asked for, what it was sent, what is due.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use envoy_types::pb::envoy::service::discovery::v3 as xds;
use envoy_types::pb::google::rpc;
use tokio::sync::mpsc::UnboundedSender;
use tonic::Status;

use super::ledger::{Answer, Ledger, Push};
use super::snapshot::{CLUSTER_TYPE, ENDPOINT_TYPE, Resource, Snapshot};

/// Where responses go.
#[derive(Debug)]
pub(super) enum Outlet {
    Sotw(UnboundedSender<Result<xds::DiscoveryResponse, Status>>),
    Delta(UnboundedSender<Result<xds::DeltaDiscoveryResponse, Status>>),
}

/// One open stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: u64,
    pub(super) node: String,
    /// An EDS stream: it asks for endpoints only, for clusters with an EDS source of their own.
    endpoints_only: bool,
    outlet: Outlet,
    /// As istiod: a new stream is sent everything, whatever versions the proxy says that it has.
    resend_on_reconnect: bool,
    types: HashMap<&'static str, Subscription>,
}

#[derive(Debug, Default)]
struct Subscription {
    wildcard: bool,
    names: BTreeSet<String>,
    /// Per resource, the push whose version of it was sent last.
    sent: BTreeMap<String, u64>,
    last_nonce: String,
}

// === impl Stream ===

impl Stream {
    pub(super) fn new(id: u64, outlet: Outlet, endpoints_only: bool, resend_on_reconnect: bool) -> Self {
        Self { id, node: String::new(), endpoints_only, outlet, resend_on_reconnect, types: HashMap::new() }
    }

    /// Whether it asks for these endpoints, on a stream of their own.
    pub(super) fn follows(&self, name: &str) -> bool {
        self.endpoints_only && self.types.get(ENDPOINT_TYPE).is_some_and(|subscription| subscription.wants(name))
    }

    pub(super) fn is_delta(&self) -> bool {
        matches!(self.outlet, Outlet::Delta(_))
    }

    /// Sends what `snapshot` changes for this stream: clusters first, then endpoints.
    pub(super) fn publish(&mut self, snapshot: &Snapshot, ledger: &mut Ledger) {
        for type_url in [CLUSTER_TYPE, ENDPOINT_TYPE] {
            if self.types.contains_key(type_url) {
                self.send_due(type_url, snapshot, ledger, BTreeSet::new(), false);
            }
        }
    }

    pub(super) fn on_sotw(&mut self, request: xds::DiscoveryRequest, snapshot: &Snapshot, ledger: &mut Ledger) {
        self.learn_node(request.node);
        let Some(type_url) = served(&request.type_url) else {
            return;
        };
        settle(ledger, &request.response_nonce, request.error_detail);
        let first = request.response_nonce.is_empty();
        let subscription = self.types.entry(type_url).or_default();
        // An answer to anything but the latest response says nothing new about the subscription: the
        // answer to the latest one follows and carries it.
        if !first && subscription.last_nonce != request.response_nonce {
            return;
        }
        subscription.names = request.resource_names.into_iter().collect();
        subscription.wildcard =
            subscription.names.remove("*") || (type_url == CLUSTER_TYPE && subscription.names.is_empty());
        if first {
            subscription.sent.clear();
        }
        subscription.forget_unwanted();
        let must_answer = first && subscription.wildcard;
        self.send_due(type_url, snapshot, ledger, BTreeSet::new(), must_answer);
    }

    pub(super) fn on_delta(&mut self, request: xds::DeltaDiscoveryRequest, snapshot: &Snapshot, ledger: &mut Ledger) {
        self.learn_node(request.node);
        let Some(type_url) = served(&request.type_url) else {
            return;
        };
        settle(ledger, &request.response_nonce, request.error_detail);
        let first = !self.types.contains_key(type_url);
        let resend = self.resend_on_reconnect;
        let subscription = self.types.entry(type_url).or_default();
        let resources = snapshot.resources(type_url);
        if first {
            subscription.wildcard = type_url == CLUSTER_TYPE && request.resource_names_subscribe.is_empty();
        }
        let mut absent = BTreeSet::new();
        for name in request.resource_names_subscribe {
            if name == "*" {
                subscription.wildcard = true;
                continue;
            }
            // Subscribing again asks for the resource again.
            subscription.sent.remove(&name);
            subscription.names.insert(name.clone());
            let exists = resources.is_some_and(|resources| resources.contains_key(&name));
            if !exists && !snapshot.withheld.contains(&name) {
                absent.insert(name);
            }
        }
        for name in request.resource_names_unsubscribe {
            subscription.wildcard &= name != "*";
            subscription.names.remove(&name);
        }
        for (name, version) in request.initial_resource_versions {
            match resources.and_then(|resources| resources.get(&name)) {
                Some(resource) if !resend && version == snapshot.version(resource.changed_in) => {
                    subscription.sent.insert(name, resource.changed_in);
                }
                Some(_) => {}
                None if snapshot.withheld.contains(&name) => {}
                None => {
                    absent.insert(name);
                }
            }
        }
        subscription.forget_unwanted();
        let must_answer = first && subscription.wildcard;
        self.send_due(type_url, snapshot, ledger, absent, must_answer);
    }

    /// Whether the stream was sent all of `snapshot`, as far as a waypoint asks for it.
    pub(super) fn has_all(&self, snapshot: &Snapshot) -> bool {
        let current = |type_url, wanted: &dyn Fn(&str) -> bool, resources: &BTreeMap<String, Resource>| {
            let mut wanted = resources.iter().filter(|(name, _)| wanted(name)).peekable();
            wanted.peek().is_none()
                || self.types.get(type_url).is_some_and(|subscription| {
                    wanted.all(|(name, resource)| subscription.sent.get(name) == Some(&resource.changed_in))
                })
        };
        if self.endpoints_only {
            return current(ENDPOINT_TYPE, &|name| self.follows(name), &snapshot.assignments);
        }
        self.types.contains_key(CLUSTER_TYPE)
            && current(CLUSTER_TYPE, &|_| true, &snapshot.clusters)
            && current(ENDPOINT_TYPE, &|name| !snapshot.own_source.contains(name), &snapshot.assignments)
    }

    fn learn_node(&mut self, node: Option<envoy_types::pb::envoy::config::core::v3::Node>) {
        if let Some(node) = node {
            self.node = node.id;
        }
    }

    fn send_due(
        &mut self,
        type_url: &'static str,
        snapshot: &Snapshot,
        ledger: &mut Ledger,
        mut removed: BTreeSet<String>,
        must_answer: bool,
    ) {
        let Some(resources) = snapshot.resources(type_url) else {
            return;
        };
        let delta = self.is_delta();
        let subscription = self.types.entry(type_url).or_default();
        let mut due: Vec<(&String, &Resource)> = resources
            .iter()
            .filter(|(name, resource)| {
                subscription.wants(name) && subscription.sent.get(*name) != Some(&resource.changed_in)
            })
            .collect();
        let gone: Vec<String> =
            subscription.sent.keys().filter(|name| !resources.contains_key(*name)).cloned().collect();
        for name in &gone {
            subscription.sent.remove(name);
        }
        removed.extend(gone);
        // State of the world has no word for removal: a list of clusters is complete, and a missing one
        // is gone. Endpoints come one by one, and go with their cluster.
        let complete = !delta && type_url == CLUSTER_TYPE;
        if !delta && !complete {
            removed.clear();
        }
        if due.is_empty() && removed.is_empty() && !must_answer {
            return;
        }
        if complete {
            due = resources.iter().filter(|(name, _)| subscription.wants(name)).collect();
        }
        let nonce = ledger.nonce();
        subscription.last_nonce.clone_from(&nonce);
        for (name, resource) in &due {
            subscription.sent.insert((*name).clone(), resource.changed_in);
        }
        ledger.record(Push {
            stream: self.id,
            node: self.node.clone(),
            type_url,
            nonce: nonce.clone(),
            version: snapshot.number,
            life: snapshot.life,
            resources: due.iter().map(|(name, _)| (*name).clone()).collect(),
            removed: match delta {
                true => removed.iter().cloned().collect(),
                false => Vec::new(),
            },
            bytes: due.iter().map(|(_, r)| r.body.value.len()).sum(),
            at: Instant::now(),
            answer: Answer::Pending,
        });
        self.outlet.send(type_url, snapshot, nonce, &due, removed);
    }
}

// === impl Subscription ===

impl Subscription {
    fn wants(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }

    fn forget_unwanted(&mut self) {
        if !self.wildcard {
            let names = &self.names;
            self.sent.retain(|name, _| names.contains(name));
        }
    }
}

// === impl Outlet ===

impl Outlet {
    /// A proxy that has gone away is noticed by the stream's reader; sending to it is no error.
    fn send(
        &self,
        type_url: &str,
        snapshot: &Snapshot,
        nonce: String,
        due: &[(&String, &Resource)],
        removed: BTreeSet<String>,
    ) {
        match self {
            Outlet::Sotw(sender) => {
                let _ = sender.send(Ok(xds::DiscoveryResponse {
                    version_info: snapshot.version(snapshot.number),
                    resources: due.iter().map(|(_, resource)| resource.body.as_ref().clone()).collect(),
                    type_url: type_url.to_owned(),
                    nonce,
                    ..Default::default()
                }));
            }
            Outlet::Delta(sender) => {
                let _ = sender.send(Ok(xds::DeltaDiscoveryResponse {
                    system_version_info: snapshot.version(snapshot.number),
                    resources: due
                        .iter()
                        .map(|(name, resource)| xds::Resource {
                            name: (*name).clone(),
                            version: snapshot.version(resource.changed_in),
                            resource: Some(resource.body.as_ref().clone()),
                            ..Default::default()
                        })
                        .collect(),
                    type_url: type_url.to_owned(),
                    removed_resources: removed.into_iter().collect(),
                    nonce,
                    ..Default::default()
                }));
            }
        }
    }
}

fn served(type_url: &str) -> Option<&'static str> {
    [CLUSTER_TYPE, ENDPOINT_TYPE].into_iter().find(|served| *served == type_url)
}

fn settle(ledger: &mut Ledger, nonce: &str, error: Option<rpc::Status>) {
    if !nonce.is_empty() {
        ledger.answer(nonce, error.map(|status| status.message));
    }
}
