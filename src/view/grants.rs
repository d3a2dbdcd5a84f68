//! Checks the workspace and the mounts of the policy against the host, and adds them to the view.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, faccessat};

use crate::policy::mount::Mount;
use crate::policy::path::has_parent;
use crate::report::error::Error;
use crate::report::failure::shown;
use crate::report::place_kind::PlaceKind;
use crate::report::remedy::{Remedy, SettingKey, remedy};
use crate::report::shortage::of_path;
use crate::sys::birth::Users;
use crate::sys::dirfd;
use crate::sys::lexical::clean;
use crate::view::inputs::Inputs;
use crate::view::node::TmpfsSize;
use crate::view::paths::resolved::ResolvedPath;
use crate::view::paths::source::{BindSource, SourceKind};
use crate::view::paths::symlink_check::PolicyPath;
use crate::view::paths::walk::HostLink;
use crate::view::{Access, Node, Origin, Unlayered, View, ViewEntry, desktop, layers, pin, secrets, system};

/// Directories that must not be a workspace, because a writable one gives control over the host.
pub(crate) const NOT_A_WORKSPACE: &[&str] = &[
    "/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin",
    "/sys", "/usr", "/var",
];

/// Resolves the workspace: a directory that the caller can list. Symbolic links are followed.
pub(crate) fn workspace(inputs: &Inputs<'_>) -> Result<ResolvedPath, Error> {
    let name_one = || remedy!["name an existing directory with ", SettingKey::Workspace];
    const REACH: &str = "run as a user who may reach the workspace";
    const READ: &str = "run as a user who may read the workspace";
    let given = clean(inputs.caller.absolute(&inputs.policy.workspace));
    let refused = |source: io::Error, remedy: Remedy| Error::Grant {
        what: "workspace",
        path: given.clone(),
        source,
        remedy: Some(remedy),
    };
    let cannot = |error: io::Error, closed: &'static str, otherwise: Remedy| {
        let remedy = of_path(&error, closed, otherwise);
        refused(error, remedy)
    };
    let found = match given.is_absolute() {
        true => ResolvedPath::resolve(&given),
        // The current directory of the caller was removed. The kernel would still find it as `.`.
        false => Err(io::Error::from_raw_os_error(libc::ENOENT)),
    };
    let resolved = found.map_err(|error| cannot(error, REACH, name_one()))?;
    let source = &resolved.source;
    if !source.is_dir() {
        let remedy = remedy!["name a directory with ", SettingKey::Workspace];
        return Err(refused(io::ErrorKind::NotADirectory.into(), remedy));
    }
    if NOT_A_WORKSPACE.iter().any(|path| source.path == Path::new(path)) || source.path.starts_with("/proc") {
        let error =
            io::Error::new(io::ErrorKind::InvalidInput, "a directory of the system cannot be a workspace");
        let remedy = remedy!["work in a directory of your own, or grant single paths with ", SettingKey::Rw];
        return Err(refused(error, remedy));
    }
    fs::read_dir(&source.path).map_err(|error| cannot(error, READ, READ.into()))?;
    system::check_source(source, Access::Write).map_err(|error| refused(error, name_one()))?;
    Ok(resolved)
}

/// Adds the workspace at its canonical path. If the policy names it through a link, the view gets that link
/// too.
pub(crate) fn show_workspace(
    view: &mut View,
    inputs: &Inputs<'_>,
    workspace: &ResolvedPath,
) -> Result<(), Error> {
    let ResolvedPath { source, metadata, links } = workspace;
    let access = if inputs.policy.profile.meaning().writes { Access::Write } else { Access::Read };
    if inputs.caller.is_root() && inputs.users() == Users::Own {
        check_owner(view, &source.path, metadata.uid(), access)?;
    }
    view.grant(PlaceKind::Workspace, source.path.clone(), Node::Bind { source: source.clone(), access })?;
    let given = clean(inputs.caller.absolute(&inputs.policy.workspace));
    show_links(view, links, &given, &source.path);
    Ok(())
}

/// Shows the links on the way: people name directories through links and expect that the name works inside.
fn show_links(view: &mut View, links: &[HostLink], given: &Path, canonical: &Path) {
    // Another root has links of its own.
    if !has_parent(given) && view.root.is_none() {
        view.offer_links(links, given, canonical);
    }
}

/// Adds the mounts of the policy, except masks: they come after everything that they can cover. Returns how
/// each path of the host was resolved.
pub(crate) fn show_mounts<'p>(view: &mut View, inputs: &Inputs<'p>) -> Result<Vec<PolicyPath<'p>>, Error> {
    let mut named = Vec::new();
    for mount in &inputs.policy.mounts {
        named.extend(show_mount(view, inputs, mount)?);
    }
    pin_nested(view)?;
    Ok(named)
}

