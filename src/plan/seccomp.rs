//! The seccomp filter: from lists of system calls to the instructions that the kernel runs.
//!
//! The program is the same for every policy, but for the ids of the caller, and for root of another root
//! ([`FilterUser`]). This folder installs nothing; the
//! inside does that.
//!
//! Terms, from the text to the kernel:
//! - **verdict**: the result of one call: allowed, refused with an errno, pretended, asked about, or the
//!   process is killed;
//! - **question**: what a filter cannot tell from the arguments; a supervisor outside answers it
//!   ([`FilterQuestion`]);
//! - **rule**: a short decision list over the arguments of a call, ending in a verdict ([`rules`]);
//! - **decision**: what a system call number leads to, a verdict or a rule ([`table`]);
//! - **range**: neighbouring numbers with the same decision; ranges cover every `u32`;
//! - **stretch**: ranges of one decision, with single numbers between them that have another ([`tree`]);
//! - **tree**: a balanced binary search over the stretches ([`tree`]).
//!
//! The program is a tree of ranges and not a chain of comparisons. On install, the kernel runs the filter
//! once for every number, to learn which calls are always allowed; the filter never sees those again. With a
//! chain that took 18 µs + 2 µs per comparison.
//!
//! The program has 359 instructions. With 312, installing it took 75 µs (Linux 6.18, median of 1,000). Any
//! filter takes 29 µs of that, the run over all numbers 8 µs, and compiling the instructions most of the
//! rest. With 384 instructions it took 83 µs; repeating verdicts within reach and testing single numbers
//! apart saved the others. In a session the zygote installs most of the filter once, and workers inherit it.

pub(crate) mod fake_root;
pub(crate) mod observed;
pub(crate) mod rule;
pub(crate) mod rules;
pub(crate) mod sockets;
#[rustfmt::skip] // Several names to a line, so that a group stays a paragraph.
pub(crate) mod syscalls;
pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod tree;

use std::sync::OnceLock;

use libc::sock_filter;

use crate::plan::seccomp::observed::OBSERVED;
use crate::plan::seccomp::rule::{FilterQuestion, FilterUser, FilterVerdict, Word};
use crate::plan::seccomp::table::FilterPart;
use crate::view::inputs::{Ids, Inputs};

/// Who commands are.
pub(crate) fn user(inputs: &Inputs<'_>) -> FilterUser {
    match inputs.ids().user {
        _ if inputs.fakes_root() => FilterUser::FakeRoot,
        0 => FilterUser::Root,
        _ => FilterUser::Ordinary,
    }
}

/// The filter that every command runs under, before [`program`] completes it. Building it on first use takes
/// 10 µs.
pub(crate) fn full(user: FilterUser) -> &'static [sock_filter] {
    static PROGRAMS: Programs = Programs::of(FilterPart::Full);
    PROGRAMS.get(user)
}

/// The part for a zygote: everything except the calls that make workers. Workers inherit it.
pub(crate) fn for_zygote(user: FilterUser) -> &'static [sock_filter] {
    static PROGRAMS: Programs = Programs::of(FilterPart::Zygote);
    PROGRAMS.get(user)
}

/// The part for a worker. With the zygote's part it equals the whole filter.
pub(crate) fn for_worker(user: FilterUser) -> &'static [sock_filter] {
    static PROGRAMS: Programs = Programs::of(FilterPart::Worker);
    PROGRAMS.get(user)
}

/// One part of the filter, for each user.
struct Programs {
    part: FilterPart,
    plain: OnceLock<Vec<sock_filter>>,
    fake_root: OnceLock<Vec<sock_filter>>,
}

impl Programs {
    const fn of(part: FilterPart) -> Self {
        Self { part, plain: OnceLock::new(), fake_root: OnceLock::new() }
    }

    fn get(&self, user: FilterUser) -> &[sock_filter] {
        let program = match user {
            FilterUser::Ordinary | FilterUser::Root => &self.plain,
            FilterUser::FakeRoot => &self.fake_root,
        };
        program.get_or_init(|| tree::compile(&table::ranges(self.part, user), &table::rules(user)))
    }
}

/// About what the filter asks its listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asks {
    /// There is no listener.
    Nothing,
    /// What it cannot tell from the arguments.
    Questions,
    /// Also about every refusal, for `explain`. It answers ENOSYS by itself. Programs take it as the sign of
    /// an older kernel: they all try such calls and do without, some at each start of a thread. It also
    /// pretends by itself, because that is no refusal.
    Refusals,
}

/// Completes a filter: the own ids, and what becomes of its questions.
pub(crate) fn program(filter: &[sock_filter], asks: Asks, ids: Ids, user: FilterUser) -> Vec<sock_filter> {
    filter.iter().map(|step| completed(*step, asks, ids, user)).collect()
}

fn completed(mut step: sock_filter, asks: Asks, ids: Ids, user: FilterUser) -> sock_filter {
    match (step.code, step.k) {
        (tree::EQUAL, rules::OWN_USER) => step.k = ids.user,
        (tree::EQUAL, rules::OWN_GROUP) => step.k = ids.group,
        (tree::RETURN, answer) => step.k = returned(answer, asks, user),
        _ => {}
    }
    step
}

