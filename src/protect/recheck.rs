//! The look at protected paths after a command, for paths that could not be bound because they are missing or
//! links.
//!
//! What appeared there is moved aside and reported, whoever made it. What holds no data is removed. Other
//! processes may write to the same directories meanwhile. So nothing is looked up twice by path: every step
//! starts from a descriptor, follows no link, and changes exactly what it checked. Changes are made with the
//! rights of a command.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::protect::place::{Done, ProtectedPlace};
use crate::protect::watch::{Expected, Watch, parts_from};
use crate::report::denial::{Basis, Denial, WOULD_ALLOW, trust_git};
use crate::report::enforcement::Protection;
use crate::report::failure;
use crate::report::failure::shown;
use crate::report::remedy::remedy;
use crate::sys::dirfd;
use crate::sys::inode::{FileKind, kind};
use crate::sys::remove;
use crate::sys::remove::Check;
use crate::view::paths::walk::WalkAim;

/// The result of [`undo`].
#[derive(Debug, Default)]
pub(crate) struct Undone {
    pub(crate) denials: Vec<Denial>,
    /// Whether something could not be undone, and may still be there.
    pub(crate) is_left: bool,
}

impl Undone {
    /// Adds that a killed process, which is not gone yet, may still change watched paths.
    pub(crate) fn add_stuck_process(&mut self, watches: &[Watch]) {
        let mut bases: Vec<&Path> = watches.iter().map(|watch| &*watch.base).collect();
        bases.sort_unstable();
        bases.dedup();
        let reason = "a killed process is stuck in a system call: check the protected paths once it is gone (Kennel does, if \
                      still running)";
        self.is_left |= !bases.is_empty();
        let stuck = bases.into_iter().map(|base| denial_for(base, reason.to_owned(), Basis::Observed));
        self.denials.extend(stuck);
    }
}

/// Looks at every watched path, takes away what appeared there, and reports it.
pub(crate) fn undo(watches: &[Watch]) -> Undone {
    let mut all = Undone::default();
    for watch in watches {
        match undo_one(watch) {
            Ok(None) => {}
            Ok(Some((path, done))) => all.denials.push(watch_denial(watch, &path, &done)),
            Err(error) => {
                let what = format!("it could not be undone: {}", failure::words(&error));
                all.denials.push(watch_denial(watch, &watch.path, &Done::Told(what)));
                all.is_left = true;
            }
        }
    }
    all
}

/// Removes `name` in a directory, whatever it is, and whatever access rights its entries have.
pub(crate) fn remove_tree(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    remove::tree(parent, name, &|_, _, _| Ok(()))
}

/// Removes everything in a directory, each entry after a `check`.
pub(crate) fn empty(directory: &OwnedFd, check: Check<'_>) -> io::Result<()> {
    remove::contents(directory, check)
}

/// Logs denials where no outcome can carry them.
pub(crate) fn log(undone: &Undone) {
    for denial in &undone.denials {
        tracing::warn!(path = denial.subject, reason = denial.reason, "denied");
    }
}

/// Takes away what is at one watched path. Returns its path below the grant and what was done.
fn undo_one(watch: &Watch) -> io::Result<Option<(PathBuf, Done)>> {
    let held = watch.held.as_ref().ok_or(io::ErrorKind::NotFound)?;
    if let Expected::Link(to) = &watch.expected {
        let Some(place) = ProtectedPlace::open(held, &watch.path)? else { return Ok(None) };
        if place.leads_to(to) {
            return Ok(None);
        }
        let what = dirfd::without_capabilities(|| place.clear_replaced_link(to))?;
        return Ok(Some((watch.path.clone(), Done::Told(what))));
    }
    // Something new on the way that is no directory could lead to files that somebody prepared.
    for part in parts_from(&watch.first, &watch.path) {
        let Some(place) = ProtectedPlace::open(held, part)? else { return Ok(None) };
        let Some(stat) = place.stat()? else { return Ok(None) };
        if part == watch.path {
            let checked = dirfd::without_capabilities(|| place.check(watch, kind(&stat)));
            let is_news = |done: &Done| !matches!(done, Done::Kept) || watch.is_untold(&stat);
            return checked.map(|done| done.filter(is_news).map(|done| (part.to_owned(), done)));
        }
        if kind(&stat) != FileKind::Directory {
            let what = dirfd::without_capabilities(|| place.clear())?;
            return Ok(Some((part.to_owned(), Done::Told(what))));
        }
    }
    Ok(None)
}

