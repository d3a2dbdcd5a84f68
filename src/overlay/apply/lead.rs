//! Files of a repository by which git outside would go elsewhere: as after a command without an overlay, they are not there.

use std::{
    fs::File,
    io::{self, Read, Seek},
    os::fd::OwnedFd,
    path::Path,
};

use nix::{errno::Errno, fcntl::OFlag};

use super::{Commit, Refusal};
use crate::watch::contents;

impl Commit<'_> {
    /// Refuses a file that shall be at `path`, whose contents are in `copy`, where git would go elsewhere by it.
    ///
    /// # Errors
    /// It would, or something cannot be read.
    pub(super) fn leads_nowhere(&self, path: &Path, copy: &File) -> Result<(), Refusal> {
        let repositories = self.ledger.never().iter().filter_map(|never| never.in_repository(path));
        for (repository, way) in repositories {
            let beside = path.parent().unwrap_or(Path::new(""));
            let configs = || {
                let of = [repository, beside].map(|directory| self.configs(&directory.join("config")));
                Ok(of.into_iter().collect::<io::Result<Vec<_>>>()?.concat())
            };
            if contents::lead(way, |most| beginning(copy, most).map(Some), configs)?.is_some() {
                return Err(Refusal::Protected);
            }
        }
        Ok(())
    }

    /// What a config has, and what a command has made of it: that may be committed too.
    fn configs(&self, path: &Path) -> io::Result<Vec<Vec<u8>>> {
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let both = [self.workspace.open(path, flags).map_err(io::Error::from), self.changed.read(path)];
        both.into_iter().filter_map(|opened| contents_of(opened).transpose()).collect()
    }
}

fn contents_of(opened: io::Result<OwnedFd>) -> io::Result<Option<Vec<u8>>> {
    let file = match opened {
        Ok(held) => File::from(held),
        Err(error) => {
            let absent = [Errno::ENOENT, Errno::ENOTDIR, Errno::ELOOP, Errno::ENXIO, Errno::EOPNOTSUPP];
            let is_absent = absent.iter().any(|errno| error.raw_os_error() == Some(*errno as i32));
            return if is_absent { Ok(None) } else { Err(error) };
        }
    };
    if !file.metadata()?.is_file() {
        return Ok(None);
    }
    beginning(&file, contents::LONGEST_CONFIG).map(Some)
}

fn beginning(mut file: &File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}
