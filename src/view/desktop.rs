//! What terminals and desktops need: descriptions of terminals, the host's name beside its display, and a
//! runtime directory.

use std::borrow::Cow;
use std::env;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use nix::sys::utsname::uname;

use crate::policy::HOST_NAME;
use crate::policy::mount::Mount;
use crate::report::place_kind::PlaceKind;
use crate::report::remedy::{SettingKey, remedy};
use crate::sys::lexical::clean;
use crate::view::inputs::Inputs;
use crate::view::paths::source::exists;
use crate::view::toolchains::search_path;
use crate::view::{Access, Node, View};

/// Directories of terminal descriptions of which no more than these are looked at.
const MOST_DIRECTORIES: usize = 16;

/// The sockets of X servers.
const X_SOCKETS: &str = "/tmp/.X11-unix";

/// The variable that names the directory for sockets of a login.
const RUNTIME: &str = "XDG_RUNTIME_DIR";

/// Shows the caller's own descriptions of its terminal, read-only, and makes the runtime directory if
/// something is granted in it.
pub(crate) fn show(view: &mut View, inputs: &Inputs<'_>) {
    if !inputs.policy.profile.meaning().knows_caller {
        return;
    }
    for directory in descriptions(inputs) {
        offer(view, inputs, &directory);
    }
    // Programs refuse a runtime directory that others may enter.
    if let Some(runtime) = inputs.caller.path_in(RUNTIME).map(clean)
        && view.has_children(&runtime)
        && view.is_free(&runtime)
    {
        view.offer(PlaceKind::PrivateDirectory, runtime, Node::Private { mode: 0o700 });
    }
    note_host_name(view, inputs);
}

/// Directories of the caller that describe its terminal: terminfo(5), "Fetching Compiled Descriptions".
fn descriptions(inputs: &Inputs<'_>) -> impl Iterator<Item = PathBuf> {
    let entry = inputs.caller.variable("TERM").and_then(entry);
    let own = inputs.caller.home.join(".terminfo");
    let own = inputs.names.may_exist(&own).then_some(own);
    let list = inputs.caller.variable("TERMINFO_DIRS").unwrap_or_default();
    let named = inputs.caller.path_in("TERMINFO").into_iter().chain(own).chain(env::split_paths(list));
    let has_entry = move |directory: &PathBuf| {
        let has = |entry: &[PathBuf; 2]| entry.iter().any(|entry| exists(&directory.join(entry)));
        directory.is_absolute() && entry.as_ref().is_some_and(has)
    };
    named.map(clean).take(MOST_DIRECTORIES).filter(has_entry)
}

/// Where a terminal is described: below the first letter of its name, or below its number.
fn entry(term: &OsStr) -> Option<[PathBuf; 2]> {
    let [Component::Normal(_)] = Path::new(term).components().collect::<Vec<_>>()[..] else { return None };
    let first = term.as_bytes().first()?;
    let letter = Path::new(OsStr::from_bytes(&[*first])).join(term);
    Some([letter, Path::new(&format!("{first:02x}")).join(term)])
}

fn offer(view: &mut View, inputs: &Inputs<'_>, directory: &Path) {
    let Some(resolved) = search_path::fit(inputs, directory) else { return };
    let source = &resolved.source;
    if !source.is_dir() || !search_path::is_trusted(view, inputs, directory, &resolved) {
        return;
    }
    if view.is_free(&source.path) {
        let node = Node::Bind { source: source.clone(), access: Access::Read };
        view.offer(PlaceKind::TerminalDescriptions, &source.path, node);
    }
    view.offer_links(&resolved.links, directory, &source.path);
}

/// The name of the sandbox's host: the policy's. With a display of the host it is the host's own, because X
/// programs look for a cookie by that name: Xau(3).
pub(crate) fn host_name<'p>(inputs: &Inputs<'p>) -> Cow<'p, str> {
    let named = &*inputs.policy.hostname;
    match own_name(inputs) {
        Some(own) if named == HOST_NAME => Cow::Owned(own),
        _ => Cow::Borrowed(named),
    }
}

/// The name of this host, if the policy grants its display.
fn own_name(inputs: &Inputs<'_>) -> Option<String> {
    let is_display = |mount: &Mount| {
        matches!(mount, Mount::ReadOnly { source, .. } | Mount::ReadWrite { source, .. }
            if inputs.caller.absolute(source).starts_with(X_SOCKETS))
    };
    if !inputs.policy.profile.meaning().knows_caller || !inputs.policy.mounts.iter().any(is_display) {
        return None;
    }
    let name = uname().ok()?.nodename().to_str()?.to_owned();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    (!name.is_empty() && name.bytes().all(is_plain)).then_some(name)
}

/// Says that a name of the policy hides the cookie of the display.
fn note_host_name(view: &mut View, inputs: &Inputs<'_>) {
    if let Some(own) = own_name(inputs).filter(|own| *own != *host_name(inputs)) {
        let text = format!("X programs find no cookie, because it belongs to the host name {own}");
        let other = SettingKey::Hostname.to(own);
        view.note(X_SOCKETS, &text, Some(remedy!["leave out ", SettingKey::Hostname, ", or use ", other]));
    }
}
