//! The DNS stub in the sandbox. An allowed name gets a loopback address of the proxy; any other name does not
//! exist. It parses and writes messages, and sends no query to other servers.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hickory_proto::op::{Edns, Message, MessageType, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use ipnet::Ipv4Net;

use crate::policy::network::destination::DnsName;
use crate::sys::locked;

/// Seconds. Addresses do not change, but another session may not allow the name.
const TTL: u32 = 60;

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DnsAnswer {
    Address(Ipv4Addr),
    NoSuchName,
    /// The table of addresses is full.
    Busy,
}

/// The answer to a query, at most 512 bytes, which every resolver accepts. It calls `lookup` for every record
/// type, so that a missing name is missing for all of them.
///
/// `None` if the bytes are no query.
pub(crate) fn answer(query: &[u8], lookup: impl FnOnce(&DnsName) -> DnsAnswer) -> Option<Vec<u8>> {
    let query = Message::from_vec(query).ok()?;
    // Two servers could answer each other's answers for ever.
    if query.metadata.message_type != MessageType::Query {
        return None;
    }
    let mut reply = Message::response(query.metadata.id, query.metadata.op_code);
    reply.metadata = Metadata::response_from_request(&query.metadata);
    reply.metadata.recursion_available = true;
    reply.edns = query.edns.as_ref().map(|_| Edns::new());
    // Several questions are not repeated: their names could exceed the size of the answer.
    if let [question] = &*query.queries {
        reply.queries.push(question.clone());
    }
    reply.metadata.response_code = match question(&query) {
        Ok(question) => fill(&mut reply, question, lookup),
        Err(refusal) => refusal,
    };
    reply.to_vec().ok()
}

/// The only question of a query, if the stub supports it.
fn question(query: &Message) -> Result<&Query, ResponseCode> {
    if query.metadata.op_code != OpCode::Query {
        return Err(ResponseCode::NotImp);
    }
    if query.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
        return Err(ResponseCode::BADVERS);
    }
    match &*query.queries {
        [question] => Ok(question),
        _ => Err(ResponseCode::FormErr),
    }
}

fn fill(reply: &mut Message, question: &Query, lookup: impl FnOnce(&DnsName) -> DnsAnswer) -> ResponseCode {
    if !matches!(question.query_class(), DNSClass::IN | DNSClass::ANY) {
        return ResponseCode::Refused;
    }
    let name = name_of(question).filter(|_| question.query_type() != RecordType::PTR);
    let address = match name.map_or(DnsAnswer::NoSuchName, |name| resolve(&name, lookup)) {
        DnsAnswer::Address(address) => address,
        DnsAnswer::NoSuchName => return ResponseCode::NXDomain,
        DnsAnswer::Busy => return ResponseCode::ServFail,
    };
    if matches!(question.query_type(), RecordType::A | RecordType::ANY) {
        reply.answers.push(Record::from_rdata(question.name().clone(), TTL, RData::A(A(address))));
    }
    // The name exists, and has no record of another type.
    ResponseCode::NoError
}

/// RFC 6761, 6.3: `localhost` names always mean loopback.
fn resolve(name: &DnsName, lookup: impl FnOnce(&DnsName) -> DnsAnswer) -> DnsAnswer {
    if name.as_str() == "localhost" || name.as_str().ends_with(".localhost") {
        return DnsAnswer::Address(Ipv4Addr::LOCALHOST);
    }
    lookup(name)
}

/// The name in a question. DNS labels may contain any byte: a dot, or a character that IDNA maps to a dot,
/// would make two labels of one, and so another name.
fn name_of(question: &Query) -> Option<DnsName> {
    let labels: Vec<&str> =
        question.name().iter().map(|label| str::from_utf8(label).ok()).collect::<Option<_>>()?;
    let plain = labels.iter().all(|label| label.is_ascii() && !label.contains('.'));
    if plain { DnsName::parse(&labels.join(".")).ok() } else { None }
}

// The loopback addresses that stand for names. The DNS stub gives an address to a name, and a connection to
// the address is a connection to the name. This table checks no rules; its callers do.

/// The range of the addresses. It leaves out 127.0.0.0/16, because programs know 127.0.0.1 and 127.0.0.53.
pub(crate) const NETWORK: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(127, 1, 0, 0), 16);

/// Names at most. A command may ask for any number of names below `*.example.com`.
pub(crate) const MAX_NAMES: usize = 4096;

/// How long a name keeps its address after its last use: longer than programs cache it.
const MIN_LIFETIME: Duration = Duration::from_secs(120);

/// Addresses used of each /24. Some programs take .0 for the network and .255 for broadcast.
const PER_BLOCK: usize = 254;

/// Maps names to addresses and back.
#[derive(Debug, Default)]
pub(crate) struct LoopbackNames(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// Indexed by slot, which determines the address; with the time of the last use.
    names: Vec<(DnsName, Instant)>,
    slots: HashMap<DnsName, usize>,
    /// Where to look next for an expired slot.
    clock_hand: usize,
}

impl LoopbackNames {
    /// The address of a name, allocated if needed. `None` if the table is full.
    pub(crate) fn address_of(&self, name: &DnsName) -> Option<Ipv4Addr> {
        self.address_at(name, Instant::now())
    }

    fn address_at(&self, name: &DnsName, now: Instant) -> Option<Ipv4Addr> {
        let mut table = self.table();
        let slot = match table.slots.get(name) {
            Some(&slot) => slot,
            None => table.free(now)?,
        };
        table.put(slot, name, now);
        address_at(slot)
    }

