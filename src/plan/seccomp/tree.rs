//! From ranges and rules to a BPF program. `table` and `rules` make the decisions.

use libc::sock_filter;

use crate::plan::seccomp::rule::{Clause, FilterVerdict, SyscallRule, Test, Word};
use crate::plan::seccomp::table::{CallDecision, Range};

/// EM_X86_64, 64 bit, little endian (linux/audit.h). An i386 call (int 0x80) has another value, and other
/// numbers.
pub(crate) const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;

/// How many single numbers are compared, one after the other, at the end of a search.
const MOST_SINGLES: usize = 2;

/// Compiles the program that gives every call the verdict of its range. It is written from the end: verdicts,
/// rules, tree, and then the check of the architecture, which runs first.
pub(crate) fn compile(ranges: &[Range], rules: &[SyscallRule]) -> Vec<sock_filter> {
    let mut out = Assembler::default();
    let is_used = |index| ranges.iter().any(|range| range.decision == CallDecision::Rule(index));
    let entries: Vec<Label> = rules
        .iter()
        .enumerate()
        .map(|(index, rule)| match is_used(index) {
            true => decision_list(&mut out, rule),
            // Nothing jumps there.
            false => out.verdict(FilterVerdict::Kill),
        })
        .collect();
    let root = search(&mut out, &stretches(ranges), &entries);
    let number = out.load(Word::Number, root);
    let kill = out.verdict(FilterVerdict::Kill);
    let arch = out.branch(Compare::Equal, AUDIT_ARCH_X86_64, number, kill);
    out.load(Word::Arch, arch);
    out.finish()
}

/// Cuts the ranges into stretches. In a stretch every second range has the same decision, and the ranges
/// between are single numbers. Most rules are of one call among others that are allowed. Telling a single
/// number from its neighbours takes one comparison, a range two.
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

/// Finds the stretch of the number in the accumulator by halving, then the number's decision in that stretch.
fn search(out: &mut Assembler, stretches: &[&[Range]], rules: &[Label]) -> Label {
    match stretches {
        [] => out.verdict(FilterVerdict::Kill),
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
        CallDecision::Verdict(verdict) => out.verdict(verdict),
        CallDecision::Rule(index) => rules[index],
    }
}

fn decision_list(out: &mut Assembler, rule: &SyscallRule) -> Label {
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

/// Jumps to `found` if the masked word is among `values`, otherwise to `missing`.
fn member(out: &mut Assembler, word: Word, mask: u32, values: &[u32], found: Label, missing: Label) -> Label {
    let compared =
        values.iter().rev().fold(missing, |next, value| out.branch(Compare::Equal, *value, found, next));
    let masked = if mask == u32::MAX { compared } else { out.and(mask, compared) };
    out.load(word, masked)
}

// Writes classic BPF from its last instruction to its first. It knows instructions and distances, and nothing
// of system calls.
//
// Classic BPF only jumps forwards, and a conditional jump spans at most 255 instructions. Written backwards,
// every target is in place when a jump is written. If a target is out of reach, a trampoline goes right
// behind the jump: an unconditional jump, whose reach has no limit.

// Opcodes of linux/bpf_common.h; operands are always the immediate `k`. On install the kernel follows these
// four kinds of instruction and RET, to find calls that are always allowed.
pub(crate) const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const AND: u16 = 0x54; // BPF_ALU | BPF_AND | BPF_K
pub(crate) const EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
pub(crate) const ANY_BIT: u16 = 0x45; // BPF_JMP | BPF_JSET | BPF_K
const JUMP_ALWAYS: u16 = 0x05; // BPF_JMP | BPF_JA
pub(crate) const RETURN: u16 = 0x06; // BPF_RET | BPF_K

/// How a conditional jump compares the accumulator with its operand.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Compare {
    /// Equal.
    Equal,
    /// Equal or greater, unsigned.
    AtLeast,
    /// At least one bit in common.
    AnyBit,
}

