//! Other spellings of what a mount lies on. A file system that takes `CONFIG` for `config` may have an entry of its own
//! in the kernel's cache for each (FUSE, virtiofs, 9P, SMB: shares of macOS and Windows hosts). A mount lies on one of
//! them, and all others lead past it. Looks; changes nothing.
//!
//! Only the other case of all letters is asked for: where that leads past a mount, there are more spellings that do, as
//! many as the file system likes (`GIT~1`), so that none of them can be covered.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::plan::emit::OnHost;
use crate::report::enforcement::Enforcement;
use crate::report::error::Error;
use crate::report::escape::harmless;
use crate::report::failure;
use crate::report::shortage::is_shortage;
use crate::sys::dirfd::own_path;
use crate::sys::inode::Identity;
use crate::view::View;
use crate::view::inputs::Parts;
use crate::view::place::{Access, Node, Origin, Place};

/// Names that are listed at most. How many there are is what commands made of a directory.
const MOST_NAMES: usize = 1 << 16;

/// Says which of the mounts in the host's directories other spellings lead past, as far as can be told.
///
/// # Errors
/// A mask: it would be believed to hide something. With profile `ci-only` every one. A shortage, by which none can be told.
pub(crate) fn report(
    parts: &Parts<'_>,
    view: &View,
    mounts: &[OnHost],
    enforcement: &mut Enforcement,
) -> Result<(), Error> {
    let mut listed = Listed::new(MOST_NAMES);
    for OnHost { target, path } in mounts {
        let Some(place) = view.get(target).filter(|place| takes_away(place)) else { continue };
        let Some(past) = other_spelling(path, &mut listed)? else { continue };
        let words = &past.words;
        if place.origin == Origin::Policy && is_cover(&place.node) {
            return Err(Error::View {
                what: "mask",
                path: target.clone(),
                reason: format!("{words} the mask"),
                remedy: Some(past.remedy(remedy(&place.node))),
            });
        }
        let path = failure::shown(path);
        let reason = format!("{path}: {words} the mount ({})", place.what);
        if parts.policy.profile.meaning().is_strict {
            let remedy = Some(past.remedy("keep it where the case of letters tells names apart"));
            return Err(Error::Unavailable { protection: place.protection, reason, remedy });
        }
        enforcement.weaken(place.protection, &reason);
    }
    Ok(())
}

/// That another spelling leads past a mount, or that it cannot be told.
#[derive(Debug)]
struct Past {
    /// The other spelling.
    name: OsString,
    /// To be followed by what it bypasses.
    words: String,
    is_known: bool,
}

impl Past {
    /// What is done about it where it is known.
    fn remedy(&self, known: &str) -> String {
        if self.is_known {
            return known.to_owned();
        }
        let name = harmless(&self.name.to_string_lossy());
        format!("rename {name}, or see to it that the directory can be listed; or {known}")
    }
}

/// Whether what lies under it would allow more than it does. A writable grant takes nothing away; a pin does.
fn takes_away(place: &Place) -> bool {
    place.origin == Origin::Wall || !matches!(place.node, Node::Bind { access: Access::Write, .. })
}

fn is_cover(node: &Node) -> bool {
    matches!(node, Node::Cover | Node::CoverFile)
}

fn remedy(mask: &Node) -> &'static str {
    match mask {
        Node::CoverFile => "mask the directory that it lies in, or keep it outside of what is granted",
        _ => "keep it outside of what is granted",
    }
}

/// Another spelling of the last name of `path`, by which what lies there is reached past a mount on it.
///
/// Where the kernel has one entry for all spellings, a mount holds for all of them, and there is none: with directories
/// of most file systems, with FAT, with ext4 and tmpfs that fold case. Nor is there one without letters.
///
/// # Errors
/// There is not enough of something, which may be otherwise in a moment.
fn other_spelling(path: &Path, listed: &mut Listed) -> Result<Option<Past>, Error> {
    let Some(name) = path.file_name().and_then(in_other_case) else { return Ok(None) };
    let shown = harmless(&name.to_string_lossy());
    let said = format!("the name {shown}, which differs only in case, bypasses");
    let (words, is_known) = match leads_past(path, &name, listed) {
        Ok(false) => return Ok(None),
        Ok(true) => (said, true),
        Err(error) if error.raw_os_error().is_some_and(is_shortage) => {
            return Err(Error::io("look for other spellings of what is mounted on")(error));
        }
        // What cannot be told is not kept.
        Err(error) => (format!("it is not known ({}) whether {said}", failure::words(&error)), false),
    };
    Ok(Some(Past { name, words, is_known }))
}

