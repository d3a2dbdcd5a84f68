//! From lists of system calls to ranges of numbers: a decision for every `u32`. A number in no list is
//! unknown.

use libc::c_long;

use crate::plan::seccomp::fake_root::rules_of;
use crate::plan::seccomp::rule::{Clause, FilterUser, FilterVerdict, SyscallRule, Test, Word};
use crate::plan::seccomp::rules::RULES;
use crate::plan::seccomp::syscalls;

/// First number of the x32 ABI. Its calls take other structures, so rules for x86_64 must not judge them.
const X32: u32 = 0x4000_0000;
/// The number that a tracer sets to skip a call (strace --inject). No system call has it.
const SKIPPED: u32 = u32::MAX;
/// Above every system call number of Linux.
const SIZE: u32 = 512;

const UNKNOWN_ERRNO: u32 = libc::ENOSYS.cast_unsigned();
const UNKNOWN: CallDecision = CallDecision::Verdict(FilterVerdict::Refuse(UNKNOWN_ERRNO));
const KILL: CallDecision = CallDecision::Verdict(FilterVerdict::Kill);

/// The decision for a system call number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallDecision {
    /// The same for all arguments.
    Verdict(FilterVerdict),
    /// It depends on the arguments: the index of a rule in [`rules`].
    Rule(usize),
}

/// Numbers from `first` up to the start of the next range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: u32,
    pub(crate) decision: CallDecision,
}

/// The decision for each number below `SIZE`, computed at build time. If a call is in two lists, or its
/// number is too large, the build fails.
static DECISIONS: [CallDecision; SIZE as usize] = decisions();

const fn decisions() -> [CallDecision; SIZE as usize] {
    let mut table = [UNKNOWN; SIZE as usize];
    let mut index = 0;
    while index < RULES.len() {
        enter(&mut table, RULES[index].calls, CallDecision::Rule(index));
        index += 1;
    }
    enter_groups(&mut table, syscalls::ALLOWED, FilterVerdict::Allow);
    enter_groups(&mut table, syscalls::REFUSED, FilterVerdict::refuse(libc::EPERM));
    enter(&mut table, syscalls::HIDDEN, UNKNOWN);
    table
}

const fn enter_groups(table: &mut [CallDecision], groups: &[&[c_long]], verdict: FilterVerdict) {
    let mut index = 0;
    while index < groups.len() {
        enter(table, groups[index], CallDecision::Verdict(verdict));
        index += 1;
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked by the index, at build")]
const fn enter(table: &mut [CallDecision], calls: &[c_long], decision: CallDecision) {
    let mut index = 0;
    while index < calls.len() {
        let entry = &mut table[calls[index] as usize];
        assert!(matches!(entry, CallDecision::Verdict(FilterVerdict::Refuse(UNKNOWN_ERRNO))), "in two lists");
        *entry = decision;
        index += 1;
    }
}

/// The rules for a user. Those that [`DECISIONS`] names come first.
pub(crate) fn rules(user: FilterUser) -> Vec<SyscallRule> {
    RULES.iter().chain(rules_of(user)).copied().collect()
}

/// The decision for a number.
pub(crate) fn decision(number: u32, user: FilterUser) -> CallDecision {
    if (X32..SKIPPED).contains(&number) {
        return KILL;
    }
    let is_it = |call: &c_long| u32::try_from(*call) == Ok(number);
    match rules_of(user).iter().position(|rule| rule.calls.iter().any(is_it)) {
        Some(at) => CallDecision::Rule(RULES.len() + at),
        None => usize::try_from(number).ok().and_then(|at| DECISIONS.get(at)).map_or(UNKNOWN, |known| *known),
    }
}

/// Which decisions a filter makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilterPart {
    /// All of them.
    Full,
    /// All except those on the calls that make a worker. These calls are allowed.
    Zygote,
    /// Only those on the calls that make a worker. Every other call is allowed.
    Worker,
}

impl FilterPart {
    fn takes(self, number: u32) -> bool {
        let creates_worker = syscalls::WORKER_CREATION.iter().any(|call| u32::try_from(*call) == Ok(number));
        match self {
            Self::Full => true,
            Self::Zygote => !creates_worker,
            Self::Worker => creates_worker,
        }
    }
}

/// All numbers as ranges, in rising order. Neighbouring ranges differ.
pub(crate) fn ranges(part: FilterPart, user: FilterUser) -> Vec<Range> {
    let known = (0..SIZE).map(|number| (number, decision(number, user)));
    let above = [(SIZE, UNKNOWN), (X32, KILL), (SKIPPED, UNKNOWN)];
    let taken = |(first, decision)| {
        (first, if part.takes(first) { decision } else { CallDecision::Verdict(FilterVerdict::Allow) })
    };
    merged(known.chain(above).map(taken))
}

/// All numbers as ranges, for a process of Kennel's own that makes few calls: those that `allowed` lists or
/// `rules` decide. Any other call ends the process.
pub(crate) fn only(allowed: &[c_long], rules: &[SyscallRule]) -> Vec<Range> {
    let decide = |number: u32| {
        let is_it = |call: &c_long| u32::try_from(*call) == Ok(number);
        match rules.iter().position(|rule| rule.calls.iter().any(is_it)) {
            Some(rule) => CallDecision::Rule(rule),
            None if allowed.iter().any(is_it) => CallDecision::Verdict(FilterVerdict::Allow),
            None => KILL,
        }
    };
    merged((0..SIZE).map(|number| (number, decide(number))).chain([(SIZE, KILL)]))
}

/// Merges neighbours with the same decision. Each decision holds until the next number.
fn merged(decisions: impl Iterator<Item = (u32, CallDecision)>) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::with_capacity(128);
    for (first, decision) in decisions {
        if ranges.last().is_none_or(|last| last.decision != decision) {
            ranges.push(Range { first, decision });
        }
    }
    ranges
}

