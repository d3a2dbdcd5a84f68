//! The workspace as an overlay: what it can lie over, where changes are kept, and the steps that mount it. Reads the
//! host, changes nothing: what an overlay directory must hold is made by whoever prepares the session.
//!
//! Everything below the workspace comes from the merged tree: a bind of the host's own directory would let writes go
//! past the overlay.

use std::{
    ffi::CString,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use kennel_helper::plan::{Step, Within};
use nix::sys::statfs::{self, FsType};

use super::{
    Parts, Shape,
    emit::{self, absolute, relative},
    rooms::Room,
    section::Section,
    source::Source,
    spelling::ignores_case,
    view::{Access, Node, Origin, View},
};
use crate::{
    Error, Version,
    host::mounts::mounts,
    overlay::Never,
    policy::{self, Protection},
    watch::Watch,
};

/// First kernel that mounts an overlay in a user namespace.
const OLDEST: Version = Version(5, 11);

/// First kernel with user extended attributes on tmpfs, without which a directory cannot take the place of another.
const OLDEST_IN_MEMORY: Version = Version(6, 6);

/// Below the directory of changes: what is written to the overlay, and what overlayfs needs beside it.
pub(crate) const UPPER: &str = "upper";
pub(crate) const WORK: &str = "work";

/// Bits of a mode that let others than the owner in: who reads changes may see secrets, who writes them forges them.
pub(crate) const OTHERS: u32 = 0o077;

/// File systems whose times are another machine's, or nobody's: whether a file was changed meanwhile could not be known.
/// NFS, SMB (three), 9P, Ceph, AFS, Coda, FUSE, vboxsf, OCFS2; of linux/magic.h. And Lustre, GFS2, OrangeFS.
const REMOTE: [i64; 14] = [
    0x6969,
    0x517b,
    0xfe53_4d42,
    0xff53_4d42,
    0x0102_1997,
    0x00c3_6400,
    0x5346_414f,
    0x7375_7245,
    0x6573_5546,
    0x786f_4256,
    0x7461_636f,
    0x0bd0_0bd0,
    0x0116_1970,
    0x2003_0528,
];

/// CAP_DAC_OVERRIDE of capabilities(7).
const DAC_OVERRIDE: u32 = 1;

/// What the view knows of it.
#[derive(Clone, Debug)]
pub(super) struct Overlaid {
    /// The workspace, in the sandbox and on the host.
    pub(super) target: PathBuf,
    /// The directory for changes; `None` is a tmpfs with that room.
    upper: Option<Source>,
    room: Room,
    /// Of the workspace: the directory of changes lends the merged tree its own.
    mode: u32,
    hands_out: bool,
}

/// What the outside has to know to list and to commit changes.
#[derive(Clone, Debug)]
pub(crate) struct Merged {
    pub(crate) workspace: Source,
    /// The directory of the host that changes are kept in; `None` is memory.
    pub(crate) upper: Option<PathBuf>,
    /// What is never committed.
    pub(crate) never: Vec<Never>,
}

/// The overlay that the policy asks for, checked against the view without walls.
///
/// # Errors
/// A kernel, file system or grant that it cannot be had with.
pub(super) fn overlaid(
    parts: &Parts<'_>,
    view: &View,
    workspace: &Source,
) -> Result<Option<Overlaid>, Error> {
    let Some(wanted) = &parts.policy.overlay else { return Ok(None) };
    check_kernel(parts, wanted)?;
    let upper = wanted.upper.as_deref().map(|path| directory(parts, view, workspace, path)).transpose()?;
    check_workspace(workspace)?;
    check_grants(view, workspace)?;
    let metadata = fs::metadata(&workspace.path);
    let mode = metadata
        .map_err(|error| refused("workspace", &workspace.path, error, "name another workspace"))?
        .mode();
    Ok(Some(Overlaid {
        target: workspace.path.clone(),
        upper,
        room: Room::of_policy(parts, wanted.size),
        mode: mode & 0o1777,
        hands_out: parts.shape != Shape::OneShot,
    }))
}

fn check_kernel(parts: &Parts<'_>, wanted: &policy::Overlay) -> Result<(), Error> {
    let kernel = parts.host.kernel;
    let lacking = |reason: String, remedy: &str| Error::Unavailable {
        protection: Protection::Root,
        reason,
        remedy: Some(remedy.to_owned()),
    };
    if kernel < OLDEST {
        let reason = format!("Linux {kernel} mounts no overlay in a user namespace");
        return Err(lacking(reason, "use Linux 5.11 or later, or go without --overlay"));
    }
    if wanted.upper.is_none() && kernel < OLDEST_IN_MEMORY {
        let reason = format!("Linux {kernel} cannot keep the changes of an overlay in memory");
        let remedy =
            "name an empty directory on ext4, XFS or btrfs with --overlay-upper, or use Linux 6.6 or later";
        return Err(lacking(reason, remedy));
    }
    Ok(())
}

/// The directory that changes are kept in. Who could write there could forge them, who could read there could know them.
fn directory(parts: &Parts<'_>, view: &View, workspace: &Source, given: &Path) -> Result<Source, Error> {
    const REMEDY: &str =
        "name an empty directory of your own, outside of the workspace and of what is granted writable";
    let path = parts.caller.absolute(given);
    let refused = |error: io::Error| refused("overlay directory", given, error, REMEDY);
    let source = Source::resolve(&path).map_err(refused)?;
    if !source.is_dir() {
        return Err(refused(io::ErrorKind::NotADirectory.into()));
    }
    let invalid = |reason: &str| refused(io::Error::new(io::ErrorKind::InvalidInput, reason));
    let metadata = fs::metadata(&source.path).map_err(refused)?;
    if metadata.uid() != parts.caller.uid {
        return Err(invalid("belongs to another user"));
    }
    if workspace.path.starts_with(&source.path) || source.path.starts_with(&workspace.path) {
        return Err(invalid("lies in the workspace, or around it"));
    }
    let reachable = |(_, grant): (&Path, &Source)| {
        source.path.starts_with(&grant.path) || grant.path.starts_with(&source.path)
    };
    if view.writable().any(reachable) {
        return Err(invalid("lies in what is granted writable, or around it"));
    }
    let kind = file_system(&source.path).map_err(refused)?;
    if kind == statfs::OVERLAYFS_SUPER_MAGIC {
        return Err(invalid("lies on an overlay itself"));
    }
    // Whose it is and who can reach it would be what another machine says, or another user's program.
    if is_remote(kind) {
        return Err(invalid("lies on a network or FUSE file system"));
    }
    if metadata.mode() & OTHERS != 0 {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "others can reach it");
        return Err(self::refused(
            "overlay directory",
            given,
            error,
            "chmod 700 it, or name another directory",
        ));
    }
    Ok(source)
}

