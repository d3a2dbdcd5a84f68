//! What the filter of system calls refuses, by its own account: the kernel asks what a call shall return, and a thread
//! answers what the filter would have. Nothing is ever let through, and what the thread does not answer, because it is
//! gone, the kernel refuses by itself (ENOSYS).
//!
//! A thread, and not a task: a command must not wait for a runtime that its owner keeps busy. It ends when no process has
//! the filter any more.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::{fs, io, thread};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;
use syscalls::Sysno;

use crate::plan::seccomp::table::{RefusedCall, SystemCall, judge};
use crate::report::denial::{Basis, Denial, clean};
use crate::report::enforcement::Protection;
use crate::sys;
use crate::sys::locked;

/// More different calls than that are only counted.
const MOST: usize = 32;

/// Bytes of stack that the thread needs, with room to spare.
const STACK: usize = 128 << 10;

/// Follows what the filter of one command refuses.
#[derive(Clone, Debug)]
pub(crate) struct Refusals {
    log: Arc<Mutex<Log>>,
}

#[derive(Debug, Default)]
struct Log {
    /// By number and the arguments that mattered.
    calls: BTreeMap<(u32, Vec<(u8, u64)>), Entry>,
    /// How many there was no room for.
    others: u64,
}

#[derive(Debug)]
struct Entry {
    refused: RefusedCall,
    count: u64,
    /// The name that the first caller gave itself.
    caller: Option<String>,
}

impl Refusals {
    /// Answers in the filter's place from now on.
    ///
    /// # Errors
    /// No room for a thread.
    pub(crate) fn follow(listener: OwnedFd) -> io::Result<Self> {
        let log = Arc::new(Mutex::new(Log::default()));
        let theirs = Arc::clone(&log);
        let thread = thread::Builder::new().name("kennel-explain".to_owned()).stack_size(STACK);
        thread.spawn(move || {
            // Signals are the embedding program's.
            let _ = SigSet::all().thread_block();
            serve(&listener, &theirs);
        })?;
        Ok(Self { log })
    }

    /// What was refused until now. Calls that programs make as a matter of course are left out where the command
    /// succeeded.
    pub(crate) fn denials(&self, has_failed: bool) -> Vec<Denial> {
        let log = lock(&self.log);
        let told = |(number, entry): (u32, &Entry)| has_failed || !is_probe(number, &entry.refused);
        let entries = log.calls.iter().filter(|((number, _), entry)| told((*number, entry)));
        let mut denials: Vec<Denial> =
            entries.map(|((number, because), entry)| entry.denial(*number, because)).collect();
        if log.others > 0 {
            denials.push(denial("other system calls".to_owned(), format!("refused {} times", log.others)));
        }
        denials
    }
}

impl Entry {
    fn denial(&self, number: u32, because: &[(u8, u64)]) -> Denial {
        let times = if self.count == 1 { String::new() } else { format!(", {} times", self.count) };
        let caller = self.caller.as_ref().map(|name| format!(", first to '{name}'")).unwrap_or_default();
        let reason = format!("refused with {}{times}{caller}; no flag allows it", errno(self.refused.errno));
        denial(subject(number, because), reason)
    }
}

fn denial(subject: String, reason: String) -> Denial {
    Denial { protection: Protection::Seccomp, subject, reason, basis: Basis::Observed, remedy: None }
}

impl Log {
    /// Enters a call; `caller` is asked for the first of its kind.
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

fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    locked(log)
}

/// Answers until no process has the filter any more.
fn serve(listener: &OwnedFd, log: &Mutex<Log>) {
    let listener = listener.as_fd();
    loop {
        let mut waits = [PollFd::new(listener, PollFlags::POLLIN)];
        match poll(&mut waits, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            Err(_) => return,
            Ok(_) => {}
        }
        let events = waits.iter().filter_map(PollFd::revents).fold(PollFlags::empty(), |all, one| all | one);
        if !events.contains(PollFlags::POLLIN) {
            return;
        }
        match answer(listener, log) {
            // The caller was killed meanwhile, or this was interrupted.
            Ok(()) | Err(Errno::ENOENT | Errno::EINTR) => {}
            // Nobody waits for what can never be answered: closing the listener is an answer.
            Err(_) => return,
        }
    }
}

/// One call, which waits.
fn answer(listener: BorrowedFd<'_>, log: &Mutex<Log>) -> Result<(), Errno> {
    let errno = |error: io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
    let call = sys::receive_notification(listener).map_err(errno)?;
    let asked = SystemCall { number: call.data.nr.cast_unsigned(), arguments: call.data.args };
    let refused = judge(&asked).unwrap_or(RefusedCall { errno: libc::EPERM, because: Vec::new() });
    let answer = refused.errno;
    // Before the answer: whoever hears of the end of the command finds it here.
    lock(log).add(asked.number, refused, || caller(listener, call.id, call.pid));
    sys::deny_notification(listener, call.id, answer).map_err(errno)
}

