//! What a sandbox shows of /etc: all that every user of the host may read, with files of its own among it.
//! Profile `ci-only`, and a host without overlays, shows a few files.
//!
//! The lists are data: change them here.

use std::fs;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::report::error::Error;
use crate::report::place_kind::PlaceKind;
use crate::report::remedy::SettingKey;
use crate::view::inputs::Inputs;
use crate::view::paths::source::BindSource;
use crate::view::{Access, LARGEST_COPY, Node, View};

const ETC: &str = "/etc";

/// Files of /etc that name the users of the host, or that make every program load a library. They are left
/// out.
const ETC_HIDDEN: &[&str] = &[
    "/etc/group-",
    "/etc/ld.so.preload",
    "/etc/passwd-",
    "/etc/subgid",
    "/etc/subgid-",
    "/etc/subuid",
    "/etc/subuid-",
];

/// The id of every sandbox. Programs need one, and the host's would tell a command on which machine it runs.
const MACHINE_ID: &str = "6b656e6e656c6b656e6e656c6b656e6e\n";

/// The notes on a host where /etc cannot be merged.
const SHOWS_FEW: &str = "shows only a few files: no overlay can be mounted over it here (overlayfs; for root also CAP_SETUID \
                         and CAP_SETGID)";
const COVERS_KNOWN: &str = "known secrets in it are covered, and nothing else: no overlay can be mounted over it here \
                            (overlayfs; for root also CAP_SETUID and CAP_SETGID)";

/// Directories and large files of /etc, shown read-only where not all of it is. Each is a mount, so keep the
/// list short.
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

/// Small files of /etc, shown where not all of it is. Kennel copies them, because a mount takes longer.
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

/// Adds /etc to the view. Profile `full-dev` shows the host's, except what not every user may read.
///
/// # Errors
/// /proc does not list the mounts.
pub(crate) fn show(view: &mut View, inputs: &Inputs<'_>) -> Result<(), Error> {
    let is_hosts = inputs.policy.profile.meaning().shows_host;
    if !is_hosts {
        show_own(view);
    }
    if merge(view, inputs) {
        if !is_hosts {
            replace(view);
        }
        return show_mounts(view, inputs);
    }
    if !is_hosts {
        show_least(view);
    }
    Ok(())
}

/// Shows of /etc what every user may read, if this host can. Returns whether it can.
fn merge(view: &mut View, inputs: &Inputs<'_>) -> bool {
    let source = BindSource::exact(Path::new(ETC)).ok().filter(BindSource::is_dir);
    let Some(source) = source.filter(|_| inputs.merges_etc()) else {
        if inputs.policy.profile.meaning().knows_caller {
            let what = if inputs.policy.profile.meaning().shows_host { COVERS_KNOWN } else { SHOWS_FEW };
            view.note(ETC, what, None);
        }
        return false;
    };
    view.offer(PlaceKind::System, ETC, Node::Merged { source });
    true
}

/// Shows what the host has mounted in /etc and every user may read, such as configuration of a container: an
/// overlay does not show mounts. Root does not get such a directory, because root may read every file in it.
fn show_mounts(view: &mut View, inputs: &Inputs<'_>) -> Result<(), Error> {
    for path in inputs.names.mounts().map_err(Error::io("read /proc/self/mountinfo"))?.below(Path::new(ETC)) {
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        let may = |metadata: &Metadata, all: u32| metadata.mode() & all == all;
        let above = path.ancestors().skip(1).take_while(|above| *above != Path::new(ETC));
        let is_reached = above.map(fs::symlink_metadata).all(|it| it.is_ok_and(|it| may(&it, 0o001)));
        let is_public = is_reached && may(&metadata, if metadata.is_dir() { 0o005 } else { 0o004 });
        if !is_public || view.get(&path).is_some() {
            continue;
        }
        if metadata.is_dir() && inputs.caller.is_root() {
            let remedy = SettingKey::Ro.to(path.display()).into();
            let what = "is a mount of the host, which the sandboxes of root do not show";
            view.note(&path.to_string_lossy(), what, Some(remedy));
            continue;
        }
        let source = BindSource::of(path.clone(), &metadata);
        view.offer(PlaceKind::HostMount, path, Node::Bind { source, access: Access::Read });
    }
    Ok(())
}

/// Replaces or leaves out files of the host's /etc that are about the host.
fn replace(view: &mut View) {
    for path in ETC_HIDDEN {
        view.offer(PlaceKind::HostFile, *path, Node::Absent);
    }
    let resolver = Path::new("/etc/resolv.conf");
    view.offer(PlaceKind::File, resolver, copy(resolver).unwrap_or(Node::Absent));
    view.offer(PlaceKind::File, "/etc/machine-id", Node::file(MACHINE_ID));
}

/// Shows the files of /etc without which little works.
fn show_least(view: &mut View) {
    for path in ETC_SHOWN {
        if let Ok(source) = BindSource::stat(Path::new(path)) {
            view.offer(PlaceKind::System, *path, Node::Bind { source, access: Access::Read });
        }
    }
    for path in ETC_COPIED {
        if let Some(node) = copy(Path::new(path)) {
            view.offer(PlaceKind::System, *path, node);
        }
    }
}

/// Shows files of /etc that describe the sandbox rather than the host.
fn show_own(view: &mut View) {
    let names = "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n";
    view.offer(PlaceKind::File, "/etc/nsswitch.conf", Node::file(names));
    view.offer(PlaceKind::Link, "/etc/mtab", Node::Symlink { points_to: "/proc/self/mounts".into() });
}

/// A copy of the file at `path`. Links are followed. `None` if it cannot be read or is too large.
fn copy(path: &Path) -> Option<Node> {
    let contents = fs::read(path).ok().filter(|contents| contents.len() <= LARGEST_COPY)?;
    Some(Node::file(contents))
}
