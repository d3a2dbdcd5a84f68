//! Paths inside a writable grant that stay read-only: what programs outside the sandbox trust and execute.
//!
//! A path that is there is bound read-only over itself, and every directory on the way to it is bound over itself
//! so that it cannot be renamed away. A path that is not there cannot be bound: `watch` looks after it.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::protect::git;
use crate::protect::git::{modules, obeyed};
use crate::protect::grants::WritableGrants;
use crate::protect::recheck::{Expected, Watch};
use crate::report::enforcement::{Enforcement, Protection, State};
use crate::report::error::Error;
use crate::report::failure;
use crate::sys::lexical;
use crate::view::inputs::Inputs;
use crate::view::path_walk::{PathWalk, UnresolvedPath, WalkAim, WalkStep};
use crate::view::source::BindSource;
use crate::view::{Access, Node, Origin, View, ViewEntry, pin};

/// What came of protecting.
#[derive(Debug, Default)]
pub(crate) struct Protected {
    /// To be looked at after the command, because it cannot be bound.
    pub(crate) watches: Vec<Watch>,
    /// Directories of the host, there or not: what is put into them is to be protected too.
    pub(crate) listed: Vec<PathBuf>,
    /// What is not protected in full.
    gaps: Vec<Gap>,
    /// What may be looked at yet.
    left: Left,
}

impl Protected {
    /// Says what protects the paths, or that not all of them are protected in full.
    ///
    /// # Errors
    /// With profile `ci-only`, where they are not.
    pub(crate) fn report(&self, inputs: &Inputs<'_>, enforcement: &mut Enforcement) -> Result<(), Error> {
        if let Some(Gap { path, why }) = self.gaps.first() {
            let reason = format!("{} {}", failure::shown(path), why.reason());
            if inputs.policy.profile.meaning().is_strict {
                let remedy = Some(why.remedy().to_owned());
                return Err(Error::Unavailable { protection: Protection::ProtectedPaths, reason, remedy });
            }
            let detail = format!("{reason}; {}", why.remedy());
            enforcement.set(Protection::ProtectedPaths, State::Degraded, detail);
            return Ok(());
        }
        let detail = match self.watches.len() {
            0 => "read-only".to_owned(),
            absent => {
                format!(
                    "read-only; {absent} are missing or links: what takes their place is moved aside after the command"
                )
            }
        };
        enforcement.set(Protection::ProtectedPaths, State::Enforced, detail);
        Ok(())
    }
}

/// Protects the policy's paths in the workspace, the files that it was read from, what git obeys in every writable grant, and
/// the links that lead programs to `secrets`: what they lead to is known by them.
///
/// # Errors
/// Where a path is being exchanged meanwhile, or where it is not allowed to look.
pub(crate) fn protect(
    view: &mut View,
    inputs: &Inputs<'_>,
    workspace: Option<&BindSource>,
    secrets: &[UnresolvedPath],
) -> Result<Protected, Error> {
    let grants = WritableGrants::of(view);
    let obeyed = grants.as_a_command(|| grants.obeyed())?;
    let unseen = obeyed.unseen.into_iter().map(|(path, why)| {
        let why = match why {
            obeyed::Unseen::Beyond => Why::Beyond,
            obeyed::Unseen::Cause(cause) => Why::Unseen(cause),
        };
        Gap { path, why }
    });
    let mut protected = Protected { listed: obeyed.listed, gaps: unseen.collect(), ..Protected::default() };
    let of_file = |file: &PathBuf| UnresolvedPath::new(Path::new("/"), inputs.caller.absolute(file));
    let of_policy = workspace
        .into_iter()
        .flat_map(|workspace| {
            inputs.policy.protect.iter().map(|path| UnresolvedPath::new(&workspace.path, path))
        })
        .chain(inputs.policy.files.iter().map(of_file))
        .map(|way| (way, WalkAim::Path));
    for way in secrets {
        protect_way(view, &grants, &mut PathWalk::new(&grants.bases, way, WalkAim::Path), &mut protected)?;
    }
    // What is found in repositories may be a command's, and take all that is left.
    let ways = of_policy.chain(git::of_user(inputs.caller)).chain(obeyed.paths);
    let walks = ways.map(|(way, aim)| PathWalk::new(&grants.bases, &way, aim));
    grants.as_a_command(|| protect_all(view, &grants, walks.collect(), &mut protected))?;
    Watch::once(&mut protected.watches);
    grants.hold(&mut protected.watches)?;
    close_pins(view);
    Ok(protected)
}

