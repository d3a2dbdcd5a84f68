//! Where a path leads on the host, part by part, as the kernel goes it: path_resolution(7). Looks; changes nothing.
//!
//! By the text alone it cannot be told: up from a link is up from where the link leads.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::fs::Metadata;
use std::path::{Component, Path, PathBuf};

use crate::report::error::Error;
use crate::sys::dirfd::MOST_LINKS;
use crate::sys::lexical;

/// NAME_MAX: bytes of a name.
pub(crate) const MOST_OF_NAME: usize = 255;

/// So far below a base does a walk go, in parts and in bytes. Commands make directories as deep as they like, and each step
/// takes as long as the way to it.
const DEEPEST: usize = 64;
const LONGEST: usize = 2048;

/// Steps of one walk. The text of a link has a thousand of them, and leads to the next link.
const MOST_STEPS: u32 = 1 << 10;

/// A path as it is written, and the directory without links that it is meant from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnresolvedPath {
    pub(crate) from: PathBuf,
    pub(crate) to: PathBuf,
}

impl UnresolvedPath {
    pub(crate) fn new(from: &Path, to: impl Into<PathBuf>) -> Self {
        Self { from: from.to_owned(), to: to.into() }
    }

    /// The way to `name` in the directory that this one leads to.
    pub(crate) fn join(&self, name: impl AsRef<Path>) -> Self {
        Self { from: self.from.clone(), to: self.to.join(name) }
    }

    /// Where it leads, as it is written.
    pub(crate) fn path(&self) -> PathBuf {
        self.from.join(&self.to)
    }
}

/// What a walk is for: it says what may appear at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WalkAim {
    /// A path that stays as it is.
    Path,
    /// One that git obeys.
    Git,
    /// A directory of which git obeys what is in it. Some of git's templates have it, with nothing in it.
    GitList,
    /// What would make a repository of a directory, unless it is one itself.
    GitSign,
}

/// What a walk comes by below its base. Each path is one of the host, with no link on the way to its last part.
#[derive(Debug)]
pub(crate) enum WalkStep {
    /// A link, and its text.
    Link { at: PathBuf, to: PathBuf },
    /// `..` in a directory: a link in the place of that directory would lead elsewhere.
    Up { at: PathBuf },
    /// The end: something, be it a file on the way.
    Thing { at: PathBuf, metadata: Metadata },
    /// The end, but not that of the way, which is too long: the directory that it goes on from. It need not be below a base.
    Far { at: PathBuf, is_told: bool },
    /// The end: nothing at `first`. With `path` there would be more of the way, if not all of it.
    Nothing { first: PathBuf, path: PathBuf },
}

/// What is at a place.
enum Looked {
    Something(Metadata),
    Nothing,
    /// Nobody knows: no path leads there. Part by part the kernel gets there all the same.
    TooLong,
}

/// A walk to what a path leads to, of which only what lies below one of `bases` is told.
#[derive(Debug)]
pub(crate) struct PathWalk<'b> {
    bases: &'b Bases,
    /// As far as it went: no link in it, and no `..`.
    here: PathBuf,
    /// The parts to come, the next one last.
    rest: Vec<OsString>,
    links: u32,
    /// The last one that was followed.
    link: Option<PathBuf>,
    steps: u32,
    aim: WalkAim,
    /// What it is that the path leads to, in messages.
    what: &'static str,
}

impl<'b> PathWalk<'b> {
    /// To a protected path along `way`.
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

    /// Along a link in the directory at its end, which has this text.
    pub(crate) fn along(&self, link: &Path, text: &Path) -> Self {
        let aim = if self.aim == WalkAim::Path { WalkAim::Path } else { WalkAim::Git };
        let way = UnresolvedPath::new(link.parent().unwrap_or(link), text);
        Self { links: self.links + 1, link: Some(link.to_owned()), ..Self::new(self.bases, &way, aim) }
    }

    /// The last link that was followed.
    pub(crate) fn link(&self) -> Option<&Path> {
        self.link.as_deref()
    }

    pub(crate) fn aim(&self) -> WalkAim {
        self.aim
    }

    /// As far as it went.
    pub(crate) fn here(&self) -> &Path {
        &self.here
    }

    /// Steps that were taken.
    pub(crate) fn steps(&self) -> u32 {
        self.steps
    }

    /// Links that were followed, those before the walk included.
    pub(crate) fn links(&self) -> u32 {
        self.links
    }

