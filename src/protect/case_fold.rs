//! Finds file systems on which a mount does not hold for every spelling of its name.
//!
//! If a file system takes `CONFIG` for `config`, the kernel may cache an entry for each spelling. A mount is
//! on one entry only, and the other spellings bypass it. The kind of file system decides. FUSE, virtiofs, 9P
//! and SMB (shares of macOS and Windows hosts) may have such entries: there, one name in the directory shows
//! whether case counts. This only reads.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

use crate::report::enforcement::Enforcement;
use crate::report::error::Error;
use crate::report::failure::shown;
use crate::report::shortage::is_shortage;
use crate::sys::file_system::FileSystem;
use crate::sys::inode::Identity;
use crate::view::inputs::Inputs;
use crate::view::{Access, MountOnHost, Node, Origin, View, ViewEntry};

/// Messages end it with what may be bypassed.
const REASON: &str =
    "lies on a file system that ignores the case of names, or may: other spellings of its name may bypass";

/// Names that are tried in one directory.
const MOST_NAMES: usize = 1000;

/// Reports each protection that other spellings may bypass as degraded.
///
/// # Errors
/// A mask of a file may be bypassed: the user would believe that it hides something. With profile `ci-only`,
/// any mount may be bypassed. A shortage of descriptors or memory.
pub(crate) fn report(
    inputs: &Inputs<'_>,
    view: &View,
    mounts: &[MountOnHost],
    enforcement: &mut Enforcement,
) -> Result<(), Error> {
    report_with(&may_bypass, inputs, view, mounts, enforcement)
}

/// [`report`] with a function that says whether other spellings bypass a mount in a directory.
fn report_with(
    may_bypass: &dyn Fn(&Path) -> io::Result<bool>,
    inputs: &Inputs<'_>,
    view: &View,
    mounts: &[MountOnHost],
    enforcement: &mut Enforcement,
) -> Result<(), Error> {
    let mut known = BTreeMap::new();
    for MountOnHost { target, path } in mounts {
        let Some(place) = view.get(target).filter(|place| restricts(place)) else { continue };
        let Some(directory) = path.parent() else { continue };
        let bypassed = match known.get(directory) {
            Some(bypassed) => *bypassed,
            None => match may_bypass(directory) {
                Err(error) if error.raw_os_error().is_some_and(is_shortage) => {
                    return Err(Error::io("find out whether a file system ignores case")(error));
                }
                // If it cannot be found out, the protection is not promised.
                bypassed => *known.entry(directory).or_insert(bypassed.unwrap_or(true)),
            },
        };
        if !bypassed {
            continue;
        }
        if place.origin == Origin::Policy && matches!(place.node, Node::CoverFile) {
            return Err(Error::View {
                what: "mask",
                path: target.clone(),
                reason: format!("it {REASON} it"),
                remedy: Some("mask its directory, or keep it outside of all grants".into()),
            });
        }
        let reason = format!("{} {REASON} the mount ({})", shown(path), place.what);
        let remedy = "keep it on a file system that distinguishes upper and lower case";
        if inputs.policy.profile.meaning().is_strict {
            return Err(Error::Unavailable {
                protection: place.protection,
                reason,
                remedy: Some(remedy.into()),
            });
        }
        enforcement.weaken(place.protection, &format!("{reason}; {remedy}"));
    }
    Ok(())
}

/// Whether the mount allows less than what is under it. A writable grant does not. A pin does.
fn restricts(place: &ViewEntry) -> bool {
    place.origin == Origin::Wall || !matches!(place.node, Node::Bind { access: Access::Write, .. })
}

/// Whether the file system ignores the case of names in a directory.
///
/// # Errors
/// The directory cannot be listed.
pub(crate) fn ignores_case(directory: &Path) -> io::Result<bool> {
    let counts = case_counts(directory)?.or_else(|| case_counts_for(directory));
    Ok(counts == Some(false))
}

/// Whether another spelling of a name in a directory may bypass a mount: the kernel may cache several
/// entries, and no name shows that case counts.
fn may_bypass(directory: &Path) -> io::Result<bool> {
    Ok(!FileSystem::at(directory)?.has_one_entry_per_name() && may_ignore_case(directory)?)
}

fn may_ignore_case(directory: &Path) -> io::Result<bool> {
    Ok(case_counts(directory)? != Some(true))
}

