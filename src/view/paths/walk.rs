//! Resolves a path of the host one part at a time, as path_resolution(7) describes. It only reads.
//!
//! The text of a path does not tell where it leads: `..` after a link is the parent of the link's target.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::fs::Metadata;
use std::path::{Component, Path, PathBuf};

use crate::report::error::Error;
use crate::sys::dirfd::MOST_LINKS;
use crate::sys::lexical;

/// NAME_MAX of limits.h(0p): bytes of one file name.
pub(crate) const NAME_MAX: usize = 255;

/// How far below a base a walk goes, in parts and in bytes. Commands can make directories of any depth, and
/// each step takes longer the deeper it is.
const DEEPEST: usize = 64;
const LONGEST: usize = 2048;

/// Steps of one walk. The text of one link can have a thousand, and lead to the next link.
const MOST_STEPS: u32 = 1 << 10;

/// A path as it is written, and the directory that it starts from. `from` has no link in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnresolvedPath {
    pub(crate) from: PathBuf,
    pub(crate) to: PathBuf,
}

impl UnresolvedPath {
    pub(crate) fn new(from: &Path, to: impl Into<PathBuf>) -> Self {
        Self { from: from.to_owned(), to: to.into() }
    }

    /// The path of `name` in the directory that this path leads to.
    pub(crate) fn join(&self, name: impl AsRef<Path>) -> Self {
        Self { from: self.from.clone(), to: self.to.join(name) }
    }

    /// The whole path, as it is written.
    pub(crate) fn path(&self) -> PathBuf {
        self.from.join(&self.to)
    }
}

/// The reason for a walk. It decides what may appear at its end later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalkAim {
    /// A path that must not change.
    Path,
    /// A path that git obeys in a repository.
    Git,
    /// A path that git obeys for the caller in all repositories.
    GitOfUser,
    /// A directory whose entries git obeys. Some templates of git create it empty.
    GitList,
    /// A file that would turn its directory into a repository. A directory at that name would not.
    GitRepositoryFile,
}

impl WalkAim {
    /// Whether a policy that trusts commands with repositories leaves the path to them.
    pub(crate) fn is_of_repository(self) -> bool {
        !matches!(self, Self::Path | Self::GitOfUser)
    }
}

/// What a walk finds below its bases. Only the last part of each path can be a link.
#[derive(Debug)]
pub(crate) enum WalkStep {
    /// A link, and its text.
    Link { at: PathBuf, to: PathBuf },
    /// `..` in a directory. If a link replaced that directory, the path would lead elsewhere.
    Up { at: PathBuf },
    /// The end of the walk: something exists here. It can also be a file in the middle of the path.
    Found { at: PathBuf, metadata: Metadata },
    /// The walk stops here because the path is too long or too deep. `at` is the last directory. It need not
    /// be below a base; `is_reported` says whether it is, and not covered.
    TooLong { at: PathBuf, is_reported: bool },
    /// The end of the walk: nothing exists at `first`. `path` is `first` with the parts that follow it, up to
    /// a `..`.
    Missing { first: PathBuf, path: PathBuf },
}

/// What is at a path.
enum Lookup {
    Found(Metadata),
    Missing,
    /// The path is too long for a system call. One part at a time, the kernel can still reach the place.
    TooLong,
}

/// A walk along a path. It reports only what is below one of `bases`.
#[derive(Debug)]
pub(crate) struct PathWalk<'b> {
    bases: &'b Bases,
    /// How far the walk has come. This path has no link and no `..`.
    here: PathBuf,
    /// The parts to come, the next one last.
    rest: Vec<OsString>,
    links: u32,
    /// The link that was followed last.
    link: Option<PathBuf>,
    steps: u32,
    aim: WalkAim,
    /// What the path leads to, in messages.
    what: &'static str,
}

impl<'b> PathWalk<'b> {
    /// A walk to a protected path.
    pub(crate) fn new(bases: &'b Bases, way: &UnresolvedPath, aim: WalkAim) -> Self {
        Self {
            bases,
            here: way.from.clone(),
            rest: reversed(&way.to),
            links: 0,
            link: None,
            steps: 0,
            aim,
            what: "protected path",
        }
    }

    /// A walk along a link in the directory where this walk ended. `text` is the link's text.
    pub(crate) fn walk_along(&self, link: &Path, text: &Path) -> Self {
        let aim = match self.aim {
            WalkAim::Path | WalkAim::GitOfUser => self.aim,
            WalkAim::Git | WalkAim::GitList | WalkAim::GitRepositoryFile => WalkAim::Git,
        };
        let way = UnresolvedPath::new(link.parent().unwrap_or(link), text);
        Self { links: self.links + 1, link: Some(link.to_owned()), ..Self::new(self.bases, &way, aim) }
    }

