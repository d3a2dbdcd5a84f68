//! Protected paths: what programs outside trust or execute stays read-only inside a writable grant.
//!
//! An existing path is bound read-only over itself. Every directory on the way to it is bound over itself
//! too, so that commands cannot rename it. A missing path or a link cannot be bound: `recheck` looks at it
//! after the command.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::policy::glob::Pattern;
use crate::policy::profile::Git;
use crate::protect::git::{modules, obeyed};
use crate::protect::grants::WritableGrants;
use crate::protect::watch::{Expected, Watch};
use crate::protect::{git, home, named};
use crate::report::enforcement::{Enforcement, Protection, State};
use crate::report::error::Error;
use crate::report::failure;
use crate::report::place_kind::PlaceKind;
use crate::sys::inode::Identity;
use crate::sys::lexical;
use crate::view::inputs::Inputs;
use crate::view::paths::source::BindSource;
use crate::view::paths::walk::{PathWalk, UnresolvedPath, WalkAim, WalkStep};
use crate::view::{Access, Node, Origin, View, ViewEntry, pin};

/// The result of [`protect`].
#[derive(Debug, Default)]
pub(crate) struct Protected {
    /// Paths that cannot be bound, to look at after the command.
    pub(crate) watches: Vec<Watch>,
    /// Directories of the host, existing or not. What is added to them may have to be protected too.
    pub(crate) listed: Vec<PathBuf>,
    /// The patterns of the policy.
    pub(crate) patterns: Vec<Pattern>,
    /// What is not fully protected.
    gaps: Vec<Gap>,
    /// How much may still be looked at.
    budget: LinkBudget,
}

impl Protected {
    /// Enters into the report how the paths are protected, or what is not fully protected.
    ///
    /// # Errors
    /// With profile `ci-only`, if something is not fully protected.
    pub(crate) fn report(&self, inputs: &Inputs<'_>, enforcement: &mut Enforcement) -> Result<(), Error> {
        if let Some(Gap { path, reason: gap }) = self.gaps.first() {
            let reason = format!("{} {}", failure::shown(path), gap.text());
            if inputs.policy.profile.meaning().is_strict {
                let remedy = Some(gap.remedy().into());
                return Err(Error::Unavailable { protection: Protection::ProtectedPaths, reason, remedy });
            }
            let detail = format!("{reason}; {}", gap.remedy());
            enforcement.set(Protection::ProtectedPaths, State::Degraded, detail);
            return Ok(());
        }
        if inputs.policy.git == Git::Trust {
            let detail = "off for git (trust): commands may change hooks and configuration of repositories, which git \
                          outside obeys; the policy's own paths are read-only";
            enforcement.not_asked(Protection::ProtectedPaths, detail);
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

/// Protects paths in all writable grants: the policy's paths in the workspace, the policy's own files, what
/// git and programs of the caller's home obey, and the links to `secrets`, because Kennel finds these secrets
/// through the links.
///
/// # Errors
/// Another process replaces parts of a path, or the caller may not look at one.
pub(crate) fn protect(
    view: &mut View,
    inputs: &Inputs<'_>,
    workspace: Option<&BindSource>,
    secrets: &[UnresolvedPath],
) -> Result<Protected, Error> {
    let grants = WritableGrants::of(view);
    let obeyed = grants.as_a_command(|| grants.obeyed(inputs.policy.git))?;
    let gaps = obeyed.incomplete.into_iter().map(|(path, cause)| Gap { path, reason: cause.into() });
    let mut protected = Protected { listed: obeyed.listed, gaps: gaps.collect(), ..Protected::default() };
    for way in secrets {
        protect_walk(view, &grants, &mut PathWalk::new(&grants.bases, way, WalkAim::Path), &mut protected)?;
    }
    grants.as_a_command(|| {
        let named = named::paths(view, inputs, workspace, &grants)?;
        protected.listed.extend(named.listed);
        protected.patterns = named.patterns;
        let of_home = home::obeyed(view, inputs, &grants);
        let named = named.paths.into_iter().chain(of_home).map(|path| (path, WalkAim::Path));
        // Last, because commands may have made what is in repositories, and it may use up the budget.
        let ways = named.chain(git::user_config(inputs.caller)).chain(obeyed.paths);
        let walks = ways.map(|(way, aim)| PathWalk::new(&grants.bases, &way, aim));
        protect_all(view, &grants, walks.collect(), &mut protected)
    })?;
    Watch::dedup(&mut protected.watches);
    grants.hold(&mut protected.watches)?;
    close_pins(view);
    Ok(protected)
}

/// Protects the end of each walk, then the targets of links in it, and so on.
fn protect_all<'g>(
    view: &mut View,
    grants: &'g WritableGrants,
    mut walks: VecDeque<PathWalk<'g>>,
    protected: &mut Protected,
) -> Result<(), Error> {
    // Links may form circles. A directory is looked at again only if fewer links led to it than before.
    let mut fewest: HashMap<PathBuf, u32> = HashMap::new();
    while let Some(mut walk) = walks.pop_front() {
        if walk.links() > 0 && protected.budget.is_spent() {
            protected.gaps.push(Gap { path: walk.here().to_owned(), reason: GapReason::TooMany });
            continue;
        }
        let Some((at, metadata)) = protect_walk(view, grants, &mut walk, protected)? else { continue };
        if walk.aim() == WalkAim::GitRepositoryFile && metadata.is_dir() {
            continue;
        }
        let before = fewest.get(&at).copied();
        if before.is_none() {
            let linked = other_names(&at, &metadata, &mut protected.budget);
            protected.gaps.extend(linked);
            bind_everywhere(view, grants, &at, walk.aim())?;
        }
        if before.is_none_or(|links| walk.links() < links) {
            walks.extend(protect_links(&walk, &at, protected));
            fewest.insert(at, walk.links());
        }
    }
    Ok(())
}

/// Walks along the links in a protected directory.
fn protect_links<'g>(walk: &PathWalk<'g>, thing: &Path, protected: &mut Protected) -> Vec<PathWalk<'g>> {
    let gap = |reason| Gap { path: thing.to_owned(), reason };
    let mut walks = links_in(walk, thing, &mut protected.budget).unwrap_or_else(|error| {
        protected.gaps.push(gap(GapReason::Unseen(failure::words(&error))));
        Vec::new()
    });
    let most = MOST_FOLLOWED.min(protected.budget.links);
    if walks.len() > most {
        protected.gaps.push(gap(GapReason::TooMany));
        walks.truncate(most);
    }
    protected.budget.links -= walks.len();
    walks
}

