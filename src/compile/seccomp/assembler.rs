//! Writes classic BPF from its last instruction to its first. Knows instructions and distances, nothing of
//! system calls.
//!
//! Classic BPF only jumps forwards, and a conditional jump at most 255 instructions. Written backwards, every
//! target is already in place when a jump is made, so a target out of reach is seen at once and
//! gets a trampoline (an unconditional jump, whose reach has no limit) right behind the jump.

use libc::sock_filter;

use super::rule::{Verdict, Word};

// linux/bpf_common.h, with operands always the immediate `k`; the four kinds of step that the kernel can
// follow at install when it looks for calls that are always allowed, and RET.
const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
const AND: u16 = 0x54; // BPF_ALU | BPF_AND | BPF_K
const JUMP_ALWAYS: u16 = 0x05; // BPF_JMP | BPF_JA
pub(super) const RETURN: u16 = 0x06; // BPF_RET | BPF_K

/// How a conditional jump compares the accumulator with its operand.
#[derive(Clone, Copy, Debug)]
pub(super) enum Compare {
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
            Self::Equal => 0x15,   // BPF_JMP | BPF_JEQ | BPF_K
            Self::AtLeast => 0x35, // BPF_JMP | BPF_JGE | BPF_K
            Self::AnyBit => 0x45,  // BPF_JMP | BPF_JSET | BPF_K
        }
    }
}

/// Where an instruction stands, counted from the end of the program, so that it never moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(usize);

/// A program in the making; its instructions in reverse.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    reversed: Vec<sock_filter>,
    /// The instructions that end the program, by what they return; of those that are alike, the nearest is the last.
    returns: Vec<(u32, Label)>,
}

impl Assembler {
    /// An instruction that ends the program with `verdict`: one for all who ask and can reach it.
    pub(super) fn verdict(&mut self, verdict: Verdict) -> Label {
        self.end(verdict.encode(), 0)
    }

    /// Loads a word of `struct seccomp_data`, then goes to `next`.
    pub(super) fn load(&mut self, word: Word, next: Label) -> Label {
        self.follow(next);
        self.push(LOAD, 0, 0, word.offset())
    }

    /// Keeps the bits of `mask`, then goes to `next`.
    pub(super) fn and(&mut self, mask: u32, next: Label) -> Label {
        self.follow(next);
        self.push(AND, 0, 0, mask)
    }

    /// Goes to `yes` if the comparison with `operand` holds, else to `no`.
    pub(super) fn branch(&mut self, compare: Compare, operand: u32, yes: Label, no: Label) -> Label {
        let yes = self.near(yes, 1); // One step may come between: the trampoline to `no`.
        let no = self.near(no, 0);
        let (jt, jf) = (self.distance(yes), self.distance(no));
        self.push(compare.code(), jt, jf, operand)
    }

    /// The program in the order in which it runs; it starts with what was written last.
    pub(super) fn finish(mut self) -> Vec<sock_filter> {
        self.reversed.reverse();
        self.reversed
    }

    fn push(&mut self, code: u16, jt: u8, jf: u8, k: u32) -> Label {
        self.reversed.push(sock_filter { code, jt, jf, k });
        Label(self.reversed.len() - 1)
    }

    /// How many instructions a jump written now would skip to reach `target`.
    const fn skipped(&self, target: Label) -> usize {
        self.reversed.len() - 1 - target.0
    }

    fn distance(&self, target: Label) -> u8 {
        u8::try_from(self.skipped(target)).expect("near() put a trampoline within reach")
    }

    /// `target`, or what leads there if a conditional jump could not reach it after `slack` more steps.
    fn near(&mut self, target: Label, slack: usize) -> Label {
        let there = &self.reversed[target.0];
        match (there.code, there.k) {
            _ if self.is_near(target, slack) => target,
            // As short as the jump to it, and others may reach this one too.
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

    /// Makes `next` what runs after the instruction written now.
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
