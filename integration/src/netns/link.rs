//! The link between a namespace and the fabric, and what can befall it.

use std::net::IpAddr;
use std::sync::Arc;

use super::segment::{Port, Segment};

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
    segment: Arc<Segment>,
    port: Arc<Port>,
    gone: bool,
}

// === impl Link ===

impl Link {
    pub(super) fn new(segment: Arc<Segment>, port: Arc<Port>) -> Self {
        Self { segment, port, gone: false }
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
        self.segment.add_address(&self.port, addr).await
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
        let segment = Arc::clone(&self.segment);
        if silence == Silence::Complete {
            segment.pin(&self.port).await?;
        }
        segment.netlink.delete(self.port.port).await?;
        self.gone = true;
        segment.forget(self.port.id);
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
        let segment = &self.segment;
        if silence == Silence::Complete {
            segment.pin(&self.port).await?;
        }
        segment.netlink.set_controller(self.port.port, 0).await
    }

    /// Puts the port back on the bridge.
    ///
    /// # Errors
    /// Netlink failed.
    pub async fn heal(&self) -> anyhow::Result<()> {
        let segment = &self.segment;
        segment.netlink.set_controller(self.port.port, segment.bridge).await
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.gone {
            return;
        }
        let segment = Arc::clone(&self.segment);
        segment.forget(self.port.id);
        // Without a runtime the kernel deletes the pair anyway, with either namespace.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let port = self.port.port;
            runtime.spawn(async move { segment.netlink.delete(port).await });
        }
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("ns", &self.port.ns).field("addrs", &self.addrs()).finish()
    }
}
