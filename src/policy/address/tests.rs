//! Tests of special addresses and of networks in text.

//! Tests of special addresses and of networks in text.

use proptest::prelude::*;

use super::*;

fn special_range(address: &str) -> Option<&'static str> {
    special(address.parse().unwrap_or_else(|_| panic!("{address}")))
}

#[test]
fn special_addresses_are_named() {
    for (address, words) in [
        ("0.0.0.0", "unspecified"),
        ("0.1.2.3", "this network"),
        ("10.255.255.255", "private"),
        ("172.16.0.1", "private"),
        ("172.31.255.255", "private"),
        ("192.168.1.1", "private"),
        ("100.64.0.1", "shared (CGNAT)"),
        ("100.127.255.255", "shared (CGNAT)"),
        ("100.100.100.200", "cloud metadata"),
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("169.254.1.1", "link-local"),
        ("169.254.169.254", "cloud metadata"),
        ("168.63.129.16", "cloud metadata"),
        ("192.0.0.192", "cloud metadata"),
        ("192.0.0.8", "protocol assignments"),
        ("192.0.2.1", "documentation"),
        ("198.51.100.7", "documentation"),
        ("203.0.113.255", "documentation"),
        ("192.88.99.1", "6to4"),
        ("198.19.255.255", "benchmarking"),
        ("224.0.0.251", "multicast"),
        ("239.255.255.255", "multicast"),
        ("240.0.0.1", "reserved"),
        ("255.255.255.255", "broadcast"),
        ("::", "unspecified"),
        ("::1", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
        ("::ffff:169.254.169.254", "cloud metadata"),
        ("::127.0.0.1", "loopback"),
        ("::10.0.0.1", "private"),
        ("::8.8.8.8", "IPv4-compatible"),
        ("::ffff:0:127.0.0.1", "reserved"),
        ("64:ff9b::127.0.0.1", "NAT64"),
        ("64:ff9b::8.8.8.8", "NAT64"),
        ("64:ff9b:1::1", "NAT64"),
        ("100::1", "discard-only"),
        ("100:0:0:1::1", "dummy"),
        ("2001::1", "Teredo"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "Teredo"),
        ("2001:2::1", "benchmarking"),
        ("2001:2f::1", "ORCHID"),
        ("2001:1ff::1", "protocol assignments"),
        ("2001:db8::1", "documentation"),
        ("2002:7f00:1::", "6to4"),
        ("3fff:fff::1", "documentation"),
        ("5f00::1", "segment routing"),
        ("fc00::1", "unique-local"),
        ("fd12:3456::1", "unique-local"),
        ("fd00:ec2::254", "cloud metadata"),
        ("fd20:ce::254", "cloud metadata"),
        ("fe80::1", "link-local"),
        ("fe80::a9fe:a9fe", "link-local"),
        ("fec0::1", "site-local"),
        ("ff02::1", "multicast"),
        ("2a00:1450::5efe:10.0.0.1", "ISATAP"),
        ("2a00:1450::200:5efe:10.0.0.1", "ISATAP"),
        ("4000::1", "reserved"),
        ("200::1", "reserved"),
    ] {
        assert_eq!(special_range(address), Some(words), "{address}");
    }
}

#[test]
fn public_addresses_are_not_special() {
    for address in [
        "1.1.1.1",
        "8.8.8.8",
        "93.184.216.34",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.0.1.0",
        "192.31.196.1",
        "192.167.255.255",
        "192.169.0.0",
        "198.17.255.255",
        "198.20.0.0",
        "223.255.255.255",
        "::ffff:8.8.8.8",
        "2606:4700::1111",
        "2001:200::1",
        "2001:4860:4860::8888",
        "2003::1",
        "2620:fe::fe",
        "2a00:1450:4001:80b::200e",
        "3ffe:ffff::1",
        "3fff:1000::1",
    ] {
        assert_eq!(special_range(address), None, "{address}");
    }
}

#[test]
fn tables_hold_networks() {
    for (range, words) in SPECIAL_V4 {
        assert_eq!(range.addr(), range.network(), "{words}");
    }
    for (range, words) in SPECIAL_V6 {
        assert_eq!(range.addr(), range.network(), "{words}");
    }
}

#[test]
fn a_list_of_networks_is_read() {
    let read = networks(["10.0.0.0/8", "192.168.1.7", "fd00::/8", "::1", "::ffff:10.0.0.0/104", "0.0.0.0/0"]);
    let texts: Vec<String> = read.expect("a list").iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["10.0.0.0/8", "192.168.1.7/32", "fd00::/8", "::1/128", "10.0.0.0/8", "0.0.0.0/0"]);
    assert_eq!(networks([]), Ok(Vec::new()));
}

