//! The workspace as an overlay: its entry in the view, what the outside knows of it, and the steps that mount
//! it.
//!
//! This file reads the host and changes nothing. The code that prepares the session creates the overlay
//! directory's contents.
//!
//! Everything below the workspace comes from the merged tree. A bind of the host's directory would let writes
//! bypass the overlay.

use std::ffi::CString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io, slice};

use kennel_helper::plan::{Step, Within};
use nix::fcntl::OFlag;

use crate::host::OLDEST_IN_MEMORY;
use crate::plan::{Section, absolute, relative};
use crate::policy::glob::Pattern;
use crate::policy::overlay::Overlay;
use crate::protect::case_fold::ignores_case;
use crate::protect::commit_rule::CommitRule;
use crate::protect::paths::Protected;
use crate::report::enforcement::Protection;
use crate::report::error::Error;
use crate::report::remedy::{Remedy, SettingKey, remedy};
use crate::report::shortage::of_path;
use crate::sys::birth::CAP_DAC_OVERRIDE;
use crate::sys::dirfd::open_without_links;
use crate::sys::file_system::FileSystem;
use crate::sys::inode::Identity;
use crate::view::cache_store::{OTHERS, UPPER, WORK};
use crate::view::inputs::Inputs;
use crate::view::node::TmpfsSize;
use crate::view::paths::resolved::ResolvedPath;
use crate::view::paths::source::BindSource;
use crate::view::paths::symlink_check;
use crate::view::paths::symlink_check::PolicyPath;
use crate::view::{Access, Node, Origin, Overlaid, View};

/// What the outside needs to list and to commit changes.
#[derive(Clone, Debug)]
pub(crate) struct Merged {
    pub(crate) workspace: BindSource,
    /// The host's directory that holds the changes; `None` if memory does.
    pub(crate) upper: Option<PathBuf>,
    /// Paths that are never committed.
    pub(crate) never: Vec<CommitRule>,
    /// What matches these is never committed either.
    pub(crate) patterns: Vec<Pattern>,
}

/// The overlay that the policy asks for. `view` has all grants and no walls yet.
///
/// # Errors
/// A kernel, file system or grant that rules an overlay out.
pub(crate) fn overlaid(
    inputs: &Inputs<'_>,
    view: &View,
    workspace: &BindSource,
) -> Result<Option<Overlaid>, Error> {
    let Some(wanted) = &inputs.policy.overlay else { return Ok(None) };
    check_kernel(inputs, wanted)?;
    let of = ChangesOf::Workspace(workspace);
    let upper = wanted.upper.as_deref().map(|path| check_upper(inputs, view, of, path)).transpose()?;
    check_workspace(inputs, workspace)?;
    check_grants(view, workspace)?;
    let metadata = fs::metadata(&workspace.path);
    let mode = metadata
        .map_err(|error| not_usable("workspace", &workspace.path, error, "name another workspace"))?
        .mode();
    Ok(Some(Overlaid {
        target: workspace.path.clone(),
        upper,
        size: TmpfsSize::from_policy(inputs, wanted.size),
        mode: mode & 0o1777,
        keeps: wanted.keeps,
        hands_out: inputs.kind.is_session(),
    }))
}

/// What the outside needs to commit changes. Turns the watches below the workspace into paths that are never
/// committed: the host's files there do not change while a command runs.
pub(crate) fn merged(view: &View, workspace: &BindSource, protected: &mut Protected) -> Option<Merged> {
    let Overlaid { target, upper, .. } = view.overlay.as_ref()?;
    // Git outside writes to the target of a link in a repository.
    let mut never = vec![CommitRule::no_links(Path::new(".git"))];
    protected.watches.retain(|watch| match watch.commit_rule(target) {
        Some(path) => {
            never.push(path);
            false
        }
        None => true,
    });
    let is_pin = |place: &crate::view::ViewEntry| {
        place.origin == Origin::Wall && matches!(place.node, Node::Bind { access: Access::Write, .. })
    };
    for (at, _) in view.iter().filter(|(_, place)| place.node.is_mount() && !is_pin(place)) {
        if let Ok(below) = at.strip_prefix(target)
            && !below.as_os_str().is_empty()
        {
            never.push(CommitRule::always(below));
        }
    }
    let upper = upper.as_ref().map(|upper| upper.path.clone());
    Some(Merged { workspace: workspace.clone(), upper, never, patterns: protected.patterns.clone() })
}

