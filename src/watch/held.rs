//! The directories that looking begins at, held from before the command began. Whoever moves one, mounts something over
//! it or gives its path to another leads nothing astray: what is undone lies where the command was.

use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    sys::stat::Mode,
};

use super::{Watch, remove};
use crate::{
    below::{Identity, own_path},
    failure::shown,
};

/// A directory: a writable grant, or what was mounted in one before the command began.
#[derive(Clone, Debug)]
pub(super) struct Held {
    directory: Arc<OwnedFd>,
    /// Its way from the grant.
    way: PathBuf,
}

impl Held {
    /// # Errors
    /// `ESTALE` where something else has its path by now.
    fn base(path: &Path, identity: Identity) -> io::Result<Self> {
        // What it is counts, and not what leads to it: openat2(2) may not be had.
        let directory = open(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        if Identity::of_held(&directory)? != identity {
            return Err(Errno::ESTALE.into());
        }
        Ok(Self { directory: Arc::new(directory), way: PathBuf::new() })
    }

    /// The last directory on the way below it that something is mounted on, or itself. Later mounts are not entered.
    fn last_mount(&self, way: &Path) -> io::Result<Self> {
        // What cannot be seen now is found on the way after the command, and told then.
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

    pub(super) fn directory(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.directory)
    }

    /// The rest of the way to a path below the grant.
    pub(super) fn below<'p>(&self, path: &'p Path) -> io::Result<&'p Path> {
        path.strip_prefix(&self.way).map_err(|_| io::ErrorKind::InvalidInput.into())
    }

    /// What is to be said of it where it is no more where it was in the grant at `base`.
    pub(super) fn moved(&self, base: &Path) -> Option<String> {
        let now = fs::read_link(own_path(&self.directory)).ok()?;
        let was: PathBuf = base.join(&self.way).components().collect();
        let [from, to] = [&was, &now].map(|path| shown(path));
        (now != was).then(|| format!("; {from} was moved to {to} meanwhile"))
    }
}

/// Holds what looking at each begins at; all are below the grant `base`.
///
/// # Errors
/// `ESTALE` where that is not the grant any more; no room for a descriptor.
pub(crate) fn hold<'w>(
    watches: impl Iterator<Item = &'w mut Watch>,
    base: &Path,
    identity: Identity,
) -> io::Result<()> {
    // One descriptor each, however many watches.
    let grant = Held::base(base, identity)?;
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
    use crate::watch::Expected;

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
