//! What is refused to one command: system calls by its seccomp filter, and uses of paths by its view.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use syscalls::Sysno;

use crate::launch::supervisor::caller::{WaitingThread, is_own_proc};
use crate::launch::supervisor::failed_uses::{self, FailedUses};
use crate::plan::seccomp::table::Argument;
use crate::report::denial::{Basis, Denial, clean};
use crate::report::enforcement::Protection;
use crate::sys;
use crate::sys::locked;
use crate::view::View;

/// How many different calls are recorded. Others are only counted.
const MOST: usize = 32;

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusedCall {
    /// The errno that the call returns; 0 if it seems to be done.
    pub(crate) errno: i32,
    /// The arguments that it depends on; empty if it depends on none.
    pub(crate) because: Vec<Argument>,
}

/// What was refused to one command so far.
#[derive(Clone, Debug)]
pub(crate) struct Refusals {
    log: Arc<Mutex<Log>>,
    uses: Arc<Mutex<FailedUses>>,
    view: Arc<View>,
}

#[derive(Debug, Default)]
struct Log {
    /// By number and the arguments that the filter refused.
    calls: BTreeMap<(u32, Vec<Argument>), Entry>,
    /// How many refusals are not in `calls`.
    others: u64,
}

#[derive(Debug)]
struct Entry {
    refused: RefusedCall,
    count: u64,
    /// The name of the first caller (`comm`). A process can change its name.
    caller: Option<String>,
}

impl Refusals {
    /// `view` is what the command sees.
    pub(crate) fn new(view: Arc<View>) -> Self {
        Self { log: Arc::default(), uses: Arc::default(), view }
    }

    /// Adds a call that is refused.
    pub(crate) fn add(&self, listener: BorrowedFd<'_>, call: &libc::seccomp_notif, refused: RefusedCall) {
        let number = call.data.nr.cast_unsigned();
        locked(&self.log).add(number, refused, || caller_name(listener, call.id, call.pid));
    }

    /// Adds a call that goes on, if the sandbox makes it fail.
    pub(crate) fn add_use(&self, listener: BorrowedFd<'_>, call: &libc::seccomp_notif) {
        let Ok(caller) = WaitingThread::of(listener, call) else { return };
        // A look-up may hang, and the end of the command takes the lock.
        for seen in failed_uses::seen(&caller, call, &self.view) {
            locked(&self.uses).add(seen);
        }
    }

    /// The uses of paths that failed.
    pub(crate) fn uses(&self) -> FailedUses {
        locked(&self.uses).clone()
    }

    /// Forgets what was refused so far: what comes now belongs to another call of a shell.
    pub(crate) fn forget(&self) {
        *locked(&self.log) = Log::default();
        *locked(&self.uses) = FailedUses::default();
    }

    /// What the filter has refused so far. For a command that succeeded, this leaves out calls that programs
    /// only probe.
    pub(crate) fn denials(&self, has_failed: bool) -> Vec<Denial> {
        let log = locked(&self.log);
        let is_reported = |number: u32, entry: &Entry| has_failed || !is_probe(number, &entry.refused);
        let entries = log.calls.iter().filter(|((number, _), entry)| is_reported(*number, entry));
        let mut denials: Vec<Denial> =
            entries.map(|((number, because), entry)| entry.denial(*number, because)).collect();
        if log.others > 0 {
            denials.push(denial("other system calls".to_owned(), format!("refused {} times", log.others)));
        }
        denials
    }
}

impl Entry {
    fn denial(&self, number: u32, because: &[Argument]) -> Denial {
        let times = if self.count == 1 { String::new() } else { format!(", {} times", self.count) };
        let caller = self.caller.as_ref().map(|name| format!(", first to '{name}'")).unwrap_or_default();
        let subject = subject(number, because);
        let reason = match self.refused.errno {
            0 => {
                format!("not done, but answered as done{times}{caller}; a sandbox has no other owner to give")
            }
            errno => format!("refused with {}{times}{caller}; no flag allows it", self::errno(errno)),
        };
        denial(subject, reason)
    }
}

fn denial(subject: String, reason: String) -> Denial {
    Denial::new(Protection::Seccomp, subject, reason, Basis::Observed)
}

impl Log {
    /// Records a call. `caller` names the process; it runs only for the first call of a kind.
    fn add(&mut self, number: u32, refused: RefusedCall, caller: impl FnOnce() -> Option<String>) {
        let key = (number, refused.because.clone());
        if let Some(entry) = self.calls.get_mut(&key) {
            entry.count = entry.count.saturating_add(1);
        } else if self.calls.len() < MOST {
            self.calls.insert(key, Entry { refused, count: 1, caller: caller() });
        } else {
            self.others = self.others.saturating_add(1);
        }
    }
}

