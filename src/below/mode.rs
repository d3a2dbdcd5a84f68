//! Modes of what is held.

use std::os::fd::AsFd;

use nix::{
    fcntl::AT_FDCWD,
    sys::stat::{FchmodatFlags, FileStat, Mode, fchmodat, fstat},
};

use super::own_path;

/// Permission bits, with those for set-user-id, set-group-id and sticky.
pub(crate) fn mode_of(stat: &FileStat) -> Mode {
    Mode::from_bits_truncate(stat.st_mode & 0o7777)
}

/// chmod(2) of what is held, be it with `O_PATH` only, which fchmod(2) refuses.
pub(crate) fn change_mode(held: impl AsFd, mode: Mode) -> nix::Result<()> {
    fchmodat(AT_FDCWD, &own_path(held), mode, FchmodatFlags::FollowSymlink)
}

/// Opens a directory up to its owner; answers what it was before.
pub(crate) fn open_up(held: impl AsFd) -> nix::Result<FileStat> {
    let before = fstat(&held)?;
    change_mode(held, mode_of(&before) | Mode::S_IRWXU)?;
    Ok(before)
}
