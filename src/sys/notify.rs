//! Answering system calls in the place of a filter: seccomp_unotify(2).

use std::{
    ffi::c_int,
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// ioctl(SECCOMP_IOCTL_NOTIF_RECV): a call that waits for an answer. Does not wait where poll(2) has said that there is
/// one, and nobody else receives. `ENOENT` where the caller is gone. Linux 5.0.
pub(crate) fn refused_call(listener: BorrowedFd<'_>) -> io::Result<libc::seccomp_notif> {
    let data = libc::seccomp_data { nr: 0, arch: 0, instruction_pointer: 0, args: [0; 6] };
    let mut call = libc::seccomp_notif { id: 0, pid: 0, flags: 0, data };
    let request = libc::SECCOMP_IOCTL_NOTIF_RECV;
    // SAFETY: the call writes one seccomp_notif at the address, which is zeroed as it asks.
    let answer = unsafe { libc::ioctl(listener.as_raw_fd(), request, &raw mut call) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(call) }
}

/// ioctl(SECCOMP_IOCTL_NOTIF_SEND): the call with that id returns `errno`. It is never let through: no flag is given.
pub(crate) fn refuse_call(listener: BorrowedFd<'_>, id: u64, errno: c_int) -> io::Result<()> {
    let answer = libc::seccomp_notif_resp { id, val: 0, error: -errno, flags: 0 };
    let request = libc::SECCOMP_IOCTL_NOTIF_SEND;
    // SAFETY: the call reads one seccomp_notif_resp at the address.
    let sent = unsafe { libc::ioctl(listener.as_raw_fd(), request, &raw const answer) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// ioctl(SECCOMP_IOCTL_NOTIF_ID_VALID): whether that call still waits, so that its pid is still the caller's.
pub(crate) fn still_waits(listener: BorrowedFd<'_>, id: u64) -> bool {
    let request = libc::SECCOMP_IOCTL_NOTIF_ID_VALID;
    // SAFETY: the call reads one 64-bit number at the address.
    let answer = unsafe { libc::ioctl(listener.as_raw_fd(), request, &raw const id) };
    answer == 0
}