/// Walks to the end, and makes sure that the path leads to the same place after the command. Returns what is
/// there.
fn protect_walk(
    view: &mut View,
    grants: &WritableGrants,
    walk: &mut PathWalk<'_>,
    protected: &mut Protected,
) -> Result<Option<(PathBuf, fs::Metadata)>, Error> {
    while let Some(step) = protected.budget.next_step(walk, |path| grants.is_covered(view, path))? {
        match step {
            WalkStep::Link { at, to } => {
                let watch =
                    grants.split(&at).map(|(base, below)| Watch::new(base, below, below, Expected::Link(to)));
                protected.watches.extend(watch.map(|watch| watch.with_aim(walk.aim())));
                pin_everywhere(view, grants, &at)?;
                if protected.budget.is_spent() {
                    protected.gaps.push(Gap { path: at, reason: GapReason::TooMany });
                    return Ok(None);
                }
            }
            WalkStep::Up { at } => pin_everywhere(view, grants, &at)?,
            WalkStep::Missing { first, path } => {
                protected.watches.extend(watch_absent(grants, &path, &first, walk));
                pin_everywhere(view, grants, &first)?;
                return Ok(None);
            }
            WalkStep::Found { at, metadata } => return Ok(Some((at, metadata))),
            // The directory where the walk stops becomes read-only. What the rest leads to is unknown.
            WalkStep::TooLong { at, is_reported } => {
                let metadata = fs::symlink_metadata(&at).ok().filter(|_| is_reported);
                protected.gaps.push(Gap { path: at.clone(), reason: GapReason::TooLong });
                return Ok(metadata.map(|metadata| (at, metadata)));
            }
        }
    }
    Ok(None)
}

