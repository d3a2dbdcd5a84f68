//! Resolves a path of the host once, and keeps the links on the way.
//!
//! The end is opened without following any link. So the links that are checked later are the ones that led
//! there, even if another process replaces parts of the path. Nothing is refused here: the caller decides
//! which links are allowed.

use std::fs::Metadata;
use std::path::Path;
use std::{fs, io};

use crate::sys::inode::Identity;
use crate::sys::lexical;
use crate::view::View;
use crate::view::paths::source;
use crate::view::paths::source::BindSource;
use crate::view::paths::walk as path_walk;
use crate::view::paths::walk::HostLink;

/// A file, directory or device of the host, and how a path led to it.
#[derive(Debug)]
pub(crate) struct ResolvedPath {
    pub(crate) source: BindSource,
    /// Metadata of `source`.
    pub(crate) metadata: Metadata,
    /// The links on the way, in order.
    pub(crate) links: Vec<HostLink>,
}

impl ResolvedPath {
    /// Resolves `path`, which is absolute.
    ///
    /// # Errors
    /// Those of realpath(3). `ESTALE` if another process replaced parts of the path meanwhile.
    pub(crate) fn resolve(path: &Path) -> io::Result<Self> {
        match source::metadata_without_links(path) {
            Err(error) if source::may_have_links(&error) => {}
            metadata => return Ok(Self::new(path, metadata?, Vec::new())),
        }
        // realpath(3) gives the errors. Its result is compared with the walk, because it may be outdated
        // already.
        let canonical = fs::canonicalize(path)?;
        let (links, end) = path_walk::links_on(path).map_err(|_| source::replaced())?;
        if end != canonical {
            return Err(source::replaced());
        }
        let metadata = source::metadata_of_canonical(&end)?;
        Ok(Self::new(&end, metadata, links))
    }

    /// The first link on the way that commands may have made: it is in a writable grant.
    pub(crate) fn link_in_writable_grant(&self, view: &View) -> Option<&Path> {
        self.link_in(&writable(view))
    }

    /// The first link on the way that is in one of these directories. The directories themselves are no
    /// links.
    pub(crate) fn link_in(&self, directories: &[&Path]) -> Option<&Path> {
        let is_in_one = |at: &Path| {
            at.parent().is_some_and(|above| directories.iter().any(|base| is_within(above, base)))
        };
        self.links.iter().map(|link| &*link.at).find(|at| is_in_one(at))
    }

    fn new(path: &Path, metadata: Metadata, links: Vec<HostLink>) -> Self {
        Self { source: BindSource::of(path.to_owned(), &metadata), metadata, links }
    }
}

/// Whether `place` is `directory` or inside it, by any name. A directory has several names if it is mounted
/// twice, or if the file system ignores case. `place` must have no link on the way.
///
/// This looks at the paths again. That is safe, because commands cannot replace directories above their
/// writable grants. What cannot be looked at is compared by name alone.
pub(crate) fn is_within(place: &Path, directory: &Path) -> bool {
    // The place itself may be a link.
    let identity =
        |path: &Path| fs::symlink_metadata(path).ok().map(|metadata| Identity::of_metadata(&metadata));
    let by_another_name = || {
        let own = identity(directory);
        own.is_some() && place.ancestors().any(|above| identity(above) == own)
    };
    lexical::is_within(place, directory) || by_another_name()
}

/// The directories of the host that commands may write to.
pub(crate) fn writable(view: &View) -> Vec<&Path> {
    view.writable_directories().map(|(_, source)| &*source.path).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn every_link_on_the_way_is_told_and_the_end_has_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let base = fs::canonicalize(dir.path()).expect("its name");
        fs::create_dir_all(base.join("a/b")).expect("directories");
        symlink("a", base.join("one")).expect("a link");
        symlink("../one/b", base.join("a/two")).expect("a link");
        let resolved = ResolvedPath::resolve(&base.join("one/two")).expect("a way");
        assert_eq!(resolved.source.path, base.join("a/b"));
        let link = |at: &str, to: &str| HostLink { at: base.join(at), to: to.into() };
        assert_eq!(resolved.links, [link("one", "a"), link("a/two", "../one/b"), link("one", "a")]);
        assert_eq!(resolved.source, BindSource::exact(&base.join("a/b")).expect("a directory"));
        let plain = ResolvedPath::resolve(&base.join("a/b/../b")).expect("a way");
        assert_eq!((plain.source.path, plain.links), (base.join("a/b"), Vec::new()));
    }

    #[test]
    fn what_realpath_refuses_is_refused_in_its_words() {
        let dir = tempfile::tempdir().expect("a directory");
        symlink("loop", dir.path().join("loop")).expect("a link");
        symlink("none", dir.path().join("dangling")).expect("a link");
        fs::write(dir.path().join("file"), "").expect("a file");
        let errno =
            |name: &str| ResolvedPath::resolve(&dir.path().join(name)).expect_err("nothing").raw_os_error();
        assert_eq!(errno("loop"), Some(libc::ELOOP));
        assert_eq!(errno("dangling"), Some(libc::ENOENT));
        assert_eq!(errno("file/"), Some(libc::ENOTDIR));
        assert_eq!(errno("file/x"), Some(libc::ENOTDIR));
    }

    #[test]
    fn the_root_is_an_end_too() {
        let dir = tempfile::tempdir().expect("a directory");
        symlink("/", dir.path().join("root")).expect("a link");
        assert_eq!(
            ResolvedPath::resolve(&dir.path().join("root")).expect("a way").source.path,
            Path::new("/")
        );
    }
}