/// Whether `other` leads to what lies at `path` by an entry of its own.
fn leads_past(path: &Path, other: &OsStr, listed: &mut Listed) -> io::Result<bool> {
    // In this order: the one entry of a directory has the name that was asked for last.
    let there = match held(&path.with_file_name(other)) {
        Err(error) if is_no_name(&error) => return Ok(false),
        there => there?,
    };
    let here = held(path)?;
    if entry(&there)? == entry(&here)? {
        return Ok(false);
    }
    if Identity::of_metadata(&there.metadata()?) == Identity::of_metadata(&here.metadata()?) {
        return Ok(true);
    }
    // Two things, if both are listed. Some file systems number what lies at a name by that name.
    let names = listed.of(path.parent().unwrap_or(Path::new("/")))?;
    let are_listed = names.contains(other) && path.file_name().is_some_and(|name| names.contains(name));
    Ok(!are_listed)
}

/// Whether nothing has a name, be it that none can have it: the other case of a letter may take more bytes, and a file
/// system may know no such letter.
fn is_no_name(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENAMETOOLONG | libc::EINVAL | libc::EILSEQ))
}

/// Names in directories, each of which is listed once: many mounts may lie in one.
#[derive(Debug)]
struct Listed {
    directories: HashMap<PathBuf, HashSet<OsString>>,
    /// How many more are listed.
    left: usize,
}

impl Listed {
    fn new(left: usize) -> Self {
        Self { directories: HashMap::new(), left }
    }

    /// # Errors
    /// There are too many in all directories together; those of listing this one.
    fn of(&mut self, directory: &Path) -> io::Result<&HashSet<OsString>> {
        match self.directories.entry(directory.to_owned()) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => Ok(new.insert(names(directory, &mut self.left)?)),
        }
    }
}

fn names(directory: &Path, left: &mut usize) -> io::Result<HashSet<OsString>> {
    let too_many = || io::Error::other("too many names are beside it");
    if *left == 0 {
        return Err(too_many());
    }
    let mut names = HashSet::new();
    for entry in fs::read_dir(directory)? {
        *left = left.checked_sub(1).ok_or_else(too_many)?;
        names.insert(entry?.file_name());
    }
    Ok(names)
}

/// What lies at a path, be it a link, without a right to read it.
fn held(path: &Path) -> io::Result<fs::File> {
    fs::File::options().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(path)
}

/// The name of the cache's entry that something was opened by.
fn entry(held: &fs::File) -> io::Result<Option<OsString>> {
    let path = fs::read_link(own_path(held))?;
    Ok(path.file_name().map(OsStr::to_owned))
}

/// The name with all its letters in the other case, if it has any. Those of ASCII alone, where there are some: every
/// file system that ignores case knows these.
fn in_other_case(name: &OsStr) -> Option<OsString> {
    if name.as_bytes().iter().any(u8::is_ascii_alphabetic) {
        let flip = |&byte: &u8| if byte.is_ascii_alphabetic() { byte ^ 0x20 } else { byte };
        return Some(OsString::from_vec(name.as_bytes().iter().map(flip).collect()));
    }
    let name = name.to_str()?;
    let flipped: String = name.chars().map(flipped).collect();
    (flipped != name).then(|| flipped.into())
}

fn flipped(letter: char) -> char {
    let (mut lower, mut upper) = (letter.to_lowercase(), letter.to_uppercase());
    let other = match (letter.is_uppercase(), lower.len(), upper.len()) {
        (true, 1, _) => lower.next(),
        (false, _, 1) => upper.next(),
        _ => None,
    };
    other.unwrap_or(letter)
}

/// Whether names in a directory are taken for others in another case, as far as it can be asked: by the first thing in
/// it that has no other name, or else by its own.
///
/// # Errors
/// Where it cannot be listed.
pub(crate) fn ignores_case(directory: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(directory)? {
        if let Some(ignores) = ignores_case_of(&entry?.path()) {
            return Ok(ignores);
        }
    }
    Ok(ignores_case_of(directory).unwrap_or(false))
}

