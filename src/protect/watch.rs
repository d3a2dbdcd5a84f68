//! Watches: paths to look at after a command, and the directories that are held open for it.
//!
//! Kennel opens the directories before the command starts. So nothing leads it astray: not a directory that
//! is moved, a mount over it, or another directory at its path.

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::{fs, io};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{FileStat, Mode};

use crate::protect::commit_rule::CommitRule;
use crate::report::failure::shown;
use crate::sys::inode::Identity;
use crate::sys::locked;
use crate::sys::own_path;
use crate::sys::remove;
use crate::view::paths::walk::WalkAim;

/// A path to look at after the command, in a granted directory of the host.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    pub(crate) base: PathBuf,
    pub(crate) path: PathBuf,
    /// The first part of the path that is missing, or the path itself.
    pub(crate) first: PathBuf,
    pub(crate) expected: Expected,
    /// Why it is watched.
    pub(crate) aim: WalkAim,
    /// The link that leads there, if one does.
    pub(crate) link: Option<PathBuf>,
    /// The directory where looking starts.
    pub(crate) held: Option<HeldDirectory>,
    /// What was kept there and told. Clones share it, so that each change is told once.
    told: Arc<Mutex<Option<KeptFile>>>,
}

/// What tells a file that was kept from another one, and from itself after a change: the time of its change,
/// in seconds and nanoseconds.
type KeptFile = (Identity, i64, i64);

/// How many files were kept and told so far, by all sandboxes of this program.
static KEPT: AtomicU64 = AtomicU64::new(0);

/// A number that changes when a file is kept that is new at a watched path.
pub(crate) fn kept_so_far() -> u64 {
    KEPT.load(Relaxed)
}

/// What was at the path when the sandbox was prepared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Expected {
    /// Nothing.
    Absent,
    /// Nothing, and its repository is missing too: one may be created.
    NoRepository,
    /// Nothing. A directory may appear.
    NoFile,
    /// Nothing. An empty directory may appear.
    NoEntry,
    /// A symbolic link with this text.
    Link(PathBuf),
}

impl Watch {
    /// A watch for `path` below the host's directory `base`; `first` is its first missing part. Pass it to
    /// [`hold`] before the command starts.
    pub(crate) fn new(base: &Path, path: &Path, first: &Path, expected: Expected) -> Self {
        let (path, first) = (path.to_owned(), first.to_owned());
        Self {
            base: base.to_owned(),
            path,
            first,
            expected,
            aim: WalkAim::Path,
            link: None,
            held: None,
            told: Arc::default(),
        }
    }

    /// Whether a file that is kept there has not been told about yet. The next call says no.
    pub(crate) fn is_untold(&self, kept: &FileStat) -> bool {
        let now = (Identity::of(kept), kept.st_ctime, kept.st_ctime_nsec);
        let is_untold = locked(&self.told).replace(now) != Some(now);
        if is_untold {
            KEPT.fetch_add(1, Relaxed);
        }
        is_untold
    }

    /// Whether a file was kept there.
    pub(crate) fn has_kept(&self) -> bool {
        locked(&self.told).is_some()
    }

    /// Sets why it is watched.
    pub(crate) fn with_aim(self, aim: WalkAim) -> Self {
        Self { aim, ..self }
    }

    /// Sets the link that leads there.
    pub(crate) fn with_link(self, link: Option<&Path>) -> Self {
        Self { link: link.map(Path::to_owned), ..self }
    }

    /// Removes duplicates: several paths may lead over one link.
    pub(crate) fn dedup(watches: &mut Vec<Self>) {
        let mut seen = HashSet::new();
        watches.retain(|watch| {
            let Self { base, path, first, expected, .. } = watch.clone();
            seen.insert((base, path, first, expected))
        });
    }

    /// The host path whose state the watch depends on: the link, or the first missing part.
    pub(crate) fn depends_on(&self) -> PathBuf {
        match self.expected {
            Expected::Link(_) => self.on_host(),
            _ => self.base.join(&self.first),
        }
    }

    /// Whether its grant is exactly `base`.
    pub(crate) fn is_in_grant(&self, base: &Path) -> bool {
        self.base == base
    }

    /// The rule for commits of an overlay over `base`, if the watch is there.
    pub(crate) fn commit_rule(&self, base: &Path) -> Option<CommitRule> {
        self.is_in_grant(base).then(|| match self.expected {
            Expected::Absent | Expected::Link(_) => CommitRule::always(&self.path),
            Expected::NoRepository => CommitRule::unless_new(&self.path),
            Expected::NoFile => CommitRule::unless_directory(&self.path),
            Expected::NoEntry => CommitRule::unless_empty(&self.path),
        })
    }

