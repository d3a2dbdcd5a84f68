//! System calls on cgroup v2: entering, killing and removing groups.

use super::*;

/// write(2) of `0` to `cgroup.procs`: moves this process to the group, with all its threads.
pub(crate) fn enter_cgroup(group: &Fd) -> Result<(), Errno> {
    write_at(group, c"cgroup.procs", b"0")
}

/// write(2) of `1` to `cgroup.kill`: SIGKILL to every process of the group and the groups below. Linux 5.14.
pub(crate) fn kill_cgroup(group: &Fd) -> Result<(), Errno> {
    write_at(group, c"cgroup.kill", b"1")
}

fn write_at(directory: &Fd, name: &CStr, bytes: &[u8]) -> Result<(), Errno> {
    let flags = O_WRONLY | O_NOFOLLOW | O_CLOEXEC;
    let file = call!(nr::OPENAT, directory.0, name.as_ptr(), flags, 0).map(fd)?;
    write_all(&file, bytes)
}

/// openat(2) of a directory, to list it.
pub(crate) fn open_dir(at: &Fd, name: &CStr) -> Result<Fd, Errno> {
    let flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    call!(nr::OPENAT, at.0, name.as_ptr(), flags, 0).map(fd)
}

/// flock(LOCK_EX | LOCK_NB), held while the descriptor is open. `EAGAIN` if another process holds the lock.
pub(crate) fn try_lock(of: &Fd) -> Result<(), Errno> {
    call!(nr::FLOCK, of.0, LOCK_EX | LOCK_NB).map(drop)
}

/// unlinkat(AT_REMOVEDIR).
pub(crate) fn remove_dir(at: &Fd, name: &CStr) -> Result<(), Errno> {
    call!(nr::UNLINKAT, at.0, name.as_ptr(), AT_REMOVEDIR).map(drop)
}

/// getdents64(2): the next entries of a directory; none at its end.
pub(crate) fn entries<'b>(of: &Fd, buffer: &'b mut [u8]) -> Result<&'b [u8], Errno> {
    let count = call!(nr::GETDENTS64, of.0, buffer.as_mut_ptr(), buffer.len())?;
    Ok(buffer.get(..count).unwrap_or_default())
}

/// poll(2) without descriptors: sleeps for that many milliseconds.
pub(crate) fn sleep(milliseconds: i32) {
    let _ = call!(nr::POLL, 0, 0, milliseconds);
}
