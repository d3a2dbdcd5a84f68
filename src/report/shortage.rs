//! What can be done where the errno says it alone: there is not enough of something, or a call is refused.

use std::{fs, io};

use procfs::process::Process;

/// What can be done where a path did not stay what it was.
pub(crate) const EXCHANGED: &str = "run again: it was being exchanged while the sandbox was prepared";

/// What can be done where a command gets no terminal. The machine has so many for all sandboxes and containers, whoever asks.
pub(crate) fn of_terminal(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::ENOSPC => Some(
            "end what has many terminals, or raise the limit of terminals of the whole machine: kernel.pty.max",
        ),
        _ => of_call(error),
    }
}

/// What can be done about a call of the outside's own.
pub(crate) fn of_call(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::EPERM | libc::EACCES | libc::ENOSYS => Some(
            "look for what refuses it around this program: a seccomp filter of a container engine or service manager \
             (SystemCallFilter=), a security module (journalctl -k | grep -i denied)",
        ),
        errno => shortage(errno),
    }
}

/// What can be done where something could not be written.
pub(crate) fn of_writing(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::ENOSPC | libc::EDQUOT => Some("make room there, or write it elsewhere"),
        _ => of_call(error),
    }
}

/// What can be done where a path of the host cannot be used: `closed` where its user may not go there, `otherwise` in
/// most other cases.
pub(crate) fn of_path(error: &io::Error, closed: &'static str, otherwise: &'static str) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EACCES) => closed,
        Some(libc::ESTALE) => EXCHANGED,
        Some(errno) if is_shortage(errno) => shortage(errno).unwrap_or(otherwise),
        _ => otherwise,
    }
}

/// Whether there is not enough of something, which may be otherwise in a moment.
pub(crate) fn is_shortage(errno: i32) -> bool {
    matches!(errno, libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE)
}

pub(crate) fn shortage(errno: i32) -> Option<&'static str> {
    Some(match errno {
        libc::EMFILE => "raise the limit of open files: ulimit -n",
        libc::ETOOMANYREFS => {
            "raise the limit of open files, ulimit -n: another process of this user has as many descriptors on their way in \
             messages"
        }
        libc::ENFILE => "raise the limit of open files of the whole machine: fs.file-max",
        libc::EAGAIN => "end some processes, or raise their limit: ulimit -u, and pids.max of the cgroup",
        libc::ENOMEM => "free some memory, or raise its limits: ulimit -v, and memory.max of the cgroup",
        libc::EFBIG => "raise the limit of the size of files: ulimit -f",
        libc::ENOSPC | libc::EDQUOT => {
            "make room: on the file system, in memory for what lies there, or for epoll (fs.epoll.max_user_watches)"
        }
        _ => return None,
    })
}

// What this process was confined by when it was started. Only for sentences to people: nothing is decided by it.

#[derive(Clone, Debug, Default)]
pub(crate) struct Confined {
    /// A seccomp filter.
    pub(crate) filtered: bool,
    /// That, no new privileges and an empty bounding set, as in a sandbox of ours.
    pub(crate) sandboxed: bool,
    /// The AppArmor profile.
    pub(crate) profile: Option<String>,
}

impl Confined {
    pub(crate) fn here() -> Self {
        let profile = apparmor_profile();
        let Ok(status) = Process::myself().and_then(|process| process.status()) else {
            return Self { profile, ..Self::default() };
        };
        let filtered = status.seccomp == Some(2);
        let sandboxed = filtered && status.nonewprivs == Some(1) && status.capbnd == Some(0);
        Self { filtered, sandboxed, profile }
    }
}

/// Not `attr/current`, which may be another security module's.
fn apparmor_profile() -> Option<String> {
    profile_in(&fs::read_to_string("/proc/self/attr/apparmor/current").ok()?)
}

/// `unconfined`, or `NAME (MODE)`. A profile that only complains still keeps to its `deny` rules.
fn profile_in(label: &str) -> Option<String> {
    let (name, mode) = label.trim_matches(['\n', '\0']).rsplit_once(" (")?;
    // Who loads profiles may choose any name; a terminal obeys some characters.
    (mode != "unconfined)").then(|| name.escape_debug().to_string())
}

/// What can be done about a session that cannot be reached because this process is in a sandbox, if it is.
pub(crate) fn of_session() -> Option<&'static str> {
    Confined::here().sandboxed.then_some(OUT_OF_REACH)
}

/// What can be done in a sandbox about a session that is not seen from there.
pub(crate) const OUT_OF_REACH: &str = "this runs in a sandbox, where sessions outside of it are out of reach: run the command without \
                            kennel; kennel session list shows those that run here";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_profiles_that_refuse_something_have_a_name() {
        for (label, name) in [
            ("unconfined\n", None),
            ("chrome (unconfined)\n", None),
            ("docker-default (enforce)\n", Some("docker-default")),
            ("/usr/bin/my tool (beta) (complain)\n", Some("/usr/bin/my tool (beta)")),
            ("a//&:ns:b (mixed)\0", Some("a//&:ns:b")),
            ("a\u{1b}[2J (enforce)\n", Some("a\\u{1b}[2J")),
            ("", None),
        ] {
            assert_eq!(profile_in(label).as_deref(), name, "{label:?}");
        }
    }
}