    /// The link that was followed last.
    pub(crate) fn link(&self) -> Option<&Path> {
        self.link.as_deref()
    }

    pub(crate) fn aim(&self) -> WalkAim {
        self.aim
    }

    /// How far the walk has come.
    pub(crate) fn here(&self) -> &Path {
        &self.here
    }

    /// Steps taken so far.
    pub(crate) fn steps(&self) -> u32 {
        self.steps
    }

    /// Links followed so far, including those before this walk.
    pub(crate) fn links(&self) -> u32 {
        self.links
    }

    /// Goes on until there is something to report. `None` ends the walk: the path leads out of the bases,
    /// below a cover, over too many links, or to a name that no file system can have. Links below a cover are
    /// followed but not reported, because commands cannot change them.
    ///
    /// # Errors
    /// The caller may not look at a place below a base.
    pub(crate) fn next_step(
        &mut self,
        is_covered: impl Fn(&Path) -> bool,
    ) -> Result<Option<WalkStep>, Error> {
        while self.links <= MOST_LINKS {
            self.steps += 1;
            if self.is_too_long() {
                return Ok(Some(self.stop(&is_covered)));
            }
            match self.rest.pop() {
                Some(part) if part == ".." => match self.step_up(&is_covered) {
                    Some(up) => return Ok(Some(up)),
                    None => continue,
                },
                Some(part) if part.len() > NAME_MAX => return Ok(None),
                Some(part) => self.here.push(part),
                // The last step was `..`, or the path is empty.
                None => {}
            }
            let is_reported = self.is_reported(&is_covered);
            let metadata = match self.look(is_reported)? {
                Lookup::Found(metadata) => metadata,
                Lookup::Missing => return Ok(is_reported.then(|| self.missing())),
                Lookup::TooLong => {
                    self.here.pop();
                    return Ok(Some(self.stop(&is_covered)));
                }
            };
            if metadata.is_symlink() {
                if let Some(link) = self.follow()
                    && is_reported
                {
                    return Ok(Some(link));
                }
            } else if self.rest.is_empty() || !metadata.is_dir() {
                let at = self.here.clone();
                return Ok(is_reported.then_some(WalkStep::Found { at, metadata }));
            }
        }
        Ok(None)
    }

    /// Whether `here` is reported. A base itself is not, unless it is below another base: the policy names
    /// it.
    fn is_reported(&self, is_covered: impl Fn(&Path) -> bool) -> bool {
        self.bases.base_above(&self.here).is_some() && !is_covered(&self.here)
    }

    /// Whether the limits of a walk are reached.
    fn is_too_long(&self) -> bool {
        let goes_down = self.rest.last().is_some_and(|part| part != ".." && part != "/");
        self.steps > MOST_STEPS || goes_down && self.is_deep()
    }

    /// Whether the walk is as far below its base as walks go.
    fn is_deep(&self) -> bool {
        let below = self.bases.base_above(&self.here).and_then(|base| lexical::below(&self.here, base));
        let is_deep = |below: &Path| below.as_os_str().len() >= LONGEST || below.iter().count() >= DEEPEST;
        below.is_some_and(is_deep)
    }

    fn stop(&self, is_covered: impl Fn(&Path) -> bool) -> WalkStep {
        WalkStep::TooLong { at: self.here.clone(), is_reported: self.is_reported(is_covered) }
    }

    /// What is at `here`. Below a base, a path that the caller may not look at is an error and does not count
    /// as missing.
    fn look(&self, is_reported: bool) -> Result<Lookup, Error> {
        match fs::symlink_metadata(&self.here) {
            Ok(metadata) => Ok(Lookup::Found(metadata)),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => {
                Ok(Lookup::Missing)
            }
            Err(error) if error.raw_os_error() == Some(libc::ENAMETOOLONG) => Ok(Lookup::TooLong),
            Err(_) if !is_reported => Ok(Lookup::Missing),
            Err(source) => Err(Error::Grant {
                what: self.what,
                path: self.here.clone(),
                source,
                remedy: Some("give yourself access to its directory".into()),
            }),
        }
    }

    fn step_up(&mut self, is_covered: impl Fn(&Path) -> bool) -> Option<WalkStep> {
        let up = self.is_reported(is_covered).then(|| WalkStep::Up { at: self.here.join("..") });
        self.here.pop();
        up
    }

