//! The reaper: removes a cgroup and kills its processes once the outside is gone, however that ended. It only
//! waits for the end of its socket, runs no program, and is in none of the groups that it removes.

use core::ffi::CStr;

use crate::{
    Fault,
    channel::Channel,
    kernel::{EAGAIN, ENOENT},
    sys::{
        self, Errno, Fd,
        directory::{self, Entry},
    },
};

/// Milliseconds between tries, and the number of tries: half a minute in all. Killed processes are gone after
/// a few. Whoever creates the next group removes one whose processes hang in the kernel for longer.
const PAUSE: i32 = 10;
const TRIES: u32 = 3_000;

/// Waits until the outside is gone, then removes the group `name` in `directory`.
pub(crate) fn serve(channel: &Channel, directory: &Fd, name: &CStr) -> Result<(), Fault> {
    // This process may live as long as a session and must not keep a file system busy.
    sys::change_dir(c"/").map_err(Fault::init)?;
    let mut byte = [0u8; 1];
    // Only the end of the socket counts. Ignore any message, such as one from another build.
    while let Ok((count, _)) = sys::receive(channel.socket(), &mut byte) {
        if count == 0 {
            break;
        }
    }
    for _ in 0..TRIES {
        if !is_left(directory, name) {
            break;
        }
        sys::sleep(PAUSE);
    }
    Ok(())
}

/// Kills the processes of the group and tries to remove it. Returns whether it still exists. Leaves a locked
/// group alone: the outside is gone, so another program created it or is removing it now.
fn is_left(directory: &Fd, name: &CStr) -> bool {
    if let Ok(group) = sys::open_dir(directory, name) {
        if sys::try_lock(&group) == Err(Errno(EAGAIN)) {
            return true;
        }
        // Linux before 5.14 has no cgroup.kill. There the kernel kills the processes when the sandbox's PID 1
        // ends.
        let _ = sys::kill_cgroup(&group);
        remove_below(&group);
    }
    !matches!(sys::remove_dir(directory, name), Ok(()) | Err(Errno(ENOENT)))
}

/// Removes the groups inside a group; they contain none themselves.
fn remove_below(group: &Fd) {
    let mut buffer = [0u8; 2048];
    loop {
        let mut rest = match sys::entries(group, &mut buffer) {
            Ok(entries) if !entries.is_empty() => entries,
            _ => return,
        };
        while let Some((Entry { name, is_directory }, after)) = directory::next(rest) {
            if let Some(name) = name.filter(|name| is_directory && !is_dots(name)) {
                // A group with a dying process is removed by the next try.
                let _ = sys::remove_dir(group, name);
            }
            rest = after;
        }
    }
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}
