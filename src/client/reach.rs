//! The way to a session's socket, and which there are.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    thread::sleep,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::{
        socket::{SockFlag, connect, setsockopt, sockopt::SendTimeout},
        time::TimeVal,
    },
};

use super::PATIENCE;
use crate::{
    listen::{directory::Directory, lock::is_held, name::Name},
    packet::{address, packet_socket},
};

/// How long a session may take to put its socket back that somebody has removed. It looks each second.
const PUT_BACK: Duration = Duration::from_secs(3);

/// When to look again whether it has.
const AGAIN: Duration = Duration::from_millis(20);

/// Connects to a session. One whose socket somebody has removed puts it back shortly.
pub(super) fn connected(directory: &Directory, name: &Name) -> io::Result<OwnedFd> {
    let begun = Instant::now();
    loop {
        let socket = packet_socket(SockFlag::empty())?;
        // It limits the wait for being let in, too.
        setsockopt(&socket, SendTimeout, &TimeVal::new(PATIENCE, 0))?;
        match connect(socket.as_raw_fd(), &address(&directory.own_path(name.socket()))?) {
            Err(Errno::ENOENT) if begun.elapsed() < PUT_BACK && is_held(directory, name) => sleep(AGAIN),
            connected => return Ok(connected.map(|()| socket)?),
        }
    }
}

/// The names that sessions have, or had: by its lock alone where somebody has removed a session's socket.
pub(super) fn names(directory: &Directory) -> io::Result<BTreeSet<Name>> {
    let name = |file: &OsStr| Name::of_socket(file.to_str()?).or_else(|| Name::of_lock(file.to_str()?));
    let files = fs::read_dir(directory.own_path(""))?;
    files.map(|entry| Ok(name(&entry?.file_name()))).filter_map(io::Result::transpose).collect()
}
