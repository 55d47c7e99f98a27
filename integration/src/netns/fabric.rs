//! The network between the pods: one bridge, in a namespace of its own.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, bail};
use futures::future::try_join_all;

use super::link::{Link, Mac, Port, mac_of};
use super::namespace::Netns;
use super::netlink::{Netlink, POD_INTERFACE};

/// A bridge in a namespace of its own: IPv4 `10.244.0.0/16` and IPv6 `fd00:244::/64`, all on-link.
/// Clones share it.
///
/// In a cluster a pod that ends leaves silence behind: the path to it is routed, and a packet to an
/// address that nobody holds is dropped on the way. On one bridge, ARP would fail instead and the
/// sender would learn it after three seconds (`EHOSTUNREACH`). So a link that is cut or blackholed
/// leaves permanent neighbour entries in all other namespaces: packets go out and are never
/// answered.
#[derive(Clone)]
pub struct Fabric {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) ns: Netns,
    pub(super) netlink: Netlink,
    pub(super) bridge: u32,
    next_port: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    members: HashMap<u64, Arc<Port>>,
    /// Addresses with permanent neighbour entries, and the MAC in them.
    pinned: HashMap<IpAddr, Mac>,
}

// === impl Fabric ===

impl Fabric {
    /// Makes the namespace and the bridge.
    ///
    /// # Errors
    /// As [`Netns::new`], or the kernel refuses (no `bridge` module).
    pub async fn new() -> anyhow::Result<Self> {
        let ns = Netns::new("fabric")?;
        let netlink = ns.netlink()?;
        let bridge = netlink.add_bridge("br0").await?;
        let inner = Inner { ns, netlink, bridge, next_port: AtomicU64::new(1), state: Mutex::default() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Joins `ns` to the bridge, with `addrs` on its interface `eth0`. The interface's MAC is
    /// derived from the first address, so that a later pod on the same address has the same MAC.
    ///
    /// # Errors
    /// No address, an address that another live link holds, a namespace already attached, or a
    /// refusal of the kernel.
    pub async fn attach(&self, ns: &Netns, addrs: &[IpAddr]) -> anyhow::Result<Link> {
        let first = addrs.first().context("a link needs at least one address")?;
        let inner = &self.inner;
        let mac = mac_of(*first);
        let id = inner.next_port.fetch_add(1, Ordering::Relaxed);
        for addr in addrs {
            if let Some(holder) = inner.holder(*addr) {
                bail!("{addr} is held by namespace {holder}");
            }
        }
        let netlink = ns.netlink()?;
        let name = format!("pod{id}");
        let port = inner
            .netlink
            .add_port(&name, inner.bridge, mac, ns.fd())
            .await
            .with_context(|| format!("attach namespace {}", ns.name()))?;
        netlink.set_up(POD_INTERFACE).await?;
        let index = netlink.index(POD_INTERFACE).await?;
        for addr in addrs {
            netlink.add_address(index, *addr).await?;
            netlink.acknowledge_at_once(index, *addr).await?;
        }
        let member =
            Arc::new(Port { id, port, index, mac, ns: ns.clone(), netlink, addrs: Mutex::new(addrs.to_vec()) });
        inner.state().members.insert(id, Arc::clone(&member));
        let link = Link::new(self.clone(), Arc::clone(&member));
        inner.adopt_pins(&member).await?;
        for addr in addrs {
            inner.repin_if_moved(*addr, mac).await?;
        }
        Ok(link)
    }

    /// The namespace of the bridge.
    #[must_use]
    pub fn netns(&self) -> &Netns {
        &self.inner.ns
    }

    /// Names of the bridge's ports that exist now, asked from the kernel.
    ///
    /// # Errors
    /// Netlink failed.
    pub async fn ports(&self) -> anyhow::Result<Vec<String>> {
        let names = self.inner.netlink.names().await?;
        Ok(names.into_iter().filter(|name| name.starts_with("pod")).collect())
    }
}

// === impl Inner ===

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn others(&self, id: u64) -> Vec<Arc<Port>> {
        self.state().members.values().filter(|member| member.id != id).cloned().collect()
    }

    fn holder(&self, addr: IpAddr) -> Option<String> {
        let state = self.state();
        let mut members = state.members.values();
        members.find(|member| member.addrs().contains(&addr)).map(|member| member.ns.name().to_owned())
    }

    pub(super) fn forget(&self, id: u64) {
        self.state().members.remove(&id);
    }

    /// Adds an address to a live link.
    pub(super) async fn add_address(&self, member: &Port, addr: IpAddr) -> anyhow::Result<()> {
        if let Some(holder) = self.holder(addr) {
            bail!("{addr} is held by namespace {holder}");
        }
        member.netlink.add_address(member.index, addr).await?;
        member.addrs().push(addr);
        self.repin_if_moved(addr, member.mac).await
    }

    /// Makes the addresses of `member` stay resolvable everywhere else, though nobody will answer.
    pub(super) async fn pin(&self, member: &Port) -> anyhow::Result<()> {
        let addrs = member.addrs().clone();
        self.state().pinned.extend(addrs.iter().map(|addr| (*addr, member.mac)));
        let others = self.others(member.id);
        let pins = others
            .iter()
            .flat_map(|other| addrs.iter().map(|addr| other.netlink.pin_neighbour(other.index, *addr, member.mac)));
        try_join_all(pins).await.map(drop)
    }

    /// A newcomer has to meet the same silence as the namespaces that were there before.
    async fn adopt_pins(&self, member: &Port) -> anyhow::Result<()> {
        let own = member.addrs().clone();
        let pinned: Vec<_> = {
            let state = self.state();
            state.pinned.iter().map(|(addr, mac)| (*addr, *mac)).collect()
        };
        let pins = pinned
            .into_iter()
            .filter(|(addr, _)| !own.contains(addr))
            .map(|(addr, mac)| member.netlink.pin_neighbour(member.index, addr, mac));
        try_join_all(pins).await.map(drop)
    }

    /// An address may move to a link whose MAC differs, because the MAC follows the link's first
    /// address. Entries that were pinned for the former holder must follow.
    async fn repin_if_moved(&self, addr: IpAddr, mac: Mac) -> anyhow::Result<()> {
        let moved = {
            let mut state = self.state();
            match state.pinned.get_mut(&addr) {
                Some(pinned) if *pinned != mac => {
                    *pinned = mac;
                    true
                }
                _ => false,
            }
        };
        if !moved {
            return Ok(());
        }
        let members: Vec<_> = self.state().members.values().cloned().collect();
        let pins = members
            .iter()
            .filter(|member| !member.addrs().contains(&addr))
            .map(|member| member.netlink.pin_neighbour(member.index, addr, mac));
        try_join_all(pins).await.map(drop)
    }
}
