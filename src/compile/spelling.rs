//! Other spellings of what a mount lies on. A file system that takes `CONFIG` for `config` may have an entry of its own
//! in the kernel's cache for each (FUSE, virtiofs, 9P, SMB: shares of macOS and Windows hosts). A mount lies on one of
//! them, and all others lead past it. Looks; changes nothing.
//!
//! Only the other case of all letters is asked for: where that leads past a mount, there are more spellings that do, as
//! many as the file system likes (`GIT~1`), so that none of them can be covered.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::{
        fd::AsRawFd,
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::{MetadataExt, OpenOptionsExt},
        },
    },
    path::Path,
};

use super::{
    Parts,
    emit::OnHost,
    view::{Access, Node, Origin, Place, View},
};
use crate::{Enforcement, Error, Profile, harmless::harmless, host::identity};

/// Says which of the mounts in the host's directories other spellings lead past.
///
/// # Errors
/// A mask: it would be believed to hide something. With profile `ci-only` every one.
pub(super) fn report(
    parts: &Parts<'_>,
    view: &View,
    mounts: &[OnHost],
    enforcement: &mut Enforcement,
) -> Result<(), Error> {
    for OnHost { target, path } in mounts {
        let Some(place) = view.get(target).filter(|place| takes_away(place)) else { continue };
        let Some(other) = other_spelling(path) else { continue };
        let shown = |text: &OsStr| harmless(&text.to_string_lossy());
        let (name, is_mask) = (shown(&other), place.origin == Origin::Policy && is_cover(&place.node));
        let past = format!("another spelling of its name ({name}) leads to it as well, past");
        if is_mask {
            return Err(Error::View {
                what: "mask",
                path: target.clone(),
                reason: format!("{past} the mask"),
                remedy: Some(remedy(&place.node).to_owned()),
            });
        }
        let reason = format!("{}: {past} what is mounted there ({})", shown(path.as_os_str()), place.what);
        if parts.policy.profile == Profile::CiOnly {
            let remedy = Some("keep it where the case of letters tells names apart".to_owned());
            return Err(Error::Unavailable { protection: place.protection, reason, remedy });
        }
        enforcement.weaken(place.protection, &reason);
    }
    Ok(())
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
fn other_spelling(path: &Path) -> Option<OsString> {
    let other = in_other_case(path.file_name()?)?;
    let is_there = match fs::symlink_metadata(path.with_file_name(&other)) {
        Err(error) => error.kind() != io::ErrorKind::NotFound,
        Ok(_) => true,
    };
    // What cannot be told is not kept.
    (is_there && leads_past(path, &other).unwrap_or(true)).then_some(other)
}

/// Whether `other` leads to what lies at `path` by an entry of its own.
fn leads_past(path: &Path, other: &OsStr) -> io::Result<bool> {
    // In this order: the one entry of a directory has the name that was asked for last.
    let there = held(&path.with_file_name(other))?;
    let here = held(path)?;
    if entry(&there)? == entry(&here)? {
        return Ok(false);
    }
    if identity(&there.metadata()?) == identity(&here.metadata()?) {
        return Ok(true);
    }
    // Two things, if both are listed. Some file systems number what lies at a name by that name.
    let names = fs::read_dir(path.parent().unwrap_or(Path::new("/")))?;
    let mut listed = 0;
    for name in names {
        let name = name?.file_name();
        listed += usize::from(name == other || Some(&*name) == path.file_name());
    }
    Ok(listed < 2)
}

/// What lies at a path, be it a link, without a right to read it.
fn held(path: &Path) -> io::Result<fs::File> {
    fs::File::options().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(path)
}

/// The name of the cache's entry that something was opened by.
fn entry(held: &fs::File) -> io::Result<Option<OsString>> {
    let path = fs::read_link(format!("/proc/self/fd/{}", held.as_raw_fd()))?;
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
pub(super) fn ignores_case(directory: &Path) -> io::Result<bool> {
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
    has_one_name.then(|| there.is_ok_and(|there| identity(&there) == identity(&metadata)))
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
        let other = |name: &str| other_spelling(&at(name));
        assert_eq!(other("linked"), Some("LINKED".into()));
        for name in ["alone", "two", "TWO", "123", "directory"] {
            assert_eq!(other(name), None, "{name}");
        }
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
