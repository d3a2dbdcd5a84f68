//! What every profile shows of the system: programs and libraries, /dev, /proc, and private places.
//!
//! The lists are data: change them here.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::fcntl::OFlag;

use crate::host::mounts::MountTable;
use crate::policy::network::NetworkMode;
use crate::report::enforcement::Protection;
use crate::report::error::Error;
use crate::report::place_kind::PlaceKind;
use crate::sys::dirfd::open_without_links;
use crate::sys::file_system::FileSystem;
use crate::view::inputs::Inputs;
use crate::view::paths::resolved::ResolvedPath;
use crate::view::paths::source::{BindSource, SourceKind, exists};
use crate::view::paths::walk::HostLink;
use crate::view::secrets::cover;
use crate::view::shown::Shown;
use crate::view::{Access, Node, View, ViewEntry, etc, pin, secrets};

/// Directories of the system, shown read-only. On most hosts all but /usr are symbolic links into it. The
/// last two are the stores of Nix and Guix, which every user may read.
const SYSTEM: &[&str] =
    &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store"];

/// Entries of the host's root that are links on some hosts, such as `/home -> var/home` on ostree systems.
/// The view shows such a link, and what it shows below the link is where the link leads.
const OFTEN_LINKS: &[&str] = &["/home", "/mnt", "/opt", "/root", "/srv"];

/// The directory below /usr that is a link out of it on some hosts: `/usr/local -> ../var/usrlocal` on ostree
/// systems.
const USR_LOCAL: &str = "/usr/local";

/// Directories of /sys that lscpu(1), glibc, allocators, Go and JVMs read. Root can write to some of their
/// files: each is mounted read-only.
const SYS_SHOWN: &[&str] =
    &["/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/kernel/mm/transparent_hugepage"];

/// Device nodes that every program may use.
const DEVICES: &[&str] = &["/dev/full", "/dev/null", "/dev/random", "/dev/tty", "/dev/urandom", "/dev/zero"];

/// Links of /dev that programs expect.
const DEVICE_LINKS: &[(&str, &str)] = &[
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/ptmx", "pts/ptmx"),
    ("/dev/stderr", "/proc/self/fd/2"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
];

/// Files of /proc that show the keys of the caller, which commands must not see.
const PROC_KEYS: &[&str] = &["/proc/key-users", "/proc/keys"];

/// Files of /proc that show the host rather than the sandbox. Their modes keep ordinary users out. Root owns
/// them, so they are covered if the caller is root. Others, such as kcore and kmsg, also need a capability.
const PROC_OF_ROOT: &[&str] = &[
    "/proc/allocinfo",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/pagetypeinfo",
    "/proc/sched_debug",
    "/proc/slabinfo",
    "/proc/timer_list",
    "/proc/vmallocinfo",
];

/// Entries of the host's root that profile `full-dev` does not show: the sandbox has its own, or none.
const NOT_SHOWN: &[&str] = &["dev", "lost+found", "proc", "run", "sys", "tmp"];

/// Entries of the host's root that hold homes. `learn` shows the caller's own, and no other.
const HOMES: &[&str] = &["home", "root"];

/// Whether every profile shows `path`, which has no link in it.
pub(crate) fn is_system_path(path: &Path) -> bool {
    SYSTEM.iter().any(|directory| path.starts_with(directory))
}

/// Data of the system's programs outside of /usr, shown read-only: cached fonts, installed packages, formats
/// of TeX.
const DATA: &[&str] = &["/var/cache/fontconfig", "/var/lib/dpkg", "/var/lib/texmf"];

/// Adds the system to the view.
///
/// # Errors
/// The host has no `/dev/null`, which covers of files are made from.
pub(crate) fn show(view: &mut View, inputs: &Inputs<'_>) -> Result<(), Error> {
    show_devices(view, inputs)?;
    show_private(view);
    if inputs.policy.profile.meaning().shows_host {
        return show_whole_tree(view, inputs);
    }
    let root = RootNames::read();
    for path in SYSTEM.iter().map(Path::new).filter(|path| root.may_have(path)) {
        show_root_entry(view, path);
    }
    for path in OFTEN_LINKS.iter().map(Path::new).filter(|path| root.may_be_link(path)) {
        show_root_link(view, path);
    }
    show_usr_local(view);
    etc::show(view, inputs)?;
    show_listed(view, inputs, SYS_SHOWN);
    if inputs.policy.learn {
        show_rest(view);
    }
    if view.is_free(Path::new("/var")) {
        view.offer(PlaceKind::Directory, "/var", Node::Dir);
        view.offer(PlaceKind::Link, "/var/run", Node::Symlink { points_to: "/run".into() });
    }
    show_listed(view, inputs, DATA);
    if view.is_free(Path::new("/var")) || exists(Path::new("/var/tmp")) {
        view.offer(PlaceKind::PrivateDirectory, "/var/tmp", Node::Private { mode: 0o1777 });
    }
    Ok(())
}

/// With `learn`: the entries of the host's root that the profile does not show, read-only, without homes.
/// Secrets are covered later.
fn show_rest(view: &mut View) {
    let is_shown = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        !NOT_SHOWN.iter().chain(HOMES).any(|other| name == *other)
    };
    for entry in fs::read_dir("/").into_iter().flatten().flatten().filter(is_shown) {
        if let Ok(source) = BindSource::exact(&entry.path())
            && view.get(&source.path).is_none()
        {
            view.offer(
                PlaceKind::ShownToLearn,
                source.path.clone(),
                Node::Bind { source, access: Access::Read },
            );
        }
    }
}