/// What the caller calls itself, if it is still the one who asks.
fn caller(listener: BorrowedFd<'_>, id: u64, pid: u32) -> Option<String> {
    // 0 is a process that this one cannot see; and /proc may be that of another namespace, where the number is another's.
    let is_ours =
        fs::read_link("/proc/self").is_ok_and(|own| own == Path::new(&std::process::id().to_string()));
    if !is_ours {
        return None;
    }
    let name = (pid != 0).then(|| fs::read(format!("/proc/{pid}/comm")))?.ok()?;
    let name = clean(String::from_utf8_lossy(&name).trim_end()).replace('\'', "?");
    (sys::notification_is_valid(listener, id) && !name.is_empty()).then_some(name)
}

// Refused system calls in words: name, and the argument that made the difference. Pure.

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

/// What a call is called: as in the manual, or by its number.
pub(crate) fn name(number: u32) -> String {
    let known = usize::try_from(number).ok().and_then(Sysno::new);
    known.map_or_else(|| format!("system call {number}"), |call| call.name().to_owned())
}

/// The call with what was wrong about its arguments.
pub(crate) fn subject(number: u32, because: &[(u8, u64)]) -> String {
    let name = name(number);
    let words: Vec<String> = because.iter().map(|(index, value)| argument(&name, *index, *value)).collect();
    if words.is_empty() { name } else { format!("{name}({})", words.join(", ")) }
}

/// Whether programs try it as a matter of course and do without: worth a word only when something went wrong. io_uring is
/// probed by event loops, MPTCP by Go's listeners, both then take the older way.
pub(crate) fn is_probe(number: u32, refused: &RefusedCall) -> bool {
    let is = |call: libc::c_long| i64::from(number) == call;
    let mptcp = u64::from(libc::IPPROTO_MPTCP.unsigned_abs());
    is(libc::SYS_io_uring_setup)
        || (is(libc::SYS_socket) && refused.because.contains(&(2, mptcp)))
        || refused.errno == libc::EOPNOTSUPP
}

/// The words of errno(3) for what a call returned.
pub(crate) fn errno(number: i32) -> String {
    let errno = nix::errno::Errno::from_raw(number);
    format!("{errno:?}")
}

fn argument(call: &str, index: u8, value: u64) -> String {
    let known = |table: &[(i32, &'static str)]| {
        let entry = table.iter().find(|(number, _)| u64::from(number.unsigned_abs()) == value);
        entry.map(|(_, name)| (*name).to_owned())
    };
    let words = match (call, index) {
        ("clone" | "unshare", 0) => Some(flags(value)),
        ("socket" | "socketpair", 0) => known(FAMILIES),
        ("socket" | "socketpair", 2) => known(PROTOCOLS),
        ("open" | "creat" | "mknod" | "chmod" | "fchmod", _) => Some(format!("mode {value:#o}")),
        ("openat" | "mknodat" | "fchmodat" | "fchmodat2", 2 | 3) => Some(format!("mode {value:#o}")),
        ("prlimit64" | "setpriority" | "ioprio_set", _) if value == 1 => Some("pid 1".to_owned()),
        (other, 0) if other.starts_with("sched_") => Some(format!("pid {value}")),
        _ => None,
    };
    words.unwrap_or_else(|| format!("{value:#x}"))
}

/// Flags that make namespaces by name, others as a number.
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
    fn calls_have_their_names_and_what_was_wrong_with_them() {
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
            (libc::SYS_chmod, vec![(1, 0o4000)], "chmod(mode 0o4000)"),
            (libc::SYS_ioctl, vec![(1, 0x5412)], "ioctl(0x5412)"),
        ] {
            assert_eq!(subject(number(call), &because), expected);
        }
        assert_eq!(name(100_000), "system call 100000");
        assert_eq!(errno(libc::EPERM), "EPERM");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn refused(argument: u64) -> RefusedCall {
        RefusedCall { errno: libc::EPERM, because: vec![(0, argument)] }
    }

    #[test]
    fn a_flood_is_counted_and_takes_no_room() {
        let mut log = Log::default();
        for turn in 0..100_000u64 {
            log.add(272, refused(turn % 50), || Some("flood".to_owned()));
        }
        assert_eq!(log.calls.len(), MOST);
        let counted: u64 = log.calls.values().map(|entry| entry.count).sum();
        assert_eq!(counted + log.others, 100_000);
        let refusals = Refusals { log: Arc::new(Mutex::new(log)) };
        let denials = refusals.denials(true);
        assert_eq!(denials.len(), MOST + 1);
        assert!(denials.iter().all(|denial| denial.basis == Basis::Observed && denial.remedy.is_none()));
        assert_eq!(denials[MOST].reason, format!("refused {} times", (50 - MOST) * 2000));
    }

    #[test]
    fn what_programs_try_anyway_is_told_of_a_failure_only() {
        let mut log = Log::default();
        let plain = || RefusedCall { errno: libc::EPERM, because: Vec::new() };
        log.add(425, plain(), || None);
        log.add(165, plain(), || Some("mount".to_owned()));
        let refusals = Refusals { log: Arc::new(Mutex::new(log)) };
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