/// The whole path must not appear, not only its first missing part.
fn watch_absent(grants: &WritableGrants, path: &Path, first: &Path, walk: &PathWalk<'_>) -> Option<Watch> {
    let (base, first) = grants.split(first)?;
    let path = lexical::below(path, base)?;
    let expected = match walk.aim() {
        _ if is_new_repository(path, first) => Expected::NoRepository,
        WalkAim::GitRepositoryFile => Expected::NoFile,
        WalkAim::GitList | WalkAim::GitOfUser => Expected::NoEntry,
        WalkAim::Git | WalkAim::Path => Expected::Absent,
    };
    let watch = Watch::new(base, path, first, expected).with_aim(walk.aim());
    Some(watch.with_link(walk.link()))
}

/// Walks along links directly in a protected directory, such as hooks kept elsewhere, because their targets
/// are obeyed too. Returns at most one more than [`MOST_FOLLOWED`].
///
/// # Errors
/// The directory cannot be read, or it has too many entries.
fn links_in<'g>(walk: &PathWalk<'g>, thing: &Path, budget: &mut LinkBudget) -> io::Result<Vec<PathWalk<'g>>> {
    let mut walks = Vec::new();
    let entries = match fs::read_dir(thing) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(walks),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        budget.entry()?;
        if entry.file_type()?.is_symlink() && walks.len() <= MOST_FOLLOWED {
            walks.push(walk.walk_along(&entry.path(), &fs::read_link(entry.path())?));
        }
    }
    Ok(walks)
}

/// Pins the way to the host's `path` in every place where the sandbox shows it.
fn pin_everywhere(view: &mut View, grants: &WritableGrants, path: &Path) -> Result<(), Error> {
    grants.shown_at(view, path).iter().try_for_each(|place| pin::parents_of(view, place))
}

/// Binds the host's `path` read-only over itself in every place where the sandbox shows it.
fn bind_everywhere(view: &mut View, grants: &WritableGrants, path: &Path, aim: WalkAim) -> Result<(), Error> {
    let source = pin::exact_source(path)?;
    let what = if aim.is_of_repository() { PlaceKind::ObeyedByGit } else { PlaceKind::ProtectedPath };
    for place in grants.shown_at(view, path) {
        pin::parents_of(view, &place)?;
        let node = Node::Bind { source: source.clone(), access: Access::Read };
        view.wall(what, &place, node, Protection::ProtectedPaths);
    }
    Ok(())
}

/// Makes pins read-only if they are inside a directory that became read-only later. Else they would stay
/// writable.
fn close_pins(view: &mut View) {
    let pin = |(at, place): (&Path, &ViewEntry)| match &place.node {
        Node::Bind { source, access: Access::Write } if place.origin == Origin::Wall => {
            Some((at.to_owned(), source.clone()))
        }
        _ => None,
    };
    // Parents come first, so a pin that becomes read-only does the same for pins inside it.
    let pins: Vec<(PathBuf, BindSource)> = view.iter().filter_map(pin).collect();
    for (at, source) in pins {
        let around = view.mount_above(&at).map(|(_, place)| &place.node);
        if matches!(around, Some(Node::Bind { access: Access::Read, .. })) {
            let node = Node::Bind { source, access: Access::Read };
            view.wall(PlaceKind::ProtectedPath, &at, node, Protection::ProtectedPaths);
        }
    }
}

/// Finds a file that commands can write by another hard link: the path itself, or a file directly in the
/// directory. It also reports a directory with too many entries to look at.
fn other_names(path: &Path, metadata: &fs::Metadata, budget: &mut LinkBudget) -> Option<Gap> {
    let linked = |path| Gap { path, reason: GapReason::Linked };
    if !metadata.is_dir() {
        return (metadata.is_file() && metadata.nlink() > 1).then(|| linked(path.to_owned()));
    }
    let mut names: BTreeMap<Identity, (PathBuf, u64)> = BTreeMap::new();
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if let Err(error) = budget.entry() {
            return Some(Gap { path: path.to_owned(), reason: GapReason::Unseen(failure::words(&error)) });
        }
        let is_sample = entry.path().extension().is_some_and(|extension| extension == "sample");
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_file() && metadata.nlink() > 1 && !is_sample {
            let all = names.entry(Identity::of_metadata(&metadata));
            let left = &mut all.or_insert_with(|| (entry.path(), metadata.nlink())).1;
            *left = left.saturating_sub(1);
        }
    }
    // Names in the directory itself are protected with it.
    names.into_values().find_map(|(path, others)| (others > 0).then(|| linked(path)))
}

