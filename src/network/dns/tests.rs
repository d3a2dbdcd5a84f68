//! Tests of the DNS stub: real messages, malformed ones, and arbitrary bytes.

use std::cell::RefCell;

use RecordType as Type;
use hickory_proto::rr;
use proptest::prelude::*;

use super::*;

const GIVEN: Ipv4Addr = Ipv4Addr::new(127, 1, 0, 1);

/// Knows `crates.io` and names below `example.com`. For `busy.example.com` the table is full.
fn lookup(name: &DnsName) -> DnsAnswer {
    match name.as_str() {
        "busy.example.com" => DnsAnswer::Busy,
        "crates.io" => DnsAnswer::Address(GIVEN),
        other if other.ends_with(".example.com") => DnsAnswer::Address(GIVEN),
        _ => DnsAnswer::NoSuchName,
    }
}

fn labels(labels: &[&[u8]]) -> rr::Name {
    let mut name = rr::Name::from_labels(labels.iter().copied()).expect("a name");
    name.set_fqdn(true);
    name
}

fn named(name: &str) -> rr::Name {
    labels(&name.split('.').map(str::as_bytes).collect::<Vec<_>>())
}

fn query(name: rr::Name, kind: RecordType) -> Message {
    let mut query = Message::new(7, MessageType::Query, OpCode::Query);
    query.metadata.recursion_desired = true;
    query.queries.push(Query::query(name, kind));
    query
}

fn ask(query: &Message) -> Message {
    let bytes = answer(&query.to_vec().expect("a query"), lookup).expect("an answer");
    Message::from_vec(&bytes).expect("an answer that parses")
}

