//! Ranges of IP addresses, and which addresses are the public internet's. Pure.
//!
//! Source of the ranges: IANA's registries of special-purpose IPv4 and IPv6 addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A range of addresses, written `10.0.0.0/8` or `fd00::/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    first: IpAddr,
    prefix: u8,
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Network {
    Network {
        first: IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        prefix,
    }
}

const fn v6(a: u16, b: u16, c: u16, prefix: u8) -> Network {
    Network {
        first: IpAddr::V6(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0)),
        prefix,
    }
}

/// What is not the public internet's among IPv4.
const SPECIAL_V4: [Network; 15] = [
    v4(0, 0, 0, 0, 8),       // this network
    v4(10, 0, 0, 0, 8),      // private
    v4(100, 64, 0, 0, 10),   // shared by a provider's customers
    v4(127, 0, 0, 0, 8),     // loopback
    v4(169, 254, 0, 0, 16),  // link-local: metadata services of clouds
    v4(172, 16, 0, 0, 12),   // private
    v4(192, 0, 0, 0, 24),    // protocols
    v4(192, 0, 2, 0, 24),    // documentation
    v4(192, 88, 99, 0, 24),  // relays of 6to4
    v4(192, 168, 0, 0, 16),  // private
    v4(198, 18, 0, 0, 15),   // benchmarks
    v4(198, 51, 100, 0, 24), // documentation
    v4(203, 0, 113, 0, 24),  // documentation
    v4(224, 0, 0, 0, 4),     // multicast
    v4(240, 0, 0, 0, 4),     // reserved, broadcast
];
/// All that is assigned for unicast on the internet.
const GLOBAL_V6: Network = v6(0x2000, 0, 0, 3);
/// What is not the public internet's among that.
const SPECIAL_V6: [Network; 4] = [
    v6(0x2001, 0, 0, 23),     // protocols: Teredo, ORCHID, benchmarks
    v6(0x2001, 0xdb8, 0, 32), // documentation
    v6(0x2002, 0, 0, 16),     // 6to4: an IPv4 address in another form
    v6(0x3fff, 0, 0, 20),     // documentation
];
/// Addresses of IPv4 in translated form.
const NAT64: Network = v6(0x64, 0xff9b, 0, 96);

impl Network {
    /// Whether the address is in the range.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.first, address) {
            (IpAddr::V4(first), IpAddr::V4(address)) => {
                let shift = 32 - u32::from(self.prefix);
                (u64::from(first.to_bits()) >> shift) == (u64::from(address.to_bits()) >> shift)
            }
            (IpAddr::V6(first), IpAddr::V6(address)) => {
                let differing = first.to_bits() ^ address.to_bits();
                differing.leading_zeros() >= u32::from(self.prefix)
            }
            _ => false,
        }
    }
}

/// Whether an address is one of the public internet: not private, not this machine's, not special in another way.
pub(crate) fn is_public(address: IpAddr) -> bool {
    // An IPv4 address that is written as one of IPv6 is what it was.
    match address.to_canonical() {
        address @ IpAddr::V4(_) => !SPECIAL_V4.iter().any(|range| range.contains(address)),
        IpAddr::V6(address) if NAT64.contains(IpAddr::V6(address)) => {
            // The last four bytes.
            let [.., a, b, c, d] = address.octets();
            is_public(IpAddr::V4(Ipv4Addr::new(a, b, c, d)))
        }
        address => {
            GLOBAL_V6.contains(address) && !SPECIAL_V6.iter().any(|range| range.contains(address))
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || "must be a range of addresses, such as `10.0.0.0/8` or `fd00::/8`".to_owned();
        let (first, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let first: IpAddr = first.parse().map_err(|_| wrong())?;
        let longest = if first.is_ipv4() { 32 } else { 128 };
        let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
        if prefix > longest {
            return Err(wrong());
        }
        Ok(Self { first, prefix })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_internet_are_public() {
        for (text, public) in [
            ("0.0.0.0", false),
            ("0.255.255.255", false),
            ("1.0.0.0", true),
            ("9.255.255.255", true),
            ("10.0.0.0", false),
            ("10.255.255.255", false),
            ("11.0.0.0", true),
            ("100.63.255.255", true),
            ("100.64.0.0", false),
            ("100.127.255.255", false),
            ("100.128.0.0", true),
            ("126.255.255.255", true),
            ("127.0.0.1", false),
            ("127.255.255.255", false),
            ("128.0.0.0", true),
            ("169.253.255.255", true),
            ("169.254.169.254", false),
            ("169.255.0.0", true),
            ("172.15.255.255", true),
            ("172.16.0.0", false),
            ("172.31.255.255", false),
            ("172.32.0.0", true),
            ("192.0.0.1", false),
            ("192.0.1.0", true),
            ("192.0.2.1", false),
            ("192.88.99.1", false),
            ("192.168.0.1", false),
            ("192.169.0.0", true),
            ("198.17.255.255", true),
            ("198.18.0.1", false),
            ("198.19.255.255", false),
            ("198.20.0.0", true),
            ("198.51.100.7", false),
            ("203.0.113.7", false),
            ("223.255.255.255", true),
            ("224.0.0.1", false),
            ("239.255.255.255", false),
            ("240.0.0.1", false),
            ("255.255.255.255", false),
            ("8.8.8.8", true),
            ("::", false),
            ("::1", false),
            // IPv4, in three ways.
            ("::ffff:127.0.0.1", false),
            ("::ffff:10.1.2.3", false),
            ("::ffff:8.8.8.8", true),
            ("::127.0.0.1", false),
            ("::8.8.8.8", false),
            ("64:ff9b::10.0.0.1", false),
            ("64:ff9b::169.254.169.254", false),
            ("64:ff9b::8.8.8.8", true),
            ("64:ff9b:1::8.8.8.8", false),
            ("2002:7f00:1::", false),
            ("2002:808:808::", false),
            ("100::1", false),
            ("2001::1", false),
            ("2001:1ff:ffff::1", false),
            ("2001:200::1", true),
            ("2001:db8::1", false),
            ("2606:4700::1111", true),
            ("3fff::1", false),
            ("3fff:1000::1", true),
            ("4000::1", false),
            ("5f00::1", false),
            ("fc00::1", false),
            ("fd12:3456::1", false),
            ("fe80::1", false),
            ("febf::1", false),
            ("fec0::1", false),
            ("ff02::1", false),
        ] {
            assert_eq!(is_public(text.parse().unwrap()), public, "{text}");
        }
    }

    #[test]
    fn ranges_are_read_and_hold_their_ends() {
        let range: Network = "10.4.0.0/15".parse().unwrap();
        for (address, inside) in [
            ("10.4.0.0", true),
            ("10.5.255.255", true),
            ("10.6.0.0", false),
            ("10.3.255.255", false),
            ("::ffff:10.4.0.1", false),
        ] {
            assert_eq!(
                range.contains(address.parse().unwrap()),
                inside,
                "{address}"
            );
        }
        let all: Network = "0.0.0.0/0".parse().unwrap();
        assert!(all.contains("255.0.0.1".parse().unwrap()));
        let one: Network = "::1/128".parse().unwrap();
        assert!(one.contains("::1".parse().unwrap()) && !one.contains("::2".parse().unwrap()));
        assert_eq!(one.to_string(), "::1/128");
        for bad in [
            "",
            "10.0.0.0",
            "10.0.0.0/33",
            "::/129",
            "a/8",
            "10.0.0.0/-1",
            "10.0.0/8",
        ] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
    }
}
