//! The rules that only root of another root has: [`FilterUser::FakeRoot`]. They take the place of those in
//! `rules` and `syscalls` for the same calls.

use crate::plan::seccomp::rule::{
    ALLOW, Clause, EPERM, EXACT, FilterUser, FilterVerdict, SyscallRule, Test, Word,
};
use crate::plan::seccomp::rules::{ASK_MODE, DEVICES, GROUPS, SET_ID, USERS};

/// The rules that only `user` has.
pub(crate) fn rules_of(user: FilterUser) -> &'static [SyscallRule] {
    match user {
        FilterUser::Ordinary | FilterUser::Root => &[],
        FilterUser::FakeRoot => FAKE_ROOT,
    }
}

/// The user namespace has one user and one group, so no file can have another owner: that is pretended, and
/// so are devices, which belong to the host. Who a process is, is never pretended: a program that becomes
/// another user would go on with rights that it has given up, or try for ever.
pub(crate) const FAKE_ROOT: &[SyscallRule] = &[
    // It has the capability for it, and no way out: the mounts end at the root of the sandbox.
    SyscallRule { calls: &[libc::SYS_chroot], clauses: &[], otherwise: ALLOW },
    SyscallRule {
        calls: &[libc::SYS_setgroups, libc::SYS_capset],
        clauses: &[],
        otherwise: FilterVerdict::Pretend,
    },
    SyscallRule {
        calls: &[libc::SYS_chown, libc::SYS_lchown, libc::SYS_fchown],
        clauses: &[
            Clause { when: &[Test::NoneOf(Word::Low(1), EXACT, USERS)], then: FilterVerdict::Pretend },
            Clause { when: &[Test::NoneOf(Word::Low(2), EXACT, GROUPS)], then: FilterVerdict::Pretend },
        ],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_fchownat],
        clauses: &[
            Clause { when: &[Test::NoneOf(Word::Low(2), EXACT, USERS)], then: FilterVerdict::Pretend },
            Clause { when: &[Test::NoneOf(Word::Low(3), EXACT, GROUPS)], then: FilterVerdict::Pretend },
        ],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_mknod],
        clauses: &[
            Clause {
                when: &[Test::OneOf(Word::Low(1), libc::S_IFMT, DEVICES)],
                then: FilterVerdict::Pretend,
            },
            Clause { when: &[Test::AnyBit(Word::Low(1), SET_ID)], then: EPERM },
        ],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_mknodat],
        clauses: &[
            Clause {
                when: &[Test::OneOf(Word::Low(2), libc::S_IFMT, DEVICES)],
                then: FilterVerdict::Pretend,
            },
            Clause { when: &[Test::AnyBit(Word::Low(2), SET_ID)], then: EPERM },
        ],
        otherwise: ALLOW,
    },
    // The supervisor tells the root's own files from those of the host.
    SyscallRule {
        calls: &[libc::SYS_chmod, libc::SYS_fchmod],
        clauses: &[Clause { when: &[Test::AnyBit(Word::Low(1), SET_ID)], then: ASK_MODE }],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_fchmodat, libc::SYS_fchmodat2],
        clauses: &[Clause { when: &[Test::AnyBit(Word::Low(2), SET_ID)], then: ASK_MODE }],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_setuid],
        clauses: &[Clause { when: &[Test::NoneOf(Word::Low(0), EXACT, USERS)], then: EPERM }],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_setreuid],
        clauses: &[
            Clause { when: &[Test::NoneOf(Word::Low(0), EXACT, USERS)], then: EPERM },
            Clause { when: &[Test::NoneOf(Word::Low(1), EXACT, USERS)], then: EPERM },
        ],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_setresuid],
        clauses: &[
            Clause { when: &[Test::NoneOf(Word::Low(0), EXACT, USERS)], then: EPERM },
            Clause { when: &[Test::NoneOf(Word::Low(1), EXACT, USERS)], then: EPERM },
            Clause { when: &[Test::NoneOf(Word::Low(2), EXACT, USERS)], then: EPERM },
        ],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_setgid],
        clauses: &[Clause { when: &[Test::NoneOf(Word::Low(0), EXACT, GROUPS)], then: EPERM }],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_setregid],
        clauses: &[
            Clause { when: &[Test::NoneOf(Word::Low(0), EXACT, GROUPS)], then: EPERM },
            Clause { when: &[Test::NoneOf(Word::Low(1), EXACT, GROUPS)], then: EPERM },
        ],
        otherwise: ALLOW,
    },
    SyscallRule {
        calls: &[libc::SYS_setresgid],
        clauses: &[
            Clause { when: &[Test::NoneOf(Word::Low(0), EXACT, GROUPS)], then: EPERM },
            Clause { when: &[Test::NoneOf(Word::Low(1), EXACT, GROUPS)], then: EPERM },
            Clause { when: &[Test::NoneOf(Word::Low(2), EXACT, GROUPS)], then: EPERM },
        ],
        otherwise: ALLOW,
    },
];