/// The denial for `path`, by the name that it had when the command started.
fn watch_denial(watch: &Watch, path: &Path, done: &Done) -> Denial {
    let moved = watch.held.as_ref().and_then(|held| held.words_if_moved(&watch.base));
    let led = watch.link.as_ref().map(|link| format!("; {} leads there", shown(link)));
    let was = match watch.aim {
        WalkAim::Path => CHANGED,
        _ => "a protected path, which git obeys, was changed",
    };
    let (led, moved) = (led.unwrap_or_default(), moved.unwrap_or_default());
    let reason = format!("{was}; {}{led}{moved}", done.words());
    let is_of_git = watch.aim.is_of_repository() && done.basis() != Basis::Kept;
    let remedy = is_of_git.then(|| remedy![trust_git(), WOULD_ALLOW]);
    Denial { remedy, ..denial_for(&watch.base.join(path), reason, done.basis()) }
}

const CHANGED: &str = "a protected path was changed";

/// The denial for a change of a protected path.
pub(crate) fn denial(path: &Path, done: &Done) -> Denial {
    denial_for(path, format!("{CHANGED}; {}", done.words()), done.basis())
}

fn denial_for(path: &Path, reason: String, basis: Basis) -> Denial {
    Denial::new(Protection::ProtectedPaths, shown(path), reason, basis)
}

#[cfg(test)]
mod tests {
    use crate::protect::watch::hold;
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::sys::inode::Identity;

    /// A directory to watch, and one that nothing may touch.
    fn directories() -> (tempfile::TempDir, tempfile::TempDir) {
        let (base, victim) = (tempfile::tempdir().expect("base"), tempfile::tempdir().expect("victim"));
        fs::create_dir(victim.path().join("sub")).expect("a directory");
        fs::write(victim.path().join("sub/file"), "").expect("a file");
        (base, victim)
    }

    fn watch(base: &Path, path: &str, expected: Expected) -> Watch {
        let first = path.split('/').next().unwrap_or_default();
        let mut watch = Watch::new(base, Path::new(path), Path::new(first), expected);
        let identity = Identity::of_metadata(&fs::metadata(base).expect("a directory"));
        hold([&mut watch].into_iter(), base, identity).expect("held");
        watch
    }

    #[test]
    fn a_link_at_a_watched_path_is_removed_and_not_followed() {
        let (base, victim) = directories();
        fs::create_dir(base.path().join(".git")).expect("a directory");
        let watches = [
            watch(base.path(), ".git/hooks", Expected::NoRepository),
            watch(base.path(), ".git/commondir", Expected::Absent),
        ];
        for name in ["hooks", "commondir"] {
            symlink(victim.path(), base.path().join(".git").join(name)).expect("a link");
        }
        assert_eq!(undo(&watches).denials.len(), 2);
        assert!(victim.path().join("sub/file").exists());
        assert_eq!(fs::read_dir(base.path().join(".git")).expect("a listing").count(), 0);
    }

    #[test]
    fn a_directory_may_be_made_where_only_a_file_means_something() {
        let (base, _) = directories();
        let watches = [
            watch(base.path(), "file/HEAD", Expected::NoFile),
            watch(base.path(), "directory/HEAD", Expected::NoFile),
            watch(base.path(), "empty/branches", Expected::NoEntry),
            watch(base.path(), "full/branches", Expected::NoEntry),
        ];
        for path in ["file", "directory/HEAD/refs", "empty/branches", "full/branches"] {
            fs::create_dir_all(base.path().join(path)).expect("a directory");
        }
        for path in ["file/HEAD", "full/branches/origin"] {
            fs::write(base.path().join(path), "").expect("a file");
        }
        let denials = undo(&watches).denials;
        assert_eq!(denials.len(), 2, "{denials:?}");
        assert!(denials[0].reason.ends_with("it was removed"), "{denials:?}");
        assert!(denials[1].reason.ends_with("it was renamed to branches.refused-by-kennel.0"), "{denials:?}");
        assert!(
            base.path().join("directory/HEAD/refs").exists() && base.path().join("empty/branches").exists()
        );
        assert!(!base.path().join("file/HEAD").exists() && !base.path().join("full/branches").exists());
        assert!(base.path().join("full/branches.refused-by-kennel.0/origin").exists());
    }

