//! The layers of a root as one tree, as overlayfs shows them: Documentation/filesystems/overlayfs.rst.
//!
//! Layers may come from anywhere, so a link in them never leads out of them, and a file in them is read only
//! if it is a regular one.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use nix::libc::{O_NOFOLLOW, O_NONBLOCK};
use nix::sys::stat::{FileStat, lstat};

use crate::sys;
use crate::sys::dirfd::MOST_LINKS;
use crate::sys::inode::{FileKind, kind};
use crate::sys::locked;
use crate::view::paths::walk::reversed;

/// The most bytes of a file that is read.
const LARGEST: u64 = 1 << 20;

/// The most paths that are remembered. Commands can ask for as many as they like.
const MOST_KNOWN: usize = 10_000;

/// The layers of a root.
#[derive(Debug)]
pub(crate) struct LayerTree {
    /// What is at each path that somebody asked for.
    known: Mutex<HashMap<PathBuf, Known>>,
}

/// What is at a path, and where the host has it: for a directory the directories that it is made of,
/// uppermost first.
type Known = (Found, Arc<[PathBuf]>);

/// What is at a path of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    Directory,
    Link {
        to: PathBuf,
    },
    /// A regular file, or one of any other kind.
    File,
}

impl LayerTree {
    /// The tree of these directories of the host, uppermost first.
    pub(crate) fn new(layers: impl Iterator<Item = PathBuf>) -> Self {
        Self { known: Mutex::new([("/".into(), (Found::Directory, layers.collect()))].into()) }
    }

    /// Where `path` leads, over the links of the tree that are visible. The result may not exist.
    pub(crate) fn follow(&self, path: &Path, is_visible: impl Fn(&Path) -> bool) -> PathBuf {
        let (mut here, mut rest, mut followed) = (PathBuf::from("/"), reversed(path), 0);
        while let Some(part) = rest.pop() {
            if part == ".." {
                here.pop();
                continue;
            }
            here.push(part);
            if followed < MOST_LINKS
                && is_visible(&here)
                && let Found::Link { to } = self.find(&here)
            {
                followed += 1;
                here.pop();
                rest.extend(reversed(&to));
            }
        }
        here
    }

    /// What is at `path`, on whose way is no link.
    pub(crate) fn find(&self, path: &Path) -> Found {
        self.known(path).0
    }

    /// Where the host has what is at `path`; for a directory the uppermost of those that it is made of.
    pub(crate) fn on_host(&self, path: &Path) -> Option<PathBuf> {
        self.known(path).1.first().cloned()
    }

    /// The state of what is at `path`.
    pub(crate) fn stat(&self, path: &Path) -> Option<FileStat> {
        lstat(&self.on_host(path)?).ok()
    }

    /// The names in a directory.
    pub(crate) fn names(&self, directory: &Path) -> BTreeSet<OsString> {
        let (Found::Directory, parts) = self.known(directory) else { return BTreeSet::new() };
        let entries = parts.iter().filter_map(|part| fs::read_dir(part).ok()).flatten().flatten();
        let names = entries.map(|entry| entry.file_name()).collect::<BTreeSet<_>>().into_iter();
        names.filter(|name| self.find(&directory.join(name)) != Found::Nothing).collect()
    }

    fn known(&self, path: &Path) -> Known {
        if let Some(known) = locked(&self.known).get(path) {
            return known.clone();
        }
        let found = self.look(path);
        let mut known = locked(&self.known);
        if known.len() < MOST_KNOWN {
            known.insert(path.to_owned(), found.clone());
        }
        found
    }

