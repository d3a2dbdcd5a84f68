//! What the view makes of a path that a command could not use: which wall it is, and which flag would allow it.
//!
//! Reads nothing of the host but what the sandbox shows: whether a path that it hides is there is never looked at, so
//! that no command learns it by what its caller is told. What is not certain under the policy is said to be possible.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, readlinkat};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, access};

use crate::plan::network;
use crate::plan::restrict::Restriction;
use crate::policy::network::NetworkMode;
use crate::policy::profile::Reach;
use crate::policy::units::Size;
use crate::report::denial::{Basis, Denial};
use crate::report::enforcement::Protection;
use crate::sys::dirfd::{MOST_LINKS, open_without_links};
use crate::view::inputs::Inputs;
use crate::view::source::exists;
use crate::view::tmpfs_size::TmpfsSize;
use crate::view::{Access, Node, Origin, View, ViewEntry};

/// What errors are explained by: what is where inside, and what is not there at all.
#[derive(Debug)]
pub(crate) struct Terms {
    view: Arc<View>,
    read_only_workspace: bool,
    /// What the private places hold together.
    pub(crate) private: TmpfsSize,
    pub(crate) network: NetworkMode,
    /// The flags before the host that would give it a proxy, where the profile goes together with one.
    pub(crate) proxy_flags: Option<&'static str>,
    /// The only ports that TCP connects to on the host's network, where Landlock narrows it.
    pub(crate) ports: Option<Vec<u16>>,
}

/// A finding about a path, not yet with a subject.
struct Finding {
    protection: Protection,
    reason: String,
    basis: Basis,
    remedy: Option<String>,
}

impl Terms {
    pub(crate) fn new(inputs: &Inputs<'_>, view: Arc<View>) -> Self {
        Self {
            view,
            read_only_workspace: !inputs.policy.profile.meaning().writes,
            private: TmpfsSize::of_policy(inputs, None),
            network: inputs.policy.effective_network(),
            proxy_flags: proxy_flags(inputs),
            ports: network::ports_of_host(inputs),
        }
    }

    /// Why `path`, as the sandbox has it, answers `errno`, where that is the sandbox's doing. `narrowed` is what the
    /// command goes without.
    pub(crate) fn explain(&self, path: &Path, errno: Errno, narrowed: &[Restriction]) -> Option<Denial> {
        let itself = resolve(&self.view, path, Last::Kept)?;
        let target = resolve(&self.view, path, Last::Followed)?;
        let (subject, finding) = match errno {
            Errno::EROFS => match self.read_only(&target, narrowed) {
                Some(finding) => (target, finding),
                None => (itself.clone(), self.read_only(&itself, narrowed)?),
            },
            Errno::ENOENT => (target.clone(), self.absent(&target, narrowed)?),
            Errno::EBUSY => (itself.clone(), self.in_use(&itself)?),
            Errno::ENOSPC => (target.clone(), self.full(&target)?),
            _ => return None,
        };
        let Finding { protection, reason, basis, remedy } = finding;
        let would = match errno {
            Errno::ENOENT => "would show it, if there is such a path outside",
            Errno::ENOSPC => "would give more",
            _ => "would allow it",
        };
        let reason = crate::report::denial::advice(reason, remedy.as_deref(), would);
        Some(Denial { protection, subject: crate::report::denial::shown(&subject), reason, basis, remedy })
    }

    /// The place that `path` is or lies in.
    fn place(&self, path: &Path) -> Option<(PathBuf, &ViewEntry)> {
        path.ancestors().find_map(|above| Some((above.to_owned(), self.view.get(above)?)))
    }

