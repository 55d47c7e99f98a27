//! Changes of the model: services, endpoints, and what is kept back.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};

use super::handle::ControlPlane;
use super::model::{Endpoint, Health, Raw, Service};

// === impl ControlPlane ===

impl ControlPlane {
    /// Adds a service, or replaces it with all its endpoints.
    pub fn set_service(&self, service: Service) {
        self.change(|model| model.set_service(service));
    }

    /// Sends a service's cluster with another configuration, and its endpoints again, as istiod does.
    ///
    /// # Errors
    /// If there is no such cluster.
    pub fn note(&self, cluster: &str, note: &str) -> Result<()> {
        self.change(|model| model.edit_service(cluster, |service| note.clone_into(&mut service.note)))
            .with_context(|| format!("no such cluster: {cluster}"))
    }

    /// Takes a service away: its cluster (CDS) and its endpoints.
    ///
    /// # Errors
    /// If there is no such cluster.
    pub fn remove_service(&self, cluster: &str) -> Result<()> {
        let had = self.change(|model| model.remove_service(cluster));
        had.then_some(()).with_context(|| format!("no such cluster: {cluster}"))
    }

    /// Adds an endpoint at the end of the service's list.
    ///
    /// # Errors
    /// If there is no such cluster.
    pub fn add_endpoint(&self, cluster: &str, endpoint: Endpoint) -> Result<()> {
        self.edit_endpoints(cluster, |endpoints| endpoints.push(endpoint))
    }

    /// Takes an endpoint away.
    ///
    /// # Errors
    /// If there is no such cluster, or no such endpoint in it.
    pub fn remove_endpoint(&self, cluster: &str, addr: SocketAddr) -> Result<()> {
        let removed = self.edit_endpoints(cluster, |endpoints| {
            let before = endpoints.len();
            endpoints.retain(|endpoint| endpoint.addr() != addr);
            before - endpoints.len()
        })?;
        if removed == 0 {
            bail!("{cluster} has no endpoint {addr}");
        }
        Ok(())
    }

    /// Changes what is told of an endpoint's health.
    ///
    /// # Errors
    /// If there is no such cluster, or no such endpoint in it.
    pub fn set_health(&self, cluster: &str, addr: SocketAddr, health: Health) -> Result<()> {
        let changed = self.edit_endpoints(cluster, |endpoints| {
            let mut changed = 0;
            for endpoint in endpoints.iter_mut().filter(|e| e.addr() == addr) {
                endpoint.health = health;
                changed += 1;
            }
            changed
        })?;
        if changed == 0 {
            bail!("{cluster} has no endpoint {addr}");
        }
        Ok(())
    }

    /// Any change of one service's endpoints, as one event. The endpoints are pushed even if they are the
    /// same afterwards: istiod does so when a removal and a re-add meet within one debounce.
    ///
    /// # Errors
    /// If there is no such cluster.
    pub fn edit_endpoints<T>(&self, cluster: &str, edit: impl FnOnce(&mut Vec<Endpoint>) -> T) -> Result<T> {
        self.change(|model| model.edit_endpoints(cluster, edit)).with_context(|| format!("no such cluster: {cluster}"))
    }

    /// Serves `raw` in place of the service's EDS resource; `None` ends that.
    pub fn set_raw(&self, cluster: &str, raw: Option<Raw>) {
        self.change(|model| {
            match raw {
                Some(raw) => model.raw.insert(cluster.to_owned(), raw),
                None => model.raw.remove(cluster),
            };
            model.dirty_endpoints.insert(cluster.to_owned());
        });
    }

    /// Late EDS: while `true`, changes of the service's endpoints are kept back, and a proxy that asks
    /// for endpoints never sent gets no answer. May be called before the service exists.
    pub fn withhold_endpoints(&self, cluster: &str, withhold: bool) {
        self.change(|model| {
            match withhold {
                true => model.withheld.insert(cluster.to_owned()),
                false => model.withheld.remove(cluster),
            };
        });
    }

    /// While `true`, the EDS resource does not exist although its cluster does.
    pub fn vanish_endpoints(&self, cluster: &str, vanish: bool) {
        self.change(|model| {
            match vanish {
                true => model.vanished.insert(cluster.to_owned()),
                false => model.vanished.remove(cluster),
            };
            model.dirty_endpoints.insert(cluster.to_owned());
        });
    }
}
