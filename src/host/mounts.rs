//! The mounts that this process sees, and the disk below a directory. Only reads.

use std::ffi::{CStr, OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use procfs::process::MountInfo;

use crate::sys::read_proc;

/// All mounts, in the order of /proc/self/mountinfo: a lower mount before one on top of it. Paths are
/// unescaped.
///
/// # Errors
/// If /proc is not readable.
pub(crate) fn mounts() -> io::Result<Vec<MountInfo>> {
    MountTable::read()?.lines().map(mount).collect()
}

/// The text of /proc/self/mountinfo. The kernel takes long to write it, so a compilation reads it once.
#[derive(Debug)]
pub(crate) struct MountTable(Vec<u8>);

impl MountTable {
    /// # Errors
    /// If /proc is not readable.
    pub(crate) fn read() -> io::Result<Self> {
        read_proc("/proc/self/mountinfo").map(Self)
    }

    /// That of another process, by its file.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn read_from(mut file: impl Read) -> io::Result<Self> {
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        Ok(Self(text))
    }

    /// Whether the mount with this number is of this type and source. A source with blanks is not found.
    pub(crate) fn is_of(&self, id: u64, kind: &CStr, source: &CStr) -> bool {
        let id = id.to_string();
        self.lines().any(|line| {
            let mut what = of_file_system(line);
            line.split(|byte| *byte == b' ').next() == Some(id.as_bytes())
                && [kind, source].iter().all(|wanted| what.next() == Some(wanted.to_bytes()))
        })
    }

    /// The file system type and the mount point of each mount. An error stands for a line that cannot be
    /// parsed.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = io::Result<(&[u8], PathBuf)>> {
        let malformed = || io::Error::new(io::ErrorKind::InvalidData, "a line names no mount");
        self.lines().map(move |line| file_system(line).zip(mount_point(line)).ok_or_else(malformed))
    }

    /// Whether something is mounted below `path`.
    pub(crate) fn is_mounted_below(&self, path: &Path) -> bool {
        self.below(path).next().is_some()
    }

    /// Whether the mount at `path`, a path without blanks, is read-only. The one on top counts.
    pub(crate) fn is_read_only(&self, path: &str) -> bool {
        let words = |line: &[u8]| -> Option<(bool, bool)> {
            let mut words = line.split(|byte| *byte == b' ').skip(4);
            let (at, options) = (words.next()?, words.next()?);
            Some((at == path.as_bytes(), options.split(|byte| *byte == b',').any(|option| option == b"ro")))
        };
        self.lines().filter_map(words).filter(|(is_it, _)| *is_it).last().is_some_and(|(_, is_ro)| is_ro)
    }

    /// The mount points below `path`.
    pub(crate) fn below(&self, path: &Path) -> impl Iterator<Item = PathBuf> {
        let all = self.lines().filter_map(mount_point);
        all.filter(move |mount_point| mount_point != path && mount_point.starts_with(path))
    }

    fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
    }
}

/// The words of a line after its first `-`: the file system type, the source, options. Blanks in names are
/// escaped.
fn of_file_system(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| *byte == b' ').skip(6).skip_while(|word| *word != b"-").skip(1)
}

fn file_system(line: &[u8]) -> Option<&[u8]> {
    of_file_system(line).next()
}

/// The mount point of a line.
fn mount_point(line: &[u8]) -> Option<PathBuf> {
    let told = line.split(|byte| *byte == b' ').nth(4)?;
    Some(unescaped(Path::new(OsStr::from_bytes(told))))
}

/// Parses one line. Its names are bytes: any user can mount a name that is not UTF-8, and every process sees
/// it.
fn mount(line: &[u8]) -> io::Result<MountInfo> {
    let mut text = String::with_capacity(line.len());
    for byte in line {
        match byte {
            0x80.. => text.push_str(&format!("\\{byte:03o}")),
            ascii => text.push(char::from(*ascii)),
        }
    }
    let told = MountInfo::from_line(&text).map_err(io::Error::other)?;
    let as_text = |told: &str| unescaped(Path::new(told)).to_string_lossy().into_owned();
    Ok(MountInfo {
        mount_point: unescaped(&told.mount_point),
        root: as_text(&told.root),
        mount_source: told.mount_source.as_deref().map(as_text),
        ..told
    })
}

