//! The inside as an open, executable descriptor: a sealed memfd, or an unlinked file where memfds may not be
//! executed. Nothing of it ever has a name that somebody else could replace.

use std::{
    env,
    fs::{File, OpenOptions, Permissions},
    io::{self, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::{OpenOptionsExt, PermissionsExt},
    },
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
};

use crate::{below::own_path, sys::without_sigxfsz};

/// `MFD_EXEC` of memfd_create(2): executable even where `vm.memfd_noexec` is 1. Linux 6.3.
const MFD_EXEC: u32 = 0x10;

/// The executable image of the inside.
#[derive(Debug)]
pub(crate) struct Image(OwnedFd);

impl Image {
    /// The image in a memfd that nobody can change any more.
    pub(crate) fn sealed() -> io::Result<Self> {
        let base = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let memfd = match memfd_create(c"kennel-inside", base | MFdFlags::from_bits_retain(MFD_EXEC)) {
            Err(Errno::EINVAL) => memfd_create(c"kennel-inside", base)?,
            created => created?,
        };
        let mut file = File::from(memfd);
        without_sigxfsz(|| file.write_all(kennel_helper::IMAGE))?;
        let seals =
            SealFlag::F_SEAL_SEAL | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(Self(file.into()))
    }

    /// The image in an unlinked file, for hosts where executing a memfd is refused (`vm.memfd_noexec=2`).
    ///
    /// # Errors
    /// The last directory's error, when none lets a file be executed.
    pub(crate) fn on_disk() -> io::Result<Self> {
        let runtime = env::var_os("XDG_RUNTIME_DIR");
        let places =
            runtime.iter().map(AsRef::as_ref).chain(["/dev/shm", "/tmp", "/var/tmp"].map(AsRef::as_ref));
        let mut refused = io::Error::from(io::ErrorKind::NotFound);
        for place in places {
            match Self::unlinked_in(place) {
                Ok(image) => return Ok(image),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn unlinked_in(place: &std::path::Path) -> io::Result<Self> {
        let mut file =
            OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).mode(0o500).open(place)?;
        without_sigxfsz(|| file.write_all(kennel_helper::IMAGE))?;
        file.set_permissions(Permissions::from_mode(0o500))?;
        // A file that is open for writing cannot be executed (ETXTBSY).
        let readable = File::open(own_path(&file))?;
        let flags = nix::sys::statvfs::fstatvfs(&readable)?.flags();
        if flags.contains(nix::sys::statvfs::FsFlags::ST_NOEXEC) {
            return Err(Errno::EACCES.into());
        }
        Ok(Self(readable.into()))
    }
}

impl AsFd for Image {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
