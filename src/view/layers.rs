//! Copy-on-write layers: directories of the host that commands can change without changing the host.
//!
//! A layer is an overlay. To mount one takes some ten times as long as a bind, so one layer over HOME serves
//! all directories in it, and each of them is a bind of a part of that layer. Nothing else of HOME is shown.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

use kennel_helper::plan::MOST_LAYERS;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, faccessat};

use crate::host::OLDEST_IN_MEMORY;
use crate::policy::profile::Caches;
use crate::report::failure;
use crate::report::place_kind::PlaceKind;
use crate::report::remedy::{SettingKey, remedy};
use crate::sys::inode::Identity;
use crate::view::cache_store::CacheStore;
use crate::view::inputs::{Inputs, SandboxKind, may_have_layers};
use crate::view::paths::source::{BindSource, SourceKind};
use crate::view::{Access, Node, Unlayered, View};

/// Inodes of one layer: its directory, `upper`, `work`, `work/work`, and the room for its extended
/// attributes.
pub(crate) const INODES: u64 = 6;

/// A copy-on-write layer.
#[derive(Clone, Debug)]
pub(crate) struct CowLayer {
    /// The host's directory under it. It never changes.
    pub(crate) lower: BindSource,
    /// Mode of the layer's root.
    pub(crate) mode: u32,
    /// Whether its changes are to be kept.
    keeps: bool,
    /// The directory that keeps its changes; `None`: they are in memory.
    pub(crate) kept: Option<CacheStore>,
}

/// The layers of a view.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layers {
    pub(crate) all: Vec<CowLayer>,
    /// HOME, if one layer can serve all of it. Looked up for the first directory in it.
    home: Option<Option<BindSource>>,
}

impl Layers {
    /// Whether the changes of this layer are on a disk.
    pub(crate) fn is_kept(&self, layer: usize) -> bool {
        self.all.get(layer).is_some_and(|layer| layer.kept.is_some())
    }

    /// HOME as a lower directory.
    fn home(&mut self, inputs: &Inputs<'_>) -> Option<BindSource> {
        self.home.get_or_insert_with(|| home(inputs)).clone()
    }

    /// The directory under the layer that can show `source`.
    fn lower(&mut self, inputs: &Inputs<'_>, source: &BindSource) -> Option<BindSource> {
        let in_home = |home: &BindSource| {
            source.path != home.path
                && source.path.starts_with(&home.path)
                && source.identity.device == home.identity.device
        };
        let own = || is_writable_outside(&source.path).then(|| source.clone());
        self.home(inputs).filter(in_home).or_else(own)
    }
}

/// The number of the layer over `lower`. Makes it if there is none.
fn number(view: &mut View, inputs: &Inputs<'_>, lower: BindSource, keeps: bool) -> Option<usize> {
    let known = view.layers.all.iter().position(|layer| layer.lower == lower && layer.keeps == keeps);
    if known.is_some() || view.layers.all.len() == MOST_LAYERS {
        return known;
    }
    let mode = fs::symlink_metadata(&lower.path).ok()?.mode() & 0o1777;
    let kept = if keeps { open_store(view, inputs, &lower, mode) } else { None };
    view.layers.all.push(CowLayer { lower, mode, keeps, kept });
    Some(view.layers.all.len() - 1)
}

/// The directory that keeps the changes of a layer. Notes it if there is none.
fn open_store(view: &mut View, inputs: &Inputs<'_>, lower: &BindSource, mode: u32) -> Option<CacheStore> {
    let opened = match inputs.kind {
        // Commands of such a sandbox can run at the same time, each with a layer of its own.
        SandboxKind::OneShot => Err(io::Error::other("a sandbox of many commands cannot keep them")),
        SandboxKind::Once | SandboxKind::Session { .. } => {
            CacheStore::open(inputs.caller, &lower.path, mode, |path| view.is_writable(path))
        }
    };
    let error = match opened {
        Ok(kept) => return Some(kept),
        Err(error) => error,
    };
    let is_used = error.kind() == io::ErrorKind::WouldBlock;
    let why = if is_used { "another sandbox uses them".to_owned() } else { failure::words(&error) };
    let text = format!("what commands write to caches is not kept, and kept changes are not visible: {why}");
    let remedy = if is_used {
        "end that sandbox first".into()
    } else {
        remedy!["use ", SettingKey::Caches.to("private"), ", or run the commands in a session"]
    };
    view.note(&lower.path.to_string_lossy(), &text, Some(remedy));
    None
}