/// The step after the last overlay of PID 1. Root of another root has the capability again from execve(2) on.
pub(crate) fn without_overrides(keeps: bool) -> Step<'static> {
    let capability = CAP_DAC_OVERRIDE;
    match keeps {
        true => Step::SetEffective { capability, has: 0 },
        false => Step::DropCapability { capability },
    }
}

/// Appends the steps that mount the overlay of `workspace`. They build it in the sandbox's own empty
/// directory and empty that directory again.
pub(crate) fn mount(
    overlaid: &Overlaid,
    workspace: &BindSource,
    stage: &Path,
    within: Within,
    keeps_overrides: bool,
    setup: &mut Section,
) {
    let mut push = |step: &Step<'_>| setup.push(Protection::Root, step);
    let at = |name: &str| stage.join(name);
    let make_dir = |path: &Path, mode| (relative(path), mode);
    let tmpfs = overlaid.size.options(0o700);
    let (target, flags) = (&relative(stage), crate::plan::TMPFS_FLAGS);
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
    let options = options(&at("lower"), &changes, overlaid.keeps);
    let merged = &relative(&at("merged"));
    push(&Step::Mount { kind: c"overlay", target: merged, within: Within::Root, flags, options: &options });
    push(&without_overrides(keeps_overrides));
    push(&Step::Move { from: merged, to: &relative(&overlaid.target), within });
    if overlaid.hands_out {
        push(&Step::HandOutUpper { path: &relative(&changes.join(UPPER)), is_root: 0 });
    }
    push(&Step::Detach { target });
}

fn bind<'s>(of: &BindSource, source: &'s CString, target: &'s CString, access: Access) -> Step<'s> {
    let (Identity { device, inode }, attributes) = (of.identity, crate::plan::attributes(access));
    Step::Bind { source, device, inode, target, within: Within::Root, attributes }
}

/// Mount options of overlayfs. `userxattr`: its marks are user attributes, which it hides from commands;
/// redirects and metadata-only copies are then off. `volatile`: nothing is synced, because changes that are
/// not kept have no value before a commit.
fn options(lower: &Path, changes: &Path, keeps: bool) -> CString {
    let path = |path: &Path| relative(path).to_string_lossy().into_owned();
    let [lower, upper, work] = [path(lower), path(&changes.join(UPPER)), path(&changes.join(WORK))];
    let text = format!(
        "lowerdir={lower},upperdir={upper},workdir={work},userxattr,index=off{}",
        if keeps { "" } else { ",volatile" }
    );
    CString::new(text).unwrap_or_default()
}

// What can be overlaid, and where changes can be kept.

/// Checks that the kernel can keep the changes. Every supported kernel mounts overlays in user namespaces.
pub(crate) fn check_kernel(inputs: &Inputs<'_>, wanted: &Overlay) -> Result<(), Error> {
    let kernel = inputs.host.kernel;
    if wanted.upper.is_some() || kernel >= OLDEST_IN_MEMORY {
        return Ok(());
    }
    Err(Error::Unavailable {
        protection: Protection::Root,
        reason: format!("Linux {kernel} cannot keep the changes of an overlay in memory"),
        remedy: Some(remedy![
            "name an empty directory on ext4, XFS or btrfs with ",
            SettingKey::OverlayUpper,
            ", or use Linux 6.6 or later",
        ]),
    })
}

/// Of what a directory holds the changes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChangesOf<'w> {
    Workspace(&'w BindSource),
    /// Another root.
    Root,
}

impl ChangesOf<'_> {
    /// What errors call the directory.
    fn directory(self) -> &'static str {
        match self {
            Self::Workspace(_) => "overlay directory",
            Self::Root => "directory for changes of the root",
        }
    }

    fn remedy(self) -> Remedy {
        match self {
            Self::Workspace(_) => remedy![
                "name an empty directory of your own (",
                SettingKey::OverlayUpper,
                "), outside of the workspace and of what is granted writable, or keep nothing (",
                SettingKey::Discard,
                ")",
            ],
            Self::Root => remedy![
                "name an empty directory of your own, outside of what is granted writable, or `disk` (",
                SettingKey::ImageUpper,
                ")",
            ],
        }
    }
}

