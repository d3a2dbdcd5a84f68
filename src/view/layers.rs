//! Copy-on-write layers: directories of the host that commands can change without changing the host.
//!
//! A layer is an overlay. To mount one takes some ten times as long as a bind, so one layer over HOME serves all
//! directories in it, and each of them is a bind of a part of that layer. Nothing else of HOME is shown.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use kennel_helper::plan::MOST_LAYERS;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, faccessat};

use crate::host::Version;
use crate::host::mounts::is_mounted_below;
use crate::policy::Policy;
use crate::policy::profile::{Caches, Toolchains};
use crate::view::inputs::Inputs;
use crate::view::source::BindSource;
use crate::view::{Access, Node, Unlayered, View};

/// First kernel with user extended attributes on tmpfs. Without them an overlay cannot replace one directory
/// by another.
pub(crate) const OLDEST_IN_MEMORY: Version = Version(6, 6);

/// Upper bound of the inodes of one layer: its directory, `upper`, `work`, and what overlayfs makes in `work`.
pub(crate) const INODES: u64 = 8;

/// A copy-on-write layer.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    /// The host's directory under it. It never changes.
    pub(crate) lower: BindSource,
    /// Mode of the layer's root.
    pub(crate) mode: u32,
}

/// The layers of a view.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layers {
    pub(crate) all: Vec<Layer>,
    /// HOME, if one layer can serve all of it. Looked up for the first directory in it.
    home: Option<Option<BindSource>>,
}

impl Layers {
    /// The number of the layer that can show `source`.
    fn number(&mut self, inputs: &Inputs<'_>, source: &BindSource) -> Option<usize> {
        let home = self.home.get_or_insert_with(|| home(inputs));
        let in_home = |home: &&BindSource| {
            source.path != home.path
                && source.path.starts_with(&home.path)
                && source.identity.device == home.identity.device
        };
        let lower = match home.as_ref().filter(in_home) {
            Some(home) => home,
            None if is_writable_outside(&source.path) => source,
            None => return None,
        };
        if let Some(number) = self.all.iter().position(|layer| layer.lower == *lower) {
            return Some(number);
        }
        let mode = fs::symlink_metadata(&lower.path).ok()?.mode() & 0o1777;
        let layer = Layer { lower: lower.clone(), mode };
        (self.all.len() < MOST_LAYERS).then(|| {
            self.all.push(layer);
            self.all.len() - 1
        })
    }
}

/// The node that shows a directory of the host to commands that may write there: in a layer, or read-only if the policy wants
/// no layers, or if the caller cannot write there either.
pub(crate) fn node(view: &mut View, inputs: &Inputs<'_>, source: BindSource, otherwise: Unlayered) -> Node {
    let may_be = are_wanted(inputs.policy) && source.is_dir();
    if may_be && !are_possible(inputs) && otherwise == Unlayered::Empty {
        return Node::Private { mode: 0o755 };
    }
    let layer = (may_be && are_possible(inputs)).then(|| view.layers.number(inputs, &source)).flatten();
    match layer {
        Some(layer) => Node::Layered { source, layer, otherwise },
        None => Node::Bind { source, access: Access::Read },
    }
}

/// HOME, unless something is mounted in it: the kernel refuses an overlay that would uncover what is under a mount.
fn home(inputs: &Inputs<'_>) -> Option<BindSource> {
    let home = BindSource::resolve(&inputs.caller.home).ok()?;
    let is_one = inputs.caller.homes.contains(&home.path) && !is_mounted_below(&home.path).ok()?;
    is_one.then_some(home)
}

/// Whether the caller could write to this directory without a sandbox.
pub(crate) fn is_writable_outside(path: &Path) -> bool {
    faccessat(AT_FDCWD, path, AccessFlags::W_OK, AtFlags::AT_EACCESS).is_ok()
}

/// Whether sandboxes of this policy may have layers.
pub(crate) fn are_wanted(policy: &Policy) -> bool {
    matches!(policy.caches, Caches::Private | Caches::Keep)
        && policy.toolchains == Toolchains::Auto
        && policy.profile.meaning().knows_caller
}

/// Whether this kernel can keep the changes of a layer in memory.
pub(crate) fn are_possible(inputs: &Inputs<'_>) -> bool {
    inputs.host.kernel >= OLDEST_IN_MEMORY
}