    pub(crate) fn on_host(&self) -> PathBuf {
        self.base.join(&self.path)
    }
}

/// Equal if they watch the same, whatever they hold open.
#[cfg(test)]
impl PartialEq for Watch {
    fn eq(&self, other: &Self) -> bool {
        let about = |watch: &Self| (watch.base.clone(), watch.path.clone(), watch.first.clone());
        about(self) == about(other) && self.expected == other.expected
    }
}

/// The prefixes of `path` from `first` on, shortest first, `path` included.
pub(crate) fn parts_from<'p>(first: &Path, path: &'p Path) -> Vec<&'p Path> {
    let mut parts: Vec<&Path> = path.ancestors().take_while(|part| part.starts_with(first)).collect();
    parts.reverse();
    parts
}

/// A directory that is held open: a writable grant, or what was mounted inside one before the command
/// started.
#[derive(Clone, Debug)]
pub(crate) struct HeldDirectory {
    directory: Arc<OwnedFd>,
    /// Its path below the grant.
    way: PathBuf,
}

impl HeldDirectory {
    /// # Errors
    /// `ESTALE` if another directory has this path now.
    fn open(path: &Path, identity: Identity) -> io::Result<Self> {
        // The identity is compared, so links on the way do no harm. openat2(2) may be unavailable.
        let directory = open(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        if Identity::of_held(&directory)? != identity {
            return Err(Errno::ESTALE.into());
        }
        Ok(Self { directory: Arc::new(directory), way: PathBuf::new() })
    }

    /// The last directory on `way` that is a mount point, or `self`. It is found now, so mounts made later
    /// are not entered.
    fn last_mount(&self, way: &Path) -> io::Result<Self> {
        // What cannot be looked at now is looked at after the command, and reported then.
        if way.as_os_str().is_empty()
            || remove::step(self.directory.as_fd(), way.as_os_str(), OFlag::O_PATH).err()
                != Some(Errno::EXDEV)
        {
            return Ok(self.clone());
        }
        let (mut last, mut at, mut way_there) = (self.clone(), self.directory(), PathBuf::new());
        for part in way {
            way_there.push(part);
            match remove::step(at.as_fd(), part, OFlag::O_PATH) {
                Err(Errno::EXDEV) => {
                    at = Arc::new(remove::step_over(at.as_fd(), part)?);
                    last = Self { directory: Arc::clone(&at), way: way_there.clone() };
                }
                next => at = Arc::new(next?),
            }
        }
        Ok(last)
    }

    pub(crate) fn directory(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.directory)
    }

    /// The part of a path below the grant that is below this directory.
    pub(crate) fn below<'p>(&self, path: &'p Path) -> io::Result<&'p Path> {
        path.strip_prefix(&self.way).map_err(|_| io::ErrorKind::InvalidInput.into())
    }

    /// Words for the report if the directory was moved since; `base` is the path of the grant.
    pub(crate) fn words_if_moved(&self, base: &Path) -> Option<String> {
        let now = fs::read_link(own_path(&self.directory)).ok()?;
        let was: PathBuf = base.join(&self.way).components().collect();
        let [from, to] = [&was, &now].map(|path| shown(path));
        (now != was).then(|| format!("; {from} was moved to {to} meanwhile"))
    }
}

/// Opens and keeps the directories where looking at each watch starts. All watches are below the grant
/// `base`.
///
/// # Errors
/// `ESTALE` if another directory has the grant's path now. No descriptor left.
pub(crate) fn hold<'w>(
    watches: impl Iterator<Item = &'w mut Watch>,
    base: &Path,
    identity: Identity,
) -> io::Result<()> {
    // One descriptor for each directory, not for each watch.
    let grant = HeldDirectory::open(base, identity)?;
    let mut known = vec![grant.clone()];
    for watch in watches {
        let found = grant.last_mount(watch.first.parent().unwrap_or(Path::new("")))?;
        let same = known.iter().find(|known| known.way == found.way).cloned();
        watch.held = Some(same.unwrap_or_else(|| {
            known.push(found.clone());
            found
        }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_directory_is_not_held() {
        let (grant, other) = (tempfile::tempdir().expect("a grant"), tempfile::tempdir().expect("another"));
        let mut watch = Watch::new(grant.path(), Path::new("x"), Path::new("x"), Expected::Absent);
        let identity = Identity::of_metadata(&fs::metadata(other.path()).expect("a directory"));
        let error = hold([&mut watch].into_iter(), grant.path(), identity).expect_err("it is another");
        assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
        assert!(watch.held.is_none());
    }
}
