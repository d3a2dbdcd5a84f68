//! What may be read and written as a file: regular files and directories, of file systems that only store.

use std::{io, os::fd::AsFd};

use nix::{
    errno::Errno,
    sys::{
        stat::{FileStat, SFlag, fstat},
        statfs::fstatfs,
    },
};

use super::FileKind;

/// File systems whose files are the kernel's own affairs: procfs, sysfs, devpts, cgroups (both), debugfs, tracefs,
/// securityfs, bpf, configfs, fusectl, binfmt_misc, mqueue, pstore, efivarfs, nsfs, selinuxfs, smackfs, pidfs, sockfs,
/// pipefs, autofs, binderfs, xenfs, resctrl; of linux/magic.h.
const KERNELS: [i64; 25] = [
    0x9fa0,
    0x6265_6572,
    0x1cd1,
    0x0027_e0eb,
    0x6367_7270,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0xcafe_4a11,
    0x6265_6570,
    0x6573_5543,
    0x4249_4e4d,
    0x1980_0202,
    0x6165_676c,
    0xde5e_81e4,
    0x6e73_6673,
    0xf97c_ff8c,
    0x4341_5d53,
    0x5049_4446,
    0x534f_434b,
    0x5049_5045,
    0x0187,
    0x6c6f_6f70,
    0xabba_1974,
    0x0765_5821,
];

/// # Errors
/// `EOPNOTSUPP` for a file system of the kernel's.
pub(super) fn stores(of: impl AsFd) -> io::Result<()> {
    let kind = fstatfs(of)?.filesystem_type().0 & 0xffff_ffff;
    if KERNELS.contains(&kind) { Err(Errno::EOPNOTSUPP.into()) } else { Ok(()) }
}

/// Looks at what was opened.
///
/// # Errors
/// Of [`stores`] and [`is_regular`].
pub(crate) fn regular(of: impl AsFd) -> io::Result<FileStat> {
    let stat = fstat(&of)?;
    is_regular(&stat)?;
    stores(of)?;
    Ok(stat)
}

/// # Errors
/// `EISDIR`, and `EOPNOTSUPP` for FIFOs, sockets and devices.
pub(super) fn is_regular(stat: &FileStat) -> io::Result<()> {
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
    fn files_of_the_kernel_are_no_files() {
        for path in ["/proc", "/proc/sys/kernel/core_pattern", "/sys", "/dev/pts"] {
            let Ok(file) = File::open(path) else { continue };
            let error = stores(&file).expect_err(path);
            assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "{path}");
        }
        stores(tempfile::tempfile().expect("a file")).expect("it stores");
    }
}
