//! What a sandbox has over another root: the kernel's file systems, the devices, and a few files about
//! itself.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::policy::network::NetworkMode;
use crate::report::error::Error;
use crate::report::failure::shown;
use crate::report::place_kind::PlaceKind;
use crate::view::inputs::Inputs;
use crate::view::node::TmpfsSize;
use crate::view::paths::source::BindSource;
use crate::view::root::OtherRoot;
use crate::view::root::tree::Found;
use crate::view::secrets::{is_secret, secret_below};
use crate::view::{Access, Node, View, desktop, grants, system};

/// The directory for files of Kennel's own.
const OWN: &str = "/dev/.kennel";

/// The settings of apt.
const APT: &str = "/etc/apt/apt.conf.d";

/// apt downloads as a user of its own, and there is no other user: apt.conf(5).
const APT_AS_ROOT: &str = "APT::Sandbox::User \"root\";\n";

/// The sandbox's own empty directory in another root.
pub(crate) const EMPTY: &str = "/dev/.kennel/empty";

/// Adds the root to the view, and what belongs over it.
///
/// # Errors
/// The host has no `/dev/null`; the root has something else where directories of the kernel must be, or holds
/// what no sandbox may show.
pub(crate) fn show(view: &mut View, inputs: &Inputs<'_>, root: &Arc<OtherRoot>) -> Result<(), Error> {
    if root.image.is_none() {
        check_directory(inputs, &root.layers)?;
    }
    for at in ["/dev", "/proc", "/sys"] {
        if !matches!(root.tree.find(Path::new(at)), Found::Nothing | Found::Directory) {
            return Err(Error::View {
                what: PlaceKind::Root.as_str(),
                path: at.into(),
                reason: "is no directory there".to_owned(),
                remedy: Some("remove it from the root: the sandbox has its own".into()),
            });
        }
    }
    view.root = Some(Arc::clone(root));
    view.offer(PlaceKind::Root, "/", Node::Root { is_writable: inputs.policy.profile.meaning().writes });
    for at in ["/dev", "/sys"] {
        view.offer(PlaceKind::Directory, at, Node::OwnTmpfs { size: TmpfsSize::from_policy(inputs, None) });
    }
    view.offer(PlaceKind::Directory, EMPTY, Node::Dir);
    view.offer(PlaceKind::PrivateDirectory, "/dev/shm", Node::Private { mode: 0o1777 });
    system::show_devices(view, inputs)?;
    system::show_parts_of_sys(view, inputs);
    let name = desktop::host_name(inputs);
    view.offer(PlaceKind::File, "/etc/hosts", Node::file(grants::hosts(&name)));
    view.offer(PlaceKind::File, "/etc/hostname", Node::file(format!("{name}\n")));
    let servers = match inputs.policy.effective_network() {
        NetworkMode::None => Vec::new(),
        NetworkMode::Proxy | NetworkMode::Host => fs::read("/etc/resolv.conf").unwrap_or_default(),
    };
    view.offer(PlaceKind::File, "/etc/resolv.conf", Node::file(servers));
    if inputs.fakes_root() && matches!(root.tree.find(Path::new(APT)), Found::Directory) {
        view.offer(PlaceKind::File, Path::new(APT).join("kennel"), Node::file(APT_AS_ROOT));
    }
    Ok(())
}

/// Refuses a directory of the caller with known secrets or in a file system of the kernel: in a root, nothing
/// would cover them.
fn check_directory(inputs: &Inputs<'_>, layer: &BindSource) -> Result<(), Error> {
    let refused = |source: io::Error| Error::Grant {
        what: PlaceKind::Root.as_str(),
        path: layer.path.clone(),
        source,
        remedy: Some("name a directory that holds nothing but a root file system".into()),
    };
    system::check_source(layer, Access::Write).map_err(refused)?;
    let own = is_secret(&layer.path, inputs.caller).then(|| layer.path.clone());
    match own.or_else(|| secret_below(&layer.path, inputs.caller)) {
        None => Ok(()),
        Some(secret) => {
            let reason = format!("{} lies in it, a known place of secrets", shown(&secret));
            Err(refused(io::Error::new(io::ErrorKind::InvalidInput, reason)))
        }
    }
}

/// Where the host's certificates appear: the `number`th file or directory.
pub(crate) fn certificates(number: usize) -> PathBuf {
    Path::new(OWN).join("certificates").join(number.to_string())
}

/// The path of the `number`th file that is bound over one of the root.
pub(crate) fn own_file(number: usize) -> PathBuf {
    Path::new(OWN).join(number.to_string())
}
