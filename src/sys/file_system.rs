//! The kind of the file system that a file is on, by the number of statfs(2).

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use crate::sys::inode::is_regular;
use nix::errno::Errno;
use nix::sys::stat::{FileStat, fstat};
use nix::sys::statfs::{
    AUTOFS_SUPER_MAGIC, BPF_FS_MAGIC, BTRFS_SUPER_MAGIC, CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC,
    CODA_SUPER_MAGIC, DEBUGFS_MAGIC, DEVPTS_SUPER_MAGIC, EXT4_SUPER_MAGIC, F2FS_SUPER_MAGIC,
    FUSE_SUPER_MAGIC, FsType, MSDOS_SUPER_MAGIC, NFS_SUPER_MAGIC, NSFS_MAGIC, OCFS2_SUPER_MAGIC,
    OVERLAYFS_SUPER_MAGIC, PROC_SUPER_MAGIC, RDTGROUP_SUPER_MAGIC, SECURITYFS_MAGIC, SELINUX_MAGIC,
    SMACK_MAGIC, SMB_SUPER_MAGIC, SYSFS_MAGIC, Statfs, TMPFS_MAGIC, TRACEFS_MAGIC, XENFS_SUPER_MAGIC,
    XFS_SUPER_MAGIC, fstatfs, statfs,
};

// Numbers of linux/magic.h, or of the file system's own source if they are missing there.
const BINDERFS_SUPER_MAGIC: FsType = FsType(0x6c6f_6f70);
const EXFAT_SUPER_MAGIC: FsType = FsType(0x2011_bab0);
const BINFMTFS_MAGIC: FsType = FsType(0x4249_4e4d);
const CONFIGFS_MAGIC: FsType = FsType(0x6265_6570);
const EFIVARFS_MAGIC: FsType = FsType(0xde5e_81e4);
const FUSECTL_SUPER_MAGIC: FsType = FsType(0x6573_5543);
const MQUEUE_MAGIC: FsType = FsType(0x1980_0202);
const PID_FS_MAGIC: FsType = FsType(0x5049_4446);
const PIPEFS_MAGIC: FsType = FsType(0x5049_5045);
const PSTOREFS_MAGIC: FsType = FsType(0x6165_676c);
const SOCKFS_MAGIC: FsType = FsType(0x534f_434b);
const AFS_FS_MAGIC: FsType = FsType(0x5346_414f);
const CEPH_SUPER_MAGIC: FsType = FsType(0x00c3_6400);
const CIFS_SUPER_MAGIC: FsType = FsType(0xff53_4d42);
const GFS2_MAGIC: FsType = FsType(0x0116_1970);
const LUSTRE_SUPER_MAGIC: FsType = FsType(0x0bd0_0bd0);
const ORANGEFS_SUPER_MAGIC: FsType = FsType(0x2003_0528);
const SMB2_SUPER_MAGIC: FsType = FsType(0xfe53_4d42);
const V9FS_MAGIC: FsType = FsType(0x0102_1997);
const VBOXSF_SUPER_MAGIC: FsType = FsType(0x786f_4256);

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

/// File systems whose files and time stamps another machine or another program decides.
const REMOTE: [FsType; 14] = [
    AFS_FS_MAGIC,
    CEPH_SUPER_MAGIC,
    CIFS_SUPER_MAGIC,
    CODA_SUPER_MAGIC,
    FUSE_SUPER_MAGIC,
    GFS2_MAGIC,
    LUSTRE_SUPER_MAGIC,
    NFS_SUPER_MAGIC,
    OCFS2_SUPER_MAGIC,
    ORANGEFS_SUPER_MAGIC,
    SMB2_SUPER_MAGIC,
    SMB_SUPER_MAGIC,
    V9FS_MAGIC,
    VBOXSF_SUPER_MAGIC,
];