/// Pins each grant that is inside a writable grant. Else a command could rename a directory around it, and
/// put another one in its place on the host.
fn pin_nested(view: &mut View) -> Result<(), Error> {
    let granted = |place: &ViewEntry| place.origin == Origin::Policy && place.node.is_mount();
    let targets: Vec<PathBuf> =
        view.iter().filter(|(_, place)| granted(place)).map(|(target, _)| target.to_owned()).collect();
    targets.iter().try_for_each(|target| pin::parents_of_mount(view, target))
}

fn show_mount<'p>(
    view: &mut View,
    inputs: &Inputs<'p>,
    mount: &'p Mount,
) -> Result<Option<PolicyPath<'p>>, Error> {
    let (what, given, target, access) = match mount {
        Mount::ReadOnly { source, target } => {
            (PlaceKind::ReadOnlyGrant, source, target.as_deref(), Access::Read)
        }
        Mount::ReadWrite { source, target } => {
            (PlaceKind::ReadWriteGrant, source, target.as_deref(), Access::Write)
        }
        Mount::Device { path } => (PlaceKind::Device, path, None, Access::Device),
        other => return show_own(view, inputs, other).map(|()| None),
    };
    bind(view, inputs, what, given, target, access).map(Some)
}

/// Adds a mount that shows nothing of the host.
fn show_own(view: &mut View, inputs: &Inputs<'_>, mount: &Mount) -> Result<(), Error> {
    match mount {
        Mount::Tmpfs { target, size } => {
            let size = TmpfsSize::from_policy(inputs, *size);
            view.grant(PlaceKind::Tmpfs, clean(target), Node::Tmpfs { mode: 0o1777, size })
        }
        Mount::File { target, contents, executable } => {
            let mode = if *executable { 0o755 } else { 0o644 };
            let contents = contents.clone().into_bytes();
            view.grant(PlaceKind::File, clean(target), Node::File { contents, mode })
        }
        Mount::Symlink { target, points_to } => {
            view.grant(PlaceKind::Link, clean(target), Node::Symlink { points_to: points_to.clone() })
        }
        Mount::Proc { target } => view.grant(PlaceKind::Procfs, clean(target), system::procfs(inputs)),
        // `mask::show` adds them.
        _ => Ok(()),
    }
}

fn bind<'p>(
    view: &mut View,
    inputs: &Inputs<'_>,
    what: PlaceKind,
    given: &'p Path,
    target: Option<&Path>,
    access: Access,
) -> Result<PolicyPath<'p>, Error> {
    let path = inputs.caller.absolute(given);
    let refused = |source: io::Error, remedy: Remedy| Error::Grant {
        what: what.as_str(),
        path: given.to_owned(),
        source,
        remedy: Some(remedy),
    };
    let resolved = ResolvedPath::resolve(&path).map_err(|error| {
        let remedy = of_path(&error, "run as a user who may reach it", "grant a path that exists");
        refused(error, remedy)
    })?;
    let source = &resolved.source;
    if secrets::is_behind_link(&clean(path.clone()), source, inputs.caller) {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "a link leads from there to a known secret");
        let remedy = format!("name the secret itself, {}, if that is what you mean", shown(&source.path));
        return Err(refused(error, remedy.into()));
    }
    if source.path.starts_with("/proc") || source.path == Path::new("/") {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "cannot be granted");
        let whole = "the sandbox has its own /proc; to see the whole host read-only use ";
        return Err(refused(error, remedy![whole, SettingKey::Profile.to("full-dev")]));
    }
    let access = match (access, source.kind) {
        (_, SourceKind::Device) => Access::Device,
        (Access::Device, _) => {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "not a device node");
            let remedy = remedy!["grant files and directories with ", SettingKey::Ro, " or ", SettingKey::Rw];
            return Err(refused(error, remedy));
        }
        (access, _) => access,
    };
    if access != Access::Device {
        system::check_source(source, access).map_err(|error| refused(error, "grant another path".into()))?;
    }
    let place = target.map_or_else(|| source.path.clone(), clean);
    if target.is_none() {
        show_links(view, &resolved.links, &clean(path), &source.path);
    }
    view.grant(what, place, Node::Bind { source: source.clone(), access })?;
    Ok(PolicyPath { what: what.as_str(), given, resolved })
}