    #[test]
    fn a_link_on_the_way_to_a_watched_path_is_removed_and_not_followed() {
        let (base, victim) = directories();
        let watches = [watch(base.path(), "a/sub", Expected::Absent)];
        symlink(victim.path(), base.path().join("a")).expect("a link");
        assert_eq!(undo(&watches).denials.len(), 1);
        assert!(victim.path().join("sub/file").exists());
        assert!(fs::symlink_metadata(base.path().join("a")).is_err());
    }

    #[test]
    fn what_holds_data_is_moved_aside_whoever_made_it() {
        let (base, _) = directories();
        fs::create_dir_all(base.path().join("old/hooks")).expect("a directory");
        fs::write(base.path().join("old/hooks/pre-commit"), "").expect("a file");
        fs::write(base.path().join("old/commondir"), "..").expect("a file");
        let watches = [
            watch(base.path(), ".git/hooks", Expected::NoRepository),
            watch(base.path(), ".git/commondir", Expected::NoRepository),
        ];
        for round in 1..=2 {
            fs::rename(base.path().join("old"), base.path().join(".git")).expect("renamed");
            let undone = undo(&watches);
            assert!(!undone.is_left && undone.denials.len() == 2, "{undone:?}");
            for (name, denial) in [("hooks", &undone.denials[0]), ("commondir", &undone.denials[1])] {
                let aside = format!("it was renamed to {name}.refused-by-kennel.");
                assert!(denial.reason.contains(&aside), "{denial:?}");
                assert!(!base.path().join(".git").join(name).exists());
            }
            let aside = |name: &str| base.path().join(".git").join(format!("{name}.refused-by-kennel.0"));
            assert!(aside("hooks").join("pre-commit").exists());
            assert_eq!(fs::read_to_string(aside("commondir")).expect("a file"), "..");
            assert_eq!(fs::read_dir(base.path().join(".git")).expect("a listing").count(), 2 * round);
            // The same once more: the first name is taken then.
            fs::rename(base.path().join(".git"), base.path().join("old")).expect("renamed");
            fs::create_dir(base.path().join("old/hooks")).expect("a directory");
            fs::write(base.path().join("old/hooks/other"), "").expect("a file");
            fs::write(base.path().join("old/commondir"), "other").expect("a file");
        }
    }

    #[test]
    fn samples_of_hooks_stay_and_what_is_among_them_does_not() {
        for (names, is_kept) in [
            (&["a.sample", "b.sample"][..], true),
            (&[], true),
            (&["a.sample", "pre-commit"], false),
            (&["sample"], false),
        ] {
            let (base, _) = directories();
            let watches = [watch(base.path(), ".git/hooks", Expected::NoRepository)];
            let hooks = base.path().join(".git/hooks");
            fs::create_dir_all(&hooks).expect("a directory");
            names.iter().for_each(|name| fs::write(hooks.join(name), "x").expect("a file"));
            assert_eq!(undo(&watches).denials.is_empty(), is_kept, "{names:?}");
            assert_eq!(hooks.exists(), is_kept, "{names:?}");
        }
        let (base, _) = directories();
        let watches = [watch(base.path(), ".git/hooks", Expected::NoRepository)];
        let hooks = base.path().join(".git/hooks");
        fs::create_dir_all(&hooks).expect("a directory");
        for number in 0..1100 {
            fs::write(hooks.join(format!("{number}.sample")), "").expect("a file");
        }
        assert_eq!(undo(&watches).denials.len(), 1, "more than are looked at");
    }

    #[test]
    fn what_took_the_place_of_a_link_is_removed_and_the_link_told() {
        let (base, victim) = directories();
        let watches = [watch(base.path(), "link", Expected::Link("there".into()))];
        symlink(victim.path(), base.path().join("link")).expect("a link");
        let reasons =
            |undone: Undone| undone.denials.into_iter().map(|denial| denial.reason).collect::<Vec<_>>();
        let led = "the link that was there led to there";
        let to = victim.path().display();
        let change = format!("a protected path was changed; it was removed, a link to {to}; {led}");
        assert_eq!(reasons(undo(&watches)), [change]);
        assert!(
            fs::symlink_metadata(base.path().join("link")).is_err()
                && victim.path().join("sub/file").exists()
        );
        let change = format!("a protected path was changed; it is gone; {led}");
        assert_eq!(reasons(undo(&watches)), [change], "it is not made anew: it may be another command's");
        assert!(fs::symlink_metadata(base.path().join("link")).is_err());
    }
}
