//! The mounts that this process sees. Reads only.

use std::{
    ffi::OsString,
    io,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use procfs::process::{MountInfo, Process};

/// All of them, the lower before those on top of them, with their mount points as they are.
///
/// # Errors
/// /proc does not say.
pub(crate) fn mounts() -> io::Result<Vec<MountInfo>> {
    let mounts = Process::myself().and_then(|process| process.mountinfo()).map_err(io::Error::other)?;
    let as_it_is = |mount: MountInfo| MountInfo { mount_point: unescaped(&mount.mount_point), ..mount };
    Ok(mounts.into_iter().map(as_it_is).collect())
}

/// A path of mountinfo, which has blanks and backslashes as `\040` and the like: proc_pid_mountinfo(5).
fn unescaped(path: &Path) -> PathBuf {
    let mut rest = path.as_os_str().as_bytes();
    let mut bytes = Vec::with_capacity(rest.len());
    while let Some((&first, after)) = rest.split_first() {
        let code =
            rest.get(1..4).filter(|_| first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &rest[4..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_told_as_they_are() {
        for (told, is) in [
            ("/a\\040b/c", "/a b/c"),
            ("/t\\011n\\012b\\134", "/t\tn\nb\\"),
            ("/a\\134040", "/a\\040"),
            ("/\\04", "/\\04"),
            ("/\\999", "/\\999"),
            ("/\\777", "/\\777"),
            ("/plain", "/plain"),
        ] {
            assert_eq!(unescaped(Path::new(told)), Path::new(is));
        }
    }
}