    /// EROFS: nothing can be written there.
    fn read_only(&self, path: &Path, narrowed: &[Restriction]) -> Option<Finding> {
        if let Some(finding) = went_without(path, narrowed) {
            return Some(finding);
        }
        let Some((at, place)) = self.place(path) else {
            return Some(certain(Protection::Root, "the sandbox's own root is read-only", None));
        };
        let is_it = at == path;
        match &place.node {
            Node::Bind { access: Access::Read, .. } => Some(self.read_only_bind(path, &at, place)),
            Node::Dir => Some(certain(Protection::Root, "the sandbox's own root is read-only", None)),
            Node::Cover => Some(certain(
                place.protection,
                format!("it is covered ({}), and read-only", place.what),
                None,
            )),
            Node::File { .. } | Node::OwnFile { .. } if is_it => {
                Some(certain(place.protection, "it is a read-only file of the sandbox's own", None))
            }
            Node::Proc => Some(certain(Protection::Root, "/proc of the sandbox is read-only", None)),
            _ => None,
        }
    }

    /// Something of the host that the sandbox shows read-only.
    fn read_only_bind(&self, path: &Path, at: &Path, place: &ViewEntry) -> Finding {
        let Node::Bind { source, .. } = &place.node else {
            return certain(Protection::Root, "it is read-only", None);
        };
        let could_be_written =
            is_writable_outside(&self.view.host_path(path).unwrap_or_default(), &source.path);
        let flag = |text: Option<String>| text.filter(|_| could_be_written);
        match place.origin {
            Origin::Wall => {
                let at = crate::report::denial::shown(at);
                // It is kept for the outside: no flag is recommended that would let the command in.
                let reason =
                    format!("it is read-only: {} {at}; change it outside of the sandbox", place.what);
                certain(place.protection, reason, None)
            }
            Origin::Policy if place.what == "workspace" && self.read_only_workspace => {
                let reason = "the workspace is read-only in profile read-only";
                certain(Protection::Root, reason, flag(Some("--profile repo-write".to_owned())))
            }
            Origin::Policy => {
                let reason = format!("{} is granted read-only", crate::report::denial::shown(at));
                let instead = bind_flag("--rw", &source.path, at);
                certain(Protection::Root, reason, flag(instead))
            }
            Origin::Profile => {
                let reason = format!(
                    "{} is shown read-only by the profile; work on a copy",
                    crate::report::denial::shown(at)
                );
                certain(Protection::Root, reason, None)
            }
        }
    }

    /// ENOENT: the sandbox does not show it. Whether it is there outside is not looked at.
    fn absent(&self, path: &Path, narrowed: &[Restriction]) -> Option<Finding> {
        if narrowed.iter().any(|narrowing| narrowing.hides(path)) {
            return Some(possible("the command was started without it", None));
        }
        let place = self.place(path);
        if self.view.has_children(path) || path == Path::new("/") {
            return None;
        }
        let remedy = bind_flag("--ro", path, path).filter(|_| !path.starts_with("/proc"));
        let reason = match &place {
            Some((at, _)) if at == path => return None,
            None | Some((_, ViewEntry { node: Node::Dir, .. })) => "the sandbox does not show it".to_owned(),
            Some((at, ViewEntry { node: Node::Cover, what, .. })) => {
                format!("{} is covered ({what})", crate::report::denial::shown(at))
            }
            Some((at, ViewEntry { node: Node::Private { .. } | Node::Tmpfs { .. }, .. })) => {
                format!("{} is the sandbox's own, and empty at the start", crate::report::denial::shown(at))
            }
            _ => return None,
        };
        Some(possible(&reason, remedy))
    }

    /// EBUSY: a mount point can be neither renamed nor removed.
    fn in_use(&self, path: &Path) -> Option<Finding> {
        let place = self.view.get(path).filter(|place| place.node.is_mount())?;
        let reason = format!("it is a mount of the sandbox ({}), which stays in its place", place.what);
        Some(certain(place.protection, reason, None))
    }

    /// ENOSPC: a private place is full.
    fn full(&self, path: &Path) -> Option<Finding> {
        let (at, place) = self.place(path)?;
        match &place.node {
            Node::Private { .. } => {
                let TmpfsSize { size, inodes, .. } = self.private;
                let size = Size::from_bytes(size);
                let reason = format!("private places hold {size} and {inodes} inodes together");
                Some(possible(&reason, Some(format!("--tmp-size {}", twice(size)))))
            }
            Node::Tmpfs { room, .. } => {
                let (size, at) = (Size::from_bytes(room.size), crate::report::denial::shown(&at));
                let flag = format!("--tmpfs {at}:{}", twice(size));
                let remedy = Some(flag).filter(|_| is_plain(at.as_ref()));
                Some(possible(&format!("{at} holds {size} and {} inodes", room.inodes), remedy))
            }
            _ => None,
        }
    }
}

