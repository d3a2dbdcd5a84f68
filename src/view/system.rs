//! What every profile shows of the system: programs and libraries, the few files of /etc that programs need,
//! /dev, /proc, and private places to write. The lists are data; change them here.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::fcntl::OFlag;

use crate::host::mounts::mounts_of;
use crate::policy::network::NetworkMode;
use crate::report::enforcement::Protection;
use crate::report::error::Error;
use crate::sys::dirfd::open_without_links;
use crate::sys::inode::{is_proc, stores};
use crate::view::inputs::Inputs;
use crate::view::resolved_path::ResolvedPath;
use crate::view::source::{BindSource, SourceKind, exists};
use crate::view::{Access, Node, View, ViewEntry, pin, secrets};

/// Directories of the system, shown read-only. Most hosts have merged them: then they are symbolic links.
const SYSTEM: &[&str] = &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// Directories and large files of /etc that programs need, shown read-only. A mount each: keep it short.
const ETC_SHOWN: &[&str] = &[
    "/etc/alternatives",
    "/etc/crypto-policies",
    "/etc/fonts",
    "/etc/java-11-openjdk",
    "/etc/java-17-openjdk",
    "/etc/java-21-openjdk",
    "/etc/java-25-openjdk",
    "/etc/ld.so.cache",
    "/etc/pki",
    "/etc/ssl/certs",
];

/// Small files of /etc that programs need. They are copied, which is cheaper than a mount.
const ETC_COPIED: &[&str] = &[
    "/etc/gitconfig",
    "/etc/ld.so.conf",
    "/etc/locale.conf",
    "/etc/localtime",
    "/etc/os-release",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
];

/// What is larger is no configuration file.
const LARGEST_COPY: usize = 256 * 1024;

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

/// Files of /proc that show the caller's keys, which are not the command's.
const PROC_OF_HOST: &[&str] = &["/proc/key-users", "/proc/keys"];

/// Files of /proc that show more of the host than of the sandbox. Their modes keep an ordinary user out; for
/// real root, who owns them, they are covered. (Others, such as kcore and kmsg, ask for a capability as well.)
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

/// Directories of the host's root that FullDev does not show: the sandbox has its own, or none.
const NOT_OF_THE_TREE: &[&str] = &["dev", "lost+found", "proc", "run", "sys", "tmp"];

/// Whether every profile shows `path`, which has no link in it.
pub(crate) fn is_of_system(path: &Path) -> bool {
    SYSTEM.iter().any(|directory| path.starts_with(directory))
}

/// Adds the system to the view.
///
/// # Errors
/// A host without `/dev/null`, which covers of files are made from.
pub(crate) fn show(view: &mut View, inputs: &Inputs<'_>) -> Result<(), Error> {
    devices(view, inputs);
    if view.get(Path::new("/dev/null")).is_none() {
        return Err(Error::Unavailable {
            protection: Protection::Root,
            reason: "the host has no device /dev/null, which files are covered with".to_owned(),
            remedy: Some("mount a devtmpfs at /dev, or: mknod -m 666 /dev/null c 1 3".to_owned()),
        });
    }
    private(view);
    if inputs.policy.profile.meaning().shows_host {
        whole_tree(view, inputs);
        return Ok(());
    }
    for path in SYSTEM {
        show_root_entry(view, Path::new(path));
    }
    etc(view);
    view.offer("directory", "/var", Node::Dir);
    view.offer("private directory", "/var/tmp", Node::Private { mode: 0o1777 });
    view.offer("link", "/var/run", Node::Symlink { points_to: "/run".into() });
    Ok(())
}

/// An entry of the host's root directory as it is there: a link as the same link, a directory read-only.
fn show_root_entry(view: &mut View, path: &Path) {
    if let Ok(points_to) = fs::read_link(path) {
        view.offer("link", path, Node::Symlink { points_to });
    } else if let Ok(source) = BindSource::look(path) {
        view.offer("system", path, Node::Bind { source, access: Access::Read });
    }
}

