//! Why a command could not use a path: which wall is in the way, and which setting would allow it.
//!
//! Of the host it reads only what the sandbox shows. It never looks whether a hidden path exists, so no
//! command learns that from the text that its caller gets. If the policy does not make a reason certain, the
//! text says that it is possible.

pub(crate) mod context;
pub(crate) mod hints;
#[cfg(test)]
mod tests;
pub(crate) mod typed;
pub(crate) mod unread;

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, readlinkat};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, access};

use crate::launch::restrict::Restriction;
use crate::plan::compile::Compiled;
use crate::plan::compile::policy_facts::PolicyFacts;
use crate::policy::profile::Git;
use crate::policy::secrets::is_secret_of;
use crate::policy::units::Size;
use crate::protect::git;
use crate::report::denial::{Basis, Denial, WOULD_ALLOW, shown, trust_git};
use crate::report::enforcement::Protection;
use crate::report::place_kind::PlaceKind;
use crate::report::remedy::{Setting, SettingKey, remedy};
use crate::sys::dirfd::{MOST_LINKS, open_without_links};
use crate::view::node::TmpfsSize;
use crate::view::paths::source::exists;
use crate::view::{Access, Node, Origin, View, ViewEntry};

/// Explains from the view and the settings of the policy.
#[derive(Clone, Debug)]
pub(crate) struct Explainer {
    pub(crate) view: Arc<View>,
    pub(crate) policy: Arc<PolicyFacts>,
}

/// What a command tried with a path, as far as its message says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    pub(crate) errno: Errno,
    pub(crate) writes: bool,
}

/// A reason, before it is attached to a path.
struct Finding {
    protection: Protection,
    reason: String,
    basis: Basis,
    setting: Option<Setting>,
}

impl Explainer {
    /// `None` for a plan without a policy.
    pub(crate) fn of(compiled: &Compiled) -> Option<Self> {
        let policy = Arc::clone(compiled.commands.facts.as_ref()?);
        Some(Self { view: Arc::clone(&compiled.view), policy })
    }

    /// Explains why an attempt with `path` in the sandbox failed. `None` if the sandbox is not the reason.
    /// `restrictions` lists the restrictions of the command.
    pub(crate) fn explain(
        &self,
        path: &Path,
        Attempt { errno, writes }: Attempt,
        restrictions: &[Restriction],
    ) -> Option<Denial> {
        let itself = resolve(&self.view, path, LastLink::Kept)?;
        let target = resolve(&self.view, path, LastLink::Followed)?;
        let replaced = match errno {
            Errno::EROFS => self.replaced_file(&target, errno),
            Errno::EBUSY | Errno::EXDEV => self.replaced_file(&itself, errno),
            _ => None,
        };
        let is_replacement = replaced.is_some();
        let (subject, finding) = match (replaced, errno) {
            (Some(replaced), _) => replaced,
            (None, Errno::EROFS) => match self.read_only(&target, restrictions) {
                Some(finding) => (target, finding),
                None => (itself.clone(), self.read_only(&itself, restrictions)?),
            },
            (None, Errno::ENOENT) => (target.clone(), self.absent(&target, writes, restrictions)?),
            (None, Errno::EBUSY) => (itself.clone(), self.in_use(&itself)?),
            (None, Errno::EXDEV) => (itself.clone(), self.lower_directory(&itself)?),
            (None, Errno::ENOSPC) => (target.clone(), self.full(&target)?),
            _ => return None,
        };
        let Finding { protection, reason, basis, setting } = finding;
        let would = match errno {
            _ if is_replacement => " in place of its own grant would allow it",
            Errno::ENOENT if writes => " would allow it, if there is such a directory outside",
            Errno::EROFS if self.view.host_path(&subject).is_none() => {
                " would allow it, if there is such a directory outside"
            }
            Errno::ENOENT => " would show it, if there is such a path outside",
            Errno::ENOSPC => " would give more",
            _ => WOULD_ALLOW,
        };
        let remedy = setting.map(|setting| remedy![setting, would]);
        Some(Denial { remedy, ..Denial::new(protection, shown(&subject), reason, basis) })
    }