/// Root in a sandbox has no power over the files of others: says so if the workspace belongs to another user
/// and commands cannot write there.
///
/// # Errors
/// Commands cannot even enter it.
fn check_owner(view: &mut View, workspace: &Path, owner: u32, access: Access) -> Result<(), Error> {
    let as_owner = || remedy!["run as its owner: ", SettingKey::AsOwner];
    let may = |asked| {
        let checked = || Ok(faccessat(AT_FDCWD, &workspace.join("."), asked, AtFlags::AT_EACCESS));
        // If it cannot be found out, the sandbox finds out.
        dirfd::without_capabilities(checked).unwrap_or(Ok(()))
    };
    if owner == 0 {
        return Ok(());
    }
    if let Err(errno) = may(AccessFlags::X_OK) {
        let (path, remedy) = (workspace.to_owned(), Some(as_owner()));
        return Err(Error::Grant { what: "workspace", path, source: errno.into(), remedy });
    }
    if access == Access::Write && may(AccessFlags::W_OK).is_err() {
        let text = format!(
            "belongs to uid {owner}: root in a sandbox has no power over the files of others, so commands cannot write \
             there"
        );
        view.note(&shown(workspace), &text, Some(as_owner()));
    }
    Ok(())
}

/// HOME: a private directory, unless the policy shows something there.
pub(crate) fn show_home(view: &mut View, inputs: &Inputs<'_>) {
    let home = inputs.home();
    if home == Path::new("/") {
        return;
    }
    if inputs.policy.learn
        && inputs.policy.profile.meaning().knows_caller
        && show_real_home(view, inputs, &home)
    {
        return;
    }
    if view.is_merged(&home) && !home.is_dir() {
        // The merged directory is read-only.
        let node = Node::Tmpfs { mode: 0o700, size: TmpfsSize::from_policy(inputs, None) };
        view.offer(PlaceKind::PrivateDirectory, home, node);
    } else if view.host_path(&home).is_none() {
        view.offer(PlaceKind::PrivateDirectory, home, Node::Private { mode: 0o700 });
    }
}

/// With `learn`: HOME as the host has it. Commands write to a copy. Returns whether there is one to show.
fn show_real_home(view: &mut View, inputs: &Inputs<'_>, home: &Path) -> bool {
    let Ok(source) = BindSource::resolve(home) else { return false };
    if !source.is_dir() || !view.is_free(&source.path) {
        return false;
    }
    let place = source.path.clone();
    // The kernel refuses an overlay that would uncover what is under a mount.
    let holds_mount = inputs.names.mounts().is_ok_and(|mounts| mounts.is_mounted_below(&place));
    let node = match holds_mount {
        true => Node::Bind { source, access: Access::Read },
        false => layers::node(view, inputs, source, Unlayered::ReadOnly),
    };
    if matches!(node, Node::Bind { .. }) {
        view.note(&shown(home), "commands cannot write there while Kennel learns: it cannot be a copy", None);
    }
    view.offer(PlaceKind::ShownToLearn, place, node);
    true
}

/// Files from which programs learn the user, the groups and the host name.
pub(crate) fn show_identity(view: &mut View, inputs: &Inputs<'_>) {
    if inputs.policy.profile.meaning().shows_host {
        return;
    }
    let (uid, gid, user) = (inputs.caller.uid, inputs.caller.gid, &inputs.caller.user);
    let home = inputs.home();
    let mut passwd = format!("{user}:x:{uid}:{gid}:{user}:{}:/bin/sh\n", home.display());
    let mut group = format!("{user}:x:{gid}:\n");
    for (name, id) in [("root", 0), ("nobody", 65534)] {
        if uid != id {
            passwd.push_str(&format!("{name}:x:{id}:{id}:{name}:/:/usr/sbin/nologin\n"));
        }
        if gid != id {
            group.push_str(&format!("{}:x:{id}:\n", if name == "nobody" { "nogroup" } else { name }));
        }
    }
    let hostname = desktop::host_name(inputs);
    view.offer(PlaceKind::File, "/etc/passwd", Node::file(passwd));
    view.offer(PlaceKind::File, "/etc/group", Node::file(group));
    view.offer(PlaceKind::File, "/etc/hosts", Node::file(hosts(&hostname)));
    view.offer(PlaceKind::File, "/etc/hostname", Node::file(format!("{hostname}\n")));
}

/// hosts(5) of a sandbox with this host name.
pub(crate) fn hosts(name: &str) -> String {
    format!("127.0.0.1 localhost {name}\n::1 localhost ip6-localhost ip6-loopback\n")
}
