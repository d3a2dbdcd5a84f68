//! Tests of rules and of lists of rules.

use proptest::prelude::*;

use super::*;

fn rule(text: &str) -> Rule {
    text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

fn to(text: &str) -> Destination {
    Destination::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

fn rules(texts: &[&str]) -> Rules {
    Rules::parse(texts.iter().copied()).expect("rules")
}

#[test]
fn loopback_is_what_a_rule_names_and_never_any_host() {
    let list = rules(&[
        "localhost:1",
        "127.0.0.1:2",
        "[::1]:3",
        "127.0.0.0/8:4",
        "0.0.0.0:5",
        "[::/0]:6",
        "127.0.0.9:7",
        "localhost:*",
        "*:8",
        "*.localhost:9",
        "192.0.2.1:10",
        "a.example:11",
    ]);
    assert_eq!(list.loopback_ports().into_iter().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7]);
    let elsewhere = list.loopback_elsewhere(&[1, 2, 3, 4, 5, 6]).map(Rule::to_string);
    assert_eq!(elsewhere.collect::<Vec<_>>(), ["127.0.0.9:7", "localhost:*"]);
    let list =
        rules(&["localhost:1", "127.0.0.1:2", "[::1]:2", "[::1]:3", "127.0.0.9:3", "0.0.0.0:5", "*:8"]);
    for (asked, port, expected) in [
        ("127.0.0.1", 1, Some("localhost")),
        ("::1", 1, Some("localhost")),
        ("::ffff:127.0.0.1", 1, Some("localhost")),
        ("127.0.0.9", 1, None),
        ("127.0.0.1", 2, Some("127.0.0.1")),
        ("::1", 2, Some("[::1]")),
        ("127.0.0.1", 3, Some("[::1]")),
        ("127.0.0.9", 3, Some("127.0.0.9")),
        ("127.0.0.1", 5, Some("0.0.0.0")),
        ("127.0.0.1", 8, None),
        ("192.0.2.1", 1, None),
    ] {
        let host = list.loopback_host(asked.parse().expect("an address"), port);
        assert_eq!(host.map(|host| host.to_string()).as_deref(), expected, "{asked}:{port}");
    }
}

#[test]
fn rules_have_one_canonical_form() {
    for (text, canonical) in [
        ("crates.io:443", "crates.io:443"),
        ("CRATES.io.:443", "crates.io:443"),
        ("bücher.example:*", "xn--bcher-kva.example:*"),
        ("*.GitHub.com:443", "*.github.com:443"),
        ("*.com:443", "*.com:443"),
        ("*:443", "*:443"),
        ("*:*", "*:*"),
        ("10.0.0.1:80", "10.0.0.1:80"),
        ("10.0.0.1/32:80", "10.0.0.1:80"),
        ("10.0.0.0/8:5432", "10.0.0.0/8:5432"),
        ("0.0.0.0/0:*", "0.0.0.0/0:*"),
        ("[::1]:80", "[::1]:80"),
        ("[::1/128]:80", "[::1]:80"),
        ("[fd00::/8]:443", "[fd00::/8]:443"),
        ("[::ffff:10.0.0.1]:80", "10.0.0.1:80"),
        ("[::ffff:10.0.0.0/104]:80", "10.0.0.0/8:80"),
        ("localhost:8080", "localhost:8080"),
    ] {
        assert_eq!(rule(text).to_string(), canonical, "{text:?}");
    }
}

#[test]
fn errors_suggest_a_valid_rule() {
    for (text, words) in [
        ("", "host is missing"),
        (":443", "host is missing"),
        ("x", "write `x:443`"),
        ("*.example.com", "write `*.example.com:443`"),
        ("*", "write `*:443`"),
        ("10.0.0.0/8", "write `10.0.0.0/8:443`"),
        ("[::1]", "write `[::1]:443`"),
        ("x:", "port `` is neither"),
        ("x:0", "port `0` is neither"),
        ("x:65536", "port `65536` is neither"),
        ("x:+80", "port `+80` is neither"),
        ("x:443/path", "port `443/path` is neither"),
        ("x:\u{1b}[31m", "port `\\u{1b}[31m` is neither"),
        ("x:**", "port `**` is neither"),
        ("::1", "write `[::1]:443`"),
        ("::1:443", "write `[::1]:443`"),
        ("2001:db8::1", "write `[2001:db8::1]:443`"),
        ("fd00::/8:443", "write `[fd00::/8]:443`"),
        ("fd00::/8", "write `[fd00::/8]:443`"),
        ("[fd00::]/8:443", "write `[fd00::/8]:443`"),
        ("[fd00::]/8", "write `[fd00::/8]:443`"),
        ("https://x", "write `x:443`"),
        ("http://x/y:z?u=@v", "write `x:80`"),
        ("https://user:secret@x:8443/", "write `x:8443`"),
        ("ssh://git@example.com/x", "write `example.com:22`"),
        ("https://", "write `example.com:443`"),
        ("**:443", "* is a whole host"),
        ("**.example.com:443", "* is a whole host"),
        ("*.*:443", "* is a whole host"),
        ("*.*.b:443", "* is a whole host"),
        ("a*.b:443", "* is a whole host"),
        ("*b.c:443", "* is a whole host"),
        ("a.*.b:443", "* is a whole host"),
        ("*.10.0.0.1:443", "* is a whole host"),
        ("*.[::1]:443", "* is a whole host"),
        ("*.:443", "host is missing"),
        ("*..example.com:443", "1 to 63"),
        ("*.0.0.1:443", "does not end in a number"),
        ("127.1:80", "does not end in a number"),
        ("user@example.com:443", "userinfo"),
        ("a b:443", "whitespace"),
        ("a\n:443", "control"),
        ("10.1.2.3/8:443", "the network is 10.0.0.0/8"),
        ("[fd00::1/8]:443", "the network is fd00::/8"),
        ("10.0.0.0/33:443", "prefix"),
        ("[10.0.0.0/8]:443", "neither an address"),
        ("example.com/8:443", "neither an address"),
        ("[10.0.0.1]:443", "no IPv6 address"),
    ] {
        let error = text.parse::<Rule>().expect_err(text).to_string();
        assert!(error.contains(words), "{text:?}: {error}");
        assert!(!error.ends_with('.'), "{error}");
    }
}

#[test]
fn rules_match_only_their_destinations() {
    for (text, matched, not) in [
        (
            "example.com:443",
            &["example.com:443", "EXAMPLE.com.:443"][..],
            &["example.com:80", "www.example.com:443", "notexample.com:443", "example.com.evil.example:443"]
                [..],
        ),
        (
            "*.example.com:443",
            &["www.example.com:443", "a.b.example.com:443", "WWW.Example.Com.:443"],
            &["example.com:443", "notexample.com:443", "www.example.com:80", "example.com.evil.example:443"],
        ),
        ("xn--bcher-kva.example:443", &["bücher.example:443"], &["bucher.example:443"]),
        ("example.com:*", &["example.com:1", "example.com:65535"], &["www.example.com:1"]),
        ("*:443", &["a:443", "10.0.0.1:443", "[::1]:443"], &["a:80"]),
        ("*:*", &["a:1", "127.0.0.1:1", "[fd00::1]:65535"], &[]),
        (
            "127.0.0.1:80",
            &["127.0.0.1:80", "[::ffff:127.0.0.1]:80"],
            &["127.0.0.2:80", "[::1]:80", "localhost:80", "127.0.0.1.nip.io:80", "[::127.0.0.1]:80"],
        ),
        ("[::ffff:127.0.0.1]:80", &["127.0.0.1:80"], &["[::1]:80"]),
        (
            "10.0.0.0/8:5432",
            &["10.0.0.0:5432", "10.255.255.255:5432", "[::ffff:10.1.2.3]:5432"],
            &["11.0.0.0:5432", "9.255.255.255:5432", "10.0.0.1:5433", "10.example:5432"],
        ),
        (
            "[fd00::/8]:443",
            &["[fd00::1]:443", "[fdff::]:443"],
            &["[fc00::1]:443", "[fe00::]:443", "10.0.0.1:443"],
        ),
        ("0.0.0.0/0:*", &["127.0.0.1:1", "[::ffff:1.2.3.4]:1"], &["[::1]:1", "a:1"]),
        ("[::/0]:*", &["[::1]:1"], &["1.2.3.4:1", "[::ffff:1.2.3.4]:1", "a:1"]),
    ] {
        let rule = rule(text);
        assert!(matched.iter().all(|at| rule.matches(&to(at))), "{text} matches {matched:?}");
        assert!(not.iter().all(|at| !rule.matches(&to(at))), "{text} does not match {not:?}");
    }
}

#[test]
fn an_empty_list_matches_nothing() {
    let none = rules(&[]);
    assert!(none.is_empty() && none.to_string().is_empty());
    assert!(none.find(&to("example.com:443")).is_none());
    assert!(!none.may_match(&to("example.com:443").host));
    assert!(!none.lists([10, 0, 0, 1].into(), 80));
}

#[test]
fn a_list_returns_the_matching_rule_or_the_index_of_an_error() {
    let list = rules(&["*.example.com:443", "www.example.com:*", "10.0.0.0/8:80"]);
    assert!(!list.is_empty());
    assert_eq!(list.to_string(), "*.example.com:443, www.example.com:*, 10.0.0.0/8:80");
    assert_eq!(list.find(&to("www.example.com:443")), Some(&rule("*.example.com:443")));
    assert_eq!(list.find(&to("www.example.com:80")), Some(&rule("www.example.com:*")));
    assert_eq!(list.find(&to("example.com:443")), None);
    assert!(list.may_match(&to("a.example.com:1").host) && !list.may_match(&to("example.com:443").host));
    let (at, error) = Rules::parse(["a:1", "b"]).expect_err("no port");
    assert_eq!((at, error), (1, RuleError::NoPort("b:443".into())));
}

#[test]
fn a_star_lists_no_address_and_localhost_lists_loopback() {
    let list = rules(&["*:*", "*:80", "x.localhost:7", "localhost:90", "10.0.0.0/8:5432", "[::1]:80"]);
    for (ip, port, listed) in [
        ("10.1.2.3", 5432, true),
        ("::ffff:10.1.2.3", 5432, true),
        ("10.1.2.3", 80, false),
        ("127.0.0.1", 80, false),
        ("127.0.0.1", 7, false),
        ("127.0.0.1", 90, true),
        ("::1", 90, true),
        ("10.1.2.3", 90, false),
        ("::1", 80, true),
        ("::1", 81, false),
    ] {
        assert_eq!(list.lists(ip.parse().expect(ip), port), listed, "{ip} {port}");
    }
}

#[test]
fn low_ports_come_from_the_rules() {
    let list = rules(&["a:443", "b:80", "*.c:443", "d:*", "e:1024", "f:8080", "10.0.0.0/8:1023", "*:22"]);
    assert_eq!(list.low_ports().collect::<Vec<_>>(), [22, 80, 443, 1023]);
}

/// Names with few labels, so that one is often below another.
fn name() -> impl Strategy<Value = Vec<&'static str>> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "ab", "example"]), 1..4)
}