/// Whether creating `path` is legitimate, because its whole repository does not exist yet (`git init`).
fn is_new_repository(path: &Path, missing: &Path) -> bool {
    missing == Path::new(".git") && path != missing
}

// Limits, and what is not fully protected.

/// Links that are followed in one directory. Each needs a mount for every command.
pub(crate) const MOST_FOLLOWED: usize = 256;

/// Links that are followed in all protected directories together.
pub(crate) const MOST_FOLLOWED_IN_ALL: usize = 2048;

/// Entries of protected directories that are looked at.
const MOST_ENTRIES: u32 = 50_000;

/// Steps of all walks after their first link.
const MOST_STEPS: u32 = 1 << 14;

/// What may still be looked at behind links. Commands can make any number of links, and every later start
/// looks at them.
#[derive(Debug)]
pub(crate) struct LinkBudget {
    pub(crate) links: usize,
    entries: u32,
    steps: u32,
}

impl Default for LinkBudget {
    fn default() -> Self {
        Self { links: MOST_FOLLOWED_IN_ALL, entries: MOST_ENTRIES, steps: MOST_STEPS }
    }
}

impl LinkBudget {
    /// Counts one entry.
    ///
    /// # Errors
    /// There were too many.
    pub(crate) fn entry(&mut self) -> io::Result<()> {
        self.entries = self.entries.checked_sub(1).ok_or_else(|| io::Error::other("too many entries"))?;
        Ok(())
    }

    /// [`PathWalk::next_step`], counted. Steps before the first link do not count.
    pub(crate) fn next_step(
        &mut self,
        walk: &mut PathWalk<'_>,
        is_covered: impl Fn(&Path) -> bool,
    ) -> Result<Option<WalkStep>, Error> {
        let before = walk.steps();
        let step = walk.next_step(is_covered)?;
        if walk.links() > 0 {
            self.steps = self.steps.saturating_sub(walk.steps() - before);
        }
        Ok(step)
    }

    /// Whether no more links are followed.
    pub(crate) fn is_spent(&self) -> bool {
        self.steps == 0
    }
}

/// Something that commands can still write, or a link to it.
#[derive(Debug)]
pub(crate) struct Gap {
    pub(crate) path: PathBuf,
    pub(crate) reason: GapReason,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GapReason {
    /// A file has other hard links, by which commands can write it.
    Linked,
    /// There are more links than Kennel follows.
    TooMany,
    /// A protected directory could not be read completely, with the cause.
    Unseen(String),
    /// A repository has more submodules and linked worktrees than Kennel looks at.
    Beyond,
    /// A path that goes on from here is too long.
    TooLong,
}

impl From<obeyed::Incomplete> for GapReason {
    fn from(incomplete: obeyed::Incomplete) -> Self {
        match incomplete {
            obeyed::Incomplete::Beyond => Self::Beyond,
            obeyed::Incomplete::Cause(cause) => Self::Unseen(cause),
        }
    }
}

impl GapReason {
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Linked => "has other hard links, by which it can be written".to_owned(),
            Self::TooMany => format!(
                "has more than {MOST_FOLLOWED} symbolic links in it, or there are more than {MOST_FOLLOWED_IN_ALL} in all, or their \
                 targets lead over too many others: what the rest leads to is not protected"
            ),
            Self::Unseen(cause) => format!(
                "is read-only, but could not be read completely ({cause}): targets of links in it are not protected"
            ),
            Self::Beyond => format!(
                "has more submodules and linked worktrees than Kennel looks at ({} in {} entries of all repositories, {} directories \
                 or {} bytes deep): its modules and worktrees are read-only as a whole, and targets of links in them are not protected",
                modules::MOST,
                modules::MOST_ENTRIES,
                modules::DEEPEST,
                modules::LONGEST
            ),
            Self::TooLong => {
                "is where a path gets too long to be followed: what it leads to is not protected".to_owned()
            }
        }
    }

    pub(crate) fn remedy(&self) -> &'static str {
        match self {
            Self::Linked => "remove the other links",
            Self::TooMany => "have fewer links there, and protect their targets by name",
            Self::Beyond => {
                "remove submodules and worktrees that are not needed (`git worktree prune`), or grant fewer repositories"
            }
            Self::TooLong => "remove the links, or the directories, that make the path so long",
            Self::Unseen(_) => {
                "give yourself access to all entries in it, and remove what does not belong to git"
            }
        }
    }
}
