//! Which block device a directory lies on, as io.max counts: the whole disk, not a partition.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::host::mounts::mounts;

/// Major and minor number of the disk below `path`; none where its file system has none that it says.
pub(crate) fn of(path: &Path) -> Option<(u64, u64)> {
    let device = fs::metadata(path).ok()?.dev();
    let numbers = (u64::from(nix::libc::major(device)), u64::from(nix::libc::minor(device)));
    // Major 0: no device of its own, as with btrfs, whose mount names one.
    let numbers = if numbers.0 == 0 { named_by_mount(path)? } else { numbers };
    disk(Path::new("/sys/dev/block"), numbers)
}

/// The device that the mount says it is of.
fn named_by_mount(path: &Path) -> Option<(u64, u64)> {
    let path = fs::canonicalize(path).ok()?;
    // The longest, and of those the last, which lies on top.
    let mount = mounts().ok()?.into_iter().filter(|mount| path.starts_with(&mount.mount_point));
    let mount = mount.max_by_key(|mount| mount.mount_point.components().count())?;
    let source = PathBuf::from(mount.mount_source?);
    let device = source.is_absolute().then(|| fs::metadata(source).ok()).flatten()?.rdev();
    (device != 0).then(|| (u64::from(nix::libc::major(device)), u64::from(nix::libc::minor(device))))
}

/// The disk that a device is, or is a partition of. `devices` has a link for each.
fn disk(devices: &Path, (major, minor): (u64, u64)) -> Option<(u64, u64)> {
    let here = fs::canonicalize(devices.join(format!("{major}:{minor}"))).ok()?;
    if !here.join("partition").exists() {
        return Some((major, minor));
    }
    let of_disk = fs::read_to_string(here.parent()?.join("dev")).ok()?;
    let (major, minor) = of_disk.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
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
        assert_eq!(disk(&devices, (8, 1)), Some((8, 0)));
        assert_eq!(disk(&devices, (8, 0)), Some((8, 0)));
        assert_eq!(disk(&devices, (9, 9)), None);
    }

    #[test]
    fn memory_has_no_device() {
        assert_eq!(of(Path::new("/proc")), None);
        assert_eq!(of(Path::new("/nonexistent")), None);
    }
}
