//! The loopback addresses that stand for names inside: the DNS stub gives a name one of them, and who connects to it
//! asks for the name. Pure: answers no query, and knows of no rule; who asks for an address decides for whom.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ipnet::Ipv4Net;

use crate::policy::destination::Name;
use crate::sys::locked;

/// Where the addresses are from. Not where 127.0.0.1 and 127.0.0.53 are, which mean something to programs.
pub(crate) const NETWORK: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(127, 1, 0, 0), 16);

/// Names with an address, at most. What is inside can ask for any name below `*.example.com`, and we remember it.
pub(crate) const MOST: usize = 4096;

/// How long a name keeps its address for sure after it was asked for or connected to: longer than programs remember it.
const KEPT: Duration = Duration::from_secs(120);

/// Addresses of a /24 that are given out: .0 and .255 look like a network and a broadcast to some programs.
const IN_A_ROW: usize = 254;

/// Names and their addresses. A name that has one keeps it.
#[derive(Debug, Default)]
pub(crate) struct LoopbackNames(Mutex<Given>);

#[derive(Debug, Default)]
struct Given {
    /// By place, which says the address; and when it was last wanted.
    names: Vec<(Name, Instant)>,
    places: HashMap<Name, usize>,
    /// Where to look next for a place that nobody wants any more.
    hand: usize,
}

impl LoopbackNames {
    /// The address of a name, from now on. `None`: too many names have one.
    pub(crate) fn address_of(&self, name: &Name) -> Option<Ipv4Addr> {
        self.address_at(name, Instant::now())
    }

    fn address_at(&self, name: &Name, now: Instant) -> Option<Ipv4Addr> {
        let mut given = self.given();
        let place = match given.places.get(name) {
            Some(&place) => place,
            None => given.free(now)?,
        };
        given.put(place, name, now);
        address_at(place)
    }

    /// The name that got the address.
    pub(crate) fn name_of(&self, address: Ipv4Addr) -> Option<Name> {
        let mut given = self.given();
        let (name, wanted) = given.names.get_mut(place_of(address)?)?;
        *wanted = Instant::now();
        Some(name.clone())
    }

    /// A panic elsewhere leaves both tables as they were: nothing that panics comes between their changes.
    fn given(&self) -> MutexGuard<'_, Given> {
        locked(&self.0)
    }
}

impl Given {
    /// A place for one more name: a new one, or one whose name nobody has wanted for long.
    fn free(&mut self, now: Instant) -> Option<usize> {
        if self.names.len() < MOST {
            return Some(self.names.len());
        }
        let at = self.hand;
        // One look for each question, so that a flood of them costs no more than that.
        self.hand = (at + 1) % MOST;
        let (name, wanted) = self.names.get(at)?;
        if now.saturating_duration_since(*wanted) < KEPT {
            return None;
        }
        self.places.remove(name);
        Some(at)
    }

    fn put(&mut self, place: usize, name: &Name, now: Instant) {
        match self.names.get_mut(place) {
            Some(given) => *given = (name.clone(), now),
            None => self.names.push((name.clone(), now)),
        }
        self.places.insert(name.clone(), place);
    }
}

fn address_at(place: usize) -> Option<Ipv4Addr> {
    let row = u8::try_from(place / IN_A_ROW).ok()?;
    let last = u8::try_from(place % IN_A_ROW + 1).ok()?;
    let [a, b, ..] = NETWORK.addr().octets();
    Some(Ipv4Addr::new(a, b, row, last))
}

fn place_of(address: Ipv4Addr) -> Option<usize> {
    let [.., row, last] = address.octets();
    let column = usize::from(last).checked_sub(1).filter(|&column| column < IN_A_ROW)?;
    NETWORK.contains(&address).then_some(usize::from(row) * IN_A_ROW + column)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> Name {
        Name::parse(text).expect(text)
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
        let addresses: HashSet<Ipv4Addr> =
            (0..MOST).map(|n| names.address_of(&name(&format!("n{n}.example"))).expect("room")).collect();
        assert_eq!(addresses.len(), MOST);
        assert!(addresses.iter().all(|address| NETWORK.contains(address)));
        assert!(addresses.iter().all(|address| !matches!(address.octets(), [.., 0 | 255])));
        assert_eq!(names.address_of(&name("one-more.example")), None);
        assert!(names.address_of(&name("n7.example")).is_some(), "who has an address keeps it");
    }

    #[test]
    fn a_place_is_given_again_once_nobody_has_wanted_its_name_for_long() {
        let (names, now) = (LoopbackNames::default(), Instant::now());
        for n in 0..MOST {
            names.address_at(&name(&format!("n{n}.example")), now).expect("room");
        }
        assert_eq!(names.address_at(&name("late.example"), now + KEPT / 2), None);
        let later = now + KEPT * 2;
        names.address_at(&name("n1.example"), later).expect("it has one");
        // That one is passed over.
        let second = (0..3).find_map(|_| names.address_at(&name("late.example"), later));
        assert_ne!(second, None, "the place of a name that nobody wants");
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
        fn an_address_has_one_place(place in 0..MOST) {
            prop_assert_eq!(address_at(place).and_then(place_of), Some(place));
        }
    }
}