fn check_workspace(workspace: &Source) -> Result<(), Error> {
    let path = &workspace.path;
    let remedy = "copy it to a file system of this machine, or go without --overlay";
    let kind = file_system(path).map_err(|error| refused("workspace", path, error, remedy))?;
    if is_remote(kind) {
        let reason =
            "lies on a network or FUSE file system: what others change there meanwhile could not be noticed";
        let error = io::Error::new(io::ErrorKind::InvalidInput, reason);
        return Err(refused("workspace", path, error, remedy));
    }
    // XFS made so is overlaid all the same. What is protected and what was changed would have names that nobody compares.
    if ignores_case(path).map_err(|error| refused("workspace", path, error, remedy))? {
        let error = io::Error::new(
            io::ErrorKind::InvalidInput,
            "lies on a file system that ignores the case of names",
        );
        return Err(refused("workspace", path, error, remedy));
    }
    let mounted = mounted_below(path).map_err(|error| refused("workspace", path, error, "mount /proc"))?;
    match mounted {
        None => Ok(()),
        Some(mount) => {
            let reason = format!("{} is mounted in it, which an overlay would not show", mount.display());
            let error = io::Error::new(io::ErrorKind::InvalidInput, reason);
            Err(refused(
                "workspace",
                path,
                error,
                "unmount it, choose another workspace, or go without --overlay",
            ))
        }
    }
}

fn mounted_below(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut points = mounts()?.into_iter().map(|mount| mount.mount_point);
    Ok(points.find(|point| point != path && point.starts_with(path)))
}

/// What is written by another name would not be kept apart.
fn check_grants(view: &View, workspace: &Source) -> Result<(), Error> {
    let shows = |(target, source): &(&Path, &Source)| {
        let is_workspace = *target == workspace.path && source.path == workspace.path;
        let overlaps = source.path.starts_with(&workspace.path)
            || workspace.path.starts_with(&source.path)
            || source.identity == workspace.identity;
        overlaps && !is_workspace
    };
    match view.writable().find(shows) {
        None => Ok(()),
        Some((target, _)) => Err(Error::View {
            what: "read-write grant",
            path: target.to_owned(),
            reason: "it shows the workspace, or a part of it, past the overlay".to_owned(),
            remedy: Some("grant it read-only, or go without --overlay".to_owned()),
        }),
    }
}

