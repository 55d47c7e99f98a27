//! The bridge and its ports: who holds which address, and which addresses are kept resolvable.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::bail;
use futures::future::try_join_all;

use super::mac::Mac;
use super::namespace::Netns;
use super::netlink::Netlink;

/// The bridge, in a namespace of its own.
pub(super) struct Segment {
    pub(super) ns: Netns,
    pub(super) netlink: Netlink,
    pub(super) bridge: u32,
    pub(super) next_port: AtomicU64,
    pub(super) state: Mutex<State>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) members: HashMap<u64, Arc<Port>>,
    /// Addresses with permanent neighbour entries, and the MAC in them.
    pinned: HashMap<IpAddr, Mac>,
}

/// The end of one namespace.
pub(super) struct Port {
    pub(super) id: u64,
    /// Index of the bridge's end, in the fabric's namespace.
    pub(super) port: u32,
    /// Index of the pod's end, in the pod's namespace.
    pub(super) index: u32,
    pub(super) mac: Mac,
    pub(super) ns: Netns,
    pub(super) netlink: Netlink,
    pub(super) addrs: Mutex<Vec<IpAddr>>,
}

// === impl Segment ===

impl Segment {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn others(&self, id: u64) -> Vec<Arc<Port>> {
        self.state().members.values().filter(|member| member.id != id).cloned().collect()
    }

    pub(super) fn holder(&self, addr: IpAddr) -> Option<String> {
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
    pub(super) async fn adopt_pins(&self, member: &Port) -> anyhow::Result<()> {
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
    pub(super) async fn repin_if_moved(&self, addr: IpAddr, mac: Mac) -> anyhow::Result<()> {
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

// === impl Port ===

impl Port {
    pub(super) fn addrs(&self) -> MutexGuard<'_, Vec<IpAddr>> {
        self.addrs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