fn port() -> impl Strategy<Value = Option<u16>> {
    prop::option::of(1u16..4)
}

fn port_text(port: Option<u16>) -> String {
    port.map_or("*".to_owned(), |port| port.to_string())
}

proptest! {
    #[test]
    fn names_match_as_lists_of_labels_do(
        pattern in name(), star in any::<bool>(), at in port(), asked in name(), asked_port in 1u16..4,
    ) {
        let head = if star { "*." } else { "" };
        let rule = rule(&format!("{head}{}:{}", pattern.join("."), port_text(at)));
        let host_matches = if star {
            asked.len() > pattern.len() && asked.ends_with(&pattern)
        } else {
            asked == pattern
        };
        let expected = host_matches && at.is_none_or(|port| port == asked_port);
        prop_assert_eq!(rule.matches(&to(&format!("{}:{asked_port}", asked.join(".")))), expected);
    }

    #[test]
    fn networks_match_as_their_first_bits_do(
        base in any::<u32>(), prefix in 0u32..=32, flip in 0u32..=32, at in port(), asked_port in 1u16..4,
    ) {
        let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
        let network = std::net::Ipv4Addr::from(base & mask);
        let rule = rule(&format!("{network}/{prefix}:{}", port_text(at)));
        // At most one bit of the address changes.
        let asked = base ^ 1u32.checked_shl(flip).unwrap_or(0);
        let expected = asked & mask == base & mask && at.is_none_or(|port| port == asked_port);
        let asked = std::net::Ipv4Addr::from(asked);
        prop_assert_eq!(rule.matches(&to(&format!("{asked}:{asked_port}"))), expected);
        let mapped = asked.to_ipv6_mapped();
        prop_assert_eq!(rule.matches(&to(&format!("[{mapped}]:{asked_port}"))), expected);
        let list = Rules(vec![rule]);
        prop_assert_eq!(list.lists(asked.into(), asked_port), expected);
    }

    #[test]
    fn networks_of_ipv6_match_as_their_first_bits_do(base in any::<u128>(), prefix in 0u32..=128, flip in 0u32..=128) {
        let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
        let network = std::net::Ipv6Addr::from(base & mask);
        let rule = rule(&format!("[{network}/{prefix}]:1"));
        let asked = base ^ 1u128.checked_shl(flip).unwrap_or(0);
        let address = std::net::Ipv6Addr::from(asked);
        prop_assume!(address.to_ipv4_mapped().is_none() && network.to_ipv4_mapped().is_none());
        prop_assert_eq!(rule.matches(&to(&format!("[{address}]:1"))), asked & mask == base & mask);
    }

    #[test]
    fn parsing_never_panics_and_rules_round_trip(
        text in prop_oneof![any::<String>(), "[*a.:/0-9\\[\\]@-]{0,14}", "[\\[:f0-9/\\]]{0,10}:[0-9*]{0,5}"],
    ) {
        match text.parse::<Rule>() {
            Ok(rule) => prop_assert_eq!(rule.to_string().parse(), Ok(rule)),
            // Every suggestion is a valid rule.
            Err(RuleError::NoPort(suggestion) | RuleError::Brackets(suggestion) | RuleError::Url(suggestion)) => {
                prop_assert!(suggestion.parse::<Rule>().is_ok(), "{text:?}: {suggestion}");
            }
            Err(_) => {}
        }
    }

    #[test]
    fn a_list_may_match_a_host_exactly_if_it_matches_at_some_port(
        patterns in prop::collection::vec((name(), port()), 0..4), asked in name(),
    ) {
        let texts: Vec<String> =
            patterns.iter().map(|(name, port)| format!("{}:{}", name.join("."), port_text(*port))).collect();
        let list = Rules::parse(texts.iter().map(String::as_str)).expect("rules");
        let host = DestinationHost::parse(&asked.join(".")).expect("a name");
        let found = (1..4).any(|port| list.find(&Destination { host: host.clone(), port }).is_some());
        prop_assert_eq!(list.may_match(&host), found);
    }
}

#[test]
fn a_preset_stands_for_its_own_list() {
    let list = rules(&["a.example:1", "@cargo", "@github"]);
    for (asked, is_listed) in [
        ("index.crates.io:443", true),
        ("index.crates.io:80", false),
        ("upload.crates.io:443", false),
        ("raw.githubusercontent.com:443", true),
        ("a.example:1", true),
    ] {
        assert_eq!(list.find(&to(asked)).is_some(), is_listed, "{asked}");
    }
    let (at, error) = Rules::parse(["@npm", "@carg"]).expect_err("unknown");
    assert!(at == 1 && error.to_string().contains("(did you mean @cargo?)"), "{error}");
}