    /// A granted file that a program tried to replace: it makes another file beside it and renames that,
    /// which needs the directory. `path` is the granted file, or the other one.
    fn replaced_file(&self, path: &Path, errno: Errno) -> Option<(PathBuf, Finding)> {
        let directory = path.parent()?;
        let is_granted = |(target, place): &(&Path, &ViewEntry)| {
            let is_file = matches!(&place.node, Node::Bind { source, .. } if !source.is_dir());
            is_file && place.origin == Origin::Policy && target.parent() == Some(directory)
        };
        let is_shown = self.view.host_path(directory).is_some();
        let (target, place) = match self.view.get(path) {
            // Only the file itself is read-only.
            Some(_) if errno == Errno::EROFS => return None,
            Some(place) => Some((path, place)).filter(is_granted)?,
            None if is_shown => return None,
            None => self.view.within(directory).find(is_granted)?,
        };
        let Node::Bind { source, .. } = &place.node else { return None };
        let parent = source.path.parent().filter(|parent| {
            !is_shown
                && !self.policy.homes.iter().any(|home| home.starts_with(parent))
                && is_writable_outside(parent, parent)
        });
        let instead = parent.and_then(|parent| grant(SettingKey::Rw, parent, directory));
        let reason = match is_shown {
            true => {
                "it has a grant of its own, so no other file can take its place; its directory is shown anyway"
            }
            false => "it is granted without its directory, so no other file can take its place",
        };
        Some((target.to_owned(), certain(Protection::Root, reason, instead)))
    }

    /// Whether `path` is in a private place of the sandbox, where much is looked for that is not there yet.
    /// HOME is none of those, and neither is what is near the `directory` of the command.
    pub(crate) fn is_own(&self, path: &Path, directory: &Path) -> bool {
        let Some((at, ViewEntry { node: Node::Private { .. } | Node::Tmpfs { .. }, .. })) = self.place(path)
        else {
            return false;
        };
        let is_near =
            directory.ancestors().any(|near| near != at && near.starts_with(&at) && path.starts_with(near));
        !is_near && !path.starts_with(&self.policy.home)
    }

    /// The shortest path of the private file system that is full.
    pub(crate) fn full_place(&self, is_full: impl Fn(&TmpfsSize) -> bool) -> Option<&Path> {
        let is_it = |node: &Node| match node {
            Node::Tmpfs { size, .. } => is_full(size),
            Node::Private { .. } => is_full(&self.policy.private),
            _ => false,
        };
        let full = self.view.iter().filter(|(_, place)| is_it(&place.node)).map(|(path, _)| path);
        full.min_by_key(|path| path.as_os_str().len())
    }

    /// The entry of the view that holds `path`, and its path.
    fn place(&self, path: &Path) -> Option<(PathBuf, &ViewEntry)> {
        path.ancestors().find_map(|above| Some((above.to_owned(), self.view.get(above)?)))
    }

    /// EROFS: the path is read-only.
    fn read_only(&self, path: &Path, restrictions: &[Restriction]) -> Option<Finding> {
        if let Some(finding) = restricted(path, restrictions) {
            return Some(finding);
        }
        let Some((at, place)) = self.place(path) else { return Some(self.own_root(path)) };
        let is_it = at == path;
        match &place.node {
            Node::Bind { access: Access::Read, .. } | Node::Merged { .. } => {
                Some(self.read_only_bind(path, &at, place))
            }
            Node::Dir => Some(self.own_root(path)),
            Node::Cover => {
                Some(certain(place.protection, format!("read-only: it is covered ({})", place.what), None))
            }
            Node::File { .. } | Node::OwnFile { .. } if is_it => {
                Some(certain(place.protection, "read-only: it is a file of the sandbox's own", None))
            }
            Node::Proc { .. } => {
                let reason = "read-only: it is in /proc, of root, who owns the settings of the kernel there";
                Some(certain(Protection::Root, reason, None))
            }
            _ => None,
        }
    }