/// Shows an entry of the host's root directory: a link as a link, a directory read-only.
fn show_root_entry(view: &mut View, path: &Path) {
    if !show_root_link(view, path)
        && let Ok(source) = BindSource::stat(path)
    {
        view.offer(PlaceKind::System, path, Node::Bind { source, access: Access::Read });
    }
}

/// Shows an entry of the host's root directory if it is a link.
fn show_root_link(view: &mut View, path: &Path) -> bool {
    fs::read_link(path).is_ok_and(|to| view.offer_link(&HostLink { at: path.to_owned(), to }))
}

/// Shows what `/usr/local` leads to, if that is a link. The link itself is in /usr.
fn show_usr_local(view: &mut View) {
    let path = Path::new(USR_LOCAL);
    if fs::read_link(path).is_err() {
        return;
    }
    if let Ok(ResolvedPath { source, metadata, .. }) = ResolvedPath::resolve(path)
        && source.is_dir()
        && metadata.uid() == 0
        && view.is_free(&source.path)
    {
        view.offer(PlaceKind::System, source.path.clone(), Node::Bind { source, access: Access::Read });
    }
}

/// The names in the host's root directory, and which of them are links. `None` if it cannot be listed.
struct RootNames(Option<HashMap<OsString, bool>>);

impl RootNames {
    fn read() -> Self {
        let entry = |entry: fs::DirEntry| {
            let is_link = entry.file_type().map_or(true, |kind| kind.is_symlink());
            (entry.file_name(), is_link)
        };
        let list = || fs::read_dir("/")?.map(|found| found.map(entry)).collect::<io::Result<_>>();
        Self(list().ok())
    }

    /// Whether something may be at the first part of `path`, as far as the list says.
    fn may_have(&self, path: &Path) -> bool {
        let Self(Some(names)) = self else { return true };
        path.iter().nth(1).is_some_and(|first| names.contains_key(first))
    }

    /// Whether an entry may be a link, as far as the list says.
    fn may_be_link(&self, path: &Path) -> bool {
        let Self(Some(names)) = self else { return true };
        path.file_name().is_some_and(|name| names.get(name) == Some(&true))
    }
}

