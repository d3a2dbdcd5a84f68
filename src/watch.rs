//! Protected paths that could not be bound read-only because they were not there, or are links: what a command put
//! in their place is taken away again after it ended, and reported.
//!
//! Others may be writing to the same directories meanwhile. So nothing here is ever looked up twice by path: every
//! step starts from a descriptor, follows no link, and what is checked is what is changed.

mod remove;

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2, readlinkat},
    sys::stat::{FileStat, SFlag, fstatat},
    unistd::symlinkat,
};

use crate::outcome::Denial;

/// How much older than the clock says a new file may look: the kernel stamps files by the tick.
const TICK: Duration = Duration::from_millis(50);

/// A path to look at after the command, in a granted directory of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Watch {
    base: PathBuf,
    path: PathBuf,
    expected: Expected,
    since: SystemTime,
}

/// What was there when the sandbox was prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Nothing.
    Absent,
    /// Nothing, and no repository that it would lie in: one may be made.
    NoRepository,
    /// A symbolic link, leading there.
    Link(PathBuf),
}

impl Watch {
    /// From now on, `path` below the host's directory `base`.
    pub(crate) fn new(base: &Path, path: &Path, expected: Expected) -> Self {
        Self { base: base.to_owned(), path: path.to_owned(), expected, since: SystemTime::now() - TICK }
    }

    fn on_host(&self) -> PathBuf {
        self.base.join(&self.path)
    }
}

/// Looks at every watched path, undoes what was done to it, and says so.
pub(crate) fn undo(watches: &[Watch]) -> Vec<Denial> {
    watches.iter().filter_map(check).collect()
}

fn check(watch: &Watch) -> Option<Denial> {
    if watch.expected == Expected::NoRepository
        && let Some(pointer) = misplaced(watch)
    {
        // Not a new repository but a pointer to one that somebody prepared.
        return check(&pointer);
    }
    let place = Place::of(watch).ok()?;
    let there = place.stat().ok();
    let undone = match (&watch.expected, there) {
        (Expected::Link(to), _) if place.leads_to(to) => return None,
        (Expected::Link(to), _) => place.put_back_link(to).map(|()| "the link was put back"),
        (_, None) => return None,
        // It was there all the time and only hidden when the sandbox was prepared: not the command's.
        (_, Some(stat)) if is_older(&stat, watch.since) => return None,
        (Expected::NoRepository, Some(_)) if watch.path.ends_with("hooks") => match place.remove_hooks() {
            Ok(0) => return None,
            removed => removed.map(|_| "its hooks were removed"),
        },
        // A repository made inside needs its config; git outside reads it, so its making is told.
        (Expected::NoRepository, Some(_)) if watch.path.ends_with("config") => {
            Ok("it was kept, because its directory is new: look at it before you trust it")
        }
        (Expected::Absent | Expected::NoRepository, Some(_)) => place.remove(),
    };
    Some(match undone {
        Ok(what) => denial(&watch.on_host(), what),
        Err(error) => denial(&watch.on_host(), &format!("it could not be undone: {error}")),
    })
}

/// The first part of a watched path, where it came into being as something else than a directory.
fn misplaced(watch: &Watch) -> Option<Watch> {
    let first = PathBuf::from(watch.path.components().next()?.as_os_str());
    let pointer = Watch { path: first, expected: Expected::Absent, ..watch.clone() };
    let stat = Place::of(&pointer).ok()?.stat().ok()?;
    (kind(&stat) != SFlag::S_IFDIR).then_some(pointer)
}

fn denial(path: &Path, what: &str) -> Denial {
    Denial {
        protection: crate::policy::Protection::ProtectedPaths,
        subject: path.display().to_string(),
        reason: format!("a protected path was changed; {what}"),
    }
}

/// Whether the inode was last changed, renames included, before `since`. Nobody can set that time.
fn is_older(stat: &FileStat, since: SystemTime) -> bool {
    let (seconds, nanoseconds) = (u64::try_from(stat.st_ctime), u32::try_from(stat.st_ctime_nsec));
    let (Ok(seconds), Ok(nanoseconds)) = (seconds, nanoseconds) else { return false };
    SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds) < since
}

fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

/// A name in a directory that is held open.
struct Place {
    parent: OwnedFd,
    name: OsString,
}