    /// Something that is made in a directory that the sandbox does not show: programs make the directories
    /// above first.
    fn own_root(&self, path: &Path) -> Finding {
        let parent = path.parent().filter(|parent| is_deep(parent));
        let parent = parent.filter(|parent| self.may_be_granted(parent) && !self.is_secret(parent));
        let setting = parent.and_then(|parent| grant(SettingKey::Rw, parent, parent));
        certain(Protection::Root, "read-only: it is in the sandbox's own root", setting)
    }

    /// A read-only bind of the host.
    fn read_only_bind(&self, path: &Path, at: &Path, place: &ViewEntry) -> Finding {
        let Some(source) = place.node.source() else {
            return certain(Protection::Root, "read-only", None);
        };
        let could_be_written =
            is_writable_outside(&self.view.host_path(path).unwrap_or_default(), &source.path);
        let if_writable = |setting: Option<Setting>| setting.filter(|_| could_be_written);
        match place.origin {
            Origin::Wall => {
                let reason =
                    format!("read-only: {} {}; change it outside of the sandbox", place.what, shown(at));
                certain(place.protection, reason, self.git_setting(at, path))
            }
            Origin::Policy if place.what == PlaceKind::Workspace && self.policy.read_only_workspace => {
                let reason = "read-only: the workspace of profile read-only";
                certain(Protection::Root, reason, if_writable(Some(SettingKey::Profile.to("repo-write"))))
            }
            Origin::Policy => {
                let reason = format!("read-only: {} is granted for reading", shown(at));
                let instead = grant(SettingKey::Rw, &source.path, at);
                certain(Protection::Root, reason, if_writable(instead))
            }
            Origin::Profile if place.what == PlaceKind::Cache => {
                let reason =
                    format!("read-only: {} is a cache, which the policy shows for reading", shown(at));
                certain(Protection::Root, reason, Some(SettingKey::Caches.to("private")))
            }
            Origin::Profile if place.what == PlaceKind::WorkTree => {
                let reason = format!("read-only: {} is not in the workspace", shown(at));
                let instead = is_plain(at).then(|| SettingKey::Workspace.to(at.display()));
                certain(Protection::Root, reason, instead)
            }
            Origin::Profile if place.what == PlaceKind::CommonRepository => {
                let reason = format!("read-only: {} has worktrees in it, or may have some", shown(at));
                let instead = grant(SettingKey::Rw, &source.path, at);
                certain(Protection::Root, reason, if_writable(instead))
            }
            Origin::Profile if place.what == PlaceKind::Repository && self.policy.git == Git::ReadOnly => {
                let reason = format!("read-only: the repository {}", shown(at));
                certain(Protection::Root, reason, Some(SettingKey::Git.to("protect")))
            }
            Origin::Profile => {
                let reason = format!("read-only: {} is shown by the profile; work on a copy", shown(at));
                certain(Protection::Root, reason, None)
            }
        }
    }

    /// ENOENT: the sandbox does not show the path. Kennel does not look whether it exists outside.
    fn absent(&self, path: &Path, writes: bool, restrictions: &[Restriction]) -> Option<Finding> {
        if restrictions.iter().any(|restriction| restriction.hides(path)) {
            return Some(possible("the command was started without it", None));
        }
        let place = self.place(path);
        if self.view.has_children(path) || path == Path::new("/") {
            return None;
        }
        // A new file needs its directory.
        let setting = match path.parent() {
            Some(parent) if writes => {
                grant(SettingKey::Rw, parent, parent).filter(|_| parent != Path::new("/"))
            }
            _ => grant(SettingKey::Ro, path, path),
        };
        let setting = setting.filter(|_| !path.starts_with("/proc"));
        let reason = match &place {
            Some((at, ViewEntry { node: Node::Absent, what, .. })) => {
                format!("{} is left out ({what})", shown(at))
            }
            Some((at, _)) if at == path => return None,
            _ if is_secret_of(path, &self.policy.homes) => {
                "it is a known place of secrets, which the sandbox hides".to_owned()
            }
            None | Some((_, ViewEntry { node: Node::Dir, .. })) => "the sandbox does not show it".to_owned(),
            Some((at, ViewEntry { node: Node::Cover, what, .. })) => {
                format!("{} is covered ({what})", shown(at))
            }
            Some((at, ViewEntry { node: Node::Private { .. } | Node::Tmpfs { .. }, .. })) => {
                format!("{} is the sandbox's own, and empty at the start", shown(at))
            }
            _ => return None,
        };
        Some(possible(&reason, setting))
    }