/// Profile `full-dev`: everything of the host, read-only. Secrets are covered later.
fn show_whole_tree(view: &mut View, inputs: &Inputs<'_>) -> Result<(), Error> {
    etc::show(view, inputs)?;
    show_listed(view, inputs, SYS_SHOWN);
    let entries = fs::read_dir("/").into_iter().flatten().flatten();
    for entry in entries.filter(|entry| !NOT_SHOWN.iter().any(|name| entry.file_name() == *name)) {
        show_root_entry(view, &entry.path());
    }
    // systemd-resolved has a socket there that resolves names, so it is shown only together with the host's
    // network.
    let has_network = inputs.policy.effective_network() == NetworkMode::Host;
    if has_network && let Ok(source) = BindSource::stat(Path::new("/run/systemd/resolve")) {
        view.offer(PlaceKind::System, "/run/systemd/resolve", Node::Bind { source, access: Access::Read });
    }
    Ok(())
}

/// Shows what exists of a list, read-only. Profile `ci-only` has none of it.
fn show_listed(view: &mut View, inputs: &Inputs<'_>, paths: &[&str]) {
    for path in paths.iter().filter(|_| inputs.policy.profile.meaning().knows_caller) {
        if let Ok(source) = BindSource::exact(Path::new(path)) {
            view.offer(PlaceKind::System, *path, Node::Bind { source, access: Access::Read });
        }
    }
}

/// Shows the parts of /sys that programs read.
pub(crate) fn show_parts_of_sys(view: &mut View, inputs: &Inputs<'_>) {
    show_listed(view, inputs, SYS_SHOWN);
}

/// Shows devices, terminals and processes.
///
/// # Errors
/// The host has no `/dev/null`, which covers of files are made from.
pub(crate) fn show_devices(view: &mut View, inputs: &Inputs<'_>) -> Result<(), Error> {
    for path in DEVICES {
        if let Ok(source) = BindSource::stat(Path::new(path))
            && source.kind == SourceKind::Device
        {
            view.offer(PlaceKind::Device, *path, Node::Bind { source, access: Access::Device });
        }
    }
    for (path, points_to) in DEVICE_LINKS {
        view.offer(PlaceKind::Link, *path, Node::Symlink { points_to: points_to.into() });
    }
    view.offer(PlaceKind::Terminals, "/dev/pts", Node::DevPts);
    view.offer(PlaceKind::Processes, "/proc", procfs(inputs));
    let of_root = if inputs.caller.is_root() { PROC_OF_ROOT } else { &[] };
    for path in PROC_KEYS.iter().chain(of_root).filter(|path| exists(Path::new(path))) {
        cover(view, PlaceKind::KernelFile, Path::new(path), SourceKind::File);
    }
    if view.get(Path::new("/dev/null")).is_some() {
        return Ok(());
    }
    Err(Error::Unavailable {
        protection: Protection::Root,
        reason: "the host has no device /dev/null, which files are covered with".to_owned(),
        remedy: Some("mount a devtmpfs at /dev, or: mknod -m 666 /dev/null c 1 3".into()),
    })
}

/// Places that commands may write to in every profile. They start empty and end with the sandbox.
fn show_private(view: &mut View) {
    view.offer(PlaceKind::PrivateDirectory, "/tmp", Node::Private { mode: 0o1777 });
    view.offer(PlaceKind::PrivateDirectory, "/dev/shm", Node::Private { mode: 0o1777 });
    view.offer(PlaceKind::Directory, "/run", Node::Dir);
}

// Kernel file systems, wherever the host mounts them: a chroot has a procfs, the root of a container a sysfs.
// A procfs shows the host's processes. In the others, root can change settings of the kernel without any
// capability.

/// Never shown, because the sandbox has its own.
const PROC: &str = "proc";

/// File systems with settings of the kernel or devices of the host, by their names in /proc/self/mountinfo.
const KERNEL_SETTINGS: [&str; 17] = [
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "pstore",
    "resctrl",
    "securityfs",
    "selinuxfs",
    "smackfs",
    "sysfs",
    "tracefs",
    "xenfs",
];

