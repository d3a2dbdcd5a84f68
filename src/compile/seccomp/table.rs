//! From lists of system calls to ranges of numbers: what every `u32` leads to. Pure, and complete by
//! construction: a number nobody listed is unknown.

use libc::c_long;

use super::rule::{Rule, Verdict};
use super::rules::RULES;
use super::syscalls;

/// Numbers from here on belong to x32, whose calls take other structures: a filter for one must not judge
/// the other.
const X32: u32 = 0x4000_0000;
/// The number a tracer sets to have a call skipped (strace --inject); the kernel has no such call either.
const SKIPPED: u32 = u32::MAX;
/// Above every number that Linux has given out.
const SIZE: u32 = 512;

const UNKNOWN_ERRNO: u32 = libc::ENOSYS.cast_unsigned();
const UNKNOWN: Decision = Decision::Verdict(Verdict::Refuse(UNKNOWN_ERRNO));
const KILL: Decision = Decision::Verdict(Verdict::Kill);

/// What a number leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The same for all arguments.
    Verdict(Verdict),
    /// It depends: the index of a rule.
    Rule(usize),
}

/// Numbers from `first` up to where the next range begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u32,
    pub(super) decision: Decision,
}

/// What each number below `SIZE` leads to, known when this is built. So is a mistake in the lists: a call in
/// two of them, or beyond the table, does not compile.
static DECISIONS: [Decision; SIZE as usize] = decisions();

const fn decisions() -> [Decision; SIZE as usize] {
    let mut table = [UNKNOWN; SIZE as usize];
    let mut index = 0;
    while index < RULES.len() {
        enter(&mut table, RULES[index].calls, Decision::Rule(index));
        index += 1;
    }
    enter_groups(&mut table, syscalls::ALLOWED, Verdict::Allow);
    enter_groups(&mut table, syscalls::REFUSED, Verdict::refuse(libc::EPERM));
    enter(&mut table, syscalls::HIDDEN, UNKNOWN);
    table
}

const fn enter_groups(table: &mut [Decision], groups: &[&[c_long]], verdict: Verdict) {
    let mut index = 0;
    while index < groups.len() {
        enter(table, groups[index], Decision::Verdict(verdict));
        index += 1;
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked by the index, at build")]
const fn enter(table: &mut [Decision], calls: &[c_long], decision: Decision) {
    let mut index = 0;
    while index < calls.len() {
        let entry = &mut table[calls[index] as usize];
        assert!(matches!(entry, Decision::Verdict(Verdict::Refuse(UNKNOWN_ERRNO))), "in two lists");
        *entry = decision;
        index += 1;
    }
}

/// What a number leads to.
pub(super) fn decision(number: u32) -> Decision {
    if (X32..SKIPPED).contains(&number) {
        return KILL;
    }
    usize::try_from(number).ok().and_then(|at| DECISIONS.get(at)).map_or(UNKNOWN, |known| *known)
}

/// Which part of all decisions a filter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Every one.
    Whole,
    /// Every one but those on the calls that make a worker, which are allowed.
    AllButMaking,
    /// Only those: every other call is allowed.
    Making,
}

impl Part {
    fn takes(self, number: u32) -> bool {
        let makes = syscalls::MAKING.iter().any(|call| u32::try_from(*call) == Ok(number));
        match self {
            Self::Whole => true,
            Self::AllButMaking => !makes,
            Self::Making => makes,
        }
    }
}

/// The whole number space as ranges, in rising order, neighbours differing.
pub(super) fn ranges(part: Part) -> Vec<Range> {
    let known = (0..).zip(DECISIONS.iter().copied());
    let above = [(SIZE, UNKNOWN), (X32, KILL), (SKIPPED, UNKNOWN)];
    let taken = |(first, decision)| {
        (first, if part.takes(first) { decision } else { Decision::Verdict(Verdict::Allow) })
    };
    merged(known.chain(above).map(taken))
}

/// The whole number space for a program of our own that makes few calls: those that `allowed` lists or `rules` decide
/// about. Any other ends it.
pub(super) fn only(allowed: &[c_long], rules: &[Rule]) -> Vec<Range> {
    let decide = |number: u32| {
        let is_it = |call: &c_long| u32::try_from(*call) == Ok(number);
        match rules.iter().position(|rule| rule.calls.iter().any(is_it)) {
            Some(rule) => Decision::Rule(rule),
            None if allowed.iter().any(is_it) => Decision::Verdict(Verdict::Allow),
            None => KILL,
        }
    };
    merged((0..SIZE).map(|number| (number, decide(number))).chain([(SIZE, KILL)]))
}

/// Numbers with what each and all after it lead to, as ranges.
fn merged(decisions: impl Iterator<Item = (u32, Decision)>) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::with_capacity(128);
    for (first, decision) in decisions {
        if ranges.last().is_none_or(|last| last.decision != decision) {
            ranges.push(Range { first, decision });
        }
    }
    ranges
}