/// The name of the calling process, if the call still waits and the pid is therefore still its own.
pub(super) fn caller_name(listener: BorrowedFd<'_>, id: u64, pid: u32) -> Option<String> {
    if !is_own_proc() {
        return None;
    }
    // Pid 0: the process is not in the pid namespace of this program.
    let name = (pid != 0).then(|| fs::read(format!("/proc/{pid}/comm")))?.ok()?;
    let name = clean(String::from_utf8_lossy(&name).trim_end()).replace('\'', "?");
    (sys::notification_is_valid(listener, id) && !name.is_empty()).then_some(name)
}

// Names of refused system calls and of the arguments that the filter refused.

const NAMESPACES: &[(i32, &str)] = &[
    (libc::CLONE_NEWNS, "CLONE_NEWNS"),
    (libc::CLONE_NEWCGROUP, "CLONE_NEWCGROUP"),
    (libc::CLONE_NEWUTS, "CLONE_NEWUTS"),
    (libc::CLONE_NEWIPC, "CLONE_NEWIPC"),
    (libc::CLONE_NEWUSER, "CLONE_NEWUSER"),
    (libc::CLONE_NEWPID, "CLONE_NEWPID"),
    (libc::CLONE_NEWNET, "CLONE_NEWNET"),
];

const FAMILIES: &[(i32, &str)] = &[
    (libc::AF_INET, "AF_INET"),
    (libc::AF_INET6, "AF_INET6"),
    (libc::AF_NETLINK, "AF_NETLINK"),
    (libc::AF_PACKET, "AF_PACKET"),
    (libc::AF_VSOCK, "AF_VSOCK"),
    (libc::AF_ALG, "AF_ALG"),
    (libc::AF_BLUETOOTH, "AF_BLUETOOTH"),
    (libc::AF_CAN, "AF_CAN"),
    (libc::AF_KEY, "AF_KEY"),
    (libc::AF_TIPC, "AF_TIPC"),
    (libc::AF_RXRPC, "AF_RXRPC"),
    (libc::AF_XDP, "AF_XDP"),
];

const PROTOCOLS: &[(i32, &str)] = &[
    (libc::IPPROTO_SCTP, "IPPROTO_SCTP"),
    (libc::IPPROTO_DCCP, "IPPROTO_DCCP"),
    (libc::IPPROTO_UDPLITE, "IPPROTO_UDPLITE"),
    (libc::IPPROTO_MPTCP, "IPPROTO_MPTCP"),
];

/// The name of a system call, or `system call N`.
pub(crate) fn name(number: u32) -> String {
    let known = usize::try_from(number).ok().and_then(Sysno::new);
    known.map_or_else(|| format!("system call {number}"), |call| call.name().to_owned())
}

/// The call and its refused arguments.
pub(crate) fn subject(number: u32, because: &[Argument]) -> String {
    let name = name(number);
    let words: Vec<String> = because.iter().map(|it| argument(&name, it.index, it.value)).collect();
    if words.is_empty() { name } else { format!("{name}({})", words.join(", ")) }
}

/// Whether programs only probe this call and have a fallback: event loops probe io_uring, Go's listeners
/// probe MPTCP. Such a refusal is worth a message only after a failure.
pub(crate) fn is_probe(number: u32, refused: &RefusedCall) -> bool {
    let is = |call: libc::c_long| i64::from(number) == call;
    let mptcp = u64::from(libc::IPPROTO_MPTCP.unsigned_abs());
    is(libc::SYS_io_uring_setup)
        || (is(libc::SYS_socket) && refused.because.contains(&Argument { index: 2, value: mptcp }))
        || refused.errno == libc::EOPNOTSUPP
}

/// The name of an errno.
pub(crate) fn errno(number: i32) -> String {
    let errno = nix::errno::Errno::from_raw(number);
    format!("{errno:?}")
}

