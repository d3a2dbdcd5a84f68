//! The steps of copy-on-write layers: first each layer is mounted in a directory of the sandbox's own, then
//! the view shows parts of it, then the layers themselves are unmounted. What the view shows of them stays.

use std::path::{Path, PathBuf};

use kennel_helper::plan::{Inode, Step, Within};

use crate::plan::{Section, absolute, empty_directory, relative};
use crate::report::enforcement::{Enforcement, Note, Protection};
use crate::report::failure;
use crate::report::remedy::{SettingKey, remedy};
use crate::sys::inode::Identity;
use crate::view::cache_store::{UPPER, WORK};
use crate::view::paths::source::BindSource;
use crate::view::{Node, Unlayered, View};

/// The sandbox's own directory with the changes of the layers.
fn stage(view: &View) -> PathBuf {
    empty_directory(view).with_file_name(if empty_directory(view).starts_with("/run") {
        "layers"
    } else {
        ".layers"
    })
}

/// Appends the steps that mount the layers.
pub(crate) fn mount(view: &View, setup: &mut Section) {
    let stage = stage(view);
    let mut make = |path: &Path, mode| {
        setup.push(Protection::Root, &Step::MakeDir { path: &relative(path), mode });
    };
    if view.layers.all.is_empty() {
        return;
    }
    make(&stage, 0o700);
    for (number, layer) in view.layers.all.iter().enumerate() {
        let at = stage.join(number.to_string());
        make(&at, 0o700);
        if layer.kept.is_none() {
            make(&at.join(UPPER), layer.mode);
            make(&at.join(WORK), 0o700);
        }
    }
    for (number, layer) in (0_u32..).zip(&view.layers.all) {
        let at = &relative(&stage.join(number.to_string()));
        let path = &absolute(&layer.lower.path);
        let lower = Inode { path, identity: numbers(&layer.lower) };
        let path = layer.kept.as_ref().map(|kept| absolute(&kept.source.path)).unwrap_or_default();
        let identity = layer.kept.as_ref().map_or((0, 0), |kept| numbers(&kept.source));
        let kept = Inode { path: &path, identity };
        let step = Step::Layer { lower, kept, at, layer: number };
        setup.push_optional(Protection::Root, &step);
    }
}

/// Appends the step that shows a part of a layer at `target`.
pub(crate) fn show(view: &View, target: &Path, within: Within, node: &Node, setup: &mut Section) {
    let Node::Layered { source, layer, otherwise } = node else { return };
    let Some(lower) = view.layers.all.get(*layer).map(|layer| &layer.lower) else { return };
    // At most MOST_LAYERS.
    let Ok(layer) = u32::try_from(*layer) else { return };
    let below = source.path.strip_prefix(&lower.path).unwrap_or(Path::new(""));
    let below = &relative(&Path::new("/").join(below));
    let source = Inode { path: &absolute(&source.path), identity: numbers(source) };
    let or_shows = u32::from(*otherwise == Unlayered::ReadOnly);
    let target = &relative(target);
    setup.push_optional(
        Protection::Root,
        &Step::ShowLayered { layer, below, source, target, within, or_shows },
    );
}

/// Appends the step that unmounts the layers, after all their parts are shown.
pub(crate) fn detach(view: &View, setup: &mut Section) {
    if !view.layers.all.is_empty() {
        setup.push(Protection::Root, &Step::DetachLayers {});
    }
}

/// Appends the step that closes the directory with the changes: commands see them only through the layers.
/// The root is read-only for them, so no command can open the directory again.
pub(crate) fn close(view: &View, setup: &mut Section) {
    if !view.layers.all.is_empty() {
        setup.push(Protection::Root, &Step::SetMode { path: &absolute(&stage(view)), mode: 0 });
    }
}

fn numbers(source: &BindSource) -> (u64, u64) {
    let Identity { device, inode } = source.identity;
    (device, inode)
}

/// Notes a layer, or a part of one, that the host could not mount. Returns whether `step` is one.
pub(crate) fn note_skipped(step: &Step<'_>, errno: i32, enforcement: &mut Enforcement) -> bool {
    let (path, what) = match step {
        Step::Layer { lower, .. } => (
            lower.path,
            "no copy-on-write layer can be put over it: caches in it start empty, toolchains are read-only",
        ),
        // The layer itself has its own note.
        Step::ShowLayered { .. } if errno == libc::ENOENT => return true,
        Step::ShowLayered { source, or_shows: 0, .. } => (source.path, "it starts empty: no layer shows it"),
        Step::ShowLayered { source, .. } => (source.path, "it is read-only: no layer shows it"),
        _ => return false,
    };
    let why = failure::words(&std::io::Error::from_raw_os_error(errno));
    let remedy = remedy!["see the host's caches with ", SettingKey::Caches.to("read-only")];
    let text = format!("{what} ({why})");
    enforcement.add_notes([Note::new(&path.to_string_lossy(), &text, Some(remedy))]);
    true
}