impl Place {
    /// The directory that a watched path lies in, reached without following any link.
    fn of(watch: &Watch) -> io::Result<Self> {
        let host = watch.on_host();
        let (Some(parent), Some(name)) = (host.parent(), host.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        Ok(Self { parent: openat2(nix::fcntl::AT_FDCWD, parent, how)?, name: name.to_owned() })
    }

    fn stat(&self) -> Result<FileStat, Errno> {
        fstatat(&self.parent, self.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW)
    }

    fn leads_to(&self, to: &Path) -> bool {
        readlinkat(&self.parent, self.name.as_os_str()).is_ok_and(|now| now == to.as_os_str())
    }

    /// Removes what is there; where that does not work, moves it to a name that nothing obeys.
    fn remove(&self) -> io::Result<&'static str> {
        match remove::entry(self.parent.as_fd(), &self.name, 0) {
            Ok(()) => Ok("it was removed"),
            Err(error) => self.move_aside().map_err(|_| error),
        }
    }

    fn move_aside(&self) -> io::Result<&'static str> {
        let mut aside = self.name.clone().into_vec();
        aside.extend_from_slice(b".refused-by-kennel");
        let aside = OsString::from_vec(aside);
        nix::fcntl::renameat(&self.parent, self.name.as_os_str(), &self.parent, aside.as_os_str())?;
        Ok("it was renamed to end in .refused-by-kennel, because it could not be removed")
    }

    fn put_back_link(&self, to: &Path) -> io::Result<()> {
        match self.stat() {
            Err(Errno::ENOENT) => {}
            _ => drop(self.remove()?),
        }
        Ok(symlinkat(to, &self.parent, self.name.as_os_str())?)
    }

    /// Removes the hooks of a repository that was made inside; the samples that `git init` puts there do nothing.
    /// Answers how many there were.
    fn remove_hooks(&self) -> io::Result<usize> {
        if kind(&self.stat()?) != SFlag::S_IFDIR {
            return self.remove().map(|_| 1);
        }
        let hooks = remove::open_directory(self.parent.as_fd(), &self.name)?;
        let mut removed = 0;
        for name in remove::names(&hooks)? {
            if !name.as_encoded_bytes().ends_with(b".sample") {
                remove::entry(hooks.as_fd(), &name, 0)?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    /// A directory to watch, and one that nothing may touch.
    fn directories() -> (tempfile::TempDir, tempfile::TempDir) {
        let (base, victim) = (tempfile::tempdir().expect("base"), tempfile::tempdir().expect("victim"));
        fs::create_dir(victim.path().join("sub")).expect("a directory");
        fs::write(victim.path().join("sub/file"), "").expect("a file");
        (base, victim)
    }

    fn watch(base: &Path, path: &str, expected: Expected) -> Watch {
        Watch::new(base, Path::new(path), expected)
    }

    #[test]
    fn a_link_at_a_watched_path_is_removed_and_not_followed() {
        let (base, victim) = directories();
        fs::create_dir(base.path().join(".git")).expect("a directory");
        let watches = [
            watch(base.path(), ".git/hooks", Expected::NoRepository),
            watch(base.path(), ".git/commondir", Expected::Absent),
        ];
        for name in ["hooks", "commondir"] {
            symlink(victim.path(), base.path().join(".git").join(name)).expect("a link");
        }
        assert_eq!(undo(&watches).len(), 2);
        assert!(victim.path().join("sub/file").exists());
        assert_eq!(fs::read_dir(base.path().join(".git")).expect("a listing").count(), 0);
    }

    #[test]
    fn a_link_on_the_way_to_a_watched_path_is_not_followed() {
        let (base, victim) = directories();
        let watches = [watch(base.path(), "a/sub", Expected::Absent)];
        symlink(victim.path(), base.path().join("a")).expect("a link");
        assert_eq!(undo(&watches), []);
        assert!(victim.path().join("sub/file").exists());
    }

    #[test]
    fn what_was_only_hidden_is_left_alone() {
        let (base, _) = directories();
        fs::create_dir_all(base.path().join("d/kept")).expect("a directory");
        std::thread::sleep(Duration::from_millis(120));
        fs::rename(base.path().join("d"), base.path().join("hidden")).expect("renamed");
        let watches = [watch(base.path(), "d/kept", Expected::Absent)];
        fs::rename(base.path().join("hidden"), base.path().join("d")).expect("renamed");
        assert_eq!(undo(&watches), []);
        assert!(base.path().join("d/kept").exists());
    }

    #[test]
    fn a_link_that_was_exchanged_is_put_back() {
        let (base, victim) = directories();
        let watches = [watch(base.path(), "link", Expected::Link("there".into()))];
        symlink(victim.path(), base.path().join("link")).expect("a link");
        assert_eq!(undo(&watches).len(), 1);
        assert_eq!(fs::read_link(base.path().join("link")).expect("a link"), Path::new("there"));
        assert!(victim.path().join("sub/file").exists());
    }
}