fn returned(answer: u32, asks: Asks, user: FilterUser) -> u32 {
    let question = [FilterQuestion::Mode, FilterQuestion::Owner];
    let question = question.into_iter().find(|question| FilterVerdict::Ask(*question).encode() == answer);
    let refuses = answer & libc::SECCOMP_RET_ACTION_FULL == libc::SECCOMP_RET_ERRNO;
    let as_it_is = [FilterVerdict::refuse(libc::ENOSYS), FilterVerdict::Pretend].map(FilterVerdict::encode);
    match (asks, question) {
        (Asks::Nothing, Some(question)) => question.unanswered(user).encode(),
        (Asks::Questions | Asks::Refusals, Some(_)) => libc::SECCOMP_RET_USER_NOTIF,
        (Asks::Refusals, None) if refuses && !as_it_is.contains(&answer) => libc::SECCOMP_RET_USER_NOTIF,
        (_, None) => answer,
    }
}

/// For `learn`: asks the listener about the calls of [`OBSERVED`], and allows all others.
///
/// It is no wall. The listener lets every call go on, and the kernel then checks it as always. It is
/// installed beside the filter that refuses, and a refusal wins over a question (seccomp(2)).
pub(crate) fn observing() -> Vec<sock_filter> {
    asking_about_paths(allowing().into())
}

/// Puts a question before a filter that has a listener, or before one that allows all: about the calls of
/// [`OBSERVED`]. The listener learns the verdict of the filter from [`table::judge`].
pub(crate) fn asking_about_paths(filter: Vec<sock_filter>) -> Vec<sock_filter> {
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let load = |word: Word| step(tree::LOAD, 0, 0, word.offset());
    let mut asked: Vec<u32> = OBSERVED.iter().filter_map(|call| u32::try_from(call.number).ok()).collect();
    asked.dedup();
    let count = u8::try_from(asked.len()).unwrap_or(u8::MAX);
    // Jumps say how many steps to leave out. The last step asks, and `filter` comes after it.
    let mut question =
        vec![load(Word::Arch), step(tree::EQUAL, 0, count + 2, tree::AUDIT_ARCH_X86_64), load(Word::Number)];
    question.extend((0..count).rev().zip(asked).map(|(rest, number)| {
        let to_filter = u8::from(rest == 0);
        step(tree::EQUAL, rest, to_filter, number)
    }));
    question.push(step(tree::RETURN, 0, 0, libc::SECCOMP_RET_USER_NOTIF));
    question.into_iter().chain(filter).collect()
}

/// Puts a question before a filter that has a listener: about the calls that make a new file, or remove,
/// rename or change the mode of one by its path. The listener learns the verdict of the filter from
/// [`table::judge`].
pub(crate) fn asking_about_files(filter: Vec<sock_filter>) -> Vec<sock_filter> {
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let is_call = |call, jt, jf| step(tree::EQUAL, jt, jf, u32::try_from(call).unwrap_or_default());
    let load = |word: Word| step(tree::LOAD, 0, 0, word.offset());
    let is_new = |jt, jf| step(tree::ANY_BIT, jt, jf, rule::bits(libc::O_EXCL));
    // Jumps say how many steps to leave out. The last step asks, and `filter` comes after it.
    let question = [
        load(Word::Arch),
        step(tree::EQUAL, 0, 11, tree::AUDIT_ARCH_X86_64),
        load(Word::Number),
        is_call(libc::SYS_unlink, 8, 0),
        is_call(libc::SYS_rename, 7, 0),
        is_call(libc::SYS_chmod, 6, 0),
        is_call(libc::SYS_open, 1, 0),
        is_call(libc::SYS_openat, 2, 5),
        load(Word::Low(1)),
        is_new(2, 3),
        load(Word::Low(2)),
        is_new(0, 1),
        step(tree::RETURN, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
    ];
    question.into_iter().chain(filter).collect()
}

/// Allows every call: what takes the place of [`observing`] if the kernel refuses the listener.
pub(crate) fn allowing() -> [sock_filter; 1] {
    [sock_filter { code: tree::RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW }]
}

/// The filter of a bridge. Any call that it does not list ends the bridge.
pub(crate) fn for_bridge() -> Vec<sock_filter> {
    tree::compile(&table::only(syscalls::BRIDGE, rules::BRIDGE), rules::BRIDGE)
}

/// The filter of a reaper. Any call that it does not list ends the reaper.
pub(crate) fn for_reaper() -> Vec<sock_filter> {
    tree::compile(&table::only(syscalls::REAPER, &[]), &[])
}

/// The program as `seccomp(2)` reads it: `struct sock_filter { code: u16, jt: u8, jf: u8, k: u32 }`, eight
/// bytes each, in native byte order.
pub(crate) fn bytes(program: &[sock_filter]) -> Vec<u8> {
    program
        .iter()
        .flat_map(|step| {
            let ([c0, c1], [k0, k1, k2, k3]) = (step.code.to_ne_bytes(), step.k.to_ne_bytes());
            [c0, c1, step.jt, step.jf, k0, k1, k2, k3]
        })
        .collect()
}
