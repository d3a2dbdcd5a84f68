//! Refused system calls in words: name, and the argument that made the difference. Pure.

use syscalls::Sysno;

use crate::compile::seccomp::judge::Refused;

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
pub(super) fn name(number: u32) -> String {
    let known = usize::try_from(number).ok().and_then(Sysno::new);
    known.map_or_else(|| format!("system call {number}"), |call| call.name().to_owned())
}

/// The call with what was wrong about its arguments.
pub(super) fn subject(number: u32, because: &[(u8, u64)]) -> String {
    let name = name(number);
    let words: Vec<String> = because.iter().map(|(index, value)| argument(&name, *index, *value)).collect();
    if words.is_empty() { name } else { format!("{name}({})", words.join(", ")) }
}

/// Whether programs try it as a matter of course and do without: worth a word only when something went wrong. io_uring is
/// probed by event loops, MPTCP by Go's listeners, both then take the older way.
pub(super) fn is_probe(number: u32, refused: &Refused) -> bool {
    let is = |call: libc::c_long| i64::from(number) == call;
    let mptcp = u64::from(libc::IPPROTO_MPTCP.unsigned_abs());
    is(libc::SYS_io_uring_setup)
        || (is(libc::SYS_socket) && refused.because.contains(&(2, mptcp)))
        || refused.errno == libc::EOPNOTSUPP
}

/// The words of errno(3) for what a call returned.
pub(super) fn errno(number: i32) -> String {
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
mod tests {
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
