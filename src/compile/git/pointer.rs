//! Where git is led from a directory whose `.git` is a file, or a link to one: by what is written there, gitrepository-layout(5).

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use super::{read_small, unless_absent};

/// Where git is led to from one directory.
#[derive(Debug, Default)]
pub(in crate::compile) struct Pointers {
    /// The repository that `.git` is a pointer to, and the one that it has its config of, without links.
    pub(in crate::compile) repositories: Vec<PathBuf>,
    /// The ways there, as they are written. Links may be on them.
    pub(in crate::compile) ways: Vec<Way>,
}

/// A path as it is written, and the directory without links that it is meant from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::compile) struct Way {
    pub(in crate::compile) from: PathBuf,
    pub(in crate::compile) to: PathBuf,
}

impl Pointers {
    /// Those in `base`, which has no link in it.
    ///
    /// # Errors
    /// A shortage, by which it cannot be known. What nobody may look at in a grant is found on the ways; elsewhere it is out of
    /// the reach of commands.
    pub(in crate::compile) fn of(base: &Path) -> io::Result<Self> {
        let mut pointers = Self::default();
        let Some(file) = unless_closed(fs::canonicalize(base.join(".git")))? else { return Ok(pointers) };
        if let Some(own) = pointers.follow(base, &file, b"gitdir:")? {
            pointers.follow(&own, &own.join("commondir"), b"")?;
        }
        Ok(pointers)
    }

    /// Goes where the text in `file` leads to, after that `prefix`, from the directory `from`. `None` where there is nothing.
    fn follow(&mut self, from: &Path, file: &Path, prefix: &[u8]) -> io::Result<Option<PathBuf>> {
        let text = unless_closed(read_small(file))?.flatten().unwrap_or_default();
        let Some(to) = text.strip_prefix(prefix).map(<[u8]>::trim_ascii).filter(|to| !to.is_empty()) else {
            return Ok(None);
        };
        let to = Path::new(OsStr::from_bytes(to));
        self.ways.push(Way { from: from.to_owned(), to: to.to_owned() });
        let repository = unless_closed(fs::canonicalize(from.join(to)))?;
        self.repositories.extend(repository.clone());
        Ok(repository)
    }
}

/// `None` where there is nothing of that kind, or it may not be looked at.
fn unless_closed<T>(looked: io::Result<T>) -> io::Result<Option<T>> {
    match looked {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        looked => unless_absent(looked),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_link_to_a_pointer_points_as_git_goes_it() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let base = fs::canonicalize(dir.path()).expect("its name");
        fs::create_dir_all(base.join("repos/main")).expect("a directory");
        fs::create_dir(base.join("deep")).expect("a directory");
        symlink("repos", base.join("link")).expect("a link");
        fs::write(base.join("deep/pointer"), "gitdir: link/main\n").expect("a file");
        symlink("deep/pointer", base.join(".git")).expect("a link");
        fs::write(base.join("repos/main/commondir"), "../../link\n").expect("a file");
        let pointers = Pointers::of(&base).expect("they may be looked at");
        assert_eq!(pointers.repositories, [base.join("repos/main"), base.join("repos")]);
        let own = Way { from: base.clone(), to: "link/main".into() };
        let common = Way { from: base.join("repos/main"), to: "../../link".into() };
        assert_eq!(pointers.ways, [own, common]);
        fs::remove_file(base.join("deep/pointer")).expect("removed");
        fs::write(base.join("deep/pointer"), "gitdir: nowhere\n").expect("a file");
        let pointers = Pointers::of(&base).expect("they may be looked at");
        assert!(pointers.repositories.is_empty() && pointers.ways.len() == 1);
    }

    #[test]
    fn the_way_to_what_cannot_be_looked_at_is_known() {
        if nix::unistd::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::create_dir_all(dir.path().join("repos/main")).expect("a directory");
        fs::write(dir.path().join(".git"), "gitdir: repos/main\n").expect("a file");
        let set = |mode| fs::set_permissions(dir.path().join("repos"), fs::Permissions::from_mode(mode));
        set(0).expect("ours");
        let pointers = Pointers::of(dir.path());
        set(0o700).expect("ours");
        let pointers = pointers.expect("no shortage");
        assert!(pointers.repositories.is_empty() && pointers.ways.len() == 1, "{pointers:?}");
    }
}
