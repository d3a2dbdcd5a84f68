//! Tests of the parsers of names, hosts and destinations.

use proptest::prelude::*;

use super::*;

fn destination(text: &str) -> String {
    Destination::parse(text)
        .map(|found| found.to_string())
        .unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

#[test]
fn every_spelling_has_one_canonical_form() {
    for (text, canonical) in [
        ("example.com:443", "example.com:443"),
        ("EXAMPLE.Com.:443", "example.com:443"),
        ("bücher.example:443", "xn--bcher-kva.example:443"),
        ("BÜCHER.example:443", "xn--bcher-kva.example:443"),
        ("xn--bcher-kva.example:443", "xn--bcher-kva.example:443"),
        ("XN--BCHER-KVA.example:443", "xn--bcher-kva.example:443"),
        ("example。com:443", "example.com:443"),
        ("example.com。:443", "example.com:443"),
        ("exam\u{ad}ple.com:443", "example.com:443"),
        ("ｅｘａｍｐｌｅ.com:443", "example.com:443"),
        ("my_bucket.s3.example:443", "my_bucket.s3.example:443"),
        ("r3---sn-4g5e.example:443", "r3---sn-4g5e.example:443"),
        ("127.0.0.1.nip.io:80", "127.0.0.1.nip.io:80"),
        ("localhost:65535", "localhost:65535"),
        ("1password.com:443", "1password.com:443"),
        ("0x7f.a0:1", "0x7f.a0:1"),
        ("127.0.0.1:80", "127.0.0.1:80"),
        ("[::1]:80", "[::1]:80"),
        ("[0:0:0:0:0:0:0:1]:80", "[::1]:80"),
        ("[2001:DB8::A]:80", "[2001:db8::a]:80"),
        ("[::ffff:127.0.0.1]:80", "127.0.0.1:80"),
        ("[::ffff:7f00:1]:80", "127.0.0.1:80"),
        ("[::]:80", "[::]:80"),
        ("example.com:0443", "example.com:443"),
    ] {
        assert_eq!(destination(text), canonical, "{text:?}");
    }
}

#[test]
fn a_text_that_a_resolver_reads_as_an_address_is_not_a_name() {
    for host in [
        "127.1",
        "2130706433",
        "0x7f000001",
        "0X7F000001",
        "0x",
        "0177.0.0.1",
        "0x7f.0.0.0x1",
        "127.0.0.1.",
        "1.2.3.4.5",
        "256.256.256.256",
        "example.1",
        "１２７.０.０.１",
        "127。0。0。1",
        "①",
    ] {
        let error = DestinationHost::parse(host).expect_err(host).to_string();
        assert!(error.contains("does not end in a number"), "{host:?}: {error}");
    }
}

#[test]
fn each_malformed_destination_has_its_own_message() {
    for (text, words) in [
        ("", "host is missing"),
        (":443", "host is missing"),
        ("user@example.com:443", "userinfo"),
        ("example.com:443@evil.example:443", "userinfo"),
        ("user:secret@example.com:443", "userinfo"),
        ("example.com\0.evil.example:443", "control"),
        ("example.com:443\r\nX-Header: 1", "control"),
        ("example.com\n:443", "control"),
        ("example.com\u{7f}:443", "control"),
        ("example.com\u{85}:443", "control"),
        (" example.com:443", "whitespace"),
        ("example.com :443", "whitespace"),
        ("example.com\u{3000}:443", "whitespace"),
        ("example.com/x:443", "path"),
        ("example.com\\x:443", "path"),
        ("https://example.com:443", "path"),
        ("example%2ecom:443", "escapes nor zones"),
        ("[fe80::1%eth0]:443", "escapes nor zones"),
        ("example.com", "port is missing"),
        ("[::1]", "port is missing"),
        ("example.com:", "from 1 to 65535"),
        ("example.com:0", "from 1 to 65535"),
        ("example.com:65536", "from 1 to 65535"),
        ("example.com:+80", "from 1 to 65535"),
        ("example.com:-1", "from 1 to 65535"),
        ("example.com:٨٠", "from 1 to 65535"),
        ("example.com:0x50", "from 1 to 65535"),
        ("example.com:http", "from 1 to 65535"),
        ("::1:443", "brackets"),
        ("a:b:443", "brackets"),
        ("[::1:443", "bracket is not closed"),
        ("[::1]x:443", "bracket is not closed"),
        ("[]:443", "contain no IPv6 address"),
        ("[127.0.0.1]:443", "no IPv6 address"),
        ("[example.com]:443", "no IPv6 address"),
        ("[::1::2]:443", "no IPv6 address"),
        (".:443", "1 to 63"),
        (".example.com:443", "1 to 63"),
        ("example..com:443", "1 to 63"),
        ("example.com..:443", "1 to 63"),
        ("*.example.com:443", "valid IDNA"),
        ("example.com?:443", "valid IDNA"),
        ("exa,mple.com:443", "valid IDNA"),
        ("xn--a.example:443", "valid IDNA"),
        ("xn--example-.com:443", "valid IDNA"),
        ("example\u{202e}.com:443", "valid IDNA"),
        ("a\u{ff0f}b.example:443", "valid IDNA"),
    ] {
        let error = Destination::parse(text).expect_err(text).to_string();
        assert!(error.contains(words), "{text:?}: {error}");
        assert!(!error.ends_with('.') && !error.starts_with(char::is_uppercase), "{error}");
    }
}

#[test]
fn names_are_as_long_as_dns_allows() {
    let label = "a".repeat(63);
    let full = format!("{label}.{label}.{label}.{}", "a".repeat(61));
    assert_eq!(full.len(), 253);
    assert_eq!(DnsName::parse(&format!("{full}.")).expect("253 and a dot").as_str(), full);
    DnsName::parse(&format!("{full}a")).expect_err("254");
    DnsName::parse(&format!("{label}a.example")).expect_err("a label of 64");
    DnsName::parse(&"ü.".repeat(100_000)).expect_err("too long for IDNA");
}

#[test]
fn is_below_compares_whole_labels() {
    let parent = DnsName::parse("example.com").expect("a name");
    for (name, below) in [
        ("www.example.com", true),
        ("a.b.example.com", true),
        ("example.com", false),
        ("notexample.com", false),
        ("example.com.evil.example", false),
        ("com", false),
    ] {
        assert_eq!(DnsName::parse(name).expect(name).is_below(&parent), below, "{name}");
    }
}

#[test]
fn an_address_from_bytes_has_the_same_form() {
    let mapped: IpAddr = "::ffff:10.0.0.1".parse().expect("an address");
    assert_eq!(DestinationHost::of(mapped), DestinationHost::parse("10.0.0.1").expect("an address"));
    assert_eq!(DestinationHost::of(mapped), DestinationHost::parse("[::ffff:10.0.0.1]").expect("an address"));
}

/// Text that is often close to a destination.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("xn--"),
        Just("."),
        Just(":"),
        Just("["),
        Just("]"),
        Just("::ffff:"),
        Just("0x"),
        Just("127"),
        Just("443"),
        Just("ß"),
        Just("。"),
        Just("-"),
        Just("_"),
        Just("a"),
        Just("B"),
        Just("\0"),
        Just("@"),
    ];
    prop_oneof![
        any::<String>(),
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat()),
        "[a-zA-ZßÜ._-]{1,20}:[0-9]{1,5}",
    ]
}

