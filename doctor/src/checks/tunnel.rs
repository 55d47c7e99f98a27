//! Where HBONE tunnels begin, and whether what stands there fences them.

use crate::{
    Exposure,
    model::{Chain, Cluster, Fence, Listener, Mode, NetworkKind, Part, Proxy, Seen, Sharing, StateObject, TcpProxy},
};

/// A filter chain that opens HBONE tunnels to pods.
pub(super) struct Tunnel<'a> {
    pub(super) listener: &'a Listener,
    pub(super) chain: &'a Chain,
    /// Where `tcp_proxy` stands.
    pub(super) end: usize,
    pub(super) tcp_proxy: &'a TcpProxy,
    /// The cluster of the outer connections, if the dump has it.
    pub(super) cluster: Option<&'a Cluster>,
}

/// What the fence writes, as a format.
const GENERATION: &str = "%DYNAMIC_METADATA(stale_guard:generation)%";
const LISTENER: &str = "connect_originate";

/// All of them. The listeners of double HBONE are none: one tunnel each, towards another network's gateway.
pub(super) fn all(proxy: &Proxy) -> Vec<Tunnel<'_>> {
    let chains = proxy.serving().flat_map(|listener| listener.chains.iter().map(move |chain| (listener, chain)));
    chains
        .filter_map(|(listener, chain)| {
            let (end, tcp_proxy) = chain.tcp_proxy()?;
            let cluster = proxy.cluster(&tcp_proxy.cluster);
            let pods = listener.name == LISTENER
                || cluster
                    .is_some_and(|cluster| cluster.kind == "ORIGINAL_DST" && cluster.max_requests_per_connection != 1);
            (tcp_proxy.tunnels && pods).then_some(Tunnel { listener, chain, end, tcp_proxy, cluster })
        })
        .collect()
}

/// Whether new tunnels can use connections to pods that are gone.
pub(super) fn exposure(proxy: &Proxy) -> Exposure {
    let tunnels = all(proxy);
    if proxy.coverage.listeners != Seen::Whole {
        return Exposure::Unknown;
    }
    if tunnels.is_empty() {
        // A listener that was refused when the proxy started would have opened them.
        let refused = proxy.rejected.iter().any(|rejected| rejected.name == LISTENER);
        return if refused { Exposure::Unknown } else { Exposure::NoTunnels };
    }
    match tunnels.iter().all(Tunnel::is_fenced) && is_watched(proxy) {
        true => Exposure::Fenced,
        // Without the bootstrap nobody knows whether something tells the fence of removals.
        false if proxy.coverage.bootstrap != Seen::Whole && tunnels.iter().all(Tunnel::is_fenced) => Exposure::Unknown,
        false => Exposure::Exposed,
    }
}

/// Whether something tells the fence of removals.
pub(super) fn is_watched(proxy: &Proxy) -> bool {
    let sees = |validator: &crate::model::Validator| {
        validator.type_urls.iter().any(|url| url.ends_with(".ClusterLoadAssignment"))
    };
    proxy.bootstrap.status.iter().any(|status| status.config.polls) || proxy.bootstrap.validators.iter().any(sees)
}

/// Whether an object holds, or is meant to hold, the generation.
pub(super) fn is_generation(object: &StateObject) -> bool {
    object.format.contains("stale_guard:") || object.key.starts_with("stale_guard.")
}

/// What is wrong with how the generation is set; empty if it reaches the pool key.
pub(super) fn defects(object: &StateObject) -> Vec<String> {
    let mut wrong = Vec::new();
    if object.event != "on_new_connection" {
        wrong.push(format!("it is set {}", object.event));
    }
    let factory = if object.factory.is_empty() { &object.key } else { &object.factory };
    if factory != "envoy.hashable_string" {
        wrong.push(format!("its factory is \"{factory}\", whose objects are not hashed"));
    }
    if object.format != GENERATION {
        wrong.push(format!("its format is \"{}\"", object.format));
    }
    wrong
}

// === impl Tunnel ===

impl<'a> Tunnel<'a> {
    /// For people.
    pub(super) fn place(&self) -> String {
        super::filters::place(self.listener, self.chain)
    }

    /// The fences of the chain, with their positions.
    pub(super) fn fences(&self) -> impl Iterator<Item = (usize, &'a Part<Fence>)> + use<'a> {
        self.chain.filters.iter().enumerate().filter_map(|(index, filter)| match &filter.kind {
            NetworkKind::Fence(fence) => Some((index, fence)),
            _ => None,
        })
    }

    /// The objects that are meant to hold the generation, with their positions.
    pub(super) fn generations(&self) -> impl Iterator<Item = (usize, &'a StateObject)> + use<'a> {
        self.chain.filters.iter().enumerate().flat_map(|(index, filter)| match &filter.kind {
            NetworkKind::SetFilterState(objects) => {
                objects.iter().filter(|object| is_generation(object)).map(|object| (index, object)).collect()
            }
            _ => Vec::new(),
        })
    }

    /// Whether a fence that acts stands here, and its generation reaches the pool key.
    pub(super) fn is_fenced(&self) -> bool {
        self.fences().any(|(fence_at, fence)| {
            let reaches = |(index, object): (usize, &StateObject)| {
                fence_at < index && index < self.end && defects(object).is_empty() && object.shared != Sharing::None
            };
            fence.config.mode == Mode::Enforce && self.generations().any(reaches)
        })
    }

    /// Whether a fence sets `TCP_USER_TIMEOUT` here.
    pub(super) fn has_user_timeout(&self) -> bool {
        self.acting().any(|fence| fence.user_timeout)
    }

    /// Whether a fence sets TCP keepalive here.
    pub(super) fn has_keepalive(&self) -> bool {
        self.acting().any(|fence| fence.keepalive)
    }

    /// Fences that set socket options: those that act, before the connection is made.
    fn acting(&self) -> impl Iterator<Item = &'a Fence> + use<'a> {
        let end = self.end;
        let before = self.fences().filter(move |(index, _)| *index < end);
        before.map(|(_, fence)| &fence.config).filter(|fence| fence.mode == Mode::Enforce)
    }
}
