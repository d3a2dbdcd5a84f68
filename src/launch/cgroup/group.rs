//! Directories of cgroup v2 by descriptor: make, lock, write, remove.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;
use std::{io, thread};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, openat};
use nix::sys::stat::{Mode, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

use crate::host::cgroups::{CPUS, CgroupSetting, Controller, HOST};
use crate::policy::cgroup::processors;
use crate::sys;
use crate::sys::locked;

/// The prefix of each cgroup of Kennel; 16 hexadecimal digits follow.
const PREFIX: &str = "kennel-";

/// Any user who can open a cgroup can lock it, and block Kennel.
const OWNER_ONLY: Mode = Mode::S_IRWXU;
const WORLD_READABLE: Mode =
    OWNER_ONLY.union(Mode::S_IRGRP).union(Mode::S_IXGRP).union(Mode::S_IROTH).union(Mode::S_IXOTH);

/// How often to retry when another program removes the new cgroup before it is locked.
const TRIES: u32 = 50;

/// A random name, also unique across forks of this program.
///
/// # Errors
/// Those of getrandom(2).
pub(crate) fn random_name() -> io::Result<String> {
    Ok(format!("{PREFIX}{:016x}", sys::random()?))
}

fn is_name(name: &str) -> bool {
    let digits = name.strip_prefix(PREFIX).unwrap_or_default();
    digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The delegated cgroup that contains those of Kennel.
#[derive(Debug)]
pub(crate) struct ParentCgroup(OwnedFd);

/// A cgroup of Kennel, locked with flock(2): while the lock is held, other programs know that its owner
/// lives.
#[derive(Debug)]
pub(crate) struct LockedGroup {
    directory: OwnedFd,
    /// The lock belongs to this open file description, which no other process shares.
    lock: Mutex<Option<Flock<OwnedFd>>>,
    name: String,
}

impl ParentCgroup {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(nix::fcntl::open(path, directory_flags(OFlag::O_RDONLY), Mode::empty())?))
    }

    /// Moves this program with all of its threads to a child cgroup, because a cgroup with processes cannot
    /// enable controllers.
    pub(crate) fn move_self_to_child(&self) -> io::Result<()> {
        let host = match make(self.0.as_fd(), HOST, WORLD_READABLE) {
            Err(error) if is_eexist(&error) => open_path(self.0.as_fd(), HOST)?,
            made => made?,
        };
        // Another owner could kill or freeze everything in the cgroup.
        if fstat(&host)?.st_uid != geteuid().as_raw() {
            return Err(Errno::EPERM.into());
        }
        write(host.as_fd(), "cgroup.procs", "0")
    }

    /// Enables controllers for the child cgroups.
    pub(crate) fn enable_controllers(&self, controllers: &[Controller]) -> io::Result<()> {
        enable_controllers(self.0.as_fd(), controllers)
    }

    /// Makes a cgroup and locks it.
    ///
    /// # Errors
    /// `EEXIST` if the name is taken; the existing cgroup stays as it is. `ResourceBusy` if another program
    /// holds the lock.
    pub(crate) fn make(&self, name: &str) -> io::Result<LockedGroup> {
        let mut refused = io::Error::new(io::ErrorKind::ResourceBusy, "another program holds the lock");
        for round in 0..TRIES {
            match self.try_make(name, round) {
                Ok(Some(locked)) => return Ok(locked),
                Err(error) if is_eexist(&error) => return Err(error),
                // Another program removes abandoned cgroups at this moment.
                Ok(None) => {}
                Err(error) => {
                    let is_swept = error.raw_os_error() == Some(libc::ENOENT);
                    refused = error;
                    if !is_swept {
                        break;
                    }
                }
            }
            thread::sleep(Duration::from_millis(1));
        }
        // The cgroup may exist although a later call failed.
        let _ = unlinkat(&self.0, name, UnlinkatFlags::RemoveDir);
        Err(refused)
    }

    fn try_make(&self, name: &str, round: u32) -> io::Result<Option<LockedGroup>> {
        let directory = match make(self.0.as_fd(), name, OWNER_ONLY) {
            // Made in an earlier round, and locked by a program that takes it for abandoned.
            Err(error) if is_eexist(&error) && round > 0 => open_path(self.0.as_fd(), name)?,
            made => made?,
        };
        // flock(2) needs a descriptor that is not O_PATH.
        let lock = openat(&directory, ".", directory_flags(OFlag::O_RDONLY), Mode::empty())?;
        let Ok(lock) = Flock::lock(lock, FlockArg::LockExclusiveNonblock) else { return Ok(None) };
        // It may have been removed before it was locked. Then its files are gone.
        match read(directory.as_fd(), "cgroup.controllers") {
            Ok(_) => Ok(Some(LockedGroup { directory, lock: Mutex::new(Some(lock)), name: name.to_owned() })),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes a cgroup and its leaves if no process is left. Returns whether it is gone.
    pub(crate) fn remove(&self, group: &LockedGroup) -> bool {
        self.remove_tree(group.as_fd(), &group.name)
    }

    fn remove_tree(&self, group: BorrowedFd<'_>, name: &str) -> bool {
        for leaf in directories(group).unwrap_or_default() {
            let _ = unlinkat(group, &*leaf, UnlinkatFlags::RemoveDir);
        }
        matches!(unlinkat(&self.0, name, UnlinkatFlags::RemoveDir), Ok(()) | Err(Errno::ENOENT))
    }

    /// Kills and removes the cgroups of programs that are gone.
    pub(crate) fn sweep(&self) {
        let ours = geteuid().as_raw();
        for name in directories(self.0.as_fd()).unwrap_or_default().iter().filter(|name| is_name(name)) {
            let Ok(group) = openat(&self.0, &**name, directory_flags(OFlag::O_RDONLY), Mode::empty()) else {
                continue;
            };
            if !fstat(&group).is_ok_and(|stat| stat.st_uid == ours) {
                continue;
            }
            if let Ok(locked) = Flock::lock(group, FlockArg::LockExclusiveNonblock) {
                let _ = write(locked.as_fd(), "cgroup.kill", "1");
                let gone = (0..TRIES).any(|_| {
                    self.remove_tree(locked.as_fd(), name) || {
                        // Killed processes need a moment.
                        thread::sleep(Duration::from_millis(1));
                        false
                    }
                });
                tracing::info!(name, gone, "found the cgroup of a program that is gone");
            }
        }
    }
}

impl AsFd for ParentCgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl LockedGroup {
    /// Releases the lock: from here on the reaper or another program may remove the cgroup.
    pub(crate) fn unlock(&self) {
        locked(&self.lock).take();
    }

    pub(crate) fn enable_controllers(&self, controllers: &[Controller]) -> io::Result<()> {
        enable_controllers(self.as_fd(), controllers)
    }

    pub(crate) fn set(&self, setting: &CgroupSetting) -> io::Result<()> {
        set(self.as_fd(), setting)
    }

    /// Makes a leaf. Returns its directory, as an O_PATH descriptor.
    pub(crate) fn make_leaf(&self, name: &str) -> io::Result<OwnedFd> {
        make(self.as_fd(), name, OWNER_ONLY)
    }

    /// Removes a leaf. Returns whether it is gone.
    pub(crate) fn remove_leaf(&self, name: &str) -> bool {
        matches!(unlinkat(self.as_fd(), name, UnlinkatFlags::RemoveDir), Ok(()) | Err(Errno::ENOENT))
    }
}

impl AsFd for LockedGroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

fn directory_flags(access: OFlag) -> OFlag {
    access | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC
}

/// mkdirat(2). Returns the directory, as an O_PATH descriptor.
fn make(at: BorrowedFd<'_>, name: &str, mode: Mode) -> io::Result<OwnedFd> {
    mkdirat(at, name, mode)?;
    open_path(at, name)
}

fn is_eexist(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EEXIST)
}

fn open_path(at: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    Ok(openat(at, name, directory_flags(OFlag::O_PATH), Mode::empty())?)
}

fn enable_controllers(group: BorrowedFd<'_>, controllers: &[Controller]) -> io::Result<()> {
    if controllers.is_empty() {
        return Ok(());
    }
    let wanted: Vec<String> = controllers.iter().map(|controller| format!("+{controller}")).collect();
    write(group, "cgroup.subtree_control", &wanted.join(" "))
}

/// Writes one setting of a cgroup.
pub(crate) fn set(group: BorrowedFd<'_>, setting: &CgroupSetting) -> io::Result<()> {
    match write(group, setting.file, &setting.value) {
        Err(error) if setting.may_lack && error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(()) if setting.file == CPUS => has_cpus(group, &setting.value),
        written => written,
    }
}

/// The kernel accepts any list. If the parent cgroup has none of the CPUs, it silently uses those of the
/// parent.
fn has_cpus(group: BorrowedFd<'_>, wanted: &str) -> io::Result<()> {
    let given = read(group, "cpuset.cpus.effective")?;
    if is_subset(&given, wanted) {
        return Ok(());
    }
    let reason = format!("the parent cgroup has none of the CPUs {wanted}, only {}", given.trim());
    Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
}

/// Writes a file of a cgroup with one write(2), as the kernel requires.
pub(crate) fn write(group: BorrowedFd<'_>, file: &str, text: &str) -> io::Result<()> {
    let flags = OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    File::from(openat(group, file, flags, Mode::empty())?).write_all(text.as_bytes())
}

/// Reads a file of a cgroup.
pub(crate) fn read(group: BorrowedFd<'_>, file: &str) -> io::Result<String> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut text = String::new();
    File::from(openat(group, file, flags, Mode::empty())?).read_to_string(&mut text)?;
    Ok(text)
}

/// The names of the child cgroups.
fn directories(group: BorrowedFd<'_>) -> nix::Result<Vec<String>> {
    let mut directory = Dir::openat(group, ".", directory_flags(OFlag::O_RDONLY), Mode::empty())?;
    let entries = directory.iter().flatten().filter(|entry| entry.file_type() == Some(Type::Directory));
    let names = entries.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
    Ok(names.filter(|name| name != "." && name != "..").collect())
}

// CPU lists, as the kernel and policies write them.

/// Whether `other` has every CPU of `list`. `false` if one of them cannot be parsed.
pub(crate) fn is_subset(list: &str, other: &str) -> bool {
    let (Some(list), Some(other)) = (processors(list.trim()), processors(other.trim())) else {
        return list.trim().is_empty();
    };
    let has = |cpu: u16| other.iter().any(|range| range.contains(&cpu));
    list.into_iter().flatten().all(has)
}

#[cfg(test)]
mod cpu_list_tests {
    use super::*;

    #[test]
    fn lists_lie_in_each_other() {
        for (list, other) in [("0", "0-3"), ("1,3\n", "3,1"), ("2-3", "0-2,3-4"), ("", "1"), ("5", "0,5-6")] {
            assert!(is_subset(list, other), "{list} in {other}");
        }
        for (list, other) in [("0-1", "2-3"), ("0-3", "0-2"), ("4", ""), ("0-1", "1")] {
            assert!(!is_subset(list, other), "{list} in {other}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn parent() -> (tempfile::TempDir, ParentCgroup) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let parent = ParentCgroup::open(dir.path()).expect("opens");
        (dir, parent)
    }

    #[test]
    fn names_are_random_and_known_again() {
        let (first, second) = (random_name().expect("a name"), random_name().expect("a name"));
        assert!(first != second && is_name(&first) && is_name(&second), "{first} {second}");
        for name in
            ["kennel-host", "kennel-", "kennel-0123", "kennel-0123456789abcdeg", "x-0123456789abcdef", ""]
        {
            assert!(!is_name(name), "{name}");
        }
    }

    /// Plain directories suffice: name, owner and lock decide what is removed.
    #[test]
    fn what_nobody_holds_is_swept_and_nothing_else() {
        let (dir, parent) = parent();
        let (dead, alive, other) =
            (random_name().expect("a name"), random_name().expect("a name"), "kennel-of-somebody");
        fs::create_dir_all(dir.path().join(&dead).join("1")).expect("directories");
        fs::create_dir(dir.path().join(&alive)).expect("a directory");
        fs::create_dir(dir.path().join(other)).expect("a directory");
        fs::create_dir(dir.path().join(HOST)).expect("a directory");
        let held = openat(&parent, &*alive, directory_flags(OFlag::O_RDONLY), Mode::empty()).expect("opens");
        let held = Flock::lock(held, FlockArg::LockExclusiveNonblock).expect("locks");
        parent.sweep();
        let is_there = |name: &str| dir.path().join(name).exists();
        assert!(!is_there(&dead) && is_there(&alive) && is_there(other) && is_there(HOST));
        drop(held);
        parent.sweep();
        assert!(!is_there(&alive) && is_there(HOST));
    }

    #[test]
    fn a_group_that_cannot_be_locked_is_not_taken_for_one() {
        let (dir, parent) = parent();
        // A plain directory has no cgroup files, like a removed cgroup.
        let error = parent.make(&random_name().expect("a name")).expect_err("no cgroup");
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        let missing = dir.path().join("missing");
        assert_eq!(ParentCgroup::open(&missing).expect_err("missing").kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_name_that_is_taken_is_another_s() {
        let (dir, parent) = parent();
        let name = random_name().expect("a name");
        fs::create_dir(dir.path().join(&name)).expect("a directory");
        let error = parent.make(&name).expect_err("taken");
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
        assert!(dir.path().join(&name).is_dir(), "it was removed");
    }

    #[test]
    fn nobody_enters_what_another_user_made() {
        let (dir, parent) = parent();
        let host = dir.path().join(HOST);
        // A plain directory has no file to write to.
        assert_eq!(parent.move_self_to_child().expect_err("no cgroup").kind(), io::ErrorKind::NotFound);
        // Only root can change the owner.
        if std::os::unix::fs::chown(&host, Some(12345), None).is_ok() {
            let error = parent.move_self_to_child().expect_err("somebody else's");
            assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        }
    }

    #[test]
    fn files_that_a_kernel_may_lack_may_be_missing() {
        let (_dir, parent) = parent();
        set(parent.as_fd(), &CgroupSetting::where_there("memory.swap.max", 0)).expect("may be missing");
        let error = set(parent.as_fd(), &CgroupSetting::new("memory.max", 1)).expect_err("may not");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