/// Checks that a grant may show a source that is no device.
///
/// # Errors
/// It is in a procfs, or it is to be writable and is in another kernel file system.
pub(crate) fn check_source(source: &BindSource, access: Access) -> io::Result<()> {
    let refuse = |reason: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    // O_DIRECTORY triggers an automount, so the file system that is checked is the mounted one.
    let flags = if source.is_dir() { OFlag::O_DIRECTORY } else { OFlag::empty() };
    let held = open_without_links(&source.path, flags)?;
    let file_system = FileSystem::of(&held)?;
    if file_system.is_proc() {
        return refuse("lies in a procfs of the host, which is never shown");
    }
    if access == Access::Write && file_system.is_of_kernel() {
        return refuse("lies in a kernel file system, which can only be shown read-only");
    }
    Ok(())
}

/// Covers kernel file systems inside grants: every procfs, and the others where commands could write.
///
/// # Errors
/// /proc does not list the mounts. Or a mount cannot be looked at, and a command could still see it.
pub(crate) fn mask(view: &mut View, inputs: &Inputs<'_>) -> Result<(), Error> {
    let unreadable = Error::io("read /proc/self/mountinfo");
    // Sorted, so that a cover comes before the mounts below it.
    let found = inputs.names.mounts().and_then(kernel_mounts).map_err(unreadable)?;
    let shown = view.shown();
    for (path, is_proc) in &found {
        for target in must_be_covered(view, &shown, path, *is_proc) {
            let Some(BindSource { kind, .. }) =
                secrets::find(view, inputs, PlaceKind::KernelFileSystem.as_str(), path)?
            else {
                continue;
            };
            pin::parents_of(view, &target)?;
            secrets::cover(
                view,
                PlaceKind::KernelFileSystem,
                &target,
                if kind == SourceKind::Directory { kind } else { SourceKind::File },
            );
        }
    }
    Ok(())
}

/// Where the host has mounted kernel file systems, and whether each is a procfs.
///
/// # Errors
/// A line of the table cannot be parsed.
fn kernel_mounts(mounts: &MountTable) -> io::Result<BTreeSet<(PathBuf, bool)>> {
    let is_settings = |kind: &[u8]| KERNEL_SETTINGS.iter().any(|name| kind == name.as_bytes());
    let with_kind = |mount: io::Result<(&[u8], PathBuf)>| {
        let (kind, at) = mount?;
        let is_proc = kind == PROC.as_bytes();
        Ok((is_proc || is_settings(kind)).then_some((at, is_proc)))
    };
    mounts.kinds().filter_map(|mount| with_kind(mount).transpose()).collect()
}

/// The places where commands would see the mount at the host's `path` and must not.
fn must_be_covered(view: &View, shown: &Shown, path: &Path, is_proc: bool) -> Vec<PathBuf> {
    let may_not = |target: &PathBuf| {
        let writes =
            |(_, place): (&Path, &ViewEntry)| matches!(place.node, Node::Bind { access: Access::Write, .. });
        let is_there = view.host_path(target).is_some_and(|shown| shown == path);
        is_there && (is_proc || view.mount_above(target).is_some_and(writes))
    };
    shown.at(path).into_iter().filter(may_not).collect()
}

/// A procfs for the command.
///
/// It is writable for an ordinary user: the modes of procfs leave them what belongs to their own processes
/// (names, limits of the out-of-memory killer), as outside. Root owns the settings of the whole kernel, and
/// root of a user namespace the files of init, so its procfs is read-only. So is one below a procfs that this
/// program itself may not write to: the kernel mounts no other (mount_too_revealing()).
pub(crate) fn procfs(inputs: &Inputs<'_>) -> Node {
    let is_read_only = || inputs.names.mounts().map_or(true, |mounts| mounts.is_read_only("/proc"));
    let is_root = inputs.caller.is_root() || inputs.ids().user == 0;
    Node::Proc { is_writable: !is_root && !is_read_only() }
}