    /// EBUSY: a mount point can be neither renamed nor removed.
    fn in_use(&self, path: &Path) -> Option<Finding> {
        let place = self.view.get(path).filter(|place| place.node.is_mount())?;
        let reason = format!("it is a mount of the sandbox ({}), which stays in its place", place.what);
        Some(certain(place.protection, reason, self.git_setting(path, path)))
    }

    /// EXDEV: rename(2) in an overlay of a directory that was there before.
    fn lower_directory(&self, path: &Path) -> Option<Finding> {
        let (at, place) = self.place(path)?;
        let is_overlay = self.view.overlay.as_ref().is_some_and(|overlay| overlay.target == at);
        let lower =
            self.view.host_path(path).filter(|_| is_overlay || matches!(place.node, Node::Layered { .. }))?;
        let is_directory = fs::symlink_metadata(lower).is_ok_and(|it| it.is_dir());
        let reason = "an overlay renames no directory that was there before: copy it, and delete the old one";
        is_directory.then(|| possible(reason, None))
    }

    /// The setting that would let the command change `path`, if the wall at `at` is there for git, or on the
    /// way to one that is.
    fn git_setting(&self, at: &Path, path: &Path) -> Option<Setting> {
        let is_for_git = self.view.within(at).any(|(_, place)| place.what == PlaceKind::ObeyedByGit);
        let is_obeyed = path.iter().any(|name| git::OBEYED.iter().any(|obeyed| name == *obeyed));
        is_for_git.then(|| match self.policy.git {
            Git::ReadOnly if !is_obeyed => SettingKey::Git.to("protect"),
            _ => trust_git(),
        })
    }

    /// ENOSPC: a private file system is full.
    fn full(&self, path: &Path) -> Option<Finding> {
        let (at, place) = self.place(path)?;
        match &place.node {
            Node::Layered { layer, .. } if self.view.layers.is_kept(*layer) => None,
            Node::Private { .. } | Node::Layered { .. } => {
                let TmpfsSize { bytes: size, inodes, .. } = self.policy.private;
                let size = Size::from_bytes(size);
                let reason = format!("full: private places hold {size} and {inodes} inodes together");
                Some(possible(&reason, Some(SettingKey::TmpSize.to(twice(size)))))
            }
            Node::Tmpfs { size, .. } => {
                let (held, at) = (Size::from_bytes(size.bytes), shown(&at));
                let more =
                    is_plain(at.as_ref()).then(|| SettingKey::Tmpfs.to(format!("{at}:{}", twice(held))));
                Some(possible(&format!("full: {at} holds {held} and {} inodes", size.inodes), more))
            }
            _ => None,
        }
    }
}

/// Whether a directory is below one such as /srv or /var, which would be more than is meant.
fn is_deep(directory: &Path) -> bool {
    directory.parent().is_some_and(|above| above != Path::new("/"))
}

/// A larger size.
fn twice(size: Size) -> Size {
    Size::from_bytes(size.bytes().saturating_mul(2))
}

fn certain(protection: Protection, reason: impl Into<String>, setting: Option<Setting>) -> Finding {
    Finding { protection, reason: reason.into(), basis: Basis::Derived, setting }
}

fn possible(reason: &str, setting: Option<Setting>) -> Finding {
    Finding { protection: Protection::Root, reason: reason.to_owned(), basis: Basis::Possible, setting }
}