    /// Replaces the link at `here` by its text. If another process replaced the link meanwhile, `here` is
    /// looked at once more.
    fn follow(&mut self) -> Option<WalkStep> {
        let to = match fs::read_link(&self.here) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => {
                self.rest.extend(self.here.file_name().map(OsString::from));
                self.here.pop();
                return None;
            }
            to => to.unwrap_or_default(),
        };
        self.rest.extend(reversed(&to));
        self.links += 1;
        let at = self.here.clone();
        self.link = Some(at.clone());
        self.here.pop();
        Some(WalkStep::Link { at, to })
    }

    /// Nothing is at `here`. A `..` further on leads nowhere then, so the parts before it are what must not
    /// appear.
    fn missing(&self) -> WalkStep {
        let mut path = self.here.clone();
        path.extend(self.rest.iter().rev().take_while(|part| *part != ".."));
        WalkStep::Missing { first: self.here.clone(), path }
    }
}

/// The parts of a path, the first one last. `/` is the first part of an absolute path: the walk starts again
/// at the root.
pub(crate) fn reversed(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev().filter(|part| *part != Component::CurDir);
    parts.map(|part| part.as_os_str().to_owned()).collect()
}

// Walks from the root that collect every step.

/// Every place that decides where the absolute `path` leads: the links and `..` on the way, and its end.
/// Messages call it `what`.
///
/// # Errors
/// The caller may not look at a place on the way.
pub(crate) fn deciding_places(what: &'static str, path: &Path) -> Result<Vec<PathBuf>, Error> {
    let decides = |step: WalkStep| match step {
        // For `..`, the place is the parent directory: a command that can write there can replace the
        // directory by a link.
        WalkStep::Up { at } => at.ancestors().nth(2).map(Path::to_owned),
        step => Some(step.at()),
    };
    Ok(all_steps(what, path)?.into_iter().filter_map(decides).collect())
}

/// A symbolic link of the host. Only the last part of `at` is a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostLink {
    pub(crate) at: PathBuf,
    /// Its text.
    pub(crate) to: PathBuf,
}

/// The links on the way of the absolute `path`, and where it leads in the end.
///
/// # Errors
/// The caller may not look at a place on the way.
pub(crate) fn links_on(path: &Path) -> Result<(Vec<HostLink>, PathBuf), Error> {
    let mut steps = all_steps("path", path)?;
    // The walk reports nothing for the root itself.
    let end = steps.pop_if(|step| step.is_end()).map_or_else(|| "/".into(), WalkStep::at);
    let link = |step| match step {
        WalkStep::Link { at, to } => Some(HostLink { at, to }),
        _ => None,
    };
    Ok((steps.into_iter().filter_map(link).collect(), end))
}

/// All steps of a walk from the root.
fn all_steps(what: &'static str, path: &Path) -> Result<Vec<WalkStep>, Error> {
    let root = Bases::new([PathBuf::from("/")]);
    let mut walk =
        PathWalk { what, ..PathWalk::new(&root, &UnresolvedPath::new(Path::new("/"), path), WalkAim::Path) };
    let mut all = Vec::new();
    while let Some(step) = walk.next_step(|_| false)? {
        let is_end = step.is_end();
        all.push(step);
        if is_end {
            break;
        }
    }
    Ok(all)
}

impl WalkStep {
    fn is_end(&self) -> bool {
        !matches!(self, Self::Link { .. } | Self::Up { .. })
    }

    fn at(self) -> PathBuf {
        match self {
            Self::Link { at, .. }
            | Self::Up { at }
            | Self::Found { at, .. }
            | Self::TooLong { at, .. }
            | Self::Missing { first: at, .. } => at,
        }
    }
}

/// Directories of the host, without links in their paths. Walks report only what is below one of them.
#[derive(Debug)]
pub(crate) struct Bases {
    paths: HashSet<OsString>,
    /// The lengths of the paths, so that only few prefixes of a long path are looked up.
    lengths: HashSet<usize>,
}

impl Bases {
    pub(crate) fn new(directories: impl IntoIterator<Item = PathBuf>) -> Self {
        let paths: HashSet<OsString> = directories.into_iter().map(PathBuf::into_os_string).collect();
        let lengths = paths.iter().map(|path| path.len()).collect();
        Self { paths, lengths }
    }