fn argument(call: &str, index: u8, value: u64) -> String {
    let known = |table: &[(i32, &'static str)]| {
        let entry = table.iter().find(|(number, _)| u64::from(number.unsigned_abs()) == value);
        entry.map(|(_, name)| (*name).to_owned())
    };
    let text = match (call, index) {
        ("clone" | "unshare", 0) => Some(flags(value)),
        ("socket" | "socketpair", 0) => known(FAMILIES),
        ("socket" | "socketpair", 1) => known(&[(libc::SOCK_RAW, "SOCK_RAW")]),
        ("socket" | "socketpair", 2) => known(PROTOCOLS),
        ("open" | "creat" | "mknod" | "chmod" | "fchmod", _) => Some(format!("mode {value:#o}")),
        ("openat" | "mknodat" | "fchmodat" | "fchmodat2", 2 | 3) => Some(format!("mode {value:#o}")),
        ("prlimit64" | "setpriority" | "ioprio_set", _) if value == 1 => Some("pid 1".to_owned()),
        ("chown" | "lchown" | "fchown", 1) | ("fchownat", 2) => Some(format!("user {value}")),
        ("chown" | "lchown" | "fchown", 2) | ("fchownat", 3) => Some(format!("group {value}")),
        (other, 0) if other.starts_with("sched_") => Some(format!("pid {value}")),
        _ => None,
    };
    text.unwrap_or_else(|| format!("{value:#x}"))
}

/// Clone flags: namespaces by name, the rest as a number.
fn flags(value: u64) -> String {
    let named = |flag: i32| value & u64::from(flag.unsigned_abs()) != 0;
    let mut words: Vec<String> =
        NAMESPACES.iter().filter(|(flag, _)| named(*flag)).map(|(_, name)| (*name).to_owned()).collect();
    let rest = NAMESPACES.iter().fold(value, |rest, (flag, _)| rest & !u64::from(flag.unsigned_abs()));
    if rest != 0 || words.is_empty() {
        words.push(format!("{rest:#x}"));
    }
    words.join("|")
}

#[cfg(test)]
mod calls_tests {
    use super::*;

    #[test]
    fn subjects_name_the_call_and_its_refused_arguments() {
        let number = |call: libc::c_long| u32::try_from(call).expect("a number");
        let bits = |flag: i32| u64::from(flag.unsigned_abs());
        for (call, because, expected) in [
            (libc::SYS_mount, vec![], "mount"),
            (libc::SYS_unshare, vec![(0, bits(libc::CLONE_NEWUSER))], "unshare(CLONE_NEWUSER)"),
            (
                libc::SYS_clone,
                vec![(0, bits(libc::CLONE_NEWNS | libc::CLONE_NEWPID))],
                "clone(CLONE_NEWNS|CLONE_NEWPID)",
            ),
            (libc::SYS_unshare, vec![(0, 0x80)], "unshare(0x80)"),
            (libc::SYS_socket, vec![(0, bits(libc::AF_ALG))], "socket(AF_ALG)"),
            (libc::SYS_socket, vec![(0, 77)], "socket(0x4d)"),
            (libc::SYS_socket, vec![(1, bits(libc::SOCK_RAW))], "socket(SOCK_RAW)"),
            (libc::SYS_chmod, vec![(1, 0o4000)], "chmod(mode 0o4000)"),
            (libc::SYS_fchownat, vec![(2, 33)], "fchownat(user 33)"),
            (libc::SYS_chown, vec![(2, 33)], "chown(group 33)"),
            (libc::SYS_ioctl, vec![(1, 0x5412)], "ioctl(0x5412)"),
        ] {
            let because: Vec<_> =
                because.into_iter().map(|(index, value)| Argument { index, value }).collect();
            assert_eq!(subject(number(call), &because), expected);
        }
        assert_eq!(name(100_000), "system call 100000");
        assert_eq!(errno(libc::EPERM), "EPERM");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(argument: u64) -> RefusedCall {
        RefusedCall { errno: libc::EPERM, because: vec![Argument { index: 0, value: argument }] }
    }

    #[test]
    fn a_flood_is_only_counted() {
        let mut log = Log::default();
        for turn in 0..100_000u64 {
            log.add(272, refused(turn % 50), || Some("flood".to_owned()));
        }
        assert_eq!(log.calls.len(), MOST);
        let counted: u64 = log.calls.values().map(|entry| entry.count).sum();
        assert_eq!(counted + log.others, 100_000);
        let refusals = Refusals { log: Arc::new(Mutex::new(log)), ..Refusals::new(Arc::default()) };
        let denials = refusals.denials(true);
        assert_eq!(denials.len(), MOST + 1);
        assert!(denials.iter().all(|denial| denial.basis == Basis::Observed && denial.remedy.is_none()));
        assert_eq!(denials[MOST].reason, format!("refused {} times", (50 - MOST) * 2000));
    }

    #[test]
    fn probes_are_reported_only_after_a_failure() {
        let mut log = Log::default();
        let plain = || RefusedCall { errno: libc::EPERM, because: Vec::new() };
        log.add(425, plain(), || None);
        log.add(165, plain(), || Some("mount".to_owned()));
        let refusals = Refusals { log: Arc::new(Mutex::new(log)), ..Refusals::new(Arc::default()) };
        let subjects =
            |failed| refusals.denials(failed).into_iter().map(|denial| denial.subject).collect::<Vec<_>>();
        assert_eq!(subjects(false), ["mount"]);
        assert_eq!(subjects(true), ["mount", "io_uring_setup"]);
        assert_eq!(
            refusals.denials(false)[0].reason,
            "refused with EPERM, first to 'mount'; no flag allows it"
        );
    }
}
