//! The MAC address that goes with an IP address.

use std::net::IpAddr;

pub(super) type Mac = [u8; 6];

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