/// Decodes a path of mountinfo, where blanks and backslashes are `\040` and the like: proc_pid_mountinfo(5).
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

// The block device below a directory, as io.max names it: the whole disk, not a partition.

/// Major and minor number of the disk below `path`; `None` if its file system names no disk.
pub(crate) fn of(path: &Path) -> Option<(u64, u64)> {
    let device = fs::metadata(path).ok()?.dev();
    let numbers = (u64::from(nix::libc::major(device)), u64::from(nix::libc::minor(device)));
    // Major 0 is an anonymous device, as btrfs has it. Its mount names the disk.
    let (major, minor) = if numbers.0 == 0 { named_by_mount(path)? } else { numbers };
    disk(Path::new("/sys/dev/block"), major, minor)
}

/// The device that the mount of `path` names as its source.
fn named_by_mount(path: &Path) -> Option<(u64, u64)> {
    let path = fs::canonicalize(path).ok()?;
    // The mount with the longest path. Of several with that path, the last one is on top.
    let mount = mounts().ok()?.into_iter().filter(|mount| path.starts_with(&mount.mount_point));
    let mount = mount.max_by_key(|mount| mount.mount_point.components().count())?;
    let source = PathBuf::from(mount.mount_source?);
    let device = source.is_absolute().then(|| fs::metadata(source).ok()).flatten()?.rdev();
    (device != 0).then(|| (u64::from(nix::libc::major(device)), u64::from(nix::libc::minor(device))))
}

/// The disk that a device is, or of which it is a partition. `devices` has a symbolic link for each device.
fn disk(devices: &Path, major: u64, minor: u64) -> Option<(u64, u64)> {
    let here = fs::canonicalize(devices.join(format!("{major}:{minor}"))).ok()?;
    if !here.join("partition").exists() {
        return Some((major, minor));
    }
    let of_disk = fs::read_to_string(here.parent()?.join("dev")).ok()?;
    let (major, minor) = of_disk.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod device_tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_partition_counts_as_its_disk() {
        let sys = tempfile::tempdir().expect("a temporary directory");
        let disk_at = sys.path().join("block/sda");
        fs::create_dir_all(disk_at.join("sda1")).expect("directories");
        fs::write(disk_at.join("dev"), "8:0\n").expect("a file");
        fs::write(disk_at.join("sda1/partition"), "1\n").expect("a file");
        let devices = sys.path().join("dev");
        fs::create_dir(&devices).expect("a directory");
        symlink(&disk_at, devices.join("8:0")).expect("a link");
        symlink(disk_at.join("sda1"), devices.join("8:1")).expect("a link");
        assert_eq!(disk(&devices, 8, 1), Some((8, 0)));
        assert_eq!(disk(&devices, 8, 0), Some((8, 0)));
        assert_eq!(disk(&devices, 9, 9), None);
    }

    #[test]
    fn memory_has_no_device() {
        assert_eq!(of(Path::new("/proc")), None);
        assert_eq!(of(Path::new("/nonexistent")), None);
    }
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

    #[test]
    fn mounts_below_a_directory_are_found_by_whole_names() {
        let table =
            MountTable(b"1 1 0:1 / /home/me rw - x x rw\n2 1 0:2 / /home/me/a\\040b rw - x x rw\n".to_vec());
        let below = ["/home", "/home/me", "/home/m", "/home/me/a b", "/home/me/a"]
            .map(|path| table.is_mounted_below(Path::new(path)));
        assert_eq!(below, [true, true, false, false, false]);
    }

    #[test]
    fn names_that_are_no_text_hide_no_mount() {
        let line = b"36 35 98:0 /a\\134x2d /mnt/\xff\\040x rw,noatime master:1 - ext3 /dev/r\\040t rw";
        let mount = mount(line).expect("a mount");
        assert_eq!(mount.mount_point.as_os_str().as_bytes(), b"/mnt/\xff x");
        assert_eq!((&*mount.root, mount.mount_source.as_deref()), ("/a\\x2d", Some("/dev/r t")));
        assert!(super::mount(b"36 35").is_err());
        assert_eq!((file_system(line), file_system(b"36 35")), (Some(&b"ext3"[..]), None));
    }
}
