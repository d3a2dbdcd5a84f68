//! How a path leads to a file. Reads the file system, and writes nothing.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

/// How many links may be on a way, as for the kernel.
const MOST_LINKS: usize = 40;

/// The way of an absolute path.
#[derive(Debug)]
pub(crate) struct Way {
    /// The links on it, each by its own real path. Whoever can replace one decides where the path leads.
    pub(crate) links: Vec<PathBuf>,
    /// The end, without links. Its last names need not exist.
    pub(crate) end: PathBuf,
}

impl Way {
    /// # Errors
    /// `ELOOP`: there are too many links.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let (mut links, mut end) = (Vec::new(), PathBuf::from("/"));
        let mut ahead = reversed(path);
        while let Some(name) = ahead.pop() {
            match Path::new(&name).components().next() {
                Some(Component::ParentDir) => drop(end.pop()),
                Some(Component::Normal(_)) => {
                    let next = end.join(&name);
                    match fs::read_link(&next) {
                        Ok(_) if links.len() == MOST_LINKS => return Err(nix::Error::ELOOP.into()),
                        Ok(target) => {
                            links.push(next);
                            ahead.append(&mut reversed(&target));
                        }
                        Err(_) => end = next,
                    }
                }
                Some(Component::RootDir) => end = "/".into(),
                _ => {}
            }
        }
        // The kernel also knows which letters a name has on the disk.
        let real = end.ancestors().find_map(|above| {
            let below = end.strip_prefix(above).ok()?;
            Some(fs::canonicalize(above).ok()?.join(below))
        });
        let end = real.unwrap_or(end);
        Ok(Self { links, end: end.components().collect() })
    }
}

/// The names of a path, the first last.
fn reversed(path: &Path) -> Vec<OsString> {
    path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_way_is_its_links_and_its_end() {
        let directory = tempfile::tempdir().expect("a directory");
        let top = fs::canonicalize(directory.path()).expect("a path");
        fs::create_dir_all(top.join("a/b")).expect("a directory");
        symlink("a", top.join("one")).expect("a link");
        symlink(top.join("one/./b/../b"), top.join("a/two")).expect("a link");
        symlink("./../absent/x", top.join("a/broken")).expect("a link");
        symlink("loop", top.join("loop")).expect("a link");
        let way = |path: &str| Way::of(&top.join(path)).map(|way| (way.links, way.end));
        let all = |names: &[&str]| names.iter().map(|name| top.join(name)).collect::<Vec<_>>();
        assert_eq!(way("a/b/").expect("a way"), (vec![], top.join("a/b")));
        assert_eq!(way("one/two/new").expect("a way"), (all(&["one", "a/two", "one"]), top.join("a/b/new")));
        assert_eq!(way("one/broken/y").expect("a way"), (all(&["one", "a/broken"]), top.join("absent/x/y")));
        assert_eq!(way("absent/../a").expect("a way"), (vec![], top.join("a")));
        assert_eq!(way("loop").expect_err("it has no end").raw_os_error(), Some(libc::ELOOP));
        assert_eq!(Way::of(Path::new("/")).expect("a way").end, Path::new("/"));
    }
}