/// A size that is more, and can be typed.
fn twice(size: Size) -> Size {
    Size::from_bytes(size.bytes().saturating_mul(2))
}

/// A rule makes the proxy the way out by itself, unless the policy says that there is none.
fn proxy_flags(inputs: &Inputs<'_>) -> Option<&'static str> {
    match (inputs.policy.profile.meaning().reach, inputs.policy.network.mode) {
        (Reach::Nowhere, _) => None,
        (Reach::Allowed, None) => Some("--allow"),
        _ => Some("--net proxy --allow"),
    }
}

fn certain(protection: Protection, reason: impl Into<String>, remedy: Option<String>) -> Finding {
    Finding { protection, reason: reason.into(), basis: Basis::Derived, remedy }
}

fn possible(reason: &str, remedy: Option<String>) -> Finding {
    Finding { protection: Protection::Root, reason: reason.to_owned(), basis: Basis::Possible, remedy }
}

/// What the command's own narrowings make read-only.
fn went_without(path: &Path, narrowed: &[Restriction]) -> Option<Finding> {
    let takes = |narrowing: &Restriction| match narrowing {
        Restriction::ReadOnly(grant) | Restriction::Hide(grant) => path.starts_with(grant),
        Restriction::NoNetwork => false,
    };
    let reason = "the command was started without writing there";
    narrowed.iter().any(takes).then(|| certain(Protection::Root, reason, None))
}

/// Whether nothing but the sandbox keeps the caller from writing to what lies at `path`, or would lie there in `source`:
/// only then does a grant help.
fn is_writable_outside(path: &Path, source: &Path) -> bool {
    let there = path.ancestors().find(|path| exists(path) || *path == source).unwrap_or(source);
    let read_only = statvfs(there).is_ok_and(|fs| fs.flags().contains(FsFlags::ST_RDONLY));
    !read_only && access(there, AccessFlags::W_OK).is_ok()
}

/// `--ro` or `--rw` for `source` at `target`, where a flag can spell it.
fn bind_flag(flag: &str, source: &Path, target: &Path) -> Option<String> {
    if !is_plain(source) || !is_plain(target) {
        return None;
    }
    let (source, same, target) = (source.display(), source == target, target.display());
    Some(if same { format!("{flag} {source}") } else { format!("{flag} {source}:{target}") })
}

/// Whether a path means the same to flags, shells and eyes.
fn is_plain(path: &Path) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "/._-+@%,=".contains(c);
    path.to_str().is_some_and(|text| !text.is_empty() && text.chars().all(plain))
}

// Where a path leads inside, through the links that the sandbox shows. Follows no link on the host by itself: each is
// read by a descriptor that no link led to, so that nobody learns where a hidden one points.

/// More parts than that no path of the kernel's has.
const MOST_PARTS: usize = 4096;

/// What to do with a link at the very end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    Followed,
    Kept,
}

/// The absolute path without links, `.` and `..`; `None` where it is relative or leads in circles. What lies in private
/// places is gone, links too: there it is taken as it is written.
pub(crate) fn resolve(view: &View, path: &Path, last: Last) -> Option<PathBuf> {
    let mut todo: VecDeque<OsString> = VecDeque::new();
    prepend(&mut todo, path);
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    if !path.is_absolute() || todo.len() > MOST_PARTS {
        return None;
    }
    while let Some(part) = todo.pop_front() {
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        let ends = todo.is_empty() && last == Last::Kept;
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

/// The parts of `path`, in front of those that are left.
fn prepend(todo: &mut VecDeque<OsString>, path: &Path) {
    for part in path.components().rev() {
        match part {
            Component::Normal(name) => todo.push_front(name.to_owned()),
            Component::ParentDir => todo.push_front("..".into()),
            _ => {}
        }
    }
}

/// Where the link at a place leads, if there is one.
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
