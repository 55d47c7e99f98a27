//! The few rtnetlink requests the lab needs, over a connection that lives in one namespace.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::RawFd;

use anyhow::{Context as _, anyhow};
use futures::TryStreamExt as _;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags};
use rtnetlink::packet_route::link::{InfoData, InfoVeth, LinkAttribute};
use rtnetlink::packet_route::neighbour::NeighbourState;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMetric, RouteProtocol, RouteScope};
use rtnetlink::{Handle, LinkBridge, LinkUnspec, LinkVeth};
use tokio::task::AbortHandle;

use super::mac::Mac;

/// The name of a pod's interface in its own namespace.
pub(super) const POD_INTERFACE: &str = "eth0";

/// A netlink socket and the task that serves it; both end on drop.
pub(super) struct Netlink {
    handle: Handle,
    task: AbortHandle,
}

impl Netlink {
    /// Opens a socket in the calling thread's namespace. Needs a tokio runtime.
    pub(super) fn open() -> anyhow::Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection().context("netlink socket")?;
        let task = tokio::spawn(connection).abort_handle();
        Ok(Self { handle, task })
    }

    pub(super) async fn index(&self, name: &str) -> anyhow::Result<u32> {
        let mut links = self.handle.link().get().match_name(name).execute();
        let link = links.try_next().await.with_context(|| format!("link {name}"))?;
        Ok(link.ok_or_else(|| anyhow!("no link {name}"))?.header.index)
    }

    /// The names of all links of the namespace.
    pub(super) async fn names(&self) -> anyhow::Result<Vec<String>> {
        let links: Vec<_> = self.handle.link().get().execute().try_collect().await.context("links")?;
        Ok(links
            .into_iter()
            .flat_map(|link| link.attributes)
            .filter_map(|attribute| match attribute {
                LinkAttribute::IfName(name) => Some(name),
                _ => None,
            })
            .collect())
    }

    pub(super) async fn set_up(&self, name: &str) -> anyhow::Result<()> {
        let message = LinkUnspec::new_with_name(name).up().build();
        self.handle.link().set(message).execute().await.with_context(|| format!("link {name} up"))
    }

    pub(super) async fn add_bridge(&self, name: &str) -> anyhow::Result<u32> {
        // Snooping without a querier may drop the multicast that IPv6 neighbour discovery needs.
        let message = LinkBridge::new(name).mcast_snooping(false).build();
        self.handle.link().add(message).execute().await.with_context(|| format!("bridge {name}"))?;
        self.index(name).await
    }

    /// Makes a veth pair: `port` here, as a port of the bridge, and [`POD_INTERFACE`] in `peer_ns`.
    pub(super) async fn add_port(&self, port: &str, bridge: u32, mac: Mac, peer_ns: RawFd) -> anyhow::Result<u32> {
        // Not `up` yet: the kernel answers ENOTCONN for an end whose peer does not exist.
        let peer = LinkUnspec::new_with_name(POD_INTERFACE).address(mac.to_vec()).setns_by_fd(peer_ns).build();
        let message = LinkVeth::new(port, POD_INTERFACE)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
            .controller(bridge)
            .up()
            .build();
        self.handle.link().add(message).execute().await.with_context(|| format!("veth {port}"))?;
        self.index(port).await
    }

    /// Makes `port` a port of the bridge `controller`, or of none (0).
    pub(super) async fn set_controller(&self, port: u32, controller: u32) -> anyhow::Result<()> {
        let message = LinkUnspec::new_with_index(port).controller(controller).build();
        self.handle
            .link()
            .set(message)
            .execute()
            .await
            .with_context(|| format!("controller of link {port} := {controller}"))
    }

    pub(super) async fn delete(&self, index: u32) -> anyhow::Result<()> {
        self.handle.link().del(index).execute().await.with_context(|| format!("delete link {index}"))
    }

    /// Adds an address that is usable at once: without duplicate address detection (RFC 4862,
    /// section 5.4), which would keep an IPv6 address tentative for a second or more.
    pub(super) async fn add_address(&self, index: u32, addr: IpAddr) -> anyhow::Result<()> {
        let prefix = if addr.is_ipv4() { 16 } else { 64 };
        let mut request = self.handle.address().add(index, addr, prefix);
        let message = request.message_mut();
        message.header.flags |= AddressHeaderFlags::Nodad;
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        request.execute().await.with_context(|| format!("address {addr}"))
    }

    /// Has every segment acknowledged at once on the link (`quickack` of ip-route(8)).
    ///
    /// A delayed acknowledgement may leave up to 40 ms after its cause, by when a pod may have been
    /// replaced: its successor would answer RST, and end a dead connection before any request does.
    /// Between two pods of a real cluster there are seconds.
    pub(super) async fn acknowledge_at_once(&self, index: u32, addr: IpAddr) -> anyhow::Result<()> {
        let metrics = RouteAttribute::Metrics(vec![RouteMetric::QuickAck(1)]);
        let mut route = match addr {
            IpAddr::V4(addr) => RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(Ipv4Addr::from_bits(addr.to_bits() & 0xffff_0000), 16)
                .output_interface(index)
                .scope(RouteScope::Link)
                .protocol(RouteProtocol::Kernel)
                .build(),
            // 256 is the metric of the kernel's own route to the prefix, which this replaces.
            IpAddr::V6(addr) => RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(Ipv6Addr::from_bits(addr.to_bits() & !u128::from(u64::MAX)), 64)
                .output_interface(index)
                .protocol(RouteProtocol::Kernel)
                .priority(256)
                .build(),
        };
        route.attributes.push(metrics);
        let request = self.handle.route().add(route).replace();
        request.execute().await.with_context(|| format!("route to {addr}'s prefix"))
    }

    /// A permanent neighbour entry: `addr` is reached at `mac`, whether or not anybody answers.
    pub(super) async fn pin_neighbour(&self, index: u32, addr: IpAddr, mac: Mac) -> anyhow::Result<()> {
        self.handle
            .neighbours()
            .add(index, addr)
            .link_layer_address(&mac)
            .state(NeighbourState::Permanent)
            .replace()
            .execute()
            .await
            .with_context(|| format!("neighbour {addr}"))
    }
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Sets the loopback of the calling thread's namespace up.
pub(super) fn set_loopback_up() -> anyhow::Result<()> {
    // The caller may not be in a runtime, and this is needed only once.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async { Netlink::open()?.set_up("lo").await })
}