    /// The name that an address stands for.
    pub(crate) fn name_of(&self, address: Ipv4Addr) -> Option<DnsName> {
        let mut table = self.table();
        let (name, wanted) = table.names.get_mut(slot_of(address)?)?;
        *wanted = Instant::now();
        Some(name.clone())
    }

    /// Locks the table and ignores poisoning: no code between two changes of it can panic.
    fn table(&self) -> MutexGuard<'_, Table> {
        locked(&self.0)
    }
}

impl Table {
    /// A slot for one more name: an unused one, or an expired one.
    fn free(&mut self, now: Instant) -> Option<usize> {
        if self.names.len() < MAX_NAMES {
            return Some(self.names.len());
        }
        let at = self.clock_hand;
        // One slot for each query, so that a flood of queries stays cheap.
        self.clock_hand = (at + 1) % MAX_NAMES;
        let (name, wanted) = self.names.get(at)?;
        if now.saturating_duration_since(*wanted) < MIN_LIFETIME {
            return None;
        }
        self.slots.remove(name);
        Some(at)
    }

    fn put(&mut self, slot: usize, name: &DnsName, now: Instant) {
        match self.names.get_mut(slot) {
            Some(entry) => *entry = (name.clone(), now),
            None => self.names.push((name.clone(), now)),
        }
        self.slots.insert(name.clone(), slot);
    }
}

fn address_at(slot: usize) -> Option<Ipv4Addr> {
    let row = u8::try_from(slot / PER_BLOCK).ok()?;
    let last = u8::try_from(slot % PER_BLOCK + 1).ok()?;
    let [a, b, ..] = NETWORK.addr().octets();
    Some(Ipv4Addr::new(a, b, row, last))
}

fn slot_of(address: Ipv4Addr) -> Option<usize> {
    let [.., row, last] = address.octets();
    let column = usize::from(last).checked_sub(1).filter(|&column| column < PER_BLOCK)?;
    NETWORK.contains(&address).then_some(usize::from(row) * PER_BLOCK + column)
}

#[cfg(test)]
mod loopback_names_tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> DnsName {
        DnsName::parse(text).expect(text)
    }

    #[test]
    fn a_name_keeps_its_address_and_the_address_leads_back() {
        let names = LoopbackNames::default();
        let first = names.address_of(&name("crates.io")).expect("the first");
        let second = names.address_of(&name("static.crates.io")).expect("the second");
        assert_eq!([first, second], [Ipv4Addr::new(127, 1, 0, 1), Ipv4Addr::new(127, 1, 0, 2)]);
        assert_eq!(names.address_of(&name("CRATES.io.")), Some(first));
        assert_eq!(names.name_of(second), Some(name("static.crates.io")));
        for nobody in [[127, 1, 0, 3], [127, 1, 0, 0], [127, 1, 0, 255], [127, 0, 0, 1], [127, 2, 0, 1]] {
            assert_eq!(names.name_of(nobody.into()), None, "{nobody:?}");
        }
    }

    #[test]
    fn no_more_names_than_there_may_be() {
        let names = LoopbackNames::default();
        let addresses: HashSet<Ipv4Addr> = (0..MAX_NAMES)
            .map(|n| names.address_of(&name(&format!("n{n}.example"))).expect("room"))
            .collect();
        assert_eq!(addresses.len(), MAX_NAMES);
        assert!(addresses.iter().all(|address| NETWORK.contains(address)));
        assert!(addresses.iter().all(|address| !matches!(address.octets(), [.., 0 | 255])));
        assert_eq!(names.address_of(&name("one-more.example")), None);
        assert!(names.address_of(&name("n7.example")).is_some(), "who has an address keeps it");
    }

    #[test]
    fn a_place_is_given_again_once_nobody_has_wanted_its_name_for_long() {
        let (names, now) = (LoopbackNames::default(), Instant::now());
        for n in 0..MAX_NAMES {
            names.address_at(&name(&format!("n{n}.example")), now).expect("room");
        }
        assert_eq!(names.address_at(&name("late.example"), now + MIN_LIFETIME / 2), None);
        let later = now + MIN_LIFETIME * 2;
        names.address_at(&name("n1.example"), later).expect("it has one");
        // The clock clock_hand passes over that slot.
        let second = (0..3).find_map(|_| names.address_at(&name("late.example"), later));
        assert_ne!(second, None, "the slot of a name that nobody wants");
        assert_eq!(second.and_then(|address| names.name_of(address)), Some(name("late.example")));
        let kept = names.address_at(&name("n1.example"), later);
        assert_eq!(kept.and_then(|address| names.name_of(address)), Some(name("n1.example")));
    }

    proptest! {
        #[test]
        fn names_and_addresses_are_one_to_one(asked in prop::collection::vec("[a-c]{1,3}", 0..60)) {
            let names = LoopbackNames::default();
            let distinct: HashSet<&String> = asked.iter().collect();
            let mut addresses = HashSet::new();
            for text in &asked {
                let address = names.address_of(&name(text)).expect("room");
                prop_assert_eq!(names.name_of(address), Some(name(text)));
                addresses.insert(address);
            }
            prop_assert_eq!(addresses.len(), distinct.len());
        }

        #[test]
        fn an_address_has_one_place(slot in 0..MAX_NAMES) {
            prop_assert_eq!(address_at(slot).and_then(slot_of), Some(slot));
        }
    }
}