/// Whether case counts in a directory: the first name that shows it decides. `None` if no name does.
fn case_counts(directory: &Path) -> io::Result<Option<bool>> {
    for entry in fs::read_dir(directory)?.take(MOST_NAMES) {
        let counts = case_counts_for(&entry?.path());
        if counts.is_some() {
            return Ok(counts);
        }
    }
    Ok(None)
}

/// Whether case counts, as far as one name shows. `None` if it shows nothing: the name has no letters, or the
/// other spelling exists and may be another file. Some file systems compute inode numbers from names, so
/// equal files can look different.
fn case_counts_for(path: &Path) -> Option<bool> {
    let other = path.with_file_name(in_other_case(path.file_name()?)?);
    let there = fs::symlink_metadata(other);
    let here = fs::symlink_metadata(path).ok()?;
    match there {
        Ok(there) => {
            let has_one_name = here.is_dir() || here.nlink() == 1;
            let is_same = Identity::of_metadata(&there) == Identity::of_metadata(&here);
            (has_one_name && is_same).then_some(false)
        }
        Err(error) => is_missing_name(&error).then_some(true),
    }
}

/// Whether a name does not exist, or cannot: the other case of a letter may be longer, or unknown to the file
/// system.
fn is_missing_name(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENAMETOOLONG | libc::EINVAL | libc::EILSEQ))
}