fn file_system(path: &Path) -> io::Result<FsType> {
    Ok(statfs::statfs(path)?.filesystem_type())
}

fn is_remote(kind: FsType) -> bool {
    REMOTE.contains(&(kind.0 & 0xffff_ffff))
}

fn refused(what: &'static str, path: &Path, source: io::Error, remedy: &str) -> Error {
    Error::Grant { what, path: path.to_owned(), source, remedy: Some(remedy.to_owned()) }
}

/// Takes the watches of the workspace for what is never committed: the host's files do not change meanwhile.
pub(super) fn merged(view: &View, workspace: &Source, watches: &mut Vec<Watch>) -> Option<Merged> {
    let Overlaid { target, upper, .. } = view.overlay.as_ref()?;
    let mut never = Vec::new();
    watches.retain(|watch| match watch.never(target) {
        Some(path) => {
            never.push(path);
            false
        }
        None => true,
    });
    let is_pin = |place: &super::view::Place| {
        place.origin == Origin::Wall && matches!(place.node, Node::Bind { access: Access::Write, .. })
    };
    for (at, _) in view.iter().filter(|(_, place)| place.node.is_mount() && !is_pin(place)) {
        if let Ok(below) = at.strip_prefix(target)
            && !below.as_os_str().is_empty()
        {
            never.push(Never::always(below));
        }
    }
    let upper = upper.as_ref().map(|upper| upper.path.clone());
    Some(Merged { workspace: workspace.clone(), upper, never })
}

/// Appends the steps that mount the overlay of `workspace` at its place. All of it is put together in the sandbox's own
/// empty directory, which is empty again afterwards.
pub(super) fn mount(
    overlaid: &Overlaid,
    workspace: &Source,
    (stage, within): (&Path, Within),
    setup: &mut Section,
) {
    let mut push = |step: &Step<'_>| setup.push(Protection::Root, step);
    let at = |name: &str| stage.join(name);
    let make_dir = |path: &Path, mode| (relative(path), mode);
    let tmpfs = overlaid.room.options(0o700);
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    let target = &relative(stage);
    push(&Step::Mount { kind: c"tmpfs", target, within: Within::Root, flags, options: &tmpfs });
    let changes = match &overlaid.upper {
        Some(upper) => {
            push(&Step::MakeDir { path: &relative(&at("changes")), mode: 0o700 });
            push(&bind(upper, &absolute(&upper.path), &relative(&at("changes")), Access::Write));
            at("changes")
        }
        None => {
            for (path, mode) in [make_dir(&at(UPPER), overlaid.mode), make_dir(&at(WORK), 0o700)] {
                push(&Step::MakeDir { path: &path, mode });
            }
            stage.to_owned()
        }
    };
    for name in ["lower", "merged"] {
        push(&Step::MakeDir { path: &relative(&at(name)), mode: 0o700 });
    }
    push(&bind(workspace, &absolute(&workspace.path), &relative(&at("lower")), Access::Read));
    let options = options(&at("lower"), &changes);
    let merged = &relative(&at("merged"));
    push(&Step::Mount { kind: c"overlay", target: merged, within: Within::Root, flags, options: &options });
    push(&Step::DropCapability { capability: DAC_OVERRIDE });
    push(&Step::Move { from: merged, to: &relative(&overlaid.target), within });
    if overlaid.hands_out {
        push(&Step::HandOutUpper { path: &relative(&changes.join(UPPER)) });
    }
    push(&Step::Detach { target });
}

fn bind<'s>(of: &Source, source: &'s CString, target: &'s CString, access: Access) -> Step<'s> {
    let ((device, inode), attributes) = (of.identity, emit::attributes(access));
    Step::Bind { source, device, inode, target, within: Within::Root, attributes }
}

/// Options of overlayfs. Its own marks are user attributes, which it hides from commands; redirects and metadata-only
/// copies are off then. Nothing is synced: changes are worth nothing until they are committed.
fn options(lower: &Path, changes: &Path) -> CString {
    let path = |path: &Path| relative(path).to_string_lossy().into_owned();
    let [lower, upper, work] = [path(lower), path(&changes.join(UPPER)), path(&changes.join(WORK))];
    let text = format!("lowerdir={lower},upperdir={upper},workdir={work},userxattr,index=off,volatile");
    CString::new(text).unwrap_or_default()
}