/// FullDev: everything of the host, read-only. Secrets are covered later.
fn whole_tree(view: &mut View, inputs: &Inputs<'_>) {
    let entries = fs::read_dir("/").into_iter().flatten().flatten();
    for entry in entries.filter(|entry| !NOT_OF_THE_TREE.iter().any(|name| entry.file_name() == *name)) {
        show_root_entry(view, &entry.path());
    }
    // A socket lies there that answers questions about names: only for who has the host's network anyway.
    let has_network = inputs.policy.effective_network() == NetworkMode::Host;
    if has_network && let Ok(source) = BindSource::look(Path::new("/run/systemd/resolve")) {
        view.offer("system", "/run/systemd/resolve", Node::Bind { source, access: Access::Read });
    }
}

fn etc(view: &mut View) {
    for path in ETC_SHOWN {
        if let Ok(source) = BindSource::look(Path::new(path)) {
            view.offer("system", *path, Node::Bind { source, access: Access::Read });
        }
    }
    for path in ETC_COPIED {
        if let Some(node) = copy(Path::new(path)) {
            view.offer("system", *path, node);
        }
    }
    let names = "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n";
    view.offer("file", "/etc/nsswitch.conf", file(names));
    view.offer("link", "/etc/mtab", Node::Symlink { points_to: "/proc/self/mounts".into() });
}

/// The file that `path` leads to, through links: what a program would read there. None where it cannot be read.
fn copy(path: &Path) -> Option<Node> {
    let contents = fs::read(path).ok().filter(|contents| contents.len() <= LARGEST_COPY)?;
    Some(file(contents))
}

/// A small text file of the sandbox's own.
pub(crate) fn file(contents: impl Into<Vec<u8>>) -> Node {
    Node::File { contents: contents.into(), mode: 0o644 }
}

fn devices(view: &mut View, inputs: &Inputs<'_>) {
    for path in DEVICES {
        if let Ok(source) = BindSource::look(Path::new(path))
            && source.kind == SourceKind::Device
        {
            view.offer("device", *path, Node::Bind { source, access: Access::Device });
        }
    }
    for (path, points_to) in DEVICE_LINKS {
        view.offer("link", *path, Node::Symlink { points_to: points_to.into() });
    }
    view.offer("terminals", "/dev/pts", Node::DevPts);
    view.offer("processes", "/proc", Node::Proc);
    let of_root = if inputs.caller.is_root() { PROC_OF_ROOT } else { &[] };
    for path in PROC_OF_HOST.iter().chain(of_root).filter(|path| exists(Path::new(path))) {
        crate::view::secrets::cover(view, "kernel file", Path::new(path), SourceKind::File);
    }
}

/// The places a command may write to whatever the profile, empty and gone with it.
fn private(view: &mut View) {
    view.offer("private directory", "/tmp", Node::Private { mode: 0o1777 });
    view.offer("private directory", "/dev/shm", Node::Private { mode: 0o1777 });
    view.offer("directory", "/run", Node::Dir);
}

// The caller's own bundles of certificates: a network may have authorities of its own. Shown by what the caller's variables
// name, which is no grant: whatever else is there is left out.

/// Variables by which the caller names bundles.
const VARIABLES: &[&str] = &[
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",
];

/// Shows the bundles where nothing shows them yet, and nothing hides them. To be called when all is in the view that is
/// granted writable.
pub(crate) fn show_certificates(view: &mut View, inputs: &Inputs<'_>) {
    for (variable, led) in named(inputs) {
        if let Some(link) = led.by_commands(view) {
            let link = link.display();
            tracing::warn!(variable, %link, "no certificates are shown: commands could have laid this link to them");
            continue;
        }
        let source = led.source;
        if view.host_path(&source.path).is_none() && !view.is_covered(&source.path) {
            view.offer("certificates", source.path.clone(), Node::Bind { source, access: Access::Read });
        }
    }
}

/// The variables of those that are seen.
pub(crate) fn variables(inputs: &Inputs<'_>, view: &View) -> Vec<(OsString, OsString)> {
    let is_seen =
        |path: &PathBuf| view.host_path(path).is_some_and(|shown| shown == *path) && !view.is_covered(path);
    let seen = |(variable, led): (&str, ResolvedPath)| {
        let path = led.by_commands(view).is_none().then_some(led.source.path).filter(is_seen)?;
        Some((variable.into(), path.into()))
    };
    named(inputs).filter_map(seen).collect()
}