/// The name with ASCII letters in the other case; `None` if it has none. Every file system that ignores case
/// does so for ASCII.
fn in_other_case(name: &OsStr) -> Option<OsString> {
    let flip = |&byte: &u8| if byte.is_ascii_alphabetic() { byte ^ 0x20 } else { byte };
    let flipped: Vec<u8> = name.as_bytes().iter().map(flip).collect();
    (flipped != name.as_bytes()).then(|| OsString::from_vec(flipped))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fixtures;
    use crate::policy::Policy;
    use crate::policy::profile::Profile;
    use crate::report::enforcement::Protection;
    use crate::report::enforcement::State;
    use crate::report::place_kind::PlaceKind;
    use crate::view::inputs::{HomeNames, SandboxKind, Subject};
    use crate::view::paths::source::BindSource;

    fn names(names: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        names.iter().for_each(|name| fs::write(dir.path().join(name), "").expect("a file"));
        dir
    }

    #[test]
    fn letters_change_their_case() {
        let other =
            |name: &str| in_other_case(OsStr::new(name)).map(|name| name.into_string().expect("text"));
        assert_eq!(other("config.Worktree"), Some("CONFIG.wORKTREE".into()));
        assert_eq!(other("größe"), Some("GRößE".into()), "only ASCII letters change");
        assert_eq!((other("123.4"), other("ключ")), (None, None));
        assert_eq!(in_other_case(OsStr::from_bytes(b"a\xff")), Some(OsString::from_vec(b"A\xff".to_vec())));
    }

    #[test]
    fn links_do_not_make_a_directory_ignore_case() {
        let dir = names(&[]);
        assert!(!ignores_case(dir.path()).expect("empty"));
        fs::write(dir.path().join("a"), "").expect("a file");
        fs::hard_link(dir.path().join("a"), dir.path().join("A")).expect("a link");
        assert!(!ignores_case(dir.path()).expect("with links"));
        fs::create_dir(dir.path().join("d")).expect("a directory");
        assert!(!ignores_case(dir.path()).expect("with a directory"));
    }

    /// A command may have made these names.
    #[test]
    fn only_a_name_without_another_spelling_shows_that_case_counts() {
        for (there, may) in [
            (&["a"][..], false),
            (&[], true),
            (&["123"], true),
            (&["a", "A"], true),
            (&["a", "A", "b"], false),
        ] {
            assert_eq!(may_ignore_case(names(there).path()).expect("listed"), may, "{there:?}");
        }
        let linked = names(&["a"]);
        fs::hard_link(linked.path().join("a"), linked.path().join("A")).expect("a link");
        assert!(may_ignore_case(linked.path()).expect("listed"));
    }

    #[test]
    fn a_listed_kind_of_file_system_needs_no_look() {
        let dir = names(&["a", "A"]);
        let kind = FileSystem::at(dir.path()).expect("a file system");
        assert_eq!(may_bypass(dir.path()).expect("listed"), !kind.has_one_entry_per_name(), "{kind:?}");
        assert!(
            may_bypass(Path::new("/proc/self/task")).expect("listed"),
            "procfs is not in the list, and numbers show nothing"
        );
    }

    /// The report if `bypassed` is the answer for every directory, with these mounts in a grant.
    fn reported(
        profile: Profile,
        bypassed: io::Result<bool>,
        things: &[(&str, Node)],
    ) -> Result<Enforcement, Error> {
        let dir = names(&["config", "key", "secret"]);
        let base = fs::canonicalize(dir.path()).expect("its name");
        let caller = fixtures::caller(&base);
        let inputs = Inputs {
            policy: &Policy::profile(profile, &base),
            host: &fixtures::host(),
            caller: &caller,
            names: &HomeNames::default(),
            kind: SandboxKind::OneShot,
            subject: Subject::Workspace,
            root: None,
            controllers: None,
        };
        let mut view = View::default();
        let mut mounts = Vec::new();
        for (name, node) in things {
            let path = base.join(name);
            match name.starts_with('k') {
                true => view.grant(PlaceKind::Mask, path.clone(), node.clone()).expect("free"),
                false => view.wall(PlaceKind::ProtectedPath, &path, node.clone(), Protection::ProtectedPaths),
            }
            mounts.push(MountOnHost { target: path.clone(), path });
        }
        let mut enforcement = Enforcement::default();
        for protection in [Protection::Root, Protection::ProtectedPaths] {
            enforcement.set(protection, State::Enforced, "");
        }
        let answer = |_: &Path| match &bypassed {
            Ok(bypassed) => Ok(*bypassed),
            Err(error) => Err(io::Error::from_raw_os_error(error.raw_os_error().expect("an errno"))),
        };
        report_with(&answer, &inputs, &view, &mounts, &mut enforcement)?;
        Ok(enforcement)
    }

    fn states(enforcement: &Enforcement) -> [State; 2] {
        [Protection::Root, Protection::ProtectedPaths].map(|name| enforcement.get(name).expect("set").state)
    }

    #[test]
    fn a_mount_that_other_spellings_bypass_is_degraded_and_reported_once() {
        let file = || {
            let source = BindSource::resolve(Path::new("/proc/self/comm")).expect("a file");
            Node::Bind { source, access: Access::Read }
        };
        let two = [("config", file()), ("secret", file())];
        let found = reported(Profile::RepoWrite, Ok(true), &two).expect("reported");
        assert_eq!(states(&found), [State::Enforced, State::Degraded]);
        let detail = &found.get(Protection::ProtectedPaths).expect("set").detail;
        assert!(detail.contains("config lies on a file system that ignores the case"), "{detail}");
        assert!(detail.contains("keep it on a file system that distinguishes"), "{detail}");
        let found = reported(Profile::RepoWrite, Ok(false), &two).expect("nothing to report");
        assert_eq!(states(&found), [State::Enforced; 2]);
        let unknown = || Err(io::Error::from_raw_os_error(libc::EACCES));
        let found = reported(Profile::RepoWrite, unknown(), &two).expect("reported");
        assert_eq!(states(&found), [State::Enforced, State::Degraded], "what is unknown is not promised");
        let short = Err(io::Error::from_raw_os_error(libc::EMFILE));
        assert!(matches!(reported(Profile::RepoWrite, short, &two), Err(Error::Io { .. })));
        let strict = reported(Profile::CiOnly, Ok(true), &two);
        assert!(matches!(strict, Err(Error::Unavailable { protection: Protection::ProtectedPaths, .. })));
    }

    #[test]
    fn a_mask_of_a_file_that_other_spellings_bypass_is_refused() {
        let refused =
            reported(Profile::RepoWrite, Ok(true), &[("key", Node::CoverFile)]).expect_err("refused");
        let Error::View { what: "mask", reason, remedy, .. } = refused else { panic!("{refused:?}") };
        assert!(reason.contains("ignores the case of names"), "{reason}");
        assert!(remedy.is_some_and(|remedy| remedy.to_string().contains("mask its directory")));
        reported(Profile::RepoWrite, Ok(false), &[("key", Node::CoverFile)]).expect("it holds");
        // A directory has one entry, whatever its spelling.
        let found = reported(Profile::RepoWrite, Ok(true), &[("key", Node::Cover)]).expect("reported");
        assert_eq!(states(&found)[0], State::Degraded);
    }
}