/// Protects what each walk leads to, and then what the links in it lead to, and so on.
fn protect_all<'g>(
    view: &mut View,
    grants: &'g WritableGrants,
    mut walks: VecDeque<PathWalk<'g>>,
    protected: &mut Protected,
) -> Result<(), Error> {
    // Links may lead in circles. Who comes back to a directory goes on only if he has more links left than before.
    let mut fewest: HashMap<PathBuf, u32> = HashMap::new();
    while let Some(mut walk) = walks.pop_front() {
        if walk.links() > 0 && protected.left.is_over() {
            protected.gaps.push(Gap { path: walk.here().to_owned(), why: Why::TooMany });
            continue;
        }
        let Some((at, metadata)) = protect_way(view, grants, &mut walk, protected)? else { continue };
        if walk.aim() == WalkAim::GitSign && metadata.is_dir() {
            continue;
        }
        let before = fewest.get(&at).copied();
        if before.is_none() {
            let linked = other_names(&at, &metadata, &mut protected.left);
            protected.gaps.extend(linked.map(|(path, why)| Gap { path, why }));
            bind_everywhere(view, grants, &at)?;
        }
        if before.is_none_or(|links| walk.links() < links) {
            walks.extend(protect_links(&walk, &at, protected));
            fewest.insert(at, walk.links());
        }
    }
    Ok(())
}

/// The walks along the links in what is protected.
fn protect_links<'g>(walk: &PathWalk<'g>, thing: &Path, protected: &mut Protected) -> Vec<PathWalk<'g>> {
    let gap = |why| Gap { path: thing.to_owned(), why };
    let mut walks = links_in(walk, thing, &mut protected.left).unwrap_or_else(|error| {
        protected.gaps.push(gap(Why::Unseen(failure::words(&error))));
        Vec::new()
    });
    let most = MOST_FOLLOWED.min(protected.left.links);
    if walks.len() > most {
        protected.gaps.push(gap(Why::TooMany));
        walks.truncate(most);
    }
    protected.left.links -= walks.len();
    walks
}

/// Walks to the end, so that the way leads nowhere else after the command than before. Says what is there.
fn protect_way(
    view: &mut View,
    grants: &WritableGrants,
    walk: &mut PathWalk<'_>,
    protected: &mut Protected,
) -> Result<Option<(PathBuf, fs::Metadata)>, Error> {
    while let Some(met) = protected.left.go_on(walk, |path| grants.cover(view, path))? {
        match met {
            WalkStep::Link { at, to } => {
                let watch =
                    grants.split(&at).map(|(base, below)| Watch::new(base, below, below, Expected::Link(to)));
                protected.watches.extend(watch.map(|watch| watch.of_git(walk.aim() != WalkAim::Path)));
                pin_everywhere(view, grants, &at)?;
                if protected.left.is_over() {
                    protected.gaps.push(Gap { path: at, why: Why::TooMany });
                    return Ok(None);
                }
            }
            WalkStep::Up { at } => pin_everywhere(view, grants, &at)?,
            WalkStep::Nothing { first, path } => {
                protected.watches.extend(watch_absent(grants, &path, &first, walk));
                pin_everywhere(view, grants, &first)?;
                return Ok(None);
            }
            WalkStep::Thing { at, metadata } => return Ok(Some((at, metadata))),
            // All that is in it is kept as it is. Where the way leads to is not known.
            WalkStep::Far { at, is_told } => {
                let metadata = fs::symlink_metadata(&at).ok().filter(|_| is_told);
                protected.gaps.push(Gap { path: at.clone(), why: Why::Far });
                return Ok(metadata.map(|metadata| (at, metadata)));
            }
        }
    }
    Ok(None)
}

