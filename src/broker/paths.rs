//! Paths of manifests and envelopes, made comparable: `~/` expanded, `.` and `..` taken out, links resolved. Reads the host's
//! directories, changes nothing.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::broker::SpawnPolicy;
use crate::policy::path::without_dots;
use crate::report::error::Error;
use crate::report::spawn_error::SpawnError;
use crate::sys::inode::Identity;
use crate::view::path_walk::deciding_places;
use crate::view::resolved_path::is_within;

/// A path as it was written, and where it leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// Absolute, without `.` and `..`, its links as they are.
    pub(crate) named: PathBuf,
    /// Without any link.
    pub(crate) path: PathBuf,
}

impl Resolved {
    /// # Errors
    /// A path that is neither absolute nor below `~/`; those of realpath(3).
    pub(crate) fn of(text: &str, home: &Path) -> io::Result<Self> {
        let named = expanded(text, home)?;
        Ok(Self { path: fs::canonicalize(&named)?, named })
    }

    /// Whether whoever may write to one of `roots`, which are without links, decides where this leads: it lies in there, or a
    /// link on the way does. The root itself is in nobody's hands.
    pub(crate) fn is_led_by<'p>(&self, roots: impl Iterator<Item = &'p Path>) -> bool {
        // Where one may not look, nobody can say.
        is_led("granted path", &self.named, roots).unwrap_or(true)
    }
}

/// Whether they decide what is in a file: as [`is_led`], or it is one of `roots` itself. A directory that is one is in nobody's
/// hands, but such a file is written to.
///
/// # Errors
/// Where it is not allowed to look.
pub(crate) fn is_written(what: &'static str, path: &Path, roots: &[PathBuf]) -> Result<bool, Error> {
    let file = |path: &Path| {
        let metadata = fs::metadata(path).ok().filter(|metadata| !metadata.is_dir());
        metadata.map(|metadata| Identity::of_metadata(&metadata))
    };
    let own = file(path);
    let is_root = own.is_some() && roots.iter().any(|root| file(root) == own);
    Ok(is_root || is_led(what, path, roots.iter().map(PathBuf::as_path))?)
}

/// The same as [`Resolved::is_led_by`] of any absolute path, which messages call `what`.
///
/// # Errors
/// Where it is not allowed to look.
pub(crate) fn is_led<'p>(
    what: &'static str,
    path: &Path,
    mut roots: impl Iterator<Item = &'p Path>,
) -> Result<bool, Error> {
    let places = deciding_places(what, path)?;
    let Some((end, way)) = places.split_last() else { return Ok(false) };
    // The root itself is in nobody's hands; but on the way it stands for a directory in it that `..` is taken from.
    let decides = |root: &Path| way.iter().any(|place| is_within(place, root));
    Ok(roots.any(|root| end.parent().is_some_and(|above| is_within(above, root)) || decides(root)))
}

/// Absolute, without `.` and `..`.
///
/// # Errors
/// Neither absolute nor below `~/`.
pub(crate) fn expanded(text: &str, home: &Path) -> io::Result<PathBuf> {
    let path = match (text, text.strip_prefix("~/")) {
        ("~", _) => home.to_owned(),
        (_, Some(below)) => home.join(below),
        _ => PathBuf::from(text),
    };
    if !path.is_absolute() {
        let reason = "must be absolute, or begin with ~/";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    Ok(without_dots(&path))
}

// What the host reads and writes for a spawn lies where no program of the manifest can lead it elsewhere: what an earlier one
// left there would decide then.

impl SpawnPolicy {
    /// Refuses a file that programs of the manifest could exchange for another, or for a link to any file of the host: it lies
    /// in `fs_write`, is there by its own name, or is reached through it. Ask this before you open a file for a spawn with
    /// rights that the program does not have, such as one with a credential. Messages call it `what`. That the file is there
    /// is not asked.
    ///
    /// ```
    /// use kennel::{Manifest, SpawnPolicy};
    ///
    /// let manifest = "[capabilities.spawn]\nprograms = []\nfs_write = ['/tmp']";
    /// let policy = SpawnPolicy::new(Manifest::from_toml(manifest)?);
    /// policy.check_outside("credential file", "/etc/token".as_ref())?;
    /// let error = policy.check_outside("credential file", "/tmp/token".as_ref()).unwrap_err();
    /// assert!(error.chain().contains("fs_write"));
    /// # Ok::<(), kennel::SpawnError>(())
    /// ```
    ///
    /// # Errors
    /// It does, or it is not allowed to look.
    pub fn check_outside(&self, what: &'static str, path: &Path) -> Result<(), SpawnError> {
        let absolute = std::path::absolute(path).map_err(Error::io("find the current directory"))?;
        if !is_written(what, &absolute, &self.writable())? {
            return Ok(());
        }
        let reason = "programs could put another there: it lies in fs_write, or is reached through it";
        let remedy = Some("keep it outside of what the manifest has in fs_write".to_owned());
        let (path, source) = (path.to_owned(), io::Error::other(reason));
        Err(Error::Grant { what, path, source, remedy }.into())
    }

    /// What programs may write, without links. Where there is nothing, there may be something again.
    fn writable(&self) -> Vec<PathBuf> {
        let written = &self.manifest.spawn.fs_write;
        let named = written.iter().filter_map(|path| expanded(path, &self.home).ok());
        named.map(|named| named.canonicalize().unwrap_or(named)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn paths_are_expanded_and_made_plain() {
        let home = Path::new("/home/me");
        for (text, plain) in [
            ("~", "/home/me"),
            ("~/a/../b", "/home/me/b"),
            ("/a//b/./c/", "/a/b/c"),
            ("/../..", "/"),
            ("~/../../etc", "/etc"),
        ] {
            assert_eq!(expanded(text, home).expect(text), Path::new(plain), "{text}");
        }
        for text in ["", "a", "./a", "~me/a", "../a"] {
            assert_eq!(expanded(text, home).expect_err(text).kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn who_writes_on_the_way_leads() {
        let dir = tempfile::tempdir().expect("a directory");
        let base = fs::canonicalize(dir.path()).expect("a path");
        for name in ["w/in", "secret", "other"] {
            fs::create_dir_all(base.join(name)).expect("a directory");
        }
        symlink(base.join("secret"), base.join("w/leads")).expect("a link");
        symlink(base.join("w/leads"), base.join("to_leads")).expect("a link");
        symlink(base.join("w"), base.join("to_w")).expect("a link");
        let led = |name: &str| {
            let path = base.join(name);
            let root = base.join("w");
            Resolved::of(path.to_str().expect("text"), Path::new("/"))
                .expect(name)
                .is_led_by([&*root].into_iter())
        };
        assert!(led("w/in") && led("w/leads") && led("to_w/in"));
        assert!(!led("w") && !led("other") && !led("secret") && !led("to_w"));
        assert!(led("to_leads"), "through a link into it");
    }
}