    fn look(&self, path: &Path) -> Known {
        let nothing = || (Found::Nothing, [].into());
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return nothing() };
        let (Found::Directory, above) = self.known(above) else { return nothing() };
        let mut parts = Vec::new();
        for part in &*above {
            let on_host = part.join(name);
            let Ok(stat) = lstat(&on_host) else { continue };
            if kind(&stat) == FileKind::Directory {
                let opaque = xattr::get(&on_host, sys::OPAQUE);
                parts.push(on_host);
                if opaque.is_ok_and(|it| it.is_some_and(|it| it == b"y")) {
                    break;
                }
                continue;
            }
            // A file, a link or a whiteout hides what is below it, and nothing of a directory above it.
            if !parts.is_empty() {
                break;
            }
            if sys::is_whiteout(&stat) {
                return nothing();
            }
            let to = (kind(&stat) == FileKind::Link).then(|| fs::read_link(&on_host).ok()).flatten();
            return (to.map_or(Found::File, |to| Found::Link { to }), [on_host].into());
        }
        if parts.is_empty() { nothing() } else { (Found::Directory, parts.into()) }
    }

    /// The text of a small regular file, over the links of the tree. `None` if there is none.
    pub(crate) fn read(&self, path: &str) -> Option<String> {
        let (Found::File, on_host) = self.known(&self.follow(Path::new(path), |_| true)) else { return None };
        let mut options = fs::File::options();
        let file = options.read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(on_host.first()?).ok()?;
        let metadata = file.metadata().ok()?;
        if !metadata.is_file() || metadata.len() > LARGEST {
            return None;
        }
        let mut text = Vec::new();
        file.take(LARGEST).read_to_end(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Layers, uppermost first, of these entries: `name/` is a directory, `name -> text` a link, `-name` a
    /// whiteout, `!name/` an opaque directory, any other a file.
    fn tree(layers: &[&[&str]]) -> (tempfile::TempDir, LayerTree) {
        let dir = tempfile::tempdir().expect("works");
        for (number, entries) in layers.iter().enumerate() {
            let layer = dir.path().join(number.to_string());
            fs::create_dir(&layer).expect("works");
            for entry in *entries {
                let at = |name: &str| layer.join(name);
                if let Some((name, to)) = entry.split_once(" -> ") {
                    symlink(to, at(name)).expect("works");
                } else if let Some(name) = entry.strip_prefix('-') {
                    let kind = nix::sys::stat::SFlag::S_IFCHR;
                    nix::sys::stat::mknod(&at(name), kind, nix::sys::stat::Mode::empty(), 0).expect("works");
                } else if let Some(name) = entry.strip_prefix('!') {
                    fs::create_dir_all(at(name)).expect("works");
                    xattr::set(at(name), sys::OPAQUE, b"y").expect("works");
                } else if entry.ends_with('/') {
                    fs::create_dir_all(at(entry)).expect("works");
                } else {
                    fs::write(at(entry), entry.as_bytes()).expect("works");
                }
            }
        }
        let tree = LayerTree::new((0..layers.len()).map(|number| dir.path().join(number.to_string())));
        (dir, tree)
    }

    #[test]
    fn upper_layers_hide_what_is_below_them() {
        let (_dir, tree) = tree(&[
            &["etc/", "-opt", "!srv/", "srv/new", "lib -> usr/lib"],
            &["etc/", "etc/passwd", "opt/", "srv/", "srv/old", "lib/", "lib/x", "usr/", "file"],
            &["etc/", "etc/passwd", "etc/group", "opt/", "opt/x", "file/", "file/x"],
        ]);
        assert_eq!(tree.read("/etc/passwd").expect("works"), "etc/passwd");
        assert!(tree.read("/etc/group").is_some() && tree.read("/etc/shadow").is_none());
        for gone in ["/opt", "/opt/x", "/srv/old", "/file/x", "/lib/x", "/none/x"] {
            assert_eq!(tree.find(Path::new(gone)), Found::Nothing, "{gone}");
        }
        for there in ["/", "/etc", "/srv"] {
            assert_eq!(tree.find(Path::new(there)), Found::Directory, "{there}");
        }
        assert_eq!(tree.follow(Path::new("/lib/x"), |_| true), Path::new("/usr/lib/x"));
        let names = |at: &str| tree.names(Path::new(at)).into_iter().collect::<Vec<_>>();
        assert_eq!(names("/"), ["etc", "file", "lib", "srv", "usr"]);
        assert_eq!(names("/srv"), ["new"]);
        assert!(
            names("/lib").is_empty() && names("/file").is_empty() && tree.stat(Path::new("/opt")).is_none()
        );
        assert!(tree.on_host(Path::new("/etc/group")).expect("works").ends_with("2/etc/group"));
    }

    #[test]
    fn no_link_leads_out_of_the_tree() {
        let (dir, tree) =
            tree(&[&["etc/", "up -> ../../..", "root -> /", "a -> b", "b -> a", "etc/passwd -> /secret"]]);
        fs::write(dir.path().join("secret"), "x").expect("works");
        assert_eq!(tree.follow(Path::new("/up/etc"), |_| true), Path::new("/etc"));
        assert_eq!(tree.follow(Path::new("/root/root/up/secret"), |_| true), Path::new("/secret"));
        assert_eq!(tree.read("/etc/passwd"), None);
        // A loop has an end.
        assert!(tree.follow(Path::new("/a/x"), |_| true).starts_with("/"));
    }

    #[test]
    fn only_small_regular_files_are_read() {
        let (dir, tree) = tree(&[&["etc/", "etc/large"]]);
        let at = |name: &str| dir.path().join("0/etc").join(name);
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("works");
        fs::File::create(at("large")).expect("works").set_len(1 << 40).expect("works");
        assert_eq!(tree.read("/etc/fifo"), None);
        assert_eq!(tree.read("/etc/large"), None);
    }
}
