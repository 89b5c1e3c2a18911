//! Addresses that no provider has: link-local ones and the metadata services of clouds, which hand out credentials.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Which link-local and metadata addresses are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Guard {
    /// None: the provider is declared `Local`.
    Off,
    /// Those of the server. Who declares a proxy chooses its address.
    Server,
    /// Those of the proxy as well: the call comes from a place in the network that its author does not have.
    Everything,
}

impl Guard {
    /// Why an address is refused, with the way out where there is one.
    pub(super) const fn refusal(self) -> &'static str {
        match self {
            Self::Off | Self::Server => "link-local and metadata addresses are refused unless the provider's authClass is Local",
            Self::Everything => "link-local and metadata addresses are refused",
        }
    }

    /// The guard of a proxy.
    pub(super) const fn of_proxy(self) -> Self {
        match self {
            Self::Off | Self::Server => Self::Off,
            Self::Everything => Self::Everything,
        }
    }
}

/// Metadata services outside the link-local ranges: AWS over IPv6, Alibaba, Oracle, Azure's wire server.
const METADATA_V6: [Ipv6Addr; 1] = [Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)];
const METADATA_V4: [Ipv4Addr; 3] = [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(192, 0, 0, 192), Ipv4Addr::new(168, 63, 129, 16)];

/// True for addresses that are refused unless the provider is declared `Local`.
#[must_use]
pub(super) fn is_forbidden(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => forbidden_v4(v4),
        IpAddr::V6(v6) => {
            let link_local = v6.segments()[0] & 0xffc0 == 0xfe80;
            link_local || v6.is_unspecified() || METADATA_V6.contains(&v6) || embedded_v4(v6).is_some_and(forbidden_v4)
        }
    }
}

fn forbidden_v4(ip: Ipv4Addr) -> bool {
    ip.is_link_local() || ip.is_unspecified() || ip.is_broadcast() || ip.is_multicast() || METADATA_V4.contains(&ip)
}

/// The IPv4 address inside an IPv6 one: mapped (`::ffff:a.b.c.d`) or translated (`64:ff9b::a.b.c.d`).
fn embedded_v4(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, rest @ .., hi, lo] = ip.segments();
    let translated = (a, b) == (0x64, 0xff9b) && rest == [0; 4];
    let [h1, h2] = hi.to_be_bytes();
    let [l1, l2] = lo.to_be_bytes();
    if translated { Some(Ipv4Addr::new(h1, h2, l1, l2)) } else { ip.to_ipv4_mapped() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_and_link_local_addresses_are_forbidden() {
        for bad in [
            "169.254.169.254",
            "169.254.0.1",
            "fd00:ec2::254",
            "fe80::1",
            "febf::1",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "100.100.100.200",
            "0.0.0.0",
            "::",
        ] {
            assert!(is_forbidden(bad.parse().expect("address")), "{bad}");
        }
        for good in ["127.0.0.1", "10.0.0.1", "192.168.1.1", "1.1.1.1", "::1", "fd00::1", "2606:4700::1111", "169.253.1.1"] {
            assert!(!is_forbidden(good.parse().expect("address")), "{good}");
        }
    }
}
