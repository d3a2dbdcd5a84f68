//! What the filter says of one call, read from the lists and rules directly, and which arguments that was about. Pure.
//!
//! For who answers in the filter's place ([`asking`](super::asking)): the errno must be the filter's.

use super::rule::{Clause, Test, Verdict, Word};
use super::rules::RULES;
use super::table::{self, Decision};

/// A call as a filter sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Its number on x86_64.
    pub(crate) number: u32,
    pub(crate) arguments: [u64; 6],
}

/// That a call is refused, and for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// What it returns.
    pub(crate) errno: i32,
    /// The arguments that made the difference, by their index; none where it is refused whatever they are.
    pub(crate) because: Vec<(u8, u64)>,
}

/// What becomes of a call: `None` where it is allowed, seems to be, or kills.
pub(crate) fn judge(call: &Asked) -> Option<Refused> {
    let (verdict, because) = match table::decision(call.number) {
        Decision::Verdict(verdict) => (verdict, Vec::new()),
        Decision::Rule(index) => {
            let rule = RULES.get(index)?;
            match rule.clauses.iter().find(|clause| clause.when.iter().all(|test| holds(test, call))) {
                Some(clause) => (clause.then, arguments(clause, call)),
                None => (rule.otherwise, Vec::new()),
            }
        }
    };
    let Verdict::Refuse(errno) = verdict else { return None };
    Some(Refused { errno: errno.cast_signed(), because })
}

fn holds(test: &Test, call: &Asked) -> bool {
    match *test {
        Test::OneOf(word, mask, values) => values.contains(&(read(word, call) & mask)),
        Test::NoneOf(word, mask, values) => !values.contains(&(read(word, call) & mask)),
        Test::AnyBit(word, mask) => read(word, call) & mask != 0,
    }
}

/// The arguments that a clause looks at, cut to what it looks at in them.
fn arguments(clause: &Clause, call: &Asked) -> Vec<(u8, u64)> {
    let seen = clause.when.iter().filter_map(|test| {
        let (Test::OneOf(word, mask, _) | Test::NoneOf(word, mask, _) | Test::AnyBit(word, mask)) = *test;
        let value = u64::from(read(word, call) & mask);
        match word {
            Word::Low(index) => Some((index, value)),
            Word::High(index) => Some((index, value << 32)),
            Word::Number | Word::Arch => None,
        }
    });
    seen.collect()
}

fn read(word: Word, call: &Asked) -> u32 {
    let argument = |index: u8| call.arguments.get(usize::from(index)).copied().unwrap_or_default();
    let half = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap_or_default();
    match word {
        Word::Number => call.number,
        // Any other convention is killed before it is asked about.
        Word::Arch => 0,
        Word::Low(index) => half(argument(index)),
        Word::High(index) => half(argument(index) >> 32),
    }
}
