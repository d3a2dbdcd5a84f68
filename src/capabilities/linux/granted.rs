//! Resolves the paths of a declaration on the host: `cwd`, `~/`, links and `..`.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::capabilities::Capabilities;
use crate::capabilities::declared::meant;
use crate::capabilities::linux::missing::MissingPath;
use crate::report::error::Error;
use crate::report::shortage::of_path;
use crate::sys::inode::Identity;
use crate::view::paths::resolved::ResolvedPath;
use crate::view::paths::symlink_check::PolicyPath;

/// What messages call the two kinds of declared paths.
const READ: &str = "read path";
const WRITE: &str = "write path";

/// Everything that a declaration grants, as canonical paths. A session is built from this alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Granted {
    /// Whether the command uses the host's network.
    pub(crate) network: bool,
    /// The working directory.
    pub(crate) cwd: GrantedPath,
    /// Paths to read and write, besides the working directory. Sorted.
    pub(crate) write: Vec<GrantedPath>,
    /// Paths to read that are not writable already. Sorted; `None` for the system default.
    pub(crate) read: Option<Vec<GrantedPath>>,
}

impl Granted {
    /// The working directory and all declared paths.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> + Clone {
        let declared = self.write.iter().chain(self.read.iter().flatten());
        std::iter::once(&self.cwd).chain(declared).map(|place| &*place.path)
    }
}

/// A file or directory of the host, by path and identity: a directory that was removed and created again is a
/// different one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GrantedPath {
    pub(crate) path: PathBuf,
    identity: Identity,
}

impl GrantedPath {
    fn at(path: &Path) -> io::Result<Self> {
        let path = fs::canonicalize(path)?;
        Ok(Self { identity: Identity::at(&path)?, path })
    }

    fn of(named: PolicyPath<'_>) -> Self {
        let source = named.resolved.source;
        Self { identity: source.identity, path: source.path }
    }

    #[cfg(test)]
    pub(crate) fn named(path: &str) -> Self {
        Self { path: path.into(), identity: Identity::NOTHING }
    }
}

/// The working directory of a command, with links resolved.
///
/// # Errors
/// The path is missing, is not a directory, or cannot be reached.
pub(crate) fn working_directory(given: &Path) -> Result<GrantedPath, Error> {
    let place = GrantedPath::at(given).and_then(|place| {
        if place.path.is_dir() { Ok(place) } else { Err(io::ErrorKind::NotADirectory.into()) }
    });
    place.map_err(refused("working directory", given, "name an existing directory"))
}

/// Resolves `caps` for a command in `cwd`. Creates directories to write that are missing.
///
/// # Errors
/// A path is missing and cannot be created, has an unknown form, or is reached through a link in a directory
/// that the command may write.
pub(crate) fn granted(caps: &Capabilities, cwd: GrantedPath, home: &Path) -> Result<Granted, Error> {
    let absolute = |given: &Path| {
        meant(given, &cwd.path, Some(home))
            .map_err(|reason| io::Error::new(io::ErrorKind::InvalidInput, reason))
    };
    let mut named = Vec::new();
    let mut missing = Vec::new();
    for given in &caps.read_paths {
        let resolved = absolute(given).and_then(|path| ResolvedPath::resolve(&path));
        named.push(PolicyPath { what: READ, given, resolved: resolved.map_err(absent(READ, given))? });
    }
    for given in &caps.write_paths {
        let path = absolute(given).map_err(absent(WRITE, given))?;
        match ResolvedPath::resolve(&path) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                missing.push((given, MissingPath::at(&path).map_err(absent(WRITE, given))?));
            }
            resolved => {
                named.push(PolicyPath {
                    what: WRITE,
                    given,
                    resolved: resolved.map_err(absent(WRITE, given))?,
                });
            }
        }
    }
    // An earlier command with the same declaration could have put links into what it may write.
    let is_written = |named: &&PolicyPath<'_>| named.what == WRITE;
    let mut writable: Vec<PathBuf> =
        named.iter().filter(is_written).map(|named| named.resolved.source.path.clone()).collect();
    writable.push(cwd.path.clone());
    refuse_links(&named, &writable)?;
    // A path comes after the directory that it is in.
    missing.sort_by(|(_, one), (_, other)| one.path.cmp(&other.path));
    for (given, MissingPath { path, above }) in missing {
        let above = PolicyPath { what: WRITE, given, resolved: above };
        refuse_links(std::slice::from_ref(&above), &writable)?;
        // The command may create it, as a file or a directory.
        let missing = MissingPath { path, above: above.resolved };
        if missing.is_in(&writable) {
            continue;
        }
        let made = missing.create().and_then(|()| ResolvedPath::resolve(&missing.path));
        let made = PolicyPath { what: WRITE, given, resolved: made.map_err(absent(WRITE, given))? };
        writable.push(made.resolved.source.path.clone());
        refuse_links(std::slice::from_ref(&made), &writable)?;
        named.push(made);
    }
    let (write, read): (Vec<_>, Vec<_>) = named.into_iter().partition(|named| named.what == WRITE);
    let places = |all: Vec<PolicyPath<'_>>| all.into_iter().map(GrantedPath::of).collect::<Vec<_>>();
    Ok(settled(caps.net, cwd, places(write), (!caps.read_paths.is_empty()).then(|| places(read))))
}

