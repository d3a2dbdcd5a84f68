//! Refuses some system calls to a program, as container engines and service managers do:
//!
//! `refuse clone3=ENOSYS unshare/0&0x10000000=EPERM -- PROGRAM [ARG…]`
//!
//! Each rule is a filter of its own: a call, an argument and bits that must all be set in it, an errno. The
//! program runs under all of them, and keeps its privileges if it has any.

use std::{collections::BTreeMap, io, os::unix::process::CommandExt, process::Command};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

use crate::names::number_of;

/// Refuses calls to a program and executes it.
pub(crate) fn refuse(words: &[&str]) {
    let Some(end) = words.iter().position(|word| *word == "--") else {
        return println!("usage: refuse RULE… -- PROGRAM [ARG…]");
    };
    let (rules, command) = words.split_at(end);
    for rule in rules {
        match filter(rule) {
            Some(program) => {
                if let Err(error) = install(&program) {
                    return println!("{rule}: {error}");
                }
            }
            None => return println!("what is {rule}?"),
        }
    }
    let [_, program, arguments @ ..] = command else { return println!("refuse what?") };
    println!("{program}: {}", Command::new(program).args(arguments).exec());
}

fn filter(rule: &str) -> Option<BpfProgram> {
    let (call, errno) = rule.split_once('=')?;
    let (name, bits) = call.split_once('/').map_or((call, None), |(name, bits)| (name, Some(bits)));
    let rules = match bits {
        None => Vec::new(),
        Some(bits) => {
            let (index, mask) = bits.split_once('&')?;
            let mask = u64::from_str_radix(mask.strip_prefix("0x")?, 16).ok()?;
            let op = SeccompCmpOp::MaskedEq(mask);
            let condition = SeccompCondition::new(index.parse().ok()?, SeccompCmpArgLen::Qword, op, mask);
            vec![SeccompRule::new(vec![condition.ok()?]).ok()?]
        }
    };
    let answer = SeccompAction::Errno(u32::try_from(errno_of(errno)?).ok()?);
    let rules = BTreeMap::from([(number_of(name)?, rules)]);
    SeccompFilter::new(rules, SeccompAction::Allow, answer, TargetArch::x86_64).ok()?.try_into().ok()
}

fn errno_of(name: &str) -> Option<i32> {
    (1..134).find(|&number| crate::errno_name(number) == name)
}

/// seccomp(SECCOMP_SET_MODE_FILTER) as a privileged process uses it: the executed program keeps its
/// privileges. Others must give them up.
fn install(program: &BpfProgram) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(io::Error::other)?,
        filter: program.as_ptr().cast_mut().cast(),
    };
    let set = || {
        // SAFETY: the record describes a live program with its true length, which the call only reads.
        let answer =
            unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    set().or_else(|_| {
        // SAFETY: prctl(2) with integer arguments only.
        unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        set()
    })
}
