//! From the view to mount steps, in the order the kernel needs them. Reads the host only to see whether a mount
//! point is there: none is ever made on it.

mod emitter;

use std::{
    collections::BTreeSet,
    ffi::{CStr, CString},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use kennel_helper::plan::{Step, Within};

use self::emitter::Emitter;
use super::{
    Parts, lexical, renew, rooms,
    section::Section,
    view::{Access, Node, Place, View},
};
use crate::{
    Error,
    policy::{Protection, TmpLife},
};

pub(super) const RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;
const NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;
const NODEV: u64 = libc::MOUNT_ATTR_NODEV;

const PROC_FLAGS: u64 = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
const DEVPTS_FLAGS: u64 = libc::MS_NOSUID | libc::MS_NOEXEC;
pub(super) const TMPFS_FLAGS: u64 = libc::MS_NOSUID | libc::MS_NODEV;

/// The sandbox's own empty directory, which covers are made from; the second where the policy puts something of
/// its own at /run.
const EMPTY: [&str; 2] = ["/run/empty", "/.empty"];

/// The sandbox's own /dev/null, as steps name it: on a read-only mount already.
pub(super) const NULL: &CStr = c"dev/null";

/// Room in a cover for the mount points of what is granted in it.
const COVER_SIZE: u64 = 64 << 10;

/// A mount that lies in a directory of the host's.
#[derive(Clone, Debug)]
pub(super) struct OnHost {
    /// Its place in the sandbox.
    pub(super) target: PathBuf,
    /// Its mount point on the host.
    pub(super) path: PathBuf,
}

/// Appends the steps that make the view, pivot into it, and close what must not be writable. What workers mount
/// themselves gets a mount point only. Answers what it mounts on the host's directories.
pub(super) fn emit(parts: &Parts<'_>, view: &View, setup: &mut Section) -> Result<Vec<OnHost>, Error> {
    let options = &rooms::of_root(parts, view).options(0o755);
    setup.push(Protection::Root, &Step::NewRoot { options });
    let empty = empty_directory(view);
    let by_worker = |target: &Path, node: &Node| renew::is_mounted_by_worker(parts, view, target, node);
    let (made, on_host) = (BTreeSet::new(), Vec::new());
    let mut emitter = Emitter { view, setup, made, empty, by_worker: &by_worker, on_host };
    // Before everything else, because covers may lie anywhere.
    let above: Vec<&Path> = empty.ancestors().collect();
    for path in above.into_iter().rev().skip(1) {
        emitter.make_dir(path, 0o755);
    }
    // They are made from the sandbox's own /dev/null and files, which have to be there first.
    let is_late = |place: &Place| matches!(place.node, Node::CoverFile | Node::OwnFile { .. });
    let (covers, rest): (Vec<_>, Vec<_>) = view.iter().partition(|(_, place)| is_late(place));
    for (target, place) in rest.into_iter().chain(covers) {
        emitter.place(target, place)?;
    }
    let on_host = emitter.on_host;
    setup.push(Protection::Root, &Step::PivotRoot {});
    for (target, _) in view.iter().filter(|(target, place)| is_filled(view, target, place)) {
        setup.push(Protection::Root, &read_only(&relative(target), false));
    }
    setup.push(Protection::Root, &read_only(c".", false));
    Ok(on_host)
}

/// Appends the steps that put a procfs and a devpts of its own over those that a worker was born with, and walls into
/// them.
pub(super) fn kernel_file_systems(view: &View, tmp: TmpLife, worker: &mut Section) {
    let empty = empty_directory(view);
    let mut emitter = Emitter {
        view,
        setup: worker,
        made: BTreeSet::new(),
        empty,
        by_worker: &|_, _| false,
        on_host: Vec::new(),
    };
    let is_own = |node: &Node| matches!(node, Node::Proc | Node::DevPts);
    for (target, place) in view.iter() {
        let above = view.mount_above(target).map(|(_, above)| &above.node);
        if is_own(&place.node) || above.is_some_and(is_own) {
            emitter.mount(target, place, within(view, target, tmp));
        }
    }
}

/// Whether the way to `target` leads through something that others can change: something of the host's, or a private
/// place that commands share.
pub(super) fn within(view: &View, target: &Path, tmp: TmpLife) -> Within {
    let changes = |above: &Path| match view.get(above).map(|place| &place.node) {
        Some(Node::Bind { .. }) => true,
        Some(Node::Private { .. } | Node::Tmpfs { .. }) => tmp == TmpLife::Session,
        _ => false,
    };
    if lexical::ancestors(target).skip(1).any(changes) { Within::Granted } else { Within::Root }
}

/// The sandbox's own empty directory.
pub(super) fn empty_directory(view: &View) -> &'static Path {
    let own_run = view.get(Path::new("/run")).is_none_or(|place| place.node == Node::Dir);
    Path::new(EMPTY[usize::from(!own_run)])
}

/// Makes a mount read-only, or also all below it.
pub(super) fn read_only(target: &CStr, recursive: bool) -> Step<'_> {
    Step::SetAttributes { target, attributes: RDONLY, recursive: recursive.into() }
}

/// A path of the sandbox as steps want it: relative to the root.
pub(super) fn relative(path: &Path) -> CString {
    let below = lexical::below(path, Path::new("/")).unwrap_or(path).as_os_str();
    let bytes = if below.is_empty() { b"." } else { below.as_bytes() };
    // A NUL cannot come from the host, and the policy refuses it; cutting there names another path, which fails.
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    CString::new(&bytes[..end]).unwrap_or_default()
}

/// A host path for a step.
pub(super) fn absolute(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

/// Whether something is put into this cover, so that it stays writable until then.
fn is_filled(view: &View, target: &Path, place: &Place) -> bool {
    place.node == Node::Cover && view.has_children(target)
}

pub(super) fn attributes(access: Access) -> u64 {
    match access {
        Access::Read => RDONLY | NOSUID | NODEV,
        Access::Write => NOSUID | NODEV,
        // Read-only is about the node's own mode, owner and times: what it stands for is written all the same.
        Access::Device => RDONLY | NOSUID,
    }
}