    /// The nearest base above the absolute `path`, not `path` itself.
    pub(crate) fn base_above<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        lexical::ancestors(path).skip(1).find(|above| self.is_base(above))
    }

    /// Whether `path` is a base, or is below or above one.
    pub(crate) fn overlaps(&self, path: &Path) -> bool {
        self.contains(path) || self.paths.iter().any(|base| lexical::is_within(Path::new(base), path))
    }

    /// Whether `path` is a base or below one.
    pub(crate) fn contains(&self, path: &Path) -> bool {
        self.is_base(path) || self.base_above(path).is_some()
    }

    fn is_base(&self, path: &Path) -> bool {
        self.lengths.contains(&path.as_os_str().len()) && self.paths.contains(path.as_os_str())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::*;
    use crate::sys::inode::Identity;

    /// Names that often lead to each other, and out of the base and back.
    fn text() -> impl Strategy<Value = String> {
        let part = prop_oneof![4 => "[a-d]", 3 => r"\.\.", 1 => r"\.", 1 => "base"];
        (prop_oneof![3 => "", 1 => "/"], proptest::collection::vec(part, 1..5))
            .prop_map(|(start, parts)| format!("{start}{}", parts.join("/")))
    }

    #[derive(Clone, Debug)]
    enum Entry {
        Directory,
        File,
        /// With this text; an absolute one starts in the directory around the base.
        Link(String),
    }

    /// What to make below the base: paths of up to three parts.
    fn entries() -> impl Strategy<Value = Vec<(String, Entry)>> {
        let path = proptest::collection::vec("[a-d]", 1..4).prop_map(|parts| parts.join("/"));
        let link = text().prop_map(Entry::Link);
        let entry = prop_oneof![4 => Just(Entry::Directory), 1 => Just(Entry::File), 5 => link];
        proptest::collection::vec((path, entry), 0..16)
    }

    /// Makes it; what an earlier entry is in the way of is left out.
    fn make(outside: &Path, base: &Path, entries: &[(String, Entry)]) {
        for (path, entry) in entries {
            let path = base.join(path);
            if path.parent().is_none_or(|parent| fs::create_dir_all(parent).is_err()) || path.exists() {
                continue;
            }
            let made = match entry {
                Entry::Directory => fs::create_dir(path),
                Entry::File => fs::write(path, ""),
                Entry::Link(to) if to.starts_with('/') => symlink(format!("{}{to}", outside.display()), path),
                Entry::Link(to) => symlink(to, path),
            };
            drop(made);
        }
    }

    /// The end of the walk along `path`, and the links on the way.
    fn end(base: &Path, path: &str) -> (Option<WalkStep>, Vec<PathBuf>) {
        let bases = Bases::new([base.to_owned()]);
        let mut walk = PathWalk::new(&bases, &UnresolvedPath::new(base, path), WalkAim::Path);
        let mut links = Vec::new();
        loop {
            match walk.next_step(|_| false).expect("everything may be looked at") {
                Some(WalkStep::Link { at, .. }) => links.push(at),
                Some(WalkStep::Up { .. }) => {}
                end => return (end, links),
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// The kernel is asked for the same path.
        #[test]
        fn a_walk_ends_where_the_kernel_ends(entries in entries(), path in text()) {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let outside = fs::canonicalize(dir.path()).expect("its name");
            let base = outside.join("base");
            fs::create_dir(&base).expect("a directory");
            make(&outside, &base, &entries);
            let path = path.trim_start_matches('/');
            let kernel = fs::metadata(base.join(path));
            let (end, links) = end(&base, path);
            for directory in links.iter().filter_map(|link| link.parent()) {
                prop_assert_eq!(&fs::canonicalize(directory).expect("its name"), directory);
            }
            match (kernel, end) {
                (Ok(kernel), Some(WalkStep::Found { at, metadata })) => {
                    prop_assert_eq!(Identity::of_metadata(&kernel), Identity::of_metadata(&metadata));
                    prop_assert_eq!(&fs::canonicalize(base.join(path)).expect("its name"), &at);
                }
                (Ok(_), None) => {
                    let at = fs::canonicalize(base.join(path)).expect("its name");
                    prop_assert!(at == base || !at.starts_with(&base), "{:?}", at);
                }
                (Err(error), Some(WalkStep::Missing { first, .. })) => {
                    prop_assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
                    prop_assert!(fs::symlink_metadata(first).is_err());
                }
                // Under a file: the file itself is what has to stay.
                (Err(error), Some(WalkStep::Found { metadata, .. })) => {
                    prop_assert_eq!(error.raw_os_error(), Some(libc::ENOTDIR));
                    prop_assert!(!metadata.is_dir());
                }
                (Err(_), None) => {}
                (kernel, end) => prop_assert!(false, "{:?}: {:?}", kernel, end),
            }
        }
    }
}