    /// Goes on to the next thing to tell. `None` where there is none: the way leads out of the bases in the end, under what is
    /// covered, through too many links, or to a name that no file system has. What is covered stays as it is, links in it
    /// included.
    ///
    /// # Errors
    /// Where it is not allowed to look below a base.
    pub(crate) fn go_on(&mut self, is_covered: impl Fn(&Path) -> bool) -> Result<Option<WalkStep>, Error> {
        while self.links <= MOST_LINKS {
            self.steps += 1;
            if self.is_far() {
                return Ok(Some(self.ends_far(&is_covered)));
            }
            match self.rest.pop() {
                Some(part) if part == ".." => match self.step_up(&is_covered) {
                    Some(up) => return Ok(Some(up)),
                    None => continue,
                },
                Some(part) if part.len() > MOST_OF_NAME => return Ok(None),
                Some(part) => self.here.push(part),
                // The last step was one up, or there was none.
                None => {}
            }
            let is_told = self.is_told(&is_covered);
            let metadata = match self.look(is_told)? {
                Looked::Something(metadata) => metadata,
                Looked::Nothing => return Ok(is_told.then(|| self.nothing())),
                Looked::TooLong => {
                    self.here.pop();
                    return Ok(Some(self.ends_far(&is_covered)));
                }
            };
            if metadata.is_symlink() {
                if let Some(link) = self.follow()
                    && is_told
                {
                    return Ok(Some(link));
                }
            } else if self.rest.is_empty() || !metadata.is_dir() {
                let at = self.here.clone();
                return Ok(is_told.then_some(WalkStep::Thing { at, metadata }));
            }
        }
        Ok(None)
    }

    /// A base itself is granted by name, so nothing is told of it, unless it lies below another.
    fn is_told(&self, is_covered: impl Fn(&Path) -> bool) -> bool {
        self.bases.around(&self.here).is_some() && !is_covered(&self.here)
    }

    /// Whether the way to come is longer than anybody goes it.
    fn is_far(&self) -> bool {
        let goes_down = self.rest.last().is_some_and(|part| part != ".." && part != "/");
        self.steps > MOST_STEPS || goes_down && self.is_deep()
    }

    /// Whether it is as far below its base as walks go.
    fn is_deep(&self) -> bool {
        let below = self.bases.around(&self.here).and_then(|base| lexical::below(&self.here, base));
        let is_deep = |below: &Path| below.as_os_str().len() >= LONGEST || below.iter().count() >= DEEPEST;
        below.is_some_and(is_deep)
    }

    fn ends_far(&self, is_covered: impl Fn(&Path) -> bool) -> WalkStep {
        WalkStep::Far { at: self.here.clone(), is_told: self.is_told(is_covered) }
    }

    /// What is here. Where it is told, not being allowed to look is not nothing.
    fn look(&self, is_told: bool) -> Result<Looked, Error> {
        match fs::symlink_metadata(&self.here) {
            Ok(metadata) => Ok(Looked::Something(metadata)),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => {
                Ok(Looked::Nothing)
            }
            Err(error) if error.raw_os_error() == Some(libc::ENAMETOOLONG) => Ok(Looked::TooLong),
            Err(_) if !is_told => Ok(Looked::Nothing),
            Err(source) => Err(Error::Grant {
                what: self.what,
                path: self.here.clone(),
                source,
                remedy: Some("give yourself access to its directory".to_owned()),
            }),
        }
    }

    fn step_up(&mut self, is_covered: impl Fn(&Path) -> bool) -> Option<WalkStep> {
        let up = self.is_told(is_covered).then(|| WalkStep::Up { at: self.here.join("..") });
        self.here.pop();
        up
    }

    /// Puts the text of the link that is here before the parts to come; or its name once more, where something else has it by
    /// now.
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

    /// As nothing is here, a `..` further on leads nowhere: it is the directory before it that must not appear.
    fn nothing(&self) -> WalkStep {
        let mut path = self.here.clone();
        path.extend(self.rest.iter().rev().take_while(|part| *part != ".."));
        WalkStep::Nothing { first: self.here.clone(), path }
    }
}

/// The parts of a path, the first one last. That of an absolute path is `/`, from which a walk begins anew.
fn reversed(path: &Path) -> Vec<OsString> {
    let parts = path.components().rev().filter(|part| *part != Component::CurDir);
    parts.map(|part| part.as_os_str().to_owned()).collect()
}