/// Checks the directory that holds changes. Other users must not read or write them.
pub(crate) fn check_upper(
    inputs: &Inputs<'_>,
    view: &View,
    of: ChangesOf<'_>,
    given: &Path,
) -> Result<BindSource, Error> {
    let path = inputs.caller.absolute(given);
    let what = of.directory();
    let refused = |error: io::Error| {
        let remedy = of_path(&error, of.remedy(), of.remedy());
        not_usable(what, given, error, remedy)
    };
    let named = PolicyPath { what, given, resolved: ResolvedPath::resolve(&path).map_err(refused)? };
    symlink_check::refuse_links_of_commands(view, slice::from_ref(&named))?;
    let ResolvedPath { source, metadata, .. } = named.resolved;
    if !source.is_dir() {
        return Err(refused(io::ErrorKind::NotADirectory.into()));
    }
    let invalid = |reason: &str| refused(io::Error::new(io::ErrorKind::InvalidInput, reason));
    if metadata.uid() != inputs.caller.uid {
        return Err(invalid("belongs to another user"));
    }
    if let ChangesOf::Workspace(workspace) = of
        && (workspace.path.starts_with(&source.path) || source.path.starts_with(&workspace.path))
    {
        return Err(invalid("overlaps the workspace"));
    }
    let reachable = |(_, grant): (&Path, &BindSource)| {
        source.path.starts_with(&grant.path) || grant.path.starts_with(&source.path)
    };
    if view.writable().any(reachable) {
        return Err(invalid("overlaps a writable grant"));
    }
    file_system(&source.path).and_then(FileSystem::check_for_changes).map_err(refused)?;
    if metadata.mode() & OTHERS != 0 {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "accessible to other users");
        let remedy = "chmod 700 it, or name another directory";
        return Err(self::not_usable(what, given, error, remedy));
    }
    Ok(source)
}

/// Checks that an overlay shows all of the workspace, and that Kennel can notice what others change in it.
pub(crate) fn check_workspace(inputs: &Inputs<'_>, workspace: &BindSource) -> Result<(), Error> {
    let copy_it = || remedy!["copy it to a file system of this machine, or go without ", SettingKey::Overlay];
    let path = &workspace.path;
    let refused = |error: io::Error, remedy: Remedy| not_usable("workspace", path, error, remedy);
    let invalid =
        |reason: &str, remedy: Remedy| refused(io::Error::new(io::ErrorKind::InvalidInput, reason), remedy);
    if file_system(path).map_err(|error| refused(error, copy_it()))?.is_remote() {
        let reason =
            "lies on a network or FUSE file system: what others change there meanwhile could not be noticed";
        return Err(invalid(reason, copy_it()));
    }
    // XFS with `ascii-ci` can be overlaid. But protected and changed paths would have spellings that nothing
    // compares.
    if ignores_case(path).map_err(|error| refused(error, copy_it()))? {
        return Err(invalid("lies on a file system that ignores the case of names", copy_it()));
    }
    let mounts = inputs.names.mounts().map_err(|error| refused(error, "mount /proc".into()))?;
    match mounts.below(path).next() {
        None => Ok(()),
        Some(mount) => {
            let reason = format!("{} is mounted in it, which an overlay would not show", mount.display());
            let remedy = remedy!["unmount it, choose another workspace, or go without ", SettingKey::Overlay];
            Err(invalid(&reason, remedy))
        }
    }
}

/// Checks that no writable grant shows the workspace too: the overlay would not keep writes through it apart.
pub(crate) fn check_grants(view: &View, workspace: &BindSource) -> Result<(), Error> {
    let shows = |(target, source): &(&Path, &BindSource)| {
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
            remedy: Some(remedy!["grant it read-only, or go without ", SettingKey::Overlay]),
        }),
    }
}

fn file_system(path: &Path) -> io::Result<FileSystem> {
    FileSystem::of(open_without_links(path, OFlag::empty())?)
}

pub(crate) fn not_usable(
    what: &'static str,
    path: &Path,
    source: io::Error,
    remedy: impl Into<Remedy>,
) -> Error {
    Error::Grant { what, path: path.to_owned(), source, remedy: Some(remedy.into()) }
}
