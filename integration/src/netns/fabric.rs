//! The network between the pods: one bridge, in a namespace of its own.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, bail};

use super::link::Link;
use super::mac::mac_of;
use super::namespace::Netns;
use super::netlink::POD_INTERFACE;
use super::segment::{Port, Segment};

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
    segment: Arc<Segment>,
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
        let segment = Segment { ns, netlink, bridge, next_port: AtomicU64::new(1), state: Mutex::default() };
        Ok(Self { segment: Arc::new(segment) })
    }

    /// Joins `ns` to the bridge, with `addrs` on its interface `eth0`. The interface's MAC is
    /// derived from the first address, so that a later pod on the same address has the same MAC.
    ///
    /// # Errors
    /// No address, an address that another live link holds, a namespace already attached, or a
    /// refusal of the kernel.
    pub async fn attach(&self, ns: &Netns, addrs: &[IpAddr]) -> anyhow::Result<Link> {
        let first = addrs.first().context("a link needs at least one address")?;
        let segment = &self.segment;
        let mac = mac_of(*first);
        let id = segment.next_port.fetch_add(1, Ordering::Relaxed);
        for addr in addrs {
            if let Some(holder) = segment.holder(*addr) {
                bail!("{addr} is held by namespace {holder}");
            }
        }
        let netlink = ns.netlink()?;
        let name = format!("pod{id}");
        let port = segment
            .netlink
            .add_port(&name, segment.bridge, mac, ns.fd())
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
        segment.state().members.insert(id, Arc::clone(&member));
        let link = Link::new(Arc::clone(segment), Arc::clone(&member));
        segment.adopt_pins(&member).await?;
        for addr in addrs {
            segment.repin_if_moved(*addr, mac).await?;
        }
        Ok(link)
    }

    /// The namespace of the bridge.
    #[must_use]
    pub fn netns(&self) -> &Netns {
        &self.segment.ns
    }

    /// Names of the bridge's ports that exist now, asked from the kernel.
    ///
    /// # Errors
    /// Netlink failed.
    pub async fn ports(&self) -> anyhow::Result<Vec<String>> {
        let names = self.segment.netlink.names().await?;
        Ok(names.into_iter().filter(|name| name.starts_with("pod")).collect())
    }
}