/// The bundles that variables name, as far as anybody may read them. `ci-only` has nothing of the caller's.
fn named(inputs: &Inputs<'_>) -> impl Iterator<Item = (&'static str, ResolvedPath)> {
    let has_them = inputs.policy.effective_network() == NetworkMode::Proxy
        && inputs.policy.profile.meaning().knows_caller;
    VARIABLES.iter().filter(move |_| has_them).filter_map(|&name| {
        let path = Path::new(inputs.caller.variable(name)?);
        let led = path.is_absolute().then(|| ResolvedPath::follow(path).ok())??;
        let path = &led.source.path;
        let of_kernel = ["/proc", "/sys", "/dev"].iter().any(|above| path.starts_with(above));
        let is_public = led.metadata.is_file() && led.metadata.mode() & 0o004 != 0;
        let is_usable = is_public && !of_kernel && !secrets::is_secret(path, inputs.caller);
        is_usable.then_some((name, led))
    })
}

// File systems of the kernel's own, wherever the host has mounted them: a chroot has a procfs, the root of a container a
// sysfs. Root owns the knobs in them, also without a capability, and a procfs shows the host's processes. Reads only.

/// The one that is never shown: the sandbox has its own.
const PROC: &str = "proc";

/// Those in which something is set, or which hold the host's devices, by their names in /proc/self/mountinfo.
const KNOBS: [&str; 17] = [
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

/// What one is called in messages.
const WHAT: &str = "file system of the kernel's";

/// Whether a grant may show what lies there, a device aside.
///
/// # Errors
/// It lies in a procfs, or is to be writable and lies in another file system of the kernel's.
pub(crate) fn may_show(source: &BindSource, access: Access) -> io::Result<()> {
    let refuse = |reason: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    // As a directory, so that what is mounted when it is asked for is.
    let flags = if source.is_dir() { OFlag::O_DIRECTORY } else { OFlag::empty() };
    let held = open_without_links(&source.path, flags)?;
    if is_proc(&held)? {
        return refuse("lies in a procfs of the host, which is never shown");
    }
    if access == Access::Write && stores(&held).is_err() {
        return refuse("lies in a file system of the kernel's, which can only be shown read-only");
    }
    Ok(())
}

/// Covers those that a grant would bring along: every procfs, and the others where commands could write.
///
/// # Errors
/// /proc does not say what is mounted; one cannot be looked at that commands may yet see.
pub(crate) fn mask(view: &mut View, inputs: &Inputs<'_>) -> Result<(), Error> {
    let is_any = |kind: &[u8]| kind == PROC.as_bytes() || KNOBS.iter().any(|knobs| kind == knobs.as_bytes());
    let mut found = mounts_of(is_any).map_err(Error::io("read /proc/self/mountinfo"))?;
    // What lies in another is covered with it.
    found.sort_by(|one, other| one.mount_point.cmp(&other.mount_point));
    for mount in found {
        let path = &*mount.mount_point;
        for target in brought_along(view, path, mount.fs_type == PROC) {
            let Some(BindSource { kind, .. }) = secrets::look(view, inputs, WHAT, path)? else { continue };
            pin::way_to(view, &target)?;
            secrets::cover(
                view,
                WHAT,
                &target,
                if kind == SourceKind::Directory { kind } else { SourceKind::File },
            );
        }
    }
    Ok(())
}

/// Where commands would see what is mounted at the host's `path`, and may not.
fn brought_along(view: &View, path: &Path, is_proc: bool) -> Vec<PathBuf> {
    let may_not = |target: &PathBuf| {
        let writes =
            |(_, place): (&Path, &ViewEntry)| matches!(place.node, Node::Bind { access: Access::Write, .. });
        let is_there = view.host_path(target).is_some_and(|shown| shown == path);
        is_there && (is_proc || view.mount_above(target).is_some_and(writes))
    };
    view.shown_at(path).into_iter().filter(may_not).collect()
}
