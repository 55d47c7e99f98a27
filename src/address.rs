//! Addresses as Envoy and the control plane write them.

use std::net::{IpAddr, SocketAddr};

/// Namespace of the endpoint metadata that says where a tunnel leads, which ORIGINAL_DST handling reads.
pub(crate) const ORIGINAL_DST: &str = "envoy.filters.listener.original_dst";
/// Key in [`ORIGINAL_DST`]: the pod's address and port.
pub(crate) const LOCAL: &str = "local";
/// Key in [`ORIGINAL_DST`]: the address of a waypoint on the way to the pod.
pub(crate) const WAYPOINT: &str = "waypoint";

/// The IP address of `<ip>` or `<ip>:<port>`, canonical.
///
/// One that is mapped into IPv6 (RFC 4291 section 2.5.5.2) is its IPv4 address, as everywhere in the module: it
/// leads to the same pod.
pub(crate) fn ip(text: &str) -> Option<IpAddr> {
    socket(text).map(|address| address.ip())
}

/// The same from bytes, which need not be text.
pub(crate) fn ip_of_bytes(bytes: &[u8]) -> Option<IpAddr> {
    ip(std::str::from_utf8(bytes).ok()?)
}

/// The address of `<ip>` or `<ip>:<port>`, canonical; port 0 where there is none.
pub(crate) fn socket(text: &str) -> Option<SocketAddr> {
    let address = text.parse().or_else(|_| text.parse().map(|ip| SocketAddr::new(ip, 0))).ok()?;
    Some(canonical(address))
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_have_a_port_and_an_ipv4_address_mapped_into_ipv6_is_its_own() {
        let v4 = Some(IpAddr::from([10, 0, 0, 1]));
        for text in ["10.0.0.1", "10.0.0.1:80", "::ffff:10.0.0.1", "[::ffff:10.0.0.1]:80"] {
            assert_eq!(ip(text), v4, "{text}");
        }
        assert_eq!(ip("[fd00::1]:80"), "fd00::1".parse().ok());
        assert_eq!(socket("[fd00::1]:80").map(|address| address.port()), Some(80));
        assert_eq!((ip("a-pod"), ip(""), ip_of_bytes(b"\xff")), (None, None, None));
    }
}
