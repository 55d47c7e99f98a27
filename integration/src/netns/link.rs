//! The link between a namespace and the fabric, and what can befall it.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::fabric::Fabric;
use super::namespace::Netns;
use super::netlink::Netlink;

pub(super) type Mac = [u8; 6];

/// What the others notice when a link goes dark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Silence {
    /// Nothing: packets leave and are never answered, as on a routed network. TCP retransmits until
    /// it gives up by itself.
    #[default]
    Complete,
    /// Neighbour resolution fails once the cached entry has expired; new connections get
    /// `EHOSTUNREACH` after about three seconds, as on one Ethernet segment.
    NeighbourExpires,
}

/// A veth pair between a namespace and the bridge. Dropping it deletes the pair, in the background;
/// [`Link::cut`] does so before it returns.
pub struct Link {
    fabric: Fabric,
    port: Arc<Port>,
    gone: bool,
}

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

// === impl Link ===

impl Link {
    pub(super) fn new(fabric: Fabric, port: Arc<Port>) -> Self {
        Self { fabric, port, gone: false }
    }

    /// The addresses on the link.
    #[must_use]
    pub fn addrs(&self) -> Vec<IpAddr> {
        self.port.addrs().clone()
    }

    /// The MAC address of the namespace's end.
    #[must_use]
    pub fn mac(&self) -> [u8; 6] {
        self.port.mac
    }

    /// Adds one more address, usable at once.
    ///
    /// # Errors
    /// Another live link holds it, or the kernel refuses.
    pub async fn add_address(&self, addr: IpAddr) -> anyhow::Result<()> {
        self.fabric.inner.add_address(&self.port, addr).await
    }

    /// Deletes the veth pair: nothing leaves or enters any more, and the others meet complete
    /// silence. When this returns, the kernel has taken the devices away.
    ///
    /// # Errors
    /// Netlink failed.
    pub async fn cut(self) -> anyhow::Result<()> {
        self.cut_with(Silence::Complete).await
    }

    /// As [`Link::cut`], with a choice of what the others notice.
    ///
    /// # Errors
    /// Netlink failed.
    pub async fn cut_with(mut self, silence: Silence) -> anyhow::Result<()> {
        let inner = Arc::clone(&self.fabric.inner);
        if silence == Silence::Complete {
            inner.pin(&self.port).await?;
        }
        inner.netlink.delete(self.port.port).await?;
        self.gone = true;
        inner.forget(self.port.id);
        Ok(())
    }

    /// Takes the link's port off the bridge. The namespace, its addresses and its sockets stay as
    /// they are, and neither side notices anything but silence. [`Link::heal`] undoes it.
    ///
    /// # Errors
    /// Netlink failed.
    pub async fn black_hole(&self) -> anyhow::Result<()> {
        self.black_hole_with(Silence::Complete).await
    }

    /// As [`Link::black_hole`], with a choice of what the others notice.
    ///
    /// # Errors
    /// Netlink failed.
    pub async fn black_hole_with(&self, silence: Silence) -> anyhow::Result<()> {
        let inner = &self.fabric.inner;
        if silence == Silence::Complete {
            inner.pin(&self.port).await?;
        }
        inner.netlink.set_controller(self.port.port, 0).await
    }

    /// Puts the port back on the bridge.
    ///
    /// # Errors
    /// Netlink failed.
    pub async fn heal(&self) -> anyhow::Result<()> {
        let inner = &self.fabric.inner;
        inner.netlink.set_controller(self.port.port, inner.bridge).await
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.gone {
            return;
        }
        let inner = Arc::clone(&self.fabric.inner);
        inner.forget(self.port.id);
        // Without a runtime the kernel deletes the pair anyway, with either namespace.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let port = self.port.port;
            runtime.spawn(async move { inner.netlink.delete(port).await });
        }
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("ns", &self.port.ns).field("addrs", &self.addrs()).finish()
    }
}

// === impl Port ===

impl Port {
    pub(super) fn addrs(&self) -> MutexGuard<'_, Vec<IpAddr>> {
        self.addrs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A locally administered unicast address (IEEE 802, second bit of the first octet), one per IP.
pub(super) fn mac_of(addr: IpAddr) -> Mac {
    match addr {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            [0x02, 0x04, a, b, c, d]
        }
        IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            // Both halves of the interface identifier, folded: one MAC per address for any numbering
            // that counts in one half.
            let [a, b, c, d] = (((bits >> 32) ^ bits) as u32).to_be_bytes();
            [0x02, 0x06, a, b, c, d]
        }
    }
}
