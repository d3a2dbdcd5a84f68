//! What a person can do if the errno alone tells it: something ran out, or the kernel refused a call.

use std::{fs, io};

use crate::report::remedy::{Remedy, SettingKey, remedy};

/// The remedy if another file replaced a path during the preparation.
pub(crate) const EXCHANGED: &str = "run again: another file replaced it while the sandbox was prepared";

/// The remedy if a command gets no terminal. All sandboxes and containers of the machine share one limit.
pub(crate) fn of_terminal(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::ENOSPC => {
            Some("close some terminals, or raise the limit of terminals of the whole machine: kernel.pty.max")
        }
        _ => of_call(error),
    }
}

/// The remedy for a system call of this program.
pub(crate) fn of_call(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::EPERM | libc::EACCES | libc::ENOSYS => Some(
            "look for what refuses the call: a seccomp filter of a container engine or service manager \
             (SystemCallFilter=), a security module (journalctl -k | grep -i denied)",
        ),
        errno => shortage(errno),
    }
}

/// The remedy for a failed write.
pub(crate) fn of_writing(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::ENOSPC | libc::EDQUOT => Some("make room there, or write it elsewhere"),
        _ => of_call(error),
    }
}

/// The remedy for a host path that cannot be used: `closed` if the user may not access it, `otherwise` in
/// most other cases.
pub(crate) fn of_path(error: &io::Error, closed: impl Into<Remedy>, otherwise: impl Into<Remedy>) -> Remedy {
    match error.raw_os_error() {
        Some(libc::EACCES) => closed.into(),
        Some(libc::ESTALE) => EXCHANGED.into(),
        Some(errno) if is_shortage(errno) => shortage(errno).map_or_else(|| otherwise.into(), Remedy::from),
        _ => otherwise.into(),
    }
}

/// Whether something ran out, perhaps temporarily.
pub(crate) fn is_shortage(errno: i32) -> bool {
    matches!(errno, libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE)
}

/// The remedy if something ran out.
pub(crate) fn shortage(errno: i32) -> Option<&'static str> {
    Some(match errno {
        libc::EMFILE => "raise the limit of open files: ulimit -n",
        libc::ETOOMANYREFS => {
            "raise the limit of open files, ulimit -n: processes of this user have too many descriptors in unread \
             messages"
        }
        libc::ENFILE => "raise the limit of open files of the whole machine: fs.file-max",
        libc::EAGAIN => "end some processes, or raise their limit: ulimit -u, and pids.max of the cgroup",
        libc::ENOMEM => "free some memory, or raise its limits: ulimit -v, and memory.max of the cgroup",
        libc::EFBIG => "raise the limit of the size of files: ulimit -f",
        libc::ENOSPC | libc::EDQUOT => {
            "make room on the file system, in memory if the file system is there, or for epoll (fs.epoll.max_user_watches)"
        }
        _ => return None,
    })
}

// What confined this process when it started. Kennel only uses it in messages and bases no decision on it.

#[derive(Clone, Debug, Default)]
pub(crate) struct Confined {
    /// Whether it has a seccomp filter.
    pub(crate) filtered: bool,
    /// Whether it also has no new privileges and an empty bounding set, as in a sandbox of Kennel.
    pub(crate) sandboxed: bool,
    /// Its AppArmor profile.
    pub(crate) profile: Option<String>,
}

impl Confined {
    pub(crate) fn here() -> Self {
        let profile = apparmor_profile();
        // proc_pid_status(5). Other systems than Linux have no such file, and nothing of this.
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let filtered = field("Seccomp:") == Some("2");
        let is_bare = field("CapBnd:").is_some_and(|set| set.bytes().all(|digit| digit == b'0'));
        let sandboxed = filtered && is_bare && field("NoNewPrivs:") == Some("1");
        Self { filtered, sandboxed, profile }
    }
}

/// Reads the file of AppArmor: `attr/current` may belong to another security module.
fn apparmor_profile() -> Option<String> {
    profile_in(&fs::read_to_string("/proc/self/attr/apparmor/current").ok()?)
}

/// The name in `NAME (MODE)`; `None` if unconfined. A profile in complain mode still enforces its `deny`
/// rules.
fn profile_in(label: &str) -> Option<String> {
    let (name, mode) = label.trim_matches(['\n', '\0']).rsplit_once(" (")?;
    // The name is arbitrary text, and a terminal obeys some characters.
    (mode != "unconfined)").then(|| name.escape_debug().to_string())
}

/// The remedy for a session that this process cannot reach because it runs in a sandbox; `None` if it does
/// not.
pub(crate) fn of_session() -> Option<Remedy> {
    Confined::here().sandboxed.then(out_of_reach)
}

/// The remedy for a session that cannot be seen from inside a sandbox.
pub(crate) fn out_of_reach() -> Remedy {
    remedy![
        "this runs in a sandbox, where sessions outside of it are out of reach: run the command without kennel; ",
        SettingKey::ListSessions,
        " shows those that run here",
    ]
}

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
