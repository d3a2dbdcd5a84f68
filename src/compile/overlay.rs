//! The workspace as an overlay: what the view and the outside know of it, and the steps that mount it. Reads the host,
//! changes nothing: what an overlay directory must hold is made by whoever prepares the session.
//!
//! Everything below the workspace comes from the merged tree: a bind of the host's own directory would let writes go
//! past the overlay.

mod check;

use std::{
    ffi::CString,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use kennel_helper::plan::{Step, Within};

use super::{
    Parts,
    emit::{self, absolute, relative},
    rooms::Room,
    section::Section,
    source::Source,
    view::{Access, Node, Origin, View},
};
use crate::{Error, below::Identity, overlay::Never, policy::Protection, watch::Watch};

/// Below the directory of changes: what is written to the overlay, and what overlayfs needs beside it.
pub(crate) const UPPER: &str = "upper";
pub(crate) const WORK: &str = "work";

/// Bits of a mode that let others than the owner in: who reads changes may see secrets, who writes them forges them.
pub(crate) const OTHERS: u32 = 0o077;

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
    check::kernel(parts, wanted)?;
    let upper = wanted.upper.as_deref().map(|path| check::upper(parts, view, workspace, path)).transpose()?;
    check::workspace(workspace)?;
    check::grants(view, workspace)?;
    let metadata = fs::metadata(&workspace.path);
    let mode = metadata
        .map_err(|error| check::refused("workspace", &workspace.path, error, "name another workspace"))?
        .mode();
    Ok(Some(Overlaid {
        target: workspace.path.clone(),
        upper,
        room: Room::of_policy(parts, wanted.size),
        mode: mode & 0o1777,
        hands_out: parts.shape.is_session(),
    }))
}

/// Takes the watches of the workspace for what is never committed: the host's files do not change meanwhile.
pub(super) fn merged(view: &View, workspace: &Source, watches: &mut Vec<Watch>) -> Option<Merged> {
    let Overlaid { target, upper, .. } = view.overlay.as_ref()?;
    // Git outside writes where a link in a repository leads.
    let mut never = vec![Never::links(Path::new(".git"))];
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
    let (target, flags) = (&relative(stage), emit::TMPFS_FLAGS);
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
    let (Identity { device, inode }, attributes) = (of.identity, emit::attributes(access));
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