// All that a path of the host comes by, from the root.

/// Every place that decides where `path`, which is absolute, leads: links and `..` on the way, and its end. Messages call
/// it `what`.
///
/// # Errors
/// Where it is not allowed to look.
pub(crate) fn on_the_way(what: &'static str, path: &Path) -> Result<Vec<PathBuf>, Error> {
    let decides = |met: WalkStep| match met {
        // Up from a directory decides who can put a link in its place: who may write to the one that it lies in.
        WalkStep::Up { at } => at.ancestors().nth(2).map(Path::to_owned),
        met => Some(met.at()),
    };
    Ok(all_on(what, path)?.into_iter().filter_map(decides).collect())
}

/// The links that `path`, which is absolute, leads over, and where they lead in the end.
///
/// # Errors
/// Where it is not allowed to look.
pub(crate) fn links_on(path: &Path) -> Result<(Vec<PathBuf>, PathBuf), Error> {
    let mut met = all_on("path", path)?;
    // Nothing is told of the root itself.
    let end = met.pop_if(|met| met.is_end()).map_or_else(|| "/".into(), WalkStep::at);
    let links = met.into_iter().filter(|met| matches!(met, WalkStep::Link { .. }));
    Ok((links.map(WalkStep::at).collect(), end))
}

/// Everything that a way comes by, to its end.
fn all_on(what: &'static str, path: &Path) -> Result<Vec<WalkStep>, Error> {
    let root = Bases::new([PathBuf::from("/")]);
    let mut walk =
        PathWalk { what, ..PathWalk::new(&root, &UnresolvedPath::new(Path::new("/"), path), WalkAim::Path) };
    let mut all = Vec::new();
    while let Some(met) = walk.go_on(|_| false)? {
        let is_end = met.is_end();
        all.push(met);
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
            | Self::Thing { at, .. }
            | Self::Far { at, .. }
            | Self::Nothing { first: at, .. } => at,
        }
    }
}

// The directories below which a walk tells of what it comes by.

/// Directories of the host, without links: walks tell of what lies below one.
#[derive(Debug)]
pub(crate) struct Bases {
    paths: HashSet<OsString>,
    /// How long they are: of a long path few beginnings are compared.
    lengths: HashSet<usize>,
}

impl Bases {
    pub(crate) fn new(directories: impl IntoIterator<Item = PathBuf>) -> Self {
        let paths: HashSet<OsString> = directories.into_iter().map(PathBuf::into_os_string).collect();
        let lengths = paths.iter().map(|path| path.len()).collect();
        Self { paths, lengths }
    }

    /// The nearest one around the host's `path`, which is absolute, and not that one itself.
    pub(crate) fn around<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        lexical::ancestors(path).skip(1).find(|above| self.has(above))
    }

    /// Whether `path` is one, or lies below one or above.
    pub(crate) fn touch(&self, path: &Path) -> bool {
        self.hold(path) || self.paths.iter().any(|base| lexical::is_within(Path::new(base), path))
    }

    /// Whether `path` is one, or lies below one.
    pub(crate) fn hold(&self, path: &Path) -> bool {
        self.has(path) || self.around(path).is_some()
    }

    fn has(&self, path: &Path) -> bool {
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
            match walk.go_on(|_| false).expect("everything may be looked at") {
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
                (Ok(kernel), Some(WalkStep::Thing { at, metadata })) => {
                    prop_assert_eq!(Identity::of_metadata(&kernel), Identity::of_metadata(&metadata));
                    prop_assert_eq!(&fs::canonicalize(base.join(path)).expect("its name"), &at);
                }
                (Ok(_), None) => {
                    let at = fs::canonicalize(base.join(path)).expect("its name");
                    prop_assert!(at == base || !at.starts_with(&base), "{:?}", at);
                }
                (Err(error), Some(WalkStep::Nothing { first, .. })) => {
                    prop_assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
                    prop_assert!(fs::symlink_metadata(first).is_err());
                }
                // Under a file: the file itself is what has to stay.
                (Err(error), Some(WalkStep::Thing { metadata, .. })) => {
                    prop_assert_eq!(error.raw_os_error(), Some(libc::ENOTDIR));
                    prop_assert!(!metadata.is_dir());
                }
                (Err(_), None) => {}
                (kernel, end) => prop_assert!(false, "{:?}: {:?}", kernel, end),
            }
        }
    }
}
