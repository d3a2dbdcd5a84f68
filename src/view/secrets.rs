//! Where people keep secrets. Whatever is granted around them, these stay covered unless the policy names the
//! very path. The lists are data; add a row to cover more.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::host::caller::{Caller, runtime_directory};
use crate::report::enforcement::Protection;
use crate::report::error::Error;
use crate::report::shortage::{EXCHANGED, is_shortage, of_call};
use crate::sys::lexical::is_within;
use crate::view::inputs::Inputs;
use crate::view::path_walk::UnresolvedPath;
use crate::view::source::{BindSource, SourceKind, exists};
use crate::view::{Node, View, path_walk, pin};

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

/// Of the system: what only root can read anyway, for when root asks. No link may be on the way: the view is asked for
/// these very paths.
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
    "/run/containerd/containerd.sock",
    "/run/docker.sock",
    "/run/podman/podman.sock",
    "/var/lib/docker",
    "/var/lib/kubelet",
    // Where that is no link to /run.
    "/var/run/docker.sock",
];

/// What one is called in messages.
const SECRET: &str = "secret";

/// Covers every secret that the view would show, by whatever path it would. Answers the ways to those that links lead to:
/// without these nobody would know them for secrets.
///
/// # Errors
/// Where the way to one is being exchanged meanwhile.
pub(crate) fn mask(view: &mut View, inputs: &Inputs<'_>) -> Result<Vec<UnresolvedPath>, Error> {
    let (secrets, ways) = existing(view, inputs)?;
    for secret in secrets {
        for target in view.shown_at(&secret.path) {
            pin::way_to(view, &target)?;
            cover(view, SECRET, &target, secret.kind);
        }
    }
    Ok(ways)
}

/// Where secrets of the caller's would be seen if somebody made them.
pub(crate) fn absent(view: &View, inputs: &Inputs<'_>) -> Vec<PathBuf> {
    let is_absent = |path: &PathBuf| !inputs.names.may_exist(path) || !exists(path);
    of_homes(inputs.caller).filter(is_absent).filter(|path| !view.shown_at(path).is_empty()).collect()
}

fn of_homes(caller: &Caller) -> impl Iterator<Item = PathBuf> {
    caller.homes.iter().flat_map(|home| OF_HOME.iter().map(move |name| home.join(name)))
}

/// The secrets that are there, by canonical path, and the ways to those that people keep behind links. Those of the system
/// lie where they are named, so that the view tells whether they need a look at all.
///
/// # Errors
/// One cannot be looked at that commands may yet see.
fn existing(view: &View, inputs: &Inputs<'_>) -> Result<(Vec<BindSource>, Vec<UnresolvedPath>), Error> {
    let of_homes = of_homes(inputs.caller).filter(|path| inputs.names.may_exist(path));
    let of_system = OF_SYSTEM.iter().map(PathBuf::from).chain(sessions(inputs.caller));
    let of_system = of_system.filter(|path| !view.shown_at(path).is_empty());
    let (mut secrets, mut ways) = (Vec::new(), Vec::new());
    for path in of_homes.chain(of_system) {
        let Some(secret) = look(view, inputs, SECRET, &path)? else { continue };
        if secret.path != path {
            ways.push(UnresolvedPath::new(Path::new("/"), path));
        }
        secrets.push(secret);
    }
    secrets.sort_by(|one, other| one.path.cmp(&other.path));
    secrets.dedup();
    Ok((secrets, ways))
}

/// What must be covered at `path`, if it is there. Where it is not allowed to look, and a command could allow it to itself,
/// one may be there: an earlier command can have closed a directory on the way.
///
/// # Errors
/// One may be there.
pub(crate) fn look(
    view: &View,
    inputs: &Inputs<'_>,
    what: &'static str,
    path: &Path,
) -> Result<Option<BindSource>, Error> {
    // Most are not there: one call.
    let source = match fs::symlink_metadata(path).and_then(|_| BindSource::resolve(path)) {
        Ok(source) => return Ok(Some(source)),
        Err(source) => source,
    };
    let may_be_seen = match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP) => false,
        Some(libc::EACCES) => match path_walk::on_the_way(what, path) {
            Err(Error::Grant { path: closed, .. }) if !can_be_opened(view, inputs.caller, &closed) => false,
            Err(error) => return Err(error),
            Ok(_) => true,
        },
        Some(libc::ESTALE) => true,
        errno => errno.is_some_and(is_shortage) || !view.shown_at(path).is_empty(),
    };
    if !may_be_seen {
        return Ok(None);
    }
    let remedy = match source.raw_os_error() {
        Some(libc::ESTALE) => Some(EXCHANGED),
        _ => of_call(&source),
    };
    let remedy = remedy.map(str::to_owned);
    Err(Error::Grant { what, path: path.to_owned(), source, remedy })
}

/// Whether a command could open the directory that the host's `path` lies in.
fn can_be_opened(view: &View, caller: &Caller, path: &Path) -> bool {
    let owner = path.parent().and_then(|directory| fs::metadata(directory).ok()).map(|it| it.uid());
    view.is_writable(path) && owner.is_none_or(|owner| owner == caller.uid)
}

/// Where sessions offer themselves: who could write there could take the place of one.
fn sessions(caller: &Caller) -> [PathBuf; 2] {
    let runtime = caller.environment.get(OsStr::new("XDG_RUNTIME_DIR"));
    [runtime.map(OsString::as_os_str), None].map(|runtime| runtime_directory(runtime, caller.uid))
}

/// Secrets of the caller that are there now and lie below one of these: what a view would cover. Looks at those alone.
pub(crate) fn secrets_below<'p>(
    granted: impl Iterator<Item = &'p Path> + Clone,
    caller: &Caller,
) -> Vec<PathBuf> {
    let of_homes = of_homes(caller).filter(|path| granted.clone().any(|granted| path.starts_with(granted)));
    of_homes.filter(|path| exists(path)).collect()
}

/// Whether `path` is a secret or lies in one.
pub(crate) fn is_secret(path: &Path, caller: &Caller) -> bool {
    let lies_in = |path: &Path, secrets: &[&str]| secrets.iter().any(|name| is_within(path, Path::new(name)));
    let of_home = |home: &PathBuf| path.strip_prefix(home).is_ok_and(|below| lies_in(below, OF_HOME));
    caller.homes.iter().any(of_home) || lies_in(path, OF_SYSTEM)
}

/// Puts an empty read-only directory, or /dev/null, over `path`.
pub(crate) fn cover(view: &mut View, what: &'static str, path: &Path, kind: SourceKind) {
    view.wall(what, path, cover_node(kind), Protection::Root);
}

/// What lies over something that must not be seen: the same kind of thing, empty.
pub(crate) fn cover_node(kind: SourceKind) -> Node {
    match kind {
        SourceKind::Directory => Node::Cover,
        SourceKind::File | SourceKind::Device => Node::CoverFile,
    }
}
