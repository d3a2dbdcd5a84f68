//! The seccomp filter, from lists of system calls to the instructions the kernel runs. Pure: the same program
//! for every policy; it touches no descriptor and installs nothing, the inside does that.
//!
//! Words used here, from the text to the kernel:
//! - **verdict**: what becomes of one call: allowed, refused with an errno, only seemingly made, or the process is killed;
//! - **rule**: a short decision list over the arguments of a call, ending in a verdict ([`rule`], [`rules`]);
//! - **decision**: what a system call number leads to, a verdict or a rule ([`table`]);
//! - **range**: neighbouring numbers with the same decision; ranges cover every `u32`;
//! - **stretch**: ranges of one decision, with single numbers between them that have another ([`tree`]);
//! - **tree**: a balanced binary search over the stretches ([`tree`]).
//!
//! A tree of ranges, not a chain of compares: at install the kernel runs the filter once for every number to
//! learn which calls are always allowed, and those never reach the filter again. A chain made that
//! 18 µs + 2 µs per compare. The program has 312 instructions and takes 75 µs (Linux 6.18; median of 1,000), of which 29 are
//! spent on any filter, 8 on that run, and most of the rest on compiling instructions: with 384, before verdicts were
//! repeated within reach and single numbers told from what surrounds them, it took 83. In a session the zygote installs
//! most of it once, and workers inherit that.

pub(crate) mod rule;
pub(crate) mod rules;
pub(crate) mod sockets;
#[rustfmt::skip] // Several names to a line, so that a group stays a paragraph.
pub(crate) mod syscalls;
pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod tree;

use std::sync::LazyLock;

use libc::sock_filter;

use crate::plan::seccomp::rule::Verdict;
use crate::plan::seccomp::table::Part;

/// The filter every command runs under. Built on first use, which takes 10 µs.
pub(crate) fn whole() -> &'static [sock_filter] {
    static PROGRAM: LazyLock<Vec<sock_filter>> = LazyLock::new(|| part(Part::Whole));
    &PROGRAM
}

/// The greater part of it, for a zygote: all but the calls that make workers. Workers inherit it.
pub(crate) fn of_zygote() -> &'static [sock_filter] {
    static PROGRAM: LazyLock<Vec<sock_filter>> = LazyLock::new(|| part(Part::AllButMaking));
    &PROGRAM
}

/// The rest, for a worker: with the zygote's it comes to the same as the whole.
pub(crate) fn of_worker() -> &'static [sock_filter] {
    static PROGRAM: LazyLock<Vec<sock_filter>> = LazyLock::new(|| part(Part::Making));
    &PROGRAM
}

/// The whole filter for who wants to know what it refuses: where it would refuse, the kernel asks whoever holds its
/// listener, who gives [`judge`](crate::plan::seccomp::table::judge)'s answer. What programs take for the sign of an older kernel (ENOSYS) it answers as it
/// is: they all try such calls and do without, and some at each start of a thread. So it does what is no refusal.
pub(crate) fn asking() -> &'static [sock_filter] {
    static PROGRAM: LazyLock<Vec<sock_filter>> = LazyLock::new(|| whole().iter().map(asked).collect());
    &PROGRAM
}

/// An instruction that asks in the place of one that refuses; any other as it is.
fn asked(step: &sock_filter) -> sock_filter {
    let mut step = *step;
    let refuses = step.k & libc::SECCOMP_RET_ACTION_FULL == libc::SECCOMP_RET_ERRNO;
    let as_it_is = [Verdict::refuse(libc::ENOSYS), Verdict::Pretend].map(Verdict::encode);
    if step.code == tree::RETURN && refuses && !as_it_is.contains(&step.k) {
        step.k = libc::SECCOMP_RET_USER_NOTIF;
    }
    step
}

/// The filter of a bridge, which knows the calls it makes: any other ends it.
pub(crate) fn of_bridge() -> Vec<sock_filter> {
    tree::compile(&table::only(syscalls::BRIDGING, rules::BRIDGING), rules::BRIDGING)
}

/// The filter of a reaper, likewise.
pub(crate) fn of_reaper() -> Vec<sock_filter> {
    tree::compile(&table::only(syscalls::REAPING, &[]), &[])
}

fn part(part: Part) -> Vec<sock_filter> {
    tree::compile(&table::ranges(part), rules::RULES)
}

/// The program as `seccomp(2)` reads it: `struct sock_filter { code: u16, jt: u8, jf: u8, k: u32 }`, native
/// byte order, eight bytes each.
pub(crate) fn bytes(program: &[sock_filter]) -> Vec<u8> {
    program
        .iter()
        .flat_map(|step| {
            let ([c0, c1], [k0, k1, k2, k3]) = (step.code.to_ne_bytes(), step.k.to_ne_bytes());
            [c0, c1, step.jt, step.jf, k0, k1, k2, k3]
        })
        .collect()
}
