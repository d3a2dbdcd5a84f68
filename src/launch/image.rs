//! The init program: PID 1 of every sandbox, as a descriptor that can be executed, and the start of its
//! processes.

use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::{env, fs, io};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::{getegid, geteuid};

use crate::host::remedy;
use crate::launch::control::socket_pair;
use crate::report::enforcement::Protection;
use crate::report::error::Error;
use crate::report::shortage;
use crate::sys::birth::{Birth, Born, CloneError, Placement, SpawnOptions, Users};
use crate::sys::own_path;
use crate::sys::{birth, locked, without_sigxfsz};

/// `MFD_EXEC` of memfd_create(2): executable even where `vm.memfd_noexec` is 1. Linux 6.3.
const MFD_EXEC: u32 = 0x10;

/// The init program of one policy: in a memfd, or in an unlinked file if the host does not execute memfds.
#[derive(Debug)]
pub(crate) struct Images {
    options: SpawnOptions,
    sealed: Option<Arc<Image>>,
    on_disk: OnceLock<Image>,
}

impl Images {
    /// Makes the memfd, or takes that of another sandbox of this program.
    ///
    /// # Errors
    /// Those of memfd_create(2), except that the host forbids executable memfds.
    pub(crate) fn new(options: SpawnOptions) -> Result<Self, Error> {
        let sealed = match Image::shared() {
            // With vm.memfd_noexec=2 the kernel creates no executable memfd.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
            sealed => Some(sealed.map_err(Error::io("create a memfd for the init program"))?),
        };
        Ok(Self { options, sealed, on_disk: OnceLock::new() })
    }

    /// Begins to start a process of the init program, which waits for its role on a new control socket.
    ///
    /// # Errors
    /// The step that failed, with a remedy. No process is left.
    pub(crate) fn begin(&self, placement: Placement<'_>) -> Result<SpawnedInit, Error> {
        // socketpair(2): the control socket. The child gets its end as descriptor 0.
        let (control, child_end) = socket_pair().map_err(Error::io("make the control socket"))?;
        // clone(2) with new user and pid namespaces, then execveat(2) of the image.
        let begun = birth::begin_inside(self.current()?.as_fd(), child_end.as_fd(), self.options, placement);
        let (Born { pidfd, pid, is_in_group }, birth) =
            begun.map_err(|error| birth_error(error, self.options.users))?;
        Ok(SpawnedInit { control, pidfd, pid, is_in_group, birth })
    }

    /// Images whose memfd the host does not execute.
    #[cfg(test)]
    pub(crate) fn with_refused_memfd(options: SpawnOptions) -> io::Result<Self> {
        // EACCES of execve(2): it is no regular file.
        let refused = Image(File::open("/dev/null")?.into());
        Ok(Self { options, sealed: Some(Arc::new(refused)), on_disk: OnceLock::new() })
    }

    /// The image to execute: the memfd, or the file on disk once the host has refused to execute the memfd.
    fn current(&self) -> Result<&Image, Error> {
        match (self.on_disk.get(), self.sealed.as_deref()) {
            (Some(image), _) | (None, Some(image)) => Ok(image),
            (None, None) => self.use_disk(),
        }
    }

    fn use_disk(&self) -> Result<&Image, Error> {
        let image =
            Image::on_disk().map_err(|error| birth_error(CloneError::Exec(error), self.options.users))?;
        // If another thread was faster, its image is the same.
        Ok(self.on_disk.get_or_init(|| image))
    }

    /// After a process could not execute the image: makes the next one execute a file on disk. An older
    /// kernel with `vm.memfd_noexec`, or a security module, refuses to execute a memfd. Another start may
    /// have made the file meanwhile, so the caller says with `is_last` whether this process had it.
    ///
    /// # Errors
    /// The reason, with a remedy, if no other image helps.
    pub(crate) fn after(&self, error: CloneError, is_last: bool) -> Result<(), Error> {
        match error {
            CloneError::Exec(error) if error.kind() == io::ErrorKind::PermissionDenied && !is_last => {
                self.use_disk().map(drop)
            }
            error => Err(birth_error(error, self.options.users)),
        }
    }

    /// Writes the id maps of init if it needs a second id: see [`SpawnOptions::reader`].
    ///
    /// # Errors
    /// Those of write(2).
    pub(crate) fn map_ids(&self, pid: i32) -> Result<(), Error> {
        let SpawnOptions { users: Users::Own, reader: Some(reader), .. } = self.options else {
            return Ok(());
        };
        let write = |name: &str, own: u32| {
            let map = format!("{own} {own} 1\n{reader} {reader} 1\n");
            fs::write(format!("/proc/{pid}/{name}"), map).map_err(Error::io("map the ids of the sandbox"))
        };
        write("uid_map", geteuid().as_raw())?;
        write("gid_map", getegid().as_raw())
    }
}