#[test]
fn a_text_that_is_not_a_network_is_refused_with_its_index() {
    for (text, words) in [
        ("", "neither an address"),
        ("example.com", "neither an address"),
        ("10.0.0", "neither an address"),
        ("010.0.0.1", "neither an address"),
        ("[fd00::]/8", "neither an address"),
        ("fe80::1%eth0", "neither an address"),
        ("10.0.0.0/", "prefix"),
        ("10.0.0.0/33", "prefix"),
        ("10.0.0.0/+8", "prefix"),
        ("10.0.0.0/255.0.0.0", "prefix"),
        ("fd00::/129", "prefix"),
        ("10.1.2.3/8", "the network is 10.0.0.0/8"),
        ("fd00::1/64", "the network is fd00::/64"),
        ("::ffff:10.1.2.3/104", "the network is 10.0.0.0/8"),
    ] {
        let (at, reason) = networks(["127.0.0.1", text]).expect_err(text);
        assert!(at == 1 && reason.contains(words), "{text:?}: {reason}");
    }
}

proptest! {
    #[test]
    fn what_std_calls_special_is_special(bits in any::<u32>(), low in any::<u32>()) {
        // Random addresses are mostly public, so the first byte moves them into each range.
        for first in [0, 10, 100, 127, 169, 172, 192, 198, 203, 224, 240, 255, bits >> 24] {
            let address = Ipv4Addr::from((first << 24) | (low & 0xff_ffff));
            let known = address.is_private()
                || address.is_loopback()
                || address.is_link_local()
                || address.is_multicast()
                || address.is_broadcast()
                || address.is_documentation()
                || address.is_unspecified()
                || matches!(address.octets(), [0 | 240.., ..] | [100, 64..=127, ..] | [198, 18 | 19, ..]);
            prop_assert!(!known || special(address.into()).is_some(), "{address}");
            // The IPv4-mapped IPv6 address is in the same range.
            prop_assert_eq!(special(address.to_ipv6_mapped().into()), special(address.into()));
            let [a, b, c, d] = address.octets();
            let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
            for carrier in [
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
                Ipv6Addr::new(0x2001, 0, high, low, 0, 0, 0, 1),
                Ipv6Addr::new(0x2a00, 1, 2, 3, 0, 0x5efe, high, low),
                Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low),
            ] {
                prop_assert!(special(carrier.into()).is_some(), "{carrier}");
            }
        }
    }

    #[test]
    fn ipv6_outside_global_unicast_is_special(bits in any::<u128>()) {
        let address = Ipv6Addr::from(bits);
        let mapped = address.to_ipv4_mapped().is_some();
        prop_assert!(bits >> 125 == 1 || mapped || special(address.into()).is_some(), "{address}");
        let known = address.is_loopback()
            || address.is_unspecified()
            || address.is_multicast()
            || address.is_unique_local()
            || address.is_unicast_link_local();
        prop_assert!(!known || special(address.into()).is_some(), "{address}");
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in "[0-9a-f:./]{0,20}") {
        if let Ok(network) = network(&text) {
            prop_assert_eq!(network.addr(), network.network());
            prop_assert_eq!(crate::policy::network::address::network(&network.to_string()), Ok(network));
        }
    }
}