/// Whether a restriction of the command makes the path read-only.
fn restricted(path: &Path, restrictions: &[Restriction]) -> Option<Finding> {
    let takes = |restriction: &Restriction| match restriction {
        Restriction::ReadOnly(grant) | Restriction::Hide(grant) => path.starts_with(grant),
        Restriction::NoNetwork => false,
    };
    let reason = "the command was started without writing there";
    restrictions.iter().any(takes).then(|| certain(Protection::Root, reason, None))
}

/// Whether only the sandbox keeps the caller from writing to `path`. Only then does a grant help. If `path`
/// does not exist, its nearest existing directory within `source` counts.
fn is_writable_outside(path: &Path, source: &Path) -> bool {
    let there = path.ancestors().find(|path| exists(path) || *path == source).unwrap_or(source);
    let read_only = statvfs(there).is_ok_and(|fs| fs.flags().contains(FsFlags::ST_RDONLY));
    !read_only && access(there, AccessFlags::W_OK).is_ok()
}

/// The grant of `source` at `target`, if it can be typed.
fn grant(key: SettingKey, source: &Path, target: &Path) -> Option<Setting> {
    let (from, to) = (source.display(), target.display());
    (is_plain(source) && is_plain(target))
        .then(|| if source == target { key.to(from) } else { key.to(format!("{from}:{to}")) })
}

/// Whether a path reads the same to parsers, shells and people.
fn is_plain(path: &Path) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "/._-+@%,=".contains(c);
    path.to_str().is_some_and(|text| !text.is_empty() && text.chars().all(plain))
}

// Resolving a path inside the sandbox through the links that the sandbox shows. It never lets the kernel
// follow a link on the host: it reads each link through a descriptor that was opened without following any.
// So nobody learns where a hidden link points.

/// Most components of a path that is explained. The time to resolve one grows with their square.
const MOST_PARTS: usize = 128;

/// Most steps to resolve one path. Without it, a chain of links through many directories takes long.
const MOST_STEPS: usize = 2 * MOST_PARTS;

/// What to do with a link in the last component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastLink {
    Followed,
    Kept,
}

/// The absolute path without links, `.` and `..`. `None` if the path is relative, its links form a loop, or
/// it takes too long. Files of private file systems are gone after the command, and their links too, so paths
/// there stay as they are written.
pub(crate) fn resolve(view: &View, path: &Path, last: LastLink) -> Option<PathBuf> {
    let mut todo: VecDeque<OsString> = VecDeque::new();
    prepend(&mut todo, path);
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    if !path.is_absolute() || todo.len() > MOST_PARTS {
        return None;
    }
    for step in 0.. {
        let Some(part) = todo.pop_front() else { break };
        if step == MOST_STEPS {
            return None;
        }
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        let ends = todo.is_empty() && last == LastLink::Kept;
        match link(view, &next).filter(|_| !ends) {
            Some(to) => {
                links += 1;
                if links > MOST_LINKS || todo.len() > MOST_PARTS {
                    return None;
                }
                if to.is_absolute() {
                    at = PathBuf::from("/");
                }
                prepend(&mut todo, &to);
            }
            None => at = next,
        }
    }
    Some(at)
}

/// Puts the components of `path` in front of `todo`.
fn prepend(todo: &mut VecDeque<OsString>, path: &Path) {
    for part in path.components().rev() {
        match part {
            Component::Normal(name) => todo.push_front(name.to_owned()),
            Component::ParentDir => todo.push_front("..".into()),
            _ => {}
        }
    }
}

/// The target of a link at `place`, if a link is there.
fn link(view: &View, place: &Path) -> Option<PathBuf> {
    match view.get(place).map(|place| &place.node) {
        Some(Node::Symlink { points_to }) => Some(points_to.clone()),
        Some(_) => None,
        None => {
            let host = view.host_path(place)?;
            let fd = open_without_links(&host, OFlag::O_NOFOLLOW).ok()?;
            readlinkat(&fd, OsStr::new("")).ok().filter(|to| !to.is_empty()).map(PathBuf::from)
        }
    }
}