impl Compare {
    const fn code(self) -> u16 {
        match self {
            Self::Equal => EQUAL,
            Self::AtLeast => 0x35, // BPF_JMP | BPF_JGE | BPF_K
            Self::AnyBit => ANY_BIT,
        }
    }
}

/// The position of an instruction, counted from the end of the program, so that it never moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(usize);

/// A program under construction. Its instructions are in reverse.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    reversed: Vec<sock_filter>,
    /// The instructions that end the program, with what they return. Of several with the same result, the
    /// last is the nearest.
    returns: Vec<(u32, Label)>,
}

impl Assembler {
    /// An instruction that ends the program with `verdict`. It reuses one within reach.
    pub(crate) fn verdict(&mut self, verdict: FilterVerdict) -> Label {
        self.end(verdict.encode(), 0)
    }

    /// Loads a word of `struct seccomp_data`, then goes on to `next`.
    pub(crate) fn load(&mut self, word: Word, next: Label) -> Label {
        self.follow(next);
        self.push(LOAD, 0, 0, word.offset())
    }

    /// Masks the accumulator, then goes on to `next`.
    pub(crate) fn and(&mut self, mask: u32, next: Label) -> Label {
        self.follow(next);
        self.push(AND, 0, 0, mask)
    }

    /// Jumps to `yes` if the comparison with `operand` holds, otherwise to `no`.
    pub(crate) fn branch(&mut self, compare: Compare, operand: u32, yes: Label, no: Label) -> Label {
        let yes = self.near(yes, 1); // One step may come between: the trampoline to `no`.
        let no = self.near(no, 0);
        let (jt, jf) = (self.distance(yes), self.distance(no));
        self.push(compare.code(), jt, jf, operand)
    }

    /// The program in the order in which it runs: the last instruction that was written comes first.
    pub(crate) fn finish(mut self) -> Vec<sock_filter> {
        self.reversed.reverse();
        self.reversed
    }

    fn push(&mut self, code: u16, jt: u8, jf: u8, k: u32) -> Label {
        self.reversed.push(sock_filter { code, jt, jf, k });
        Label(self.reversed.len() - 1)
    }

    /// How many instructions a jump that is written now would skip to reach `target`.
    const fn skipped(&self, target: Label) -> usize {
        self.reversed.len() - 1 - target.0
    }

    fn distance(&self, target: Label) -> u8 {
        u8::try_from(self.skipped(target)).expect("near() put a trampoline within reach")
    }

    /// `target`, or an instruction that leads there, if a conditional jump could not reach it after `slack`
    /// more instructions.
    fn near(&mut self, target: Label, slack: usize) -> Label {
        let there = &self.reversed[target.0];
        match (there.code, there.k) {
            _ if self.is_near(target, slack) => target,
            // It is as short as a jump to it, and others may reach it too.
            (RETURN, result) => self.end(result, slack),
            _ => self.trampoline(target),
        }
    }

    fn is_near(&self, target: Label, slack: usize) -> bool {
        self.skipped(target) + slack <= usize::from(u8::MAX)
    }

    fn end(&mut self, result: u32, slack: usize) -> Label {
        match self.returns.iter().rfind(|(known, _)| *known == result) {
            Some((_, label)) if self.is_near(*label, slack) => *label,
            _ => {
                let label = self.push(RETURN, 0, 0, result);
                self.returns.push((result, label));
                label
            }
        }
    }

    /// Makes `next` run after the instruction that is written now.
    fn follow(&mut self, next: Label) {
        if self.skipped(next) > 0 {
            self.trampoline(next);
        }
    }

    fn trampoline(&mut self, target: Label) -> Label {
        let skip = u32::try_from(self.skipped(target)).expect("programs end at 4096 instructions");
        self.push(JUMP_ALWAYS, 0, 0, skip)
    }
}
