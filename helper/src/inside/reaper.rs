//! The reaper: takes a cgroup and those in it away once the outside is gone, however that ended. It waits for nothing but
//! the end of its socket, runs nothing, and lies in none of the groups that it removes.

use core::ffi::CStr;

use crate::{
    Fault,
    channel::Channel,
    kernel::{EAGAIN, ENOENT},
    sys::{self, Errno, Fd},
};

/// Where an entry of getdents64(2) has its length, its kind and its name.
const LENGTH_AT: usize = 16;
const KIND_AT: usize = 18;
const NAME_AT: usize = 19;
const DIRECTORY: u8 = 4;

/// A pause between tries, in milliseconds, and how many there are: half a minute in all. What was killed is gone
/// after a few, and what is stuck in the kernel for longer is swept up by whoever makes a group next.
const PAUSE: i32 = 10;
const TRIES: u32 = 3_000;

/// Waits until the outside is gone, then removes the group `name` in `directory`.
pub(crate) fn serve(channel: &Channel, directory: &Fd, name: &CStr) -> Result<(), Fault> {
    // Whoever lives as long as a session must not keep a file system busy.
    sys::change_dir(c"/").map_err(Fault::init)?;
    let mut byte = [0u8; 1];
    // Nothing ever comes but the end; a message from a build that sends one is none.
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

/// Kills what is in the group and tries to remove it; answers whether it is still there. One that somebody has locked is
/// let alone: the outside is gone, so another program has made it, or takes it away at this moment.
fn is_left(directory: &Fd, name: &CStr) -> bool {
    if let Ok(group) = sys::open_dir(directory, name) {
        if sys::try_lock(&group) == Err(Errno(EAGAIN)) {
            return true;
        }
        // Before Linux 5.14 there is no such file: then the ends of the sandboxes' own PID 1 have to do.
        let _ = sys::kill_cgroup(&group);
        remove_below(&group);
    }
    !matches!(sys::remove_dir(directory, name), Ok(()) | Err(Errno(ENOENT)))
}

/// Removes the groups in a group, which have none in them.
fn remove_below(group: &Fd) {
    let mut buffer = [0u8; 2048];
    loop {
        let mut rest = match sys::entries(group, &mut buffer) {
            Ok(entries) if !entries.is_empty() => entries,
            _ => return,
        };
        while let Some((entry, after)) = next(rest) {
            let is_directory = entry.get(KIND_AT) == Some(&DIRECTORY);
            let name = entry.get(NAME_AT..).and_then(|name| CStr::from_bytes_until_nul(name).ok());
            if let Some(name) = name.filter(|name| is_directory && !is_dots(name)) {
                // Whoever is still in it is gone the next time.
                let _ = sys::remove_dir(group, name);
            }
            rest = after;
        }
    }
}

/// The first entry, and those after it.
fn next(entries: &[u8]) -> Option<(&[u8], &[u8])> {
    let &[low, high] = entries.get(LENGTH_AT..KIND_AT)? else { return None };
    let length = u16::from_le_bytes([low, high]);
    entries.split_at_checked(length.into()).filter(|(entry, _)| !entry.is_empty())
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}
