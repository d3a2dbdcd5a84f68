//! The language of rules on arguments: plain data that gives the verdict on a call. `rules.rs` and
//! `sockets.rs` list the rules, `tree.rs` compiles them.

use libc::{c_int, c_long};

pub(crate) const ALLOW: FilterVerdict = FilterVerdict::Allow;

pub(crate) const EPERM: FilterVerdict = FilterVerdict::refuse(libc::EPERM);

pub(crate) const EXACT: u32 = u32::MAX;

pub(crate) const UNIX: &[u32] = &[bits(libc::AF_UNIX)];

/// A C `int` as the bits that a filter sees.
pub(crate) const fn bits(int: c_int) -> u32 {
    int.cast_unsigned()
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilterVerdict {
    /// The call is made.
    Allow,
    /// The call is not made and returns this errno.
    Refuse(u32),
    /// The call is not made and returns 0. What it asks for is in force already, or makes no difference to
    /// the program.
    Pretend,
    /// The supervisor outside makes the call in place of the command, if the question has that answer.
    Ask(FilterQuestion),
    /// The kernel kills the whole process, as by SIGSYS.
    Kill,
}

/// Who commands are, as far as filters tell users apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FilterUser {
    #[default]
    Ordinary,
    /// Root, which cannot give files away: see [`FilterQuestion::unanswered`].
    Root,
    /// Root of another root in a user namespace of its own, who installs packages there.
    FakeRoot,
}

/// What a filter cannot tell from the arguments of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilterQuestion {
    /// Whether the mode is for a directory.
    Mode,
    /// Whether the caller may give the file to that user and group.
    Owner,
}

impl FilterQuestion {
    /// The verdict if there is no supervisor. Root cannot give files away in a sandbox, and many of its
    /// programs end if that fails, so root's calls are pretended.
    pub(crate) const fn unanswered(self, user: FilterUser) -> FilterVerdict {
        match (self, user) {
            (Self::Owner, FilterUser::Root | FilterUser::FakeRoot) => FilterVerdict::Pretend,
            (Self::Mode, _) | (Self::Owner, FilterUser::Ordinary) => EPERM,
        }
    }
}

/// Marks a question in the value of a verdict. No errno is that large, so the kernel has no use for it.
const QUESTION: u32 = 0x8000;

impl FilterVerdict {
    /// A refusal with one of libc's errno constants.
    pub(crate) const fn refuse(errno: c_int) -> Self {
        Self::Refuse(errno.cast_unsigned())
    }

    /// The value a filter returns to the kernel. For a question, it is one that must be replaced before the
    /// kernel sees it.
    pub(crate) const fn encode(self) -> u32 {
        match self {
            Self::Allow => libc::SECCOMP_RET_ALLOW,
            Self::Refuse(errno) => libc::SECCOMP_RET_ERRNO | (errno & libc::SECCOMP_RET_DATA),
            Self::Pretend => libc::SECCOMP_RET_ERRNO,
            Self::Ask(FilterQuestion::Mode) => libc::SECCOMP_RET_ERRNO | QUESTION,
            Self::Ask(FilterQuestion::Owner) => libc::SECCOMP_RET_ERRNO | QUESTION | 1,
            Self::Kill => libc::SECCOMP_RET_KILL_PROCESS,
        }
    }
}

/// One 32-bit word of `struct seccomp_data`. A filter sees nothing else of a call, and no memory behind a
/// pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// The system call number.
    Number,
    /// The calling convention, as `AUDIT_ARCH_*`.
    Arch,
    /// Bits 0–31 of argument 0–5.
    Low(u8),
    /// Bits 32–63 of argument 0–5.
    High(u8),
}

impl Word {
    /// The offset of the word, in bytes (little endian).
    pub(crate) const fn offset(self) -> u32 {
        match self {
            Self::Number => 0,
            Self::Arch => 4,
            Self::Low(argument) => 16 + 8 * argument as u32,
            Self::High(argument) => 20 + 8 * argument as u32,
        }
    }
}

/// A condition on one word of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Test {
    /// The word, masked with the second field, is one of these values.
    OneOf(Word, u32, &'static [u32]),
    /// The word, masked with the second field, is none of these values.
    NoneOf(Word, u32, &'static [u32]),
    /// The word has at least one of these bits.
    AnyBit(Word, u32),
}

/// The verdict, if every test holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clause {
    pub(crate) when: &'static [Test],
    pub(crate) then: FilterVerdict,
}

/// A decision list: the first clause that holds gives the verdict; `otherwise`, if none does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyscallRule {
    /// The system calls that take these arguments in this order.
    pub(crate) calls: &'static [c_long],
    pub(crate) clauses: &'static [Clause],
    pub(crate) otherwise: FilterVerdict,
}