/// Whether what a command downloads into caches is gone with its sandbox, and need not be.
pub(crate) fn forgets_caches(inputs: &Inputs<'_>) -> bool {
    inputs.policy.caches == Caches::Private
        && may_have_layers(inputs.policy)
        && !inputs.kind.is_session()
        && are_possible(inputs)
}

/// Whether what commands write to a directory is to be kept.
fn keeps(inputs: &Inputs<'_>, otherwise: Unlayered) -> bool {
    inputs.policy.caches == Caches::Keep && otherwise == Unlayered::Empty
}

/// With kept changes, shows a cache below HOME that the host lacks.
pub(crate) fn show_absent(view: &mut View, inputs: &Inputs<'_>, what: PlaceKind, path: &Path) {
    if !may_have_layers(inputs.policy) || !keeps(inputs, Unlayered::Empty) || !are_possible(inputs) {
        return;
    }
    let Ok(below) = path.strip_prefix(&inputs.caller.home) else { return };
    let Some(home) = view.layers.home(inputs).filter(|_| view.is_free(path)) else { return };
    let path = home.path.join(below);
    let Some(layer) = number(view, inputs, home, true) else { return };
    let kept = view.layers.all.get(layer).and_then(|layer| layer.kept.as_ref());
    if kept.is_some_and(|kept| kept.make_room(below).is_ok()) {
        let source =
            BindSource { path: path.clone(), identity: Identity::NOTHING, kind: SourceKind::Directory };
        view.offer(what, path, Node::Layered { source, layer, otherwise: Unlayered::Empty });
    }
}

/// The node that shows a directory of the host to commands that may write there: in a layer, or read-only if
/// the policy wants no layers, or if the caller cannot write there either.
pub(crate) fn node(view: &mut View, inputs: &Inputs<'_>, source: BindSource, otherwise: Unlayered) -> Node {
    let may_be = may_have_layers(inputs.policy) && source.is_dir();
    let layer = match are_possible(inputs) {
        true if may_be => {
            let lower = view.layers.lower(inputs, &source);
            lower.and_then(|lower| number(view, inputs, lower, keeps(inputs, otherwise)))
        }
        false if may_be => {
            note_old_kernel(view, inputs);
            if otherwise == Unlayered::Empty {
                return Node::Private { mode: 0o755 };
            }
            None
        }
        _ => None,
    };
    match layer {
        Some(layer) => Node::Layered { source, layer, otherwise },
        None => Node::Bind { source, access: Access::Read },
    }
}

/// Says it for each directory; the report has each note once.
fn note_old_kernel(view: &mut View, inputs: &Inputs<'_>) {
    let text = "has no copy-on-write layers in memory: caches start empty, and toolchains are read-only";
    let shown = SettingKey::Caches.to("read-only");
    let remedy = remedy!["use Linux 6.6 or later, or see the host's caches with ", shown];
    view.note(&format!("Linux {}", inputs.host.kernel), text, Some(remedy));
}

/// HOME, unless something is mounted in it: the kernel refuses an overlay that would uncover what is under a
/// mount.
fn home(inputs: &Inputs<'_>) -> Option<BindSource> {
    let home = BindSource::resolve(&inputs.caller.home).ok()?;
    let is_one =
        inputs.caller.homes.contains(&home.path) && !inputs.names.mounts().ok()?.is_mounted_below(&home.path);
    is_one.then_some(home)
}

/// Whether the caller could write to this directory without a sandbox.
pub(crate) fn is_writable_outside(path: &Path) -> bool {
    faccessat(AT_FDCWD, path, AccessFlags::W_OK, AtFlags::AT_EACCESS).is_ok()
}

/// Whether this kernel can keep the changes of a layer in memory.
pub(crate) fn are_possible(inputs: &Inputs<'_>) -> bool {
    inputs.host.kernel >= OLDEST_IN_MEMORY
}
