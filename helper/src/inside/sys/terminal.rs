//! System calls on pseudoterminals.

use super::*;

/// openat(2) of a terminal device by absolute path. It does not become the controlling terminal.
pub(crate) fn open_terminal(path: &CStr) -> Result<Fd, Errno> {
    call!(nr::OPENAT, AT_FDCWD, path.as_ptr(), O_RDWR | O_NOCTTY | O_CLOEXEC, 0).map(fd)
}

/// ioctl(2) with an integer argument.
pub(crate) fn ioctl(fd: &Fd, request: usize, argument: usize) -> Result<usize, Errno> {
    call!(nr::IOCTL, fd.0, request, argument)
}

/// ioctl(TIOCSPTLCK): unlocks the other side of a pseudoterminal.
pub(crate) fn unlock_terminal(master: &Fd) -> Result<(), Errno> {
    let unlocked = 0i32;
    call!(nr::IOCTL, master.0, TIOCSPTLCK, &raw const unlocked).map(drop)
}

/// ioctl(TIOCGPTPEER): opens the other side without a path. Linux 4.13.
pub(crate) fn open_peer(master: &Fd) -> Result<Fd, Errno> {
    call!(nr::IOCTL, master.0, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC).map(fd)
}

/// ioctl(TCSETS): sets the modes of a terminal.
pub(crate) fn set_modes(terminal: &Fd, modes: &[u8; TERMIOS]) -> Result<(), Errno> {
    call!(nr::IOCTL, terminal.0, TCSETS, modes.as_ptr()).map(drop)
}

/// ioctl(TIOCGPGRP): the foreground process group of this process's terminal.
pub(crate) fn foreground(terminal: &Fd) -> Result<i32, Errno> {
    let mut group = [0i32];
    call!(nr::IOCTL, terminal.0, TIOCGPGRP, group.as_mut_ptr())?;
    let [group] = group;
    Ok(group)
}

/// ioctl(TIOCSPGRP). While SIGTTOU is blocked, a process in the background may do that too.
pub(crate) fn set_foreground(terminal: &Fd, group: i32) -> Result<(), Errno> {
    call!(nr::IOCTL, terminal.0, TIOCSPGRP, &raw const group).map(drop)
}

/// ioctl(TIOCSWINSZ).
pub(crate) fn set_window(terminal: &Fd, rows: u16, columns: u16) -> Result<(), Errno> {
    let size = [rows, columns, 0, 0];
    call!(nr::IOCTL, terminal.0, TIOCSWINSZ, &raw const size).map(drop)
}

/// ioctl(TIOCGWINSZ): rows and columns.
pub(crate) fn window(terminal: &Fd) -> Result<[u16; 2], Errno> {
    let mut size = [0u16; 4];
    call!(nr::IOCTL, terminal.0, TIOCGWINSZ, size.as_mut_ptr())?;
    let [rows, columns, ..] = size;
    Ok([rows, columns])
}
