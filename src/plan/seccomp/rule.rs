//! The language of argument rules: plain data that says what becomes of a call. It does not say of which
//! calls (`rules`), nor how the kernel is told (`tree`).

use libc::{c_int, c_long};

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The call is made.
    Allow,
    /// The call is not made and returns this errno.
    Refuse(u32),
    /// The call is not made and returns 0, as if it was: what it asks for is so, or nothing for it to know.
    Pretend,
    /// The whole process ends, as by SIGSYS.
    Kill,
}

impl Verdict {
    /// Refused with one of libc's errno constants.
    pub(crate) const fn refuse(errno: c_int) -> Self {
        Self::Refuse(errno.cast_unsigned())
    }

    /// The value a filter returns to the kernel.
    pub(crate) const fn encode(self) -> u32 {
        match self {
            Self::Allow => libc::SECCOMP_RET_ALLOW,
            Self::Refuse(errno) => libc::SECCOMP_RET_ERRNO | (errno & libc::SECCOMP_RET_DATA),
            Self::Pretend => libc::SECCOMP_RET_ERRNO,
            Self::Kill => libc::SECCOMP_RET_KILL_PROCESS,
        }
    }
}

/// One 32-bit word of `struct seccomp_data`, which is all a filter sees of a call. Memory behind a pointer
/// argument is out of its sight.
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
    /// Where the word lies, in bytes (little endian).
    pub(crate) const fn offset(self) -> u32 {
        match self {
            Self::Number => 0,
            Self::Arch => 4,
            Self::Low(argument) => 16 + 8 * argument as u32,
            Self::High(argument) => 20 + 8 * argument as u32,
        }
    }
}

/// A question about one word of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Test {
    /// The word, cut to `mask`, is one of these.
    OneOf(Word, u32, &'static [u32]),
    /// The word, cut to `mask`, is none of these.
    NoneOf(Word, u32, &'static [u32]),
    /// The word has at least one of these bits.
    AnyBit(Word, u32),
}

/// If every test holds, the verdict stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clause {
    pub(crate) when: &'static [Test],
    pub(crate) then: Verdict,
}

/// A decision list: the first clause that holds gives the verdict, and `otherwise` if none does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    /// The system calls that take these arguments in this order.
    pub(crate) calls: &'static [c_long],
    pub(crate) clauses: &'static [Clause],
    pub(crate) otherwise: Verdict,
}
