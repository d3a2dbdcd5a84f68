//! From ranges and rules to a BPF program. Decides nothing: what a call leads to is said in `table` and
//! `rules`.

use libc::sock_filter;

use super::assembler::{Assembler, Compare, Label};
use super::rule::{Clause, Rule, Test, Verdict, Word};
use super::table::{Decision, Range};

/// linux/audit.h: EM_X86_64, 64 bit, little endian. An i386 call (int 0x80) carries another value, and
/// other numbers.
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;

/// Single numbers that are compared with, one after the other, where the search for a range ends.
const MOST_SINGLES: usize = 2;

/// The program that gives every call the verdict of its range. Written from the end: verdicts, rules, tree,
/// and what runs first, the check of the calling convention.
pub(super) fn compile(ranges: &[Range], rules: &[Rule]) -> Vec<sock_filter> {
    let mut out = Assembler::default();
    let is_used = |index| ranges.iter().any(|range| range.decision == Decision::Rule(index));
    let entries: Vec<Label> = rules
        .iter()
        .enumerate()
        .map(|(index, rule)| match is_used(index) {
            true => decision_list(&mut out, rule),
            // Nothing leads there.
            false => out.verdict(Verdict::Kill),
        })
        .collect();
    let root = search(&mut out, &stretches(ranges), &entries);
    let number = out.load(Word::Number, root);
    let kill = out.verdict(Verdict::Kill);
    let arch = out.branch(Compare::Equal, AUDIT_ARCH_X86_64, number, kill);
    out.load(Word::Arch, arch);
    out.finish()
}

/// Cuts the ranges into stretches of one decision: every second range of one has it, and those between are single numbers,
/// as most rules are of one call among others that are allowed. To be told from its surroundings a number takes one compare,
/// a range two.
fn stretches(mut ranges: &[Range]) -> Vec<&[Range]> {
    let mut stretches = Vec::new();
    while !ranges.is_empty() {
        let goes_on =
            |next: &&[Range]| next[0].decision == next[2].decision && next[2].first - next[1].first == 1;
        let singles = ranges.windows(3).step_by(2).take(MOST_SINGLES).take_while(goes_on).count();
        let (stretch, after) = ranges.split_at(1 + 2 * singles);
        stretches.push(stretch);
        ranges = after;
    }
    stretches
}

/// Finds the stretch of the number in the accumulator, halving what is left, and what the number leads to there.
fn search(out: &mut Assembler, stretches: &[&[Range]], rules: &[Label]) -> Label {
    match stretches {
        [] => out.verdict(Verdict::Kill),
        [stretch] => {
            let others = decided(out, &stretch[0], rules);
            stretch.iter().skip(1).step_by(2).fold(others, |others, single| {
                let there = decided(out, single, rules);
                out.branch(Compare::Equal, single.first, there, others)
            })
        }
        _ => {
            let (low, high) = stretches.split_at(stretches.len() / 2);
            let above = search(out, high, rules);
            let below = search(out, low, rules);
            out.branch(Compare::AtLeast, high[0][0].first, above, below)
        }
    }
}

fn decided(out: &mut Assembler, range: &Range, rules: &[Label]) -> Label {
    match range.decision {
        Decision::Verdict(verdict) => out.verdict(verdict),
        Decision::Rule(index) => rules[index],
    }
}

fn decision_list(out: &mut Assembler, rule: &Rule) -> Label {
    let otherwise = out.verdict(rule.otherwise);
    rule.clauses.iter().rev().fold(otherwise, |next, clause| conjunction(out, clause, next))
}

fn conjunction(out: &mut Assembler, clause: &Clause, next: Label) -> Label {
    let then = out.verdict(clause.then);
    clause.when.iter().rev().fold(then, |holds, test| question(out, test, holds, next))
}

fn question(out: &mut Assembler, test: &Test, yes: Label, no: Label) -> Label {
    match *test {
        Test::OneOf(word, mask, values) => member(out, word, mask, values, yes, no),
        Test::NoneOf(word, mask, values) => member(out, word, mask, values, no, yes),
        Test::AnyBit(word, mask) => {
            let compared = out.branch(Compare::AnyBit, mask, yes, no);
            out.load(word, compared)
        }
    }
}

/// Goes to `found` if the masked word is among `values`.
fn member(out: &mut Assembler, word: Word, mask: u32, values: &[u32], found: Label, missing: Label) -> Label {
    let compared =
        values.iter().rev().fold(missing, |next, value| out.branch(Compare::Equal, *value, found, next));
    let masked = if mask == u32::MAX { compared } else { out.and(mask, compared) };
    out.load(word, masked)
}
