//! Normalizes paths of manifests and envelopes: expands `~/`, removes `.` and `..`, resolves links. Reads
//! directories of the host, changes nothing.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::policy::path::without_dots;
use crate::report::error::Error;
use crate::sys::inode::Identity;
use crate::view::paths::resolved::is_within;
use crate::view::paths::walk::deciding_places;

/// A path as written, and the path that it leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// Absolute, without `.` and `..`, with links unresolved.
    pub(crate) named: PathBuf,
    /// With all links resolved.
    pub(crate) path: PathBuf,
}

impl Resolved {
    /// # Errors
    /// The path is neither absolute nor below `~/`; those of realpath(3).
    pub(crate) fn of(text: &str, home: &Path) -> io::Result<Self> {
        let named = expanded(text, home)?;
        Ok(Self { path: fs::canonicalize(&named)?, named })
    }

    /// Whether a writer of one of `roots` (canonical paths) decides where this path leads. That is so if the
    /// path is inside a root, or a link on the way is. The path of a root itself does not count: a writer of
    /// its contents cannot replace the root.
    pub(crate) fn is_led_by<'p>(&self, roots: impl Iterator<Item = &'p Path>) -> bool {
        // If Kennel may not look there, assume the worst.
        is_led("granted path", &self.named, roots).unwrap_or(true)
    }
}

/// Whether a writer of one of `roots` decides the contents of the file at `path`: [`is_led`] holds, or the
/// file itself is a root. A root that is a directory cannot be replaced, but a root that is a file can be
/// written.
///
/// # Errors
/// Kennel may not look at a directory on the way.
pub(crate) fn is_written(what: &'static str, path: &Path, roots: &[PathBuf]) -> Result<bool, Error> {
    let file = |path: &Path| {
        let metadata = fs::metadata(path).ok().filter(|metadata| !metadata.is_dir());
        metadata.map(|metadata| Identity::of_metadata(&metadata))
    };
    let own = file(path);
    let is_root = own.is_some() && roots.iter().any(|root| file(root) == own);
    Ok(is_root || is_led(what, path, roots.iter().map(PathBuf::as_path))?)
}

/// Like [`Resolved::is_led_by`], for any absolute path. Messages call the path `what`.
///
/// # Errors
/// Kennel may not look at a directory on the way.
pub(crate) fn is_led<'p>(
    what: &'static str,
    path: &Path,
    mut roots: impl Iterator<Item = &'p Path>,
) -> Result<bool, Error> {
    let places = deciding_places(what, path)?;
    let Some((end, way)) = places.split_last() else { return Ok(false) };
    // At the end of the path a root itself does not count. On the way it does, because `..` may be resolved
    // inside it.
    let decides = |root: &Path| way.iter().any(|place| is_within(place, root));
    Ok(roots.any(|root| end.parent().is_some_and(|above| is_within(above, root)) || decides(root)))
}

/// Expands `~/` and makes the path absolute, without `.` and `..`.
///
/// # Errors
/// The path is neither absolute nor below `~/`.
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

// Files that Kennel or the caller opens for a spawn must be where no program of the manifest can replace
// them. Otherwise an earlier program could decide what a later spawn reads or writes.

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
