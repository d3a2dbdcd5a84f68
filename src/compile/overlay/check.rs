//! What a workspace can be overlaid with, and where its changes can be kept.

use std::{
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    slice,
};

use nix::sys::statfs::{self, FsType};

use super::{
    super::{
        Parts,
        led::Led,
        reach::{self, Named},
        source::Source,
        spelling::ignores_case,
        view::View,
    },
    OTHERS,
};
use crate::{
    Error, Version,
    host::{mounts::mounts, remedy::of_path},
    policy::{Overlay, Protection},
};

/// First kernel with user extended attributes on tmpfs, without which a directory cannot take the place of another.
const OLDEST_IN_MEMORY: Version = Version(6, 6);

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

/// Whether this kernel has such an overlay. Every one that we run on mounts overlays in user namespaces.
pub(super) fn kernel(parts: &Parts<'_>, wanted: &Overlay) -> Result<(), Error> {
    let kernel = parts.host.kernel;
    if wanted.upper.is_some() || kernel >= OLDEST_IN_MEMORY {
        return Ok(());
    }
    Err(Error::Unavailable {
        protection: Protection::Root,
        reason: format!("Linux {kernel} cannot keep the changes of an overlay in memory"),
        remedy: Some(
            "name an empty directory on ext4, XFS or btrfs with --overlay-upper, or use Linux 6.6 or later"
                .to_owned(),
        ),
    })
}

/// The directory that changes are kept in. Who could write there could forge them, who could read there could know them.
pub(super) fn upper(
    parts: &Parts<'_>,
    view: &View,
    workspace: &Source,
    given: &Path,
) -> Result<Source, Error> {
    const REMEDY: &str =
        "name an empty directory of your own, outside of the workspace and of what is granted writable";
    let path = parts.caller.absolute(given);
    const WHAT: &str = "overlay directory";
    let refused = |error: io::Error| {
        let remedy = of_path(&error, REMEDY, REMEDY);
        refused(WHAT, given, error, remedy)
    };
    let named = Named { what: WHAT, given, led: Led::follow(&path).map_err(refused)? };
    reach::not_led(view, slice::from_ref(&named))?;
    let Led { source, metadata, .. } = named.led;
    if !source.is_dir() {
        return Err(refused(io::ErrorKind::NotADirectory.into()));
    }
    let invalid = |reason: &str| refused(io::Error::new(io::ErrorKind::InvalidInput, reason));
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
        let error = io::Error::new(io::ErrorKind::InvalidInput, "accessible to other users");
        let remedy = "chmod 700 it, or name another directory";
        return Err(self::refused(WHAT, given, error, remedy));
    }
    Ok(source)
}

/// Whether an overlay shows all of a workspace, and it can be known what others change in it.
pub(super) fn workspace(workspace: &Source) -> Result<(), Error> {
    const REMEDY: &str = "copy it to a file system of this machine, or go without --overlay";
    let path = &workspace.path;
    let refused = |error: io::Error, remedy| refused("workspace", path, error, remedy);
    let invalid = |reason: &str, remedy| refused(io::Error::new(io::ErrorKind::InvalidInput, reason), remedy);
    if is_remote(file_system(path).map_err(|error| refused(error, REMEDY))?) {
        let reason =
            "lies on a network or FUSE file system: what others change there meanwhile could not be noticed";
        return Err(invalid(reason, REMEDY));
    }
    // XFS made so is overlaid all the same. What is protected and what was changed would have names that nobody compares.
    if ignores_case(path).map_err(|error| refused(error, REMEDY))? {
        return Err(invalid("lies on a file system that ignores the case of names", REMEDY));
    }
    match mounted_below(path).map_err(|error| refused(error, "mount /proc"))? {
        None => Ok(()),
        Some(mount) => {
            let reason = format!("{} is mounted in it, which an overlay would not show", mount.display());
            Err(invalid(&reason, "unmount it, choose another workspace, or go without --overlay"))
        }
    }
}

fn mounted_below(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut points = mounts()?.into_iter().map(|mount| mount.mount_point);
    Ok(points.find(|point| point != path && point.starts_with(path)))
}

/// Whether no writable grant shows the workspace too: what is written by another name would not be kept apart.
pub(super) fn grants(view: &View, workspace: &Source) -> Result<(), Error> {
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

pub(super) fn refused(what: &'static str, path: &Path, source: io::Error, remedy: &str) -> Error {
    Error::Grant { what, path: path.to_owned(), source, remedy: Some(remedy.to_owned()) }
}
