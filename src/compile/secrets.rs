//! Where people keep secrets. Whatever is granted around them, these stay covered unless the policy names the
//! very path. The lists are data; add a row to cover more.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{
    Parts,
    source::Kind,
    view::{Node, View},
};
use crate::policy::Protection;

/// Below HOME.
const OF_HOME: &[&str] = &[
    ".aws",
    ".azure",
    ".bash_history",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".config/BraveSoftware",
    ".config/chromium",
    ".config/gcloud",
    ".config/gh",
    ".config/glab-cli",
    ".config/google-chrome",
    ".config/op",
    ".config/sops",
    ".docker",
    ".gem/credentials",
    ".git-credentials",
    ".config/git/credentials",
    ".gnupg",
    ".kube",
    ".local/share/keyrings",
    ".m2/settings.xml",
    ".mozilla",
    ".netrc",
    ".npmrc",
    ".password-store",
    ".pgpass",
    ".pypirc",
    ".python_history",
    ".ssh",
    ".terraform.d",
    ".thunderbird",
    ".vault-token",
    ".zsh_history",
];

/// Of the system: what only root can read anyway, for when root asks.
const OF_SYSTEM: &[&str] = &[
    "/boot",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/pki/tls/private",
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/ssh",
    "/etc/ssl/private",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/var/lib/docker",
    "/var/lib/kubelet",
    "/var/run/docker.sock",
];

/// Covers every secret that the view would show.
pub(super) fn mask(view: &mut View, parts: &Parts<'_>) {
    let of_home = OF_HOME.iter().map(|name| parts.caller.home.join(name));
    for path in of_home.chain(OF_SYSTEM.iter().map(PathBuf::from)) {
        cover_if_visible(view, &path, 0);
    }
}

/// Whether `path` is a secret or lies in one.
pub(super) fn is_secret(path: &Path, home: &Path) -> bool {
    match path.strip_prefix(home) {
        Ok(below) => OF_HOME.iter().any(|name| lies_in(below, name)),
        Err(_) => OF_SYSTEM.iter().any(|name| lies_in(path, name)),
    }
}

/// `Path::starts_with` for a clean path, without taking both apart.
fn lies_in(path: &Path, above: &str) -> bool {
    let rest = path.as_os_str().as_encoded_bytes().strip_prefix(above.as_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Covers `path` where a bind shows it; where it is a link, what it leads to as well.
fn cover_if_visible(view: &mut View, path: &Path, links: u32) {
    let Some(on_host) = view.host_path(path) else { return };
    let Ok(metadata) = fs::symlink_metadata(&on_host) else { return };
    if metadata.is_symlink() {
        if let (Ok(target), true) = (fs::canonicalize(&on_host), links < 4) {
            cover_if_visible(view, &target, links + 1);
        }
        return;
    }
    let kind = if metadata.is_dir() { Kind::Directory } else { Kind::File };
    cover(view, "secret", path, kind);
}

/// Puts an empty read-only directory, or /dev/null, over `path`.
pub(super) fn cover(view: &mut View, what: &'static str, path: &Path, kind: Kind) {
    if let Some(node) = cover_node(view, kind) {
        view.wall(what, path, node, Protection::Root);
    }
}

/// What lies over something that must not be seen: the same kind of thing, empty.
pub(super) fn cover_node(view: &View, kind: Kind) -> Option<Node> {
    match kind {
        Kind::Directory => Some(Node::Cover),
        // The view's own /dev/null: every profile has it.
        Kind::File | Kind::Device => Some(view.get(Path::new("/dev/null"))?.node.clone()),
    }
}