proptest! {
    #[test]
    fn parsing_never_panics_and_destinations_round_trip(text in text()) {
        if let Ok(found) = Destination::parse(&text) {
            prop_assert_eq!(Destination::parse(&found.to_string()), Ok(found));
        }
        if let Ok(found) = DestinationHost::parse(&text) {
            prop_assert_eq!(DestinationHost::parse(&found.to_string()), Ok(found));
        }
    }

    #[test]
    fn a_parsed_name_is_valid_in_dns(text in text()) {
        if let Ok(name) = DnsName::parse(&text) {
            let name = name.as_str();
            prop_assert!(name.len() <= 253 && name.parse::<IpAddr>().is_err());
            prop_assert!(name.split('.').all(|label| (1..=63).contains(&label.len())));
            prop_assert!(name.chars().all(|c| matches!(c, 'a'..='z' | '0'..='9' | '-' | '_' | '.')));
        }
    }

    #[test]
    fn every_address_has_one_canonical_form(v4 in any::<Ipv4Addr>(), v6 in any::<Ipv6Addr>(), port in 1u16..) {
        let mapped = DestinationHost::parse(&format!("[{}]", v4.to_ipv6_mapped()));
        prop_assert_eq!(mapped, Ok(DestinationHost::Address(v4.into())));
        prop_assert_eq!(DestinationHost::parse(&v4.to_string()), Ok(DestinationHost::Address(v4.into())));
        prop_assert_eq!(DestinationHost::parse(&format!("[{v6}]")), Ok(DestinationHost::of(v6.into())));
        let whole = Destination { host: DestinationHost::of(v6.into()), port };
        prop_assert_eq!(Destination::parse(&whole.to_string()), Ok(whole));
    }
}
