//! What a program in the sandbox tries, and how it must end. Data.

use crate::policy::Policy;
use crate::policy::network::NetworkMode;
use crate::probe::stage::{SHOWN_AT, Stage, WRITABLE_AT};
use crate::report::enforcement::Protection;

/// One call that the payload makes.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// Name of its finding.
    pub(crate) name: &'static str,
    /// What it does, in words.
    pub(crate) what: &'static str,
    /// First argument of the payload; helper/src/inside/attempts.rs knows it.
    pub(crate) call: &'static str,
    pub(crate) operand: Operand,
    pub(crate) must: Must,
    /// The wall that it tests first of all.
    pub(crate) wall: Protection,
}

/// Second argument of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    Nothing,
    /// A file that is granted read-only.
    Shown,
    /// A file that is granted writable.
    Writable,
    /// A file of the host that is not granted.
    Secret,
    /// The same, open for reading as the payload's standard input.
    SecretInStdin,
    /// A port of the host's loopback device where a server listens.
    Port,
    /// The name of an abstract socket of the host.
    Name,
    /// The number of this very process.
    Process,
}

/// How an attempt must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Must {
    Succeed,
    /// With one of these.
    Fail(&'static [i32]),
}

/// Numbers that processes in a sandbox have: init, the payload, and who else is needed to start it.
const PROCESSES_INSIDE: u32 = 8;

/// Every attempt, those that must succeed first: where they fail, the others would prove nothing.
pub(crate) const ATTEMPTS: [Attempt; 12] = [
    Attempt {
        name: "read_grant",
        what: "read a file that is granted",
        call: "read",
        operand: Operand::Shown,
        must: Must::Succeed,
        wall: Protection::Root,
    },
    Attempt {
        name: "write_grant",
        what: "write to a file that is granted writable",
        call: "write",
        operand: Operand::Writable,
        must: Must::Succeed,
        wall: Protection::Root,
    },
    Attempt {
        name: "own_loopback",
        what: "serve and connect on the sandbox's loopback device",
        call: "serve-tcp",
        operand: Operand::Port,
        must: Must::Succeed,
        wall: Protection::NetworkNamespace,
    },
    Attempt {
        name: "read_outside",
        what: "read a file outside of the grants",
        call: "read",
        operand: Operand::Secret,
        must: Must::Fail(&[libc::ENOENT, libc::EACCES]),
        wall: Protection::Root,
    },
    Attempt {
        name: "write_outside",
        what: "write to a file outside of the grants",
        call: "write",
        operand: Operand::Secret,
        must: Must::Fail(&[libc::ENOENT, libc::EROFS, libc::EACCES]),
        wall: Protection::Root,
    },
    Attempt {
        name: "write_read_only",
        what: "write to a file that is granted read-only",
        call: "write",
        operand: Operand::Shown,
        must: Must::Fail(&[libc::EROFS, libc::EACCES]),
        wall: Protection::Root,
    },
    // The link to an inherited descriptor leads around namespaces and mounts: only Landlock is left.
    Attempt {
        name: "landlock_alone",
        what: "open a file outside of the grants again, through an inherited descriptor",
        call: "reopen-stdin",
        operand: Operand::SecretInStdin,
        must: Must::Fail(&[libc::EACCES]),
        wall: Protection::Landlock,
    },
    Attempt {
        name: "connect_host",
        what: "connect to a server on the host's loopback device",
        call: "connect-tcp",
        operand: Operand::Port,
        must: Must::Fail(&[libc::ECONNREFUSED, libc::ENETUNREACH, libc::EACCES]),
        wall: Protection::NetworkNamespace,
    },
    Attempt {
        name: "connect_abstract",
        what: "connect to an abstract socket of the host",
        call: "connect-abstract",
        operand: Operand::Name,
        must: Must::Fail(&[libc::ECONNREFUSED, libc::EPERM]),
        wall: Protection::LandlockScope,
    },
    Attempt {
        name: "signal_host",
        what: "signal a process of the host",
        call: "signal",
        operand: Operand::Process,
        must: Must::Fail(&[libc::ESRCH, libc::EPERM]),
        wall: Protection::PidNamespace,
    },
    Attempt {
        name: "new_user_namespace",
        what: "make a user namespace",
        call: "new-user-namespace",
        operand: Operand::Nothing,
        must: Must::Fail(&[libc::EPERM]),
        wall: Protection::Seccomp,
    },
    // The kernel itself lets everybody do this: only seccomp refuses it.
    Attempt {
        name: "seccomp_alone",
        what: "join a new keyring",
        call: "new-keyring",
        operand: Operand::Nothing,
        must: Must::Fail(&[libc::EPERM]),
        wall: Protection::Seccomp,
    },
];

impl Attempt {
    /// Why it is no test under this policy, if so.
    pub(crate) fn pointless(&self, policy: &Policy) -> Option<&'static str> {
        if self.operand == Operand::Port && policy.effective_network() == NetworkMode::Host {
            return Some("the profile grants the host's network");
        }
        if self.name == "read_outside" && policy.profile.meaning().shows_host {
            return Some("the profile shows the host's files");
        }
        if self.operand == Operand::Process && std::process::id() <= PROCESSES_INSIDE {
            return Some("the probe's own process has a number that exists inside as well");
        }
        None
    }

    /// The payload's arguments; none where the stage lacks what it needs.
    pub(crate) fn arguments(&self, stage: &Stage) -> Option<[String; 2]> {
        let operand = match self.operand {
            Operand::Nothing | Operand::SecretInStdin => String::new(),
            Operand::Shown => SHOWN_AT.to_owned(),
            Operand::Writable => WRITABLE_AT.to_owned(),
            Operand::Secret => stage.secret().into_os_string().into_string().ok()?,
            Operand::Port => stage.port()?.to_string(),
            Operand::Name => stage.name.clone(),
            Operand::Process => std::process::id().to_string(),
        };
        Some([self.call.to_owned(), operand])
    }
}