/// `None` where `path` does not tell.
fn ignores_case_of(path: &Path) -> Option<bool> {
    let other = in_other_case(path.file_name()?)?;
    let metadata = fs::symlink_metadata(path).ok()?;
    let has_one_name = metadata.is_dir() || metadata.nlink() == 1;
    let there = fs::symlink_metadata(path.with_file_name(other));
    has_one_name
        .then(|| there.is_ok_and(|there| Identity::of_metadata(&there) == Identity::of_metadata(&metadata)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_change_their_case() {
        let other =
            |name: &str| in_other_case(OsStr::new(name)).map(|name| name.into_string().expect("text"));
        assert_eq!(other("config.Worktree"), Some("CONFIG.wORKTREE".into()));
        assert_eq!(other("größe"), Some("GRößE".into()), "those that every file system knows");
        assert_eq!((other("äß"), other("ключ")), (Some("Äß".into()), Some("КЛЮЧ".into())));
        assert_eq!((other("123.4"), other("日本")), (None, None), "no letter has a case");
        assert_eq!(in_other_case(OsStr::from_bytes(b"a\xff")), Some(OsString::from_vec(b"A\xff".to_vec())));
    }

    /// Two entries that lead to one file are had without such a file system by a second link.
    #[test]
    fn an_entry_of_its_own_leads_past_a_mount() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        for name in ["alone", "two", "TWO", "linked", "123"] {
            fs::write(at(name), name).expect("a file");
        }
        fs::hard_link(at("linked"), at("LINKED")).expect("a link");
        fs::create_dir(at("directory")).expect("a directory");
        let other = |name: &str| other_spelling(&at(name), &mut Listed::new(10)).expect("no shortage");
        let past = other("linked").expect("a link");
        assert!(past.name == "LINKED" && past.is_known, "{past:?}");
        for name in ["alone", "two", "TWO", "123", "directory"] {
            assert!(other(name).is_none(), "{name}");
        }
    }

    /// The other case of a letter may take more bytes than a name may have.
    #[test]
    fn a_name_that_none_can_have_is_no_spelling() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().join("ɐ".repeat(127));
        assert!(in_other_case(at.file_name().expect("a name")).is_some_and(|name| name.len() > 255));
        fs::write(&at, "").expect("a file");
        assert!(other_spelling(&at, &mut Listed::new(10)).expect("no shortage").is_none());
    }

    #[test]
    fn what_cannot_be_told_is_told_as_such() {
        let dir = tempfile::tempdir().expect("a directory");
        ["two", "TWO"].iter().for_each(|name| fs::write(dir.path().join(name), "").expect("a file"));
        let past = other_spelling(&dir.path().join("two"), &mut Listed::new(1));
        let past = past.expect("no shortage").expect("unknown");
        let expected = "it is not known (too many names are beside it) whether the name TWO, which differs only in case, \
                        bypasses";
        assert_eq!((&*past.words, past.is_known), (expected, false));
        assert!(past.remedy("known").starts_with("rename TWO, or"), "{past:?}");
    }

    /// A command may leave any number of such pairs.
    #[test]
    fn each_directory_is_listed_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let pair = |number| [format!("a{number}"), format!("A{number}")];
        let names: Vec<String> = (0..50).flat_map(pair).collect();
        names.iter().for_each(|name| fs::write(dir.path().join(name), "").expect("a file"));
        let mut listed = Listed::new(names.len());
        let is_alone = |name| matches!(other_spelling(&dir.path().join(name), &mut listed), Ok(None));
        assert!(names.iter().all(is_alone));
    }

    #[test]
    fn links_do_not_make_a_directory_ignore_case() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(!ignores_case(dir.path()).expect("empty"));
        fs::write(dir.path().join("a"), "").expect("a file");
        fs::hard_link(dir.path().join("a"), dir.path().join("A")).expect("a link");
        assert!(!ignores_case(dir.path()).expect("with links"));
        fs::create_dir(dir.path().join("d")).expect("a directory");
        assert!(!ignores_case(dir.path()).expect("with a directory"));
    }
}