fn addresses(message: &Message) -> Vec<Ipv4Addr> {
    let records = message.answers.iter();
    records
        .map(|record| match &record.data {
            RData::A(A(address)) => *address,
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn a_name_that_is_there_has_an_address_and_nothing_else() {
    for (kind, expected) in [
        (Type::A, &[GIVEN][..]),
        (Type::ANY, &[GIVEN]),
        (Type::AAAA, &[]),
        (Type::HTTPS, &[]),
        (Type::SVCB, &[]),
        (Type::TXT, &[]),
        (Type::MX, &[]),
        (Type::Unknown(4711), &[]),
    ] {
        for name in ["crates.io", "a.b.example.com"] {
            let reply = ask(&query(named(name), kind));
            assert_eq!(reply.metadata.response_code, ResponseCode::NoError, "{kind} {name}");
            assert_eq!(addresses(&reply), expected, "{kind} {name}");
            assert!(reply.answers.iter().all(|record| record.ttl == TTL && record.name == named(name)));
        }
    }
}

#[test]
fn a_name_that_is_not_there_is_not_there_for_any_type() {
    for kind in [RecordType::A, RecordType::AAAA, RecordType::HTTPS, RecordType::TXT, RecordType::ANY] {
        let reply = ask(&query(named("evil.example"), kind));
        assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain, "{kind}");
        assert!(reply.answers.is_empty());
        let reply = ask(&query(named("busy.example.com"), kind));
        assert_eq!(reply.metadata.response_code, ResponseCode::ServFail, "{kind}");
    }
}

#[test]
fn nobody_is_asked_for_what_is_no_name_of_a_host() {
    for (name, kind) in [
        (named("1.0.0.127.in-addr.arpa"), RecordType::PTR),
        (named("crates.io"), RecordType::PTR),
        (rr::Name::root(), RecordType::NS),
        (named("127.0.0.1"), RecordType::A),
        (named("2130706433"), RecordType::A),
        (named("0x7f000001"), RecordType::A),
        (labels(&[b"crates.io"]), RecordType::A),
        (labels(&[b"evil", b"x.example", b"com"]), RecordType::A),
        (labels(&["x。example".as_bytes(), b"com"]), RecordType::A),
        (labels(&[b"*", b"example", b"com"]), RecordType::A),
        (labels(&[b"a b", b"example", b"com"]), RecordType::A),
        (labels(&[b"a\0", b"example", b"com"]), RecordType::A),
        (labels(&[b"\xff", b"example", b"com"]), RecordType::A),
    ] {
        let bytes = query(name.clone(), kind).to_vec().expect("a query");
        let bytes = answer(&bytes, |asked| panic!("asked for {asked}")).expect("an answer");
        let reply = Message::from_vec(&bytes).expect("an answer that parses");
        assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain, "{name} {kind}");
    }
}

#[test]
fn localhost_is_loopback_without_asking() {
    for (name, kind, count) in [
        ("localhost", RecordType::A, 1),
        ("LocalHost", RecordType::A, 1),
        ("db.localhost", RecordType::A, 1),
        ("localhost", RecordType::AAAA, 0),
    ] {
        let bytes = query(named(name), kind).to_vec().expect("a query");
        let bytes = answer(&bytes, |asked| panic!("asked for {asked}")).expect("an answer");
        let reply = Message::from_vec(&bytes).expect("an answer that parses");
        assert_eq!(reply.metadata.response_code, ResponseCode::NoError, "{name}");
        assert_eq!(addresses(&reply), vec![Ipv4Addr::LOCALHOST; count], "{name}");
    }
    let reply = ask(&query(named("notlocalhost"), RecordType::A));
    assert_eq!(reply.metadata.response_code, ResponseCode::NXDomain);
}

#[test]
fn names_are_asked_for_in_their_form_and_answered_in_the_clients() {
    let asked = RefCell::new(None);
    let bytes = query(named("CraTes.IO"), RecordType::A).to_vec().expect("a query");
    let reply = answer(&bytes, |name| {
        asked.replace(Some(name.clone()));
        lookup(name)
    });
    let reply = reply.expect("an answer");
    assert_eq!(asked.into_inner(), DnsName::parse("crates.io").ok());
    // The answer repeats the question byte for byte: some clients vary the case and compare it.
    assert_eq!(reply[12..bytes.len()], bytes[12..]);
    let message = Message::from_vec(&reply).expect("an answer that parses");
    let flags = message.metadata;
    assert_eq!(addresses(&message), [GIVEN]);
    assert!(message.answers[0].name.eq_case(&named("CraTes.IO")));
    assert_eq!((flags.id, flags.message_type), (7, MessageType::Response));
    assert!(flags.recursion_available && flags.recursion_desired);
    assert!(!flags.authoritative && !flags.truncation && !flags.authentic_data);
}

#[test]
fn what_is_not_for_us_is_refused_with_its_code() {
    let base = || query(named("crates.io"), RecordType::A);
    let mut status = base();
    status.metadata.op_code = OpCode::Status;
    let mut unknown = base();
    unknown.metadata.op_code = OpCode::Unknown(9);
    let mut two = base();
    two.queries.push(Query::query(named("example.com"), RecordType::A));
    let mut none = base();
    none.queries.clear();
    let mut chaos = base();
    chaos.queries[0].set_query_class(DNSClass::CH);
    let mut version = base();
    version.set_edns(Edns::new()).edns.as_mut().expect("set").set_version(1);
    for (query, code) in [
        (status, ResponseCode::NotImp),
        (unknown, ResponseCode::NotImp),
        (two, ResponseCode::FormErr),
        (none, ResponseCode::FormErr),
        (chaos, ResponseCode::Refused),
        (version, ResponseCode::BADVERS),
    ] {
        let reply = ask(&query);
        let high = reply.edns.as_ref().map_or(0, Edns::rcode_high);
        // Compared as a number, because 16 has two names.
        assert_eq!(u16::from(ResponseCode::from(high, reply.metadata.response_code.low())), u16::from(code));
        assert_eq!(reply.metadata.op_code, query.metadata.op_code);
        assert!(reply.answers.is_empty());
    }
}

#[test]
fn edns_is_answered_with_edns() {
    let mut query = query(named("crates.io"), RecordType::A);
    assert!(ask(&query).edns.is_none());
    query.set_edns(Edns::new()).edns.as_mut().expect("set").set_max_payload(4096).set_dnssec_ok(true);
    let reply = ask(&query);
    assert_eq!(addresses(&reply), [GIVEN]);
    assert_eq!(reply.edns.expect("an OPT").version(), 0);
}

#[test]
fn what_is_no_query_gets_no_answer() {
    let whole = query(named("crates.io"), RecordType::A).to_vec().expect("a query");
    for length in 0..whole.len() {
        assert_eq!(answer(&whole[..length], lookup), None, "{length} bytes");
    }
    assert_eq!(answer(&[0xff; 512], lookup), None);
    assert_eq!(answer(&[b'x'; 65535], lookup), None);
    let mut response = query(named("crates.io"), RecordType::A);
    response.metadata.message_type = MessageType::Response;
    assert_eq!(answer(&response.to_vec().expect("a message"), lookup), None);
    // A compression pointer to itself.
    let mut looped = whole[..12].to_vec();
    looped.extend([0xc0, 12, 0, 1, 0, 1]);
    assert_eq!(answer(&looped, lookup), None);
}

#[test]
fn the_longest_name_fits_into_an_answer() {
    let name = format!("{0}.{0}.{0}.{1}.example.com", "a".repeat(63), "a".repeat(49));
    assert_eq!(name.len(), 253);
    let mut query = query(named(&name), RecordType::A);
    query.set_edns(Edns::new());
    let bytes = answer(&query.to_vec().expect("a query"), lookup).expect("an answer");
    assert!(bytes.len() <= 512, "{}", bytes.len());
    assert_eq!(addresses(&Message::from_vec(&bytes).expect("an answer that parses")), [GIVEN]);
}

/// Checks the promises about answers for arbitrary bytes.
fn holds(bytes: &[u8]) -> Result<(), TestCaseError> {
    let Some(reply) = answer(bytes, lookup) else { return Ok(()) };
    prop_assert!(reply.len() <= bytes.len().max(512));
    prop_assert_eq!(&reply[..2], &bytes[..2]);
    let reply = Message::from_vec(&reply).expect("an answer that parses");
    let query = Message::from_vec(bytes).expect("only what parses is answered");
    prop_assert_eq!(reply.metadata.message_type, MessageType::Response);
    prop_assert!(reply.metadata.recursion_available && !reply.metadata.authoritative);
    if let [question] = &*query.queries {
        prop_assert_eq!(&reply.queries, &query.queries);
        prop_assert!(reply.queries.iter().all(|echoed| echoed.name().eq_case(question.name())));
    }
    Ok(())
}

fn name() -> impl Strategy<Value = rr::Name> {
    let label = prop::collection::vec(any::<u8>(), 1..=63);
    prop::collection::vec(label, 0..5).prop_filter_map("a name of 255 bytes at most", |labels| {
        let mut name = rr::Name::from_labels(labels.iter().map(Vec::as_slice)).ok()?;
        name.set_fqdn(true);
        Some(name)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_are_answered_or_not(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        holds(&bytes)?;
    }

    #[test]
    fn a_query_with_wrong_bytes_is_answered_or_not(
        kind in any::<u16>(), edns in any::<bool>(),
        wrong in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        more in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut query = query(named("a.Example.com"), RecordType::from(kind));
        if edns {
            query.set_edns(Edns::new());
        }
        let mut bytes = query.to_vec().expect("a query");
        for (at, byte) in wrong {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.extend(more);
        holds(&bytes)?;
    }

    #[test]
    fn any_question_is_answered(name in name(), kind in any::<u16>(), class in any::<u16>(), id in any::<u16>()) {
        let mut query = query(name, RecordType::from(kind));
        query.metadata.id = id;
        query.queries[0].set_query_class(DNSClass::from(class));
        let bytes = query.to_vec().expect("a query");
        prop_assert!(answer(&bytes, lookup).is_some());
        holds(&bytes)?;
    }
}