/// The whole path is what must not appear, not only its first missing part.
fn watch_absent(grants: &WritableGrants, path: &Path, first: &Path, walk: &PathWalk<'_>) -> Option<Watch> {
    let (base, first) = grants.split(first)?;
    let path = lexical::below(path, base)?;
    let expected = match walk.aim() {
        _ if is_new_repository(path, first) => Expected::NoRepository,
        WalkAim::GitSign => Expected::NoFile,
        WalkAim::GitList => Expected::NoEntry,
        WalkAim::Git | WalkAim::Path => Expected::Absent,
    };
    let watch = Watch::new(base, path, first, expected).of_git(walk.aim() != WalkAim::Path);
    Some(watch.led_by(walk.link()))
}

/// Links that lie directly in a protected directory, such as hooks kept elsewhere: what they lead to is obeyed too. At
/// most one more than are followed.
///
/// # Errors
/// It cannot be looked at, or there is too much.
fn links_in<'g>(walk: &PathWalk<'g>, thing: &Path, left: &mut Left) -> io::Result<Vec<PathWalk<'g>>> {
    let mut walks = Vec::new();
    let entries = match fs::read_dir(thing) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(walks),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        left.entry()?;
        if entry.file_type()?.is_symlink() && walks.len() <= MOST_FOLLOWED {
            walks.push(walk.along(&entry.path(), &fs::read_link(entry.path())?));
        }
    }
    Ok(walks)
}

/// Pins the way to the host's `path` in every place where it is seen.
fn pin_everywhere(view: &mut View, grants: &WritableGrants, path: &Path) -> Result<(), Error> {
    grants.seen_at(view, path).iter().try_for_each(|place| pin::way_to(view, place))
}

/// Binds the host's `path` over itself, read-only, in every place where it is seen.
fn bind_everywhere(view: &mut View, grants: &WritableGrants, path: &Path) -> Result<(), Error> {
    let source = pin::exact(path)?;
    for place in grants.seen_at(view, path) {
        pin::way_to(view, &place)?;
        let node = Node::Bind { source: source.clone(), access: Access::Read };
        view.wall("protected path", &place, node, Protection::ProtectedPaths);
    }
    Ok(())
}

/// A pin that was there before the directory around it became read-only would be a writable place in it.
fn close_pins(view: &mut View) {
    let pin = |(at, place): (&Path, &ViewEntry)| match &place.node {
        Node::Bind { source, access: Access::Write } if place.origin == Origin::Wall => {
            Some((at.to_owned(), source.clone()))
        }
        _ => None,
    };
    // Parents come first: a pin that is closed closes those in it.
    let pins: Vec<(PathBuf, BindSource)> = view.iter().filter_map(pin).collect();
    for (at, source) in pins {
        let around = view.mount_above(&at).map(|(_, place)| &place.node);
        if matches!(around, Some(Node::Bind { access: Access::Read, .. })) {
            let node = Node::Bind { source, access: Access::Read };
            view.wall("protected path", &at, node, Protection::ProtectedPaths);
        }
    }
}

/// The file, or one directly in the directory, that has another name, by which it can be written; or that there are too many
/// to find out.
fn other_names(path: &Path, metadata: &fs::Metadata, left: &mut Left) -> Option<(PathBuf, Why)> {
    if !metadata.is_dir() {
        return (metadata.is_file() && metadata.nlink() > 1).then(|| (path.to_owned(), Why::Linked));
    }
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if let Err(error) = left.entry() {
            return Some((path.to_owned(), Why::Unseen(failure::words(&error))));
        }
        let is_sample = entry.path().extension().is_some_and(|extension| extension == "sample");
        if entry.metadata().is_ok_and(|it| it.is_file() && it.nlink() > 1) && !is_sample {
            return Some((entry.path(), Why::Linked));
        }
    }
    None
}