/// File systems for which the kernel has one entry for all spellings of a name, so that a mount holds for
/// all. That is so even in directories that fold case (FS_CASEFOLD_FL).
const ONE_ENTRY_PER_NAME: [FsType; 7] = [
    BTRFS_SUPER_MAGIC,
    EXFAT_SUPER_MAGIC,
    EXT4_SUPER_MAGIC,
    F2FS_SUPER_MAGIC,
    MSDOS_SUPER_MAGIC,
    TMPFS_MAGIC,
    XFS_SUPER_MAGIC,
];

/// File systems that store nanoseconds of times.
const NANOSECONDS: [FsType; 3] = [BTRFS_SUPER_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC];

/// The kind of a file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSystem(FsType);

impl FileSystem {
    /// The one that an open file is on.
    ///
    /// # Errors
    /// Those of fstatfs(2).
    pub(crate) fn of(held: impl AsFd) -> io::Result<Self> {
        Ok(Self::from(&fstatfs(held)?))
    }

    /// The one that a path leads to.
    ///
    /// # Errors
    /// Those of statfs(2).
    pub(crate) fn at(path: &Path) -> io::Result<Self> {
        Ok(Self::from(&statfs(path)?))
    }

    // Some architectures extend the sign of the number.
    fn from(told: &Statfs) -> Self {
        Self(FsType(told.filesystem_type().0 & 0xffff_ffff))
    }

    pub(crate) fn is_tmpfs(self) -> bool {
        self.0 == TMPFS_MAGIC
    }

    /// Whether the kernel has one entry for all spellings of a name, also if case does not count.
    pub(crate) fn has_one_entry_per_name(self) -> bool {
        ONE_ENTRY_PER_NAME.contains(&self.0)
    }

    /// Whether it certainly stores nanoseconds of times.
    pub(crate) fn stores_nanoseconds(self) -> bool {
        NANOSECONDS.contains(&self.0)
    }

    pub(crate) fn is_proc(self) -> bool {
        self.0 == PROC_SUPER_MAGIC
    }

    /// Whether it is an interface of the kernel and stores no files.
    pub(crate) fn is_of_kernel(self) -> bool {
        KERNELS.contains(&self.0)
    }

    /// 9P, with which WSL shows the disks of Windows.
    pub(crate) fn is_of_9p(self) -> bool {
        self.0 == V9FS_MAGIC
    }

    /// Whether another machine or another program decides what is in it, and when it changed.
    pub(crate) fn is_remote(self) -> bool {
        REMOTE.contains(&self.0)
    }

    /// Checks that a directory for the changes of an overlay may be on it. On a remote one, somebody else
    /// would answer who owns the directory and who may enter it.
    ///
    /// # Errors
    /// It cannot hold them.
    pub(crate) fn check_for_changes(self) -> io::Result<()> {
        let reason = match self.0 {
            OVERLAYFS_SUPER_MAGIC => "lies on an overlay itself",
            _ if self.is_remote() => "lies on a network or FUSE file system",
            _ => return Ok(()),
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
    }
}

/// Refuses file systems that are interfaces of the kernel.
///
/// # Errors
/// `EOPNOTSUPP` on such a file system.
pub(crate) fn stores(held: impl AsFd) -> io::Result<()> {
    if FileSystem::of(held)?.is_of_kernel() { Err(Errno::EOPNOTSUPP.into()) } else { Ok(()) }
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

    #[test]
    fn changes_are_kept_on_file_systems_of_this_machine() {
        let why = |kind| FileSystem(kind).check_for_changes().map_err(|error| error.to_string());
        assert_eq!(why(OVERLAYFS_SUPER_MAGIC), Err("lies on an overlay itself".to_owned()));
        for kind in REMOTE {
            assert_eq!(why(kind), Err("lies on a network or FUSE file system".to_owned()), "{kind:?}");
        }
        assert_eq!(why(nix::sys::statfs::EXT4_SUPER_MAGIC), Ok(()));
    }
}
