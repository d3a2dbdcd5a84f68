//! The plan: policy, view and facts of the host become sections of steps that the inside carries out. Here:
//! the section, and how paths and attributes of mounts are written in steps.

pub(crate) mod bridge;
pub(crate) mod cgroup;
pub(crate) mod compile;
pub(crate) mod emit;
pub(crate) mod environment;
pub(crate) mod landlock;
pub(crate) mod layers;
pub(crate) mod limits;
pub(crate) mod namespaces;
pub(crate) mod network;
pub(crate) mod overlay;
pub(crate) mod pseudoterminal;
pub(crate) mod seccomp;
pub(crate) mod sections;
pub(crate) mod worker_mounts;

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use kennel_helper::plan::{Entry, Step, Within};
use kennel_helper::wire::Field;

use crate::policy::Policy;
use crate::policy::profile::TmpLife;
use crate::policy::require::Requirement;
use crate::report::enforcement::Protection;
use crate::sys::lexical;
use crate::view::root::over;
use crate::view::{Access, Node, View};

/// A step of a section, and the protection that it serves.
pub(crate) struct PlannedStep<'s> {
    pub(crate) protection: Protection,
    pub(crate) step: Step<'s>,
}

/// A list of encoded steps, and the protection that each belongs to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Section {
    pub(crate) bytes: Vec<u8>,
    protections: Vec<Protection>,
}

impl Section {
    /// Appends a step. If it fails, the sandbox does not start.
    pub(crate) fn push(&mut self, protection: Protection, step: &Step<'_>) {
        self.put(protection, step, false);
    }

    /// Appends a step that may fail if the policy says `if_available` for `protection`.
    pub(crate) fn push_by(&mut self, policy: &Policy, protection: Protection, step: &Step<'_>) {
        let optional = policy.effective_requirement(protection) == Requirement::IfAvailable;
        self.put(protection, step, optional);
    }

    /// Appends a step whose failure leaves something out and weakens nothing.
    pub(crate) fn push_optional(&mut self, protection: Protection, step: &Step<'_>) {
        self.put(protection, step, true);
    }

    fn put(&mut self, protection: Protection, step: &Step<'_>, optional: bool) {
        Entry { optional, step: *step }.put(&mut self.bytes);
        self.protections.push(protection);
    }

    /// The steps of `self`, then those of `other`.
    pub(crate) fn followed_by(&self, other: &Self) -> Self {
        Self {
            bytes: [&*self.bytes, &other.bytes].concat(),
            protections: [&*self.protections, &other.protections].concat(),
        }
    }

    /// The step at `index`.
    pub(crate) fn step(&self, index: u32) -> Option<PlannedStep<'_>> {
        let index = usize::try_from(index).ok()?;
        let entry = kennel_helper::plan::entries(&self.bytes).nth(index)??;
        Some(PlannedStep { protection: *self.protections.get(index)?, step: entry.step })
    }
}

pub(crate) const RDONLY: u64 = libc::MOUNT_ATTR_RDONLY;

pub(crate) const TMPFS_FLAGS: u64 = libc::MS_NOSUID | libc::MS_NODEV;

/// The sandbox's own /dev/null, as a path for steps. Its mount is already read-only.
pub(crate) const NULL: &CStr = c"dev/null";

/// A step that makes a mount read-only; with `recursive` also all mounts below it.
pub(crate) fn read_only(target: &CStr, recursive: bool) -> Step<'_> {
    Step::SetAttributes { target, attributes: RDONLY, recursive: recursive.into() }
}

/// A path of the sandbox for a step: relative to the root.
pub(crate) fn relative(path: &Path) -> CString {
    let below = lexical::below(path, Path::new("/")).unwrap_or(path).as_os_str();
    let bytes = if below.is_empty() { b"." } else { below.as_bytes() };
    // The policy refuses NUL bytes, and paths of the host have none. A path cut at a NUL names another path,
    // and its step fails.
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    CString::new(&bytes[..end]).unwrap_or_default()
}

/// A path of the host for a step.
pub(crate) fn absolute(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

/// Whether the path to `target` leads through something that others can change: a directory of the host, or a
/// private directory that commands share.
pub(crate) fn within(view: &View, target: &Path, tmp: TmpLife) -> Within {
    let changes = |above: &Path| match view.get(above).map(|place| &place.node) {
        Some(Node::Bind { .. } | Node::Layered { .. } | Node::Merged { .. } | Node::Root { .. }) => true,
        Some(Node::Private { .. } | Node::Tmpfs { .. }) => tmp == TmpLife::Session,
        _ => false,
    };
    if lexical::ancestors(target).skip(1).any(changes) { Within::Granted } else { Within::Root }
}

/// The path of the sandbox's own empty directory.
pub(crate) fn empty_directory(view: &View) -> &'static Path {
    if view.root.is_some() {
        return Path::new(over::EMPTY);
    }
    let own_run = view.get(Path::new("/run")).is_none_or(|place| place.node == Node::Dir);
    Path::new(EMPTY[usize::from(!own_run)])
}

/// The sandbox's own empty directory. Covers are binds of it. The second path is for a policy that mounts
/// something at /run.
const EMPTY: [&str; 2] = ["/run/empty", "/.empty"];

pub(crate) fn attributes(access: Access) -> u64 {
    match access {
        Access::Read => RDONLY | NOSUID | NODEV,
        Access::Write => NOSUID | NODEV,
        // The read-only flag protects the mode, owner and times of the node. Writes to the device still work.
        Access::Device => RDONLY | NOSUID,
    }
}

pub(crate) const NOSUID: u64 = libc::MOUNT_ATTR_NOSUID;

pub(crate) const NODEV: u64 = libc::MOUNT_ATTR_NODEV;