/// Whether making `path` is legitimate because all of its repository is yet to be made (`git init`).
fn is_new_repository(path: &Path, missing: &Path) -> bool {
    missing == Path::new(".git") && path != missing
}

// What is not protected in full, and why.

/// Links that are followed of those that lie in one directory: each is a mount of every command.
pub(crate) const MOST_FOLLOWED: usize = 256;

/// Of those that lie in all protected directories.
pub(crate) const MOST_FOLLOWED_IN_ALL: usize = 2048;

/// Entries of protected directories that are looked at.
const MOST_ENTRIES: u32 = 50_000;

/// Steps behind links, in all.
const MOST_STEPS: u32 = 1 << 14;

/// How much of what links lead to may be looked at yet: commands lay as many as they like, and each start has to look.
#[derive(Debug)]
pub(crate) struct Left {
    pub(crate) links: usize,
    entries: u32,
    steps: u32,
}

impl Default for Left {
    fn default() -> Self {
        Self { links: MOST_FOLLOWED_IN_ALL, entries: MOST_ENTRIES, steps: MOST_STEPS }
    }
}

impl Left {
    /// Counts one of the entries.
    ///
    /// # Errors
    /// There were too many.
    pub(crate) fn entry(&mut self) -> io::Result<()> {
        self.entries = self.entries.checked_sub(1).ok_or_else(|| io::Error::other("too many entries"))?;
        Ok(())
    }

    /// [`PathWalk::go_on`], counted. What there is no link on the way to is always gone to.
    pub(crate) fn go_on(
        &mut self,
        walk: &mut PathWalk<'_>,
        is_covered: impl Fn(&Path) -> bool,
    ) -> Result<Option<WalkStep>, Error> {
        let before = walk.steps();
        let met = walk.go_on(is_covered)?;
        if walk.links() > 0 {
            self.steps = self.steps.saturating_sub(walk.steps() - before);
        }
        Ok(met)
    }

    /// Whether no more links are followed.
    pub(crate) fn is_over(&self) -> bool {
        self.steps == 0
    }
}

/// Something that commands can write all the same, or that leads to it.
#[derive(Debug)]
pub(crate) struct Gap {
    pub(crate) path: PathBuf,
    pub(crate) why: Why,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// A file has other names, by which it can be written.
    Linked,
    /// There are more links in a directory than are followed.
    TooMany,
    /// Not all that is in a protected directory was looked at: what it was that was in the way.
    Unseen(String),
    /// A repository has more submodules and linked worktrees than are looked at.
    Beyond,
    /// A way that leads on from there is too long.
    Far,
}

impl Why {
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Linked => "has other hard links, by which it can be written".to_owned(),
            Self::TooMany => format!(
                "has more than {MOST_FOLLOWED} symbolic links in it, or there are more than {MOST_FOLLOWED_IN_ALL} in all, or they lead \
                 over too many others: what the rest leads to is not protected"
            ),
            Self::Unseen(cause) => format!(
                "is read-only, but could not be read completely ({cause}): targets of links in it are not protected"
            ),
            Self::Beyond => format!(
                "has more submodules and linked worktrees than are looked at ({} in {} entries of all repositories, {} directories \
                 or {} bytes deep): its modules and worktrees are read-only as a whole, and targets of links in them are not protected",
                modules::MOST,
                modules::MOST_ENTRIES,
                modules::DEEPEST,
                modules::LONGEST
            ),
            Self::Far => {
                "is where a way gets too long to be followed: what it leads to is not protected".to_owned()
            }
        }
    }

    pub(crate) fn remedy(&self) -> &'static str {
        match self {
            Self::Linked => "remove the other links",
            Self::TooMany => "have fewer links there, and protect what they lead to by its name",
            Self::Beyond => {
                "remove submodules and worktrees that are not needed (`git worktree prune`), or grant fewer repositories"
            }
            Self::Far => "remove the links, or the directories, that make the way so long",
            Self::Unseen(_) => {
                "give yourself access to all that is in it, and remove what does not belong to git"
            }
        }
    }
}