/// A process of the init program. It waits for its role.
#[derive(Debug)]
pub(crate) struct SpawnedInit {
    pub(crate) control: OwnedFd,
    pub(crate) pidfd: OwnedFd,
    pub(crate) pid: i32,
    /// Whether clone3(2) put it into the cgroup of its placement.
    pub(crate) is_in_group: bool,
    /// Until it has executed the image.
    pub(crate) birth: Birth,
}

/// The init program as an executable descriptor. It has no path, so no other process can replace it.
#[derive(Debug)]
pub(crate) struct Image(OwnedFd);

impl Image {
    /// The image of all sandboxes of this program: 64 KiB less for each, and their processes share its pages.
    /// Nobody can write to it, and no command has a descriptor of it. It ends with the last of them.
    fn shared() -> io::Result<Arc<Self>> {
        static OF_ALL: Mutex<Weak<Image>> = Mutex::new(Weak::new());
        let mut of_all = locked(&OF_ALL);
        if let Some(image) = of_all.upgrade() {
            return Ok(image);
        }
        let image = Arc::new(Self::sealed()?);
        *of_all = Arc::downgrade(&image);
        Ok(image)
    }

    /// The program in a memfd, sealed against changes: memfd_create(2), F_ADD_SEALS of fcntl(2).
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

    /// The descriptor, for a command that executes it by number.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// The program in an unlinked file (`O_TMPFILE` of open(2)), for hosts with `vm.memfd_noexec=2`.
    ///
    /// # Errors
    /// The error of the last directory, if none of them allows an executable file.
    pub(crate) fn on_disk() -> io::Result<Self> {
        let runtime = env::var_os("XDG_RUNTIME_DIR");
        let directories =
            runtime.iter().map(AsRef::as_ref).chain(["/dev/shm", "/tmp", "/var/tmp"].map(AsRef::as_ref));
        let mut refused = io::Error::from(io::ErrorKind::NotFound);
        for directory in directories {
            match Self::unlinked_in(directory) {
                Ok(image) => return Ok(image),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    fn unlinked_in(directory: &Path) -> io::Result<Self> {
        let mut file =
            OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).mode(0o500).open(directory)?;
        without_sigxfsz(|| file.write_all(kennel_helper::IMAGE))?;
        file.set_permissions(Permissions::from_mode(0o500))?;
        // The kernel does not execute a file that is open for writing: ETXTBSY of execve(2).
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

// Errors of a start, with the protection that they concern and a remedy.

fn birth_error(error: CloneError, users: Users) -> Error {
    let (step, protection, source) = match error {
        CloneError::Clone(source) => {
            let (step, protection) = refused_namespace(&source, users);
            (step, protection, source)
        }
        CloneError::Keep(source) => {
            ("keep the capabilities for the set-up", Protection::Capabilities, source)
        }
        CloneError::Exec(source) => return not_executed(source),
    };
    let remedy = remedy::remedy_for_clone(protection, &source);
    Error::Step { step: step.to_owned(), protection, source, remedy }
}

/// One clone(2) makes two namespaces. A second attempt with only the user namespace finds out which one
/// failed.
fn refused_namespace(error: &io::Error, users: Users) -> (&'static str, Protection) {
    let may_be_user = users == Users::Own;
    let shortage = error.raw_os_error().is_some_and(shortage::is_shortage);
    if may_be_user && (shortage || birth::try_namespaces(libc::CLONE_NEWUSER).is_err()) {
        return ("new user and pid namespace", Protection::UserNamespace);
    }
    ("new pid namespace", Protection::PidNamespace)
}

fn not_executed(source: io::Error) -> Error {
    let noexec = "allow executing memfds (sysctl -w vm.memfd_noexec=0), or have XDG_RUNTIME_DIR or /tmp on a file system \
                  that is not mounted noexec";
    let remedy = match source.raw_os_error() {
        Some(libc::EACCES) | None => Some(noexec.into()),
        _ => remedy::remedy_for_clone(Protection::Capabilities, &source),
    };
    let step = "execute the init program".to_owned();
    Error::Step { step, protection: Protection::Root, source, remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_image_serves_all_sandboxes_and_nobody_can_write_to_it() {
        let (one, other) = (Image::shared().expect("an image"), Image::shared().expect("an image"));
        assert!(Arc::ptr_eq(&one, &other));
        let mut writable = OpenOptions::new().write(true).open(own_path(&*one)).expect("a descriptor");
        for refused in [writable.write(b"x").map(drop), writable.set_len(0), writable.set_len(1 << 20)] {
            assert_eq!(refused.expect_err("sealed").raw_os_error(), Some(libc::EPERM));
        }
    }
}
