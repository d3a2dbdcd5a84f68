//! From ranges and rules to a BPF program. Decides nothing: what a call leads to is said in `table` and
//! `rules`.

use seccompiler::sock_filter;

use super::assembler::{Assembler, Compare, Label};
use super::rule::{Clause, Rule, Test, Verdict, Word};
use super::table::{Decision, Range};

/// linux/audit.h: EM_X86_64, 64 bit, little endian. An i386 call (int 0x80) carries another value, and
/// other numbers.
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;

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
    let root = search(&mut out, ranges, &entries);
    let number = out.load(Word::Number, root);
    let kill = out.verdict(Verdict::Kill);
    let arch = out.branch(Compare::Equal, AUDIT_ARCH_X86_64, number, kill);
    out.load(Word::Arch, arch);
    out.finish()
}

/// Finds the range of the number in the accumulator, halving what is left.
fn search(out: &mut Assembler, ranges: &[Range], rules: &[Label]) -> Label {
    match ranges {
        [] => out.verdict(Verdict::Kill),
        [Range { decision: Decision::Verdict(verdict), .. }] => out.verdict(*verdict),
        [Range { decision: Decision::Rule(index), .. }] => rules[*index],
        _ => {
            let (low, high) = ranges.split_at(ranges.len() / 2);
            let above = search(out, high, rules);
            let below = search(out, low, rules);
            out.branch(Compare::AtLeast, high[0].first, above, below)
        }
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
