//! From what a command used to what a policy must grant: only what the policy does not show anyway, and a
//! directory instead of many of its files.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use kennel::{
    Sandbox,
    report::{InForce, Observed, ObservedPath, Place, PlaceAccess},
};

use super::is_text;

/// More files of one directory than this become the directory.
const MANY: usize = 8;

/// The most paths that a policy gets. One with more is for nobody to read.
const MOST: usize = 500;

/// How many names of programs a line has.
const MOST_NAMES: usize = 3;

/// What a policy must grant besides what it grants already.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    /// Paths to read.
    pub(crate) reads: BTreeMap<PathBuf, Need>,
    /// Paths that the command tried to write to, where the policy shows nothing that it may change.
    pub(crate) writes: BTreeMap<PathBuf, Need>,
    /// Directories of the home in which the command wrote to a copy. The policy does not show them.
    pub(crate) copies: BTreeMap<PathBuf, Need>,
    /// How many paths are in none of these: too many, or without a name that a policy file can hold.
    pub(crate) left_out: usize,
    /// Whether the record ended before the command.
    pub(crate) is_cut: bool,
}

/// Why a path is needed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Need {
    pub(crate) count: u64,
    pub(crate) by: BTreeSet<String>,
    /// How many paths it stands for, if it is a directory of them.
    pub(crate) paths: usize,
    pub(crate) is_dir: bool,
    /// Whether nothing was opened: the command only asked whether the path is there.
    pub(crate) was_only_looked_at: bool,
}

impl Need {
    fn of(used: &ObservedPath) -> Self {
        Self {
            count: used.count,
            by: used.by.clone(),
            paths: 1,
            is_dir: used.is_dir,
            was_only_looked_at: !(used.was_read || used.was_written),
        }
    }

    fn add(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.by.extend(other.by.iter().cloned());
        while self.by.len() > MOST_NAMES {
            self.by.pop_last();
        }
        self.paths += other.paths;
        self.was_only_looked_at &= other.was_only_looked_at;
    }
}

impl Needs {
    /// `shown` is the policy without `--learn`.
    pub(crate) fn of(observed: &Observed, shown: &Sandbox) -> Self {
        let base = Base { shown, in_force: shown.in_force() };
        let mut needs = Self { is_cut: observed.is_cut, ..Self::default() };
        // Making a directory read-only where the command writes would take something away.
        let written: BTreeSet<PathBuf> =
            observed.paths.iter().filter(|used| used.was_written).map(|used| used.path.clone()).collect();
        for used in &observed.paths {
            if used.was_written {
                match base.missing_directory(&used.path) {
                    _ if base.refuses_writes(&used.path) => {
                        needs.writes.insert(used.path.clone(), Need::of(used));
                    }
                    Some(directory) => needs.copies.entry(directory).or_default().add_first(used),
                    None => {}
                }
            }
            if let Some(path) = base.missing(used)
                && !(used.is_dir && is_above_any(&path, &written))
            {
                needs.reads.entry(path).or_default().add_first(used);
            }
        }
        needs.reads = collapsed(std::mem::take(&mut needs.reads), |directory| {
            base.may_be_granted(directory) && !is_above_any(directory, &written)
        });
        needs.drop_unnamed();
        needs
    }

    /// Replaces what a file cannot name, and leaves out what is too much.
    fn drop_unnamed(&mut self) {
        for paths in [&mut self.reads, &mut self.writes, &mut self.copies] {
            let before = paths.len();
            paths.retain(|path, _| is_text(path));
            while paths.len() > MOST {
                paths.pop_last();
            }
            self.left_out += before - paths.len();
        }
    }
}

impl Need {
    /// Two names can lead to one path.
    fn add_first(&mut self, used: &ObservedPath) {
        if self.paths == 0 {
            *self = Self::of(used);
        } else {
            self.add(&Self::of(used));
        }
    }
}

/// Whether one of these paths is below `directory`.
fn is_above_any(directory: &Path, paths: &BTreeSet<PathBuf>) -> bool {
    paths
        .range(directory.to_owned()..)
        .take_while(|path| path.starts_with(directory))
        .any(|path| path != directory)
}

/// Replaces many paths of a directory by the directory, from the deepest on, where `may_be_granted` allows
/// it.
fn collapsed(
    mut paths: BTreeMap<PathBuf, Need>,
    may_be_granted: impl Fn(&Path) -> bool,
) -> BTreeMap<PathBuf, Need> {
    let deepest = paths.keys().map(|path| path.components().count()).max().unwrap_or(0);
    for depth in (2..=deepest).rev() {
        let mut children: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
        for path in paths.keys().filter(|path| path.components().count() == depth) {
            let parent = path.parent().map(Path::to_owned).unwrap_or_default();
            children.entry(parent).or_default().push(path.clone());
        }
        for (parent, children) in children {
            // A name that a policy file cannot hold is only granted with its directory.
            let must = children.iter().any(|path| !is_text(path));
            if (children.len() > MANY || must) && may_be_granted(&parent) {
                let mut need = paths.remove(&parent).unwrap_or_default();
                children.iter().filter_map(|path| paths.remove(path)).for_each(|child| need.add(&child));
                need.is_dir = true;
                need.was_only_looked_at = false;
                paths.insert(parent, need);
            }
        }
    }
    within_none(paths)
}