// The verdict on one call, read directly from the lists and rules, and the arguments that it depends on. With
// `explain` the listener answers with it, so the errno must equal the filter's.

/// A call as a filter sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SystemCall {
    /// The system call number on x86_64.
    pub(crate) number: u32,
    pub(crate) arguments: [u64; 6],
}

/// An argument of a call, as far as a rule tests it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Argument {
    pub(crate) index: u8,
    pub(crate) value: u64,
}

/// The verdict on a call about which a listener was asked, and the arguments that it depends on.
/// The numbers of the own user and group are unknown here: the filter asks about no others than those of
/// strangers.
pub(crate) fn judge(call: &SystemCall, user: FilterUser) -> (FilterVerdict, Vec<Argument>) {
    match decision(call.number, user) {
        CallDecision::Verdict(verdict) => (verdict, Vec::new()),
        CallDecision::Rule(index) => {
            let mut rules = RULES.iter().chain(rules_of(user));
            let Some(rule) = rules.nth(index) else { return (FilterVerdict::Kill, Vec::new()) };
            match rule.clauses.iter().find(|clause| clause.when.iter().all(|test| holds(test, call))) {
                Some(clause) => (clause.then, arguments(clause, call)),
                None => (rule.otherwise, Vec::new()),
            }
        }
    }
}

fn holds(test: &Test, call: &SystemCall) -> bool {
    match *test {
        Test::OneOf(word, mask, values) => values.contains(&(read(word, call) & mask)),
        Test::NoneOf(word, mask, values) => !values.contains(&(read(word, call) & mask)),
        Test::AnyBit(word, mask) => read(word, call) & mask != 0,
    }
}

/// The arguments that a clause tests, reduced to the tested bits.
fn arguments(clause: &Clause, call: &SystemCall) -> Vec<Argument> {
    let seen = clause.when.iter().filter_map(|test| {
        let (Test::OneOf(word, mask, _) | Test::NoneOf(word, mask, _) | Test::AnyBit(word, mask)) = *test;
        let value = u64::from(read(word, call) & mask);
        match word {
            Word::Low(index) => Some(Argument { index, value }),
            Word::High(index) => Some(Argument { index, value: value << 32 }),
            Word::Number | Word::Arch => None,
        }
    });
    seen.collect()
}

fn read(word: Word, call: &SystemCall) -> u32 {
    let argument = |index: u8| call.arguments.get(usize::from(index)).copied().unwrap_or_default();
    let half = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap_or_default();
    match word {
        Word::Number => call.number,
        // The filter kills any other architecture before a listener is asked.
        Word::Arch => 0,
        Word::Low(index) => half(argument(index)),
        Word::High(index) => half(argument(index) >> 32),
    }
}