fn refuse_links(named: &[PolicyPath<'_>], writable: &[PathBuf]) -> Result<(), Error> {
    let writable: Vec<&Path> = writable.iter().map(PathBuf::as_path).collect();
    named.iter().try_for_each(|named| named.refuse_links_in(&writable))
}

fn absent<'p>(what: &'static str, given: &'p Path) -> impl FnOnce(io::Error) -> Error + 'p {
    refused(what, given, "declare a path that exists")
}

/// Normalizes a declaration: sorts, removes duplicates, and removes readable paths inside writable ones. A
/// writable path is readable already, and a read-only grant inside it would take the write access away. Pure.
pub(crate) fn settled(
    network: bool,
    cwd: GrantedPath,
    mut write: Vec<GrantedPath>,
    mut read: Option<Vec<GrantedPath>>,
) -> Granted {
    write.retain(|place| place.path != cwd.path);
    write.sort();
    write.dedup();
    if let Some(read) = &mut read {
        let is_writable = |place: &GrantedPath| {
            std::iter::once(&cwd).chain(&write).any(|writable| place.path.starts_with(&writable.path))
        };
        read.retain(|place| !is_writable(place));
        read.sort();
        read.dedup();
    }
    Granted { network, cwd, write, read }
}

fn refused<'p>(
    what: &'static str,
    path: &'p Path,
    remedy: &'static str,
) -> impl FnOnce(io::Error) -> Error + 'p {
    move |source| {
        let remedy = Some(of_path(&source, "run as a user who may reach it", remedy));
        Error::Grant { what, path: path.to_owned(), source, remedy }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::*;

    fn places(paths: &[&str]) -> Vec<GrantedPath> {
        paths.iter().map(|path| GrantedPath::named(path)).collect()
    }

    #[test]
    fn what_is_readable_below_the_writable_takes_nothing_away() {
        let read = places(&["/w", "/w/sub", "/out/x", "/srv", "/", "/wx", "/srv"]);
        let granted =
            settled(true, GrantedPath::named("/w"), places(&["/w", "/out", "/out", "/w/deep"]), Some(read));
        assert_eq!(granted.write, places(&["/out", "/w/deep"]));
        assert_eq!(granted.read, Some(places(&["/", "/srv", "/wx"])));
    }

    #[test]
    fn a_list_of_nothing_new_is_still_a_list() {
        let granted = settled(true, GrantedPath::named("/w"), Vec::new(), Some(places(&["/w"])));
        assert_eq!(granted.read, Some(Vec::new()), "not the system default");
    }

    #[test]
    fn refusals_name_the_path_and_the_cause() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        fs::write(&file, "").expect("a file");
        for (path, errno) in [
            (dir.path().join("absent"), libc::ENOENT),
            (file.clone(), libc::ENOTDIR),
            (file.join("x"), libc::ENOTDIR),
            (PathBuf::new(), libc::ENOENT),
        ] {
            let error = working_directory(&path).expect_err("no directory");
            let Error::Grant { what, path: named, source, .. } = &error else { panic!("{error:?}") };
            assert_eq!((*what, named), ("working directory", &path));
            let kind = io::Error::from_raw_os_error(errno).kind();
            assert_eq!(source.kind(), kind, "{}", path.display());
        }
        let here = working_directory(dir.path()).expect("a directory");
        let caps = Capabilities { read_paths: vec!["absent".into()], ..Capabilities::default() };
        let error = granted(&caps, here, Path::new("/")).expect_err("absent");
        assert!(error.to_string().starts_with("read path absent"), "{error}");
        assert!(error.remedy().is_some());
    }

    #[test]
    fn what_is_to_be_written_may_be_missing() {
        let dir = tempfile::tempdir().expect("a directory");
        let home = fs::canonicalize(dir.path()).expect("its name");
        fs::create_dir(home.join("w")).expect("made");
        fs::write(home.join("file"), "").expect("a file");
        symlink("nothing", home.join("dangling")).expect("a link");
        let written = |paths: &[&str]| {
            let caps = Capabilities {
                write_paths: paths.iter().map(PathBuf::from).collect(),
                ..Capabilities::default()
            };
            let cwd = working_directory(&home.join("w")).expect("a directory");
            granted(&caps, cwd, &home).map(|granted| {
                let paths = granted.write.into_iter().map(|place| place.path);
                paths.map(|path| path.strip_prefix(&home).expect("below").to_owned()).collect::<Vec<_>>()
            })
        };
        let refused = |path: &str| written(&[path]).expect_err(path).chain();
        for (path, reason) in [
            ("~/a/b", "nor does the directory for it"),
            ("~/dangling", "No such file or directory"),
            ("~/dangling/x", "No such file or directory"),
            ("~/absent/../x", "No such file or directory"),
            ("~/file/x", "Not a directory"),
            ("/proc/x", "and cannot be created: "),
        ] {
            let said = refused(path);
            assert!(said.starts_with(&format!("write path {path}: ")) && said.contains(reason), "{said}");
        }
        assert_eq!(fs::read_dir(&home).expect("a list").count(), 3, "nothing was created");
        // In the working directory the command creates it.
        assert_eq!(written(&["new", "new/deep", "cwd/x"]).expect("granted"), Vec::<PathBuf>::new());
        assert_eq!(fs::read_dir(home.join("w")).expect("a list").count(), 0);
        assert_eq!(written(&["~/a/b", "~/a", "~/a/b/c"]).expect("granted"), [PathBuf::from("a")]);
        assert!(fs::read_dir(home.join("a")).expect("a directory").next().is_none());
        assert_eq!(written(&["~/a"]).expect("the same"), [PathBuf::from("a")]);
    }

    #[test]
    fn nothing_is_created_behind_a_link_that_a_command_could_have_made() {
        let dir = tempfile::tempdir().expect("a directory");
        let home = fs::canonicalize(dir.path()).expect("its name");
        fs::create_dir_all(home.join("w")).expect("made");
        fs::create_dir(home.join("private")).expect("made");
        symlink("../private", home.join("w/led")).expect("a link");
        let cwd = working_directory(&home.join("w")).expect("a directory");
        let caps = Capabilities { write_paths: vec!["led/new".into()], ..Capabilities::default() };
        let said = granted(&caps, cwd, &home).expect_err("refused").chain();
        assert!(said.contains("commands could have made the link"), "{said}");
        assert!(!home.join("private/new").exists());
    }

    #[test]
    fn a_directory_made_again_is_another_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let (cwd, kept) = (dir.path().join("w"), dir.path().join("kept"));
        fs::create_dir(&cwd).expect("made");
        let before = working_directory(&cwd).expect("there");
        // Keep the old directory, so that the kernel does not reuse its inode.
        fs::rename(&cwd, &kept).expect("moved");
        fs::create_dir(&cwd).expect("made again");
        let after = working_directory(&cwd).expect("there");
        assert_eq!(before.path, after.path);
        assert_ne!(before, after);
    }

    proptest! {
        #[test]
        fn what_is_declared_stays_granted(
            writes in prop::collection::vec("/[ab](/[ab]){0,2}", 0..4),
            reads in prop::collection::vec("/[abc](/[ab]){0,2}", 0..4),
        ) {
            let of = |paths: &[String]| paths.iter().map(|path| GrantedPath::named(path)).collect::<Vec<_>>();
            let granted = settled(false, GrantedPath::named("/a/a"), of(&writes), Some(of(&reads)));
            let covers = |list: &[GrantedPath], path: &str| {
                list.iter().any(|place| Path::new(path).starts_with(&place.path))
            };
            let read = granted.read.clone().expect("a list");
            for path in &writes {
                prop_assert!(covers(&granted.write, path) || path == "/a/a");
            }
            for path in &reads {
                let writable = covers(&granted.write, path) || path.starts_with("/a/a");
                prop_assert!(covers(&read, path) || writable);
            }
            // No read-only grant is inside a writable one, and every grant was declared.
            for place in &read {
                prop_assert!(!granted.write.iter().any(|writable| place.path.starts_with(&writable.path)));
                prop_assert!(reads.iter().any(|path| Path::new(path) == place.path));
            }
            for place in &granted.write {
                prop_assert!(writes.iter().any(|path| Path::new(path) == place.path));
            }
            // Normalizing twice has no effect.
            let again = settled(false, granted.cwd.clone(), granted.write.clone(), granted.read.clone());
            prop_assert_eq!(again, granted);
        }
    }
}