/// Leaves out what is in a directory that is granted anyway.
fn within_none(paths: BTreeMap<PathBuf, Need>) -> BTreeMap<PathBuf, Need> {
    let mut kept: BTreeMap<PathBuf, Need> = BTreeMap::new();
    for (path, need) in paths {
        let above = path.ancestors().skip(1).find(|above| kept.get(*above).is_some_and(|need| need.is_dir));
        match above.map(Path::to_owned).and_then(|above| kept.get_mut(&above)) {
            Some(directory) => directory.add(&need),
            None => drop(kept.insert(path, need)),
        }
    }
    kept
}

/// The policy without `--learn`.
struct Base<'s> {
    shown: &'s Sandbox,
    in_force: InForce,
}

impl Base<'_> {
    /// The path that must be granted, so that the command finds there what it found.
    fn missing(&self, used: &ObservedPath) -> Option<PathBuf> {
        let leads_to = used.leads_to.as_ref()?;
        // A directory that the command only looked at need not be there, and one that leads to what is shown
        // is.
        let is_needed = used.was_read || !used.was_written && !used.is_dir;
        if !is_needed || used.is_dir && self.holds_places(&used.path) {
            return None;
        }
        let named = self.shown.host_path(&used.path);
        if named.is_none() {
            let is_own = self.in_force.places.iter().any(|place| place.path == used.path);
            return (!is_own).then(|| used.path.clone());
        }
        let is_same = named.and_then(|named| fs::canonicalize(named).ok()).as_ref() == Some(leads_to);
        let is_shown = self.shown.host_path(leads_to).as_ref() == Some(leads_to);
        // The link is visible, and what it leads to is not.
        (is_same && !is_shown).then(|| leads_to.clone())
    }

    /// Whether commands see something below `directory`, which is therefore there.
    fn holds_places(&self, directory: &Path) -> bool {
        self.in_force.places.iter().any(|place| place.path.starts_with(directory))
    }

    /// Whether a directory may take the place of its files: it is none that commands have for themselves.
    fn may_be_granted(&self, directory: &Path) -> bool {
        directory.parent().is_some() && is_text(directory) && !self.holds_places(directory)
    }

    /// The directory of the host in which `path` is, if commands find an empty private one above it and not
    /// this one.
    fn missing_directory(&self, path: &Path) -> Option<PathBuf> {
        let directory =
            path.parent().filter(|directory| directory.is_dir() && !self.holds_places(directory))?;
        let is_private = |place: &&Place| place.access == PlaceAccess::Private && place.path != directory;
        self.nearest(directory).filter(is_private).map(|_| directory.to_owned())
    }

    /// The place that decides about `path`.
    fn nearest(&self, path: &Path) -> Option<&Place> {
        path.ancestors().find_map(|above| self.in_force.places.iter().find(|it| it.path == above))
    }

    /// Whether commands cannot write at `path`.
    fn refuses_writes(&self, path: &Path) -> bool {
        let refuses = [PlaceAccess::Read, PlaceAccess::Hidden, PlaceAccess::Own];
        self.nearest(path).is_none_or(|place| refuses.contains(&place.access))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    fn needs(paths: &[&[u8]]) -> BTreeMap<PathBuf, Need> {
        let path = |path: &&[u8]| PathBuf::from(std::ffi::OsStr::from_bytes(path));
        let one = || Need { count: 1, paths: 1, ..Need::default() };
        paths.iter().map(|it| (path(it), one())).collect()
    }

    fn names(paths: &BTreeMap<PathBuf, Need>) -> Vec<String> {
        paths.keys().map(|path| path.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn many_files_of_a_directory_are_the_directory() {
        let texts: Vec<String> = (0..=MANY).map(|n| format!("/a/many/{n}")).collect();
        let mut paths: Vec<&[u8]> = texts.iter().map(|text| text.as_bytes()).collect();
        paths.push(b"/a/few/1");
        let found = collapsed(needs(&paths), |_| true);
        assert_eq!(names(&found), ["/a/few/1", "/a/many"]);
        assert_eq!(found[Path::new("/a/many")].paths, MANY + 1);
        let found = collapsed(needs(&paths), |directory| !directory.ends_with("many"));
        assert_eq!(found.len(), MANY + 2, "where it may be");
    }

    #[test]
    fn many_directories_are_the_directory_above() {
        let texts: Vec<String> =
            (0..=MANY).flat_map(|d| (0..=MANY).map(move |f| format!("/a/{d}/{f}"))).collect();
        let paths: Vec<&[u8]> = texts.iter().map(|text| text.as_bytes()).collect();
        let found = collapsed(needs(&paths), |directory| directory != Path::new("/"));
        assert_eq!(names(&found), ["/a"]);
        assert_eq!(found[Path::new("/a")].paths, (MANY + 1) * (MANY + 1));
    }

    #[test]
    fn a_name_that_is_no_text_is_granted_with_its_directory_or_left_out() {
        let paths: [&[u8]; 2] = [b"/a/b/\xff", b"/a/c"];
        assert_eq!(names(&collapsed(needs(&paths), |_| true)), ["/a/b", "/a/c"]);
        let mut left = Needs { reads: collapsed(needs(&paths), |_| false), ..Needs::default() };
        left.drop_unnamed();
        assert_eq!((names(&left.reads), left.left_out), (vec!["/a/c".to_owned()], 1));
    }

    #[test]
    fn what_is_written_below_keeps_a_directory_from_being_read_only() {
        let written = ["/a/b/c".into(), "/d".into()].into();
        assert!(is_above_any(Path::new("/a/b"), &written));
        for path in ["/a/b/c", "/d", "/a/bb", "/e"] {
            assert!(!is_above_any(Path::new(path), &written), "{path}");
        }
    }
}
