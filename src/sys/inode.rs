//! The identity and the kind of a file, independent of its name.

use std::fs::Metadata;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

use nix::errno::Errno;
use nix::sys::stat::{FileStat, SFlag, fstat};
use nix::sys::statfs::{
    AUTOFS_SUPER_MAGIC, BPF_FS_MAGIC, CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, DEBUGFS_MAGIC,
    DEVPTS_SUPER_MAGIC, FsType, NSFS_MAGIC, PROC_SUPER_MAGIC, RDTGROUP_SUPER_MAGIC, SECURITYFS_MAGIC,
    SELINUX_MAGIC, SMACK_MAGIC, SYSFS_MAGIC, TRACEFS_MAGIC, XENFS_SUPER_MAGIC, fstatfs,
};

/// Device and inode number. After a file is removed, a new one may get the same pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl Identity {
    /// No file has this identity.
    pub(crate) const NOTHING: Self = Self { device: 0, inode: 0 };

    pub(crate) fn of(stat: &FileStat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }

    /// The identity of the file that a path leads to.
    ///
    /// # Errors
    /// Those of stat(2).
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        Ok(Self::of_metadata(&fs::metadata(path)?))
    }

    pub(crate) fn of_metadata(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }

    /// The identity of an open file.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub(crate) fn of_held(held: impl AsFd) -> nix::Result<Self> {
        Ok(Self::of(&fstat(held)?))
    }
}

// Files that sessions read and write: regular files and directories, on file systems that only store.

// Numbers of linux/magic.h, or of the file system's own source if they are missing there.
const BINDERFS_SUPER_MAGIC: FsType = FsType(0x6c6f_6f70);
const BINFMTFS_MAGIC: FsType = FsType(0x4249_4e4d);
const CONFIGFS_MAGIC: FsType = FsType(0x6265_6570);
const EFIVARFS_MAGIC: FsType = FsType(0xde5e_81e4);
const FUSECTL_SUPER_MAGIC: FsType = FsType(0x6573_5543);
const MQUEUE_MAGIC: FsType = FsType(0x1980_0202);
const PID_FS_MAGIC: FsType = FsType(0x5049_4446);
const PIPEFS_MAGIC: FsType = FsType(0x5049_5045);
const PSTOREFS_MAGIC: FsType = FsType(0x6165_676c);
const SOCKFS_MAGIC: FsType = FsType(0x534f_434b);

/// File systems that are interfaces of the kernel and store no files.
const KERNELS: [FsType; 25] = [
    AUTOFS_SUPER_MAGIC,
    BINDERFS_SUPER_MAGIC,
    BINFMTFS_MAGIC,
    BPF_FS_MAGIC,
    CGROUP2_SUPER_MAGIC,
    CGROUP_SUPER_MAGIC,
    CONFIGFS_MAGIC,
    DEBUGFS_MAGIC,
    DEVPTS_SUPER_MAGIC,
    EFIVARFS_MAGIC,
    FUSECTL_SUPER_MAGIC,
    MQUEUE_MAGIC,
    NSFS_MAGIC,
    PID_FS_MAGIC,
    PIPEFS_MAGIC,
    PROC_SUPER_MAGIC,
    PSTOREFS_MAGIC,
    RDTGROUP_SUPER_MAGIC,
    SECURITYFS_MAGIC,
    SELINUX_MAGIC,
    SMACK_MAGIC,
    SOCKFS_MAGIC,
    SYSFS_MAGIC,
    TRACEFS_MAGIC,
    XENFS_SUPER_MAGIC,
];

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link. [`Session::stat`](crate::session::Session::stat) follows links and never answers this.
    Link,
    /// A FIFO, socket or device.
    Other,
}

/// Refuses file systems that are interfaces of the kernel.
///
/// `EOPNOTSUPP` on such a file system.
pub(crate) fn stores(of: impl AsFd) -> io::Result<()> {
    if KERNELS.contains(&file_system(of)?) { Err(Errno::EOPNOTSUPP.into()) } else { Ok(()) }
}

/// Whether the file is on a procfs.
pub(crate) fn is_proc(of: impl AsFd) -> io::Result<bool> {
    Ok(file_system(of)? == PROC_SUPER_MAGIC)
}

fn file_system(of: impl AsFd) -> io::Result<FsType> {
    Ok(FsType(fstatfs(of)?.filesystem_type().0 & 0xffff_ffff))
}

/// Checks that an open file is a regular file on a file system that stores, and returns its state.
///
/// # Errors
/// Those of [`stores`] and [`is_regular`].
pub(crate) fn regular(of: impl AsFd) -> io::Result<FileStat> {
    let stat = fstat(&of)?;
    is_regular(&stat)?;
    stores(of)?;
    Ok(stat)
}

/// Refuses everything but regular files.
///
/// `EISDIR` for a directory, `ELOOP` for a link, `EOPNOTSUPP` for a FIFO, socket or device.
pub(crate) fn is_regular(stat: &FileStat) -> io::Result<()> {
    match kind(stat) {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(Errno::EISDIR.into()),
        FileKind::Link => Err(Errno::ELOOP.into()),
        FileKind::Other => Err(Errno::EOPNOTSUPP.into()),
    }
}

pub(crate) fn kind(stat: &FileStat) -> FileKind {
    match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => FileKind::File,
        SFlag::S_IFDIR => FileKind::Directory,
        SFlag::S_IFLNK => FileKind::Link,
        _ => FileKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn kernel_interfaces_are_not_accepted_as_files() {
        let mut looked_at = 0;
        for path in ["/proc", "/proc/sys/kernel/core_pattern", "/sys", "/dev/pts"] {
            let Ok(file) = File::open(path) else { continue };
            looked_at += 1;
            let error = stores(&file).expect_err(path);
            assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "{path}");
        }
        assert!(looked_at > 0, "at least /proc exists");
        stores(tempfile::tempfile().expect("a file")).expect("it stores");
    }
}
