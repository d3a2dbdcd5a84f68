//! What is on PATH.
//!
//! 1. A directory on PATH is shown with its prefix, the directory that it was installed into; and so is the
//!    program that a link in such a directory leads to.
//! 2. Below HOME, a prefix is shown as a whole only if it looks like an installation and holds nothing
//!    private. Otherwise the directory of programs is shown with the libraries beside it, or the linked
//!    program alone.
//! 3. Nothing is shown that another user may have put there, or that a command may have linked to.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::{fs, io};

use crate::caller::writers::{Writer, another_writer};
use crate::report::place_kind::PlaceKind;
use crate::report::remedy::{Remedy, SettingKey, remedy};
use crate::sys::file_system::FileSystem;
use crate::view::inputs::Inputs;
use crate::view::paths::resolved::ResolvedPath;
use crate::view::paths::source::{BindSource, exists};
use crate::view::{Unlayered, View, layers, secrets, system};

/// Names of directories of programs. Their prefix is the directory above.
const OF_PROGRAMS: &[&str] = &["bin", "condabin", "sbin", "shims"];

/// Packages of Node.js load each other from the directory that holds all of them: their prefix.
const NODE_MODULES: &str = "node_modules";

/// The libraries beside a directory of programs.
const LIBRARIES: &[&str] = &["include", "lib", "lib64", "libexec"];

/// What else an installation has beside its programs. A directory of a person, such as `~/Documents`, may
/// have a `bin` too.
const DATA: &[&str] = &["jars", "libs", "resources", "share"];

/// No program is installed in one of these, or is a directory directly below `/`, or below `/var`.
const NEVER: &[&str] = &["/boot", "/dev", "/etc", "/proc", "/run", "/sys"];

/// Directories of the system that are looked at for links, because administrators put links to other prefixes
/// there.
const LOCAL: &[&str] = &["/usr/local/bin", "/usr/local/sbin"];

/// How many prefixes are shown, and how many links of one directory are looked at.
const MOST_PREFIXES: usize = 64;
const MOST_LINKS: usize = 256;

/// In such a directory, only its owner and that of an entry can replace the entry.
const STICKY: u32 = 0o1000;

/// The remedy where a limit left something out.
fn show_more() -> Remedy {
    remedy!["show what is missing with ", SettingKey::Ro]
}

/// Shows what the caller's PATH leads to.
pub(crate) fn show(view: &mut View, inputs: &Inputs<'_>) {
    let mut search = Search { view, inputs, prefixes: 0, directories: Vec::new() };
    let mut seen = HashSet::new();
    for entry in inputs.caller.search_path() {
        if seen.insert(entry.clone()) {
            search.show_entry(&entry);
        }
    }
    let mut done = 0;
    while let Some(directory) = search.directories.get(done).cloned() {
        search.follow_links_in(&directory);
        done += 1;
    }
    if search.prefixes == MOST_PREFIXES {
        let text = format!("only the first {MOST_PREFIXES} directories outside of the system are shown");
        view.note("PATH", &text, Some(show_more()));
    }
}

/// Shows a directory that a variable of the caller names, or a row of a table, if it is fit. Links on the way
/// are allowed, unless commands may have made them. A variable must not be able to expose HOME, a secret, or
/// a place of the system.
pub(crate) fn offer(view: &mut View, inputs: &Inputs<'_>, path: &Path) {
    let Some(resolved) = fit(inputs, path) else { return };
    if !is_visible(view, &resolved.source.path) && is_trusted(view, inputs, path, &resolved) {
        let source = resolved.source.clone();
        offer_at_its_path(view, inputs, source);
    }
    view.offer_links(&resolved.links, path, &resolved.source.path);
}

/// Whether the view shows the host's `path`, which has no link in it, under its own name.
pub(crate) fn is_visible(view: &View, path: &Path) -> bool {
    view.host_path(path).is_some_and(|shown| shown == path) && !view.is_covered(path)
}

fn offer_at_its_path(view: &mut View, inputs: &Inputs<'_>, source: BindSource) {
    if view.is_free(&source.path) {
        let path = source.path.clone();
        let node = layers::node(view, inputs, source, Unlayered::ReadOnly);
        view.offer(PlaceKind::Toolchain, path, node);
    }
}

/// Resolves `path` if something is there that may be shown.
pub(crate) fn fit(inputs: &Inputs<'_>, path: &Path) -> Option<ResolvedPath> {
    let resolved = inputs.names.may_exist(path).then(|| ResolvedPath::resolve(path).ok())??;
    let is_linked = resolved.source.path.as_os_str() != path.as_os_str();
    if is_linked && secrets::is_secret(path, inputs.caller) {
        return None;
    }
    is_fit(&resolved.source.path, inputs).then_some(resolved)
}

/// Whether a program may be installed at `path`, which has no link in it.
pub(crate) fn is_fit(path: &Path, inputs: &Inputs<'_>) -> bool {
    let in_home = || inputs.caller.homes.iter().any(|home| path.starts_with(home));
    let depth = path.components().count();
    let of_system = || {
        let below_var = path.starts_with("/var") && depth < 4;
        depth < 3 || below_var || NEVER.iter().any(|place| path.starts_with(place))
    };
    !inputs.caller.holds_home(path) && (in_home() || !of_system()) && !secrets::is_secret(path, inputs.caller)
}

/// Whether the links on the way to `path` may decide what is shown. Adds a note if not.
pub(crate) fn is_trusted(view: &mut View, inputs: &Inputs<'_>, path: &Path, resolved: &ResolvedPath) -> bool {
    let of_commands =
        || resolved.link_in_writable_grant(view).or_else(|| link_in_repository(resolved, inputs));
    let found = link_of_another(resolved, inputs)
        .map(|(link, who)| (link, who.to_string()))
        .or_else(|| Some((of_commands()?, "commands".to_owned())));
    let Some((link, who)) = found else { return true };
    let (end, link) = (resolved.source.path.display(), link.display());
    let text = format!("not shown, because {who} could have made the link {link}, which leads to {end}");
    view.note(&path.display().to_string(), &text, Some(SettingKey::Ro.to(end).into()));
    false
}

/// The first link on the way that somebody else could have made than root, the caller, or the owner of what
/// it leads to.
fn link_of_another<'r>(resolved: &'r ResolvedPath, inputs: &Inputs<'_>) -> Option<(&'r Path, Writer)> {
    let trusted = [0, inputs.caller.uid, resolved.metadata.uid()];
    let links = resolved.links.iter().map(|link| &*link.at);
    links.into_iter().find_map(|at| Some((at, another_replacer(at, &trusted)?)))
}

/// Somebody who may put something else in the place of the file, directory or link at `path`, and is none of
/// the `trusted` users.
fn another_replacer(path: &Path, trusted: &[u32]) -> Option<Writer> {
    // What cannot be looked at was replaced meanwhile.
    let Ok(metadata) = fs::symlink_metadata(path) else { return Some(Writer::Everyone) };
    if !trusted.contains(&metadata.uid()) {
        return Some(Writer::User(metadata.uid()));
    }
    let above = path.parent()?;
    let Ok(directory) = fs::metadata(above) else { return Some(Writer::Everyone) };
    match another_writer(above, &directory, trusted) {
        Some(_) if directory.mode() & STICKY != 0 && trusted.contains(&directory.uid()) => None,
        writer => writer,
    }
}

/// The first link on the way that is in a git repository. That is a workspace, or was one or will be, so its
/// commands may have made the link. HOME does not count, nor does a directory of the system.
fn link_in_repository<'r>(resolved: &'r ResolvedPath, inputs: &Inputs<'_>) -> Option<&'r Path> {
    let is_repository = |path: &Path| is_fit(path, inputs) && exists(&path.join(".git"));
    resolved.links.iter().map(|link| &*link.at).find(|at| at.ancestors().skip(1).any(is_repository))
}

struct Search<'v, 'i> {
    view: &'v mut View,
    inputs: &'v Inputs<'i>,
    prefixes: usize,
    /// The directories of programs, without links in their paths.
    directories: Vec<PathBuf>,
}

impl Search<'_, '_> {
    /// Shows a directory of PATH, with its prefix.
    fn show_entry(&mut self, entry: &Path) {
        if system::is_system_path(entry) {
            if LOCAL.iter().any(|local| entry == Path::new(local)) {
                self.add_directory(entry);
            }
            return;
        }
        // WSL puts many directories of Windows there. Their programs do not run inside, and to list them
        // takes long.
        if entry.starts_with("/mnt") && FileSystem::at(entry).is_ok_and(FileSystem::is_of_9p) {
            return;
        }
        let Some(resolved) = fit(self.inputs, entry) else { return };
        let directory = &resolved.source.path;
        let is_shown = || is_visible(self.view, directory);
        if resolved.source.is_dir() && (is_shown() || self.may_show(entry, directory, &resolved)) {
            self.show_prefix(directory, &resolved);
            self.view.offer_links(&resolved.links, entry, directory);
        }
    }

    /// Shows the prefix of a directory of programs. `of` is that directory, or a program in it.
    fn show_prefix(&mut self, directory: &Path, of: &ResolvedPath) {
        if is_visible(self.view, directory) {
            return self.add_directory(directory);
        }
        if self.prefixes == MOST_PREFIXES {
            return;
        }
        self.prefixes += 1;
        let prefix = prefix_of(directory);
        let is_home = self.inputs.caller.homes.iter().any(|home| home == prefix);
        let is_listed = of.source.is_dir() || is_of_programs(directory) && is_fit(directory, self.inputs);
        if self.is_whole(prefix, directory) {
            self.offer(prefix);
        } else if is_listed {
            self.offer(directory);
            for name in LIBRARIES.iter().filter(|_| prefix != directory && !is_home) {
                self.offer(&prefix.join(name));
            }
        } else {
            return offer_at_its_path(self.view, self.inputs, of.source.clone());
        }
        self.add_directory(directory);
    }

    /// Shows what is at `path`, unless that is a link.
    fn offer(&mut self, path: &Path) {
        if let Ok(source) = BindSource::exact(path) {
            offer_at_its_path(self.view, self.inputs, source);
        }
    }

    /// Whether all of a prefix is shown. A file that others may not read, although they may enter the
    /// directory of programs, holds settings or credentials.
    fn is_whole(&self, prefix: &Path, directory: &Path) -> bool {
        let caller = self.inputs.caller;
        if !is_fit(prefix, self.inputs) || secrets::holds_secret(prefix, caller) {
            return false;
        }
        let Some(below) = caller.homes.iter().find_map(|home| prefix.strip_prefix(home).ok()) else {
            return true;
        };
        let entries = fs::read_dir(prefix).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let Ok(entries) = entries else { return false };
        let has = |name: &str| entries.iter().any(|entry| entry.file_name() == *name);
        let is_of_tool = below.as_os_str().as_bytes().starts_with(b".") || prefix.ends_with(NODE_MODULES);
        let is_installed = is_of_tool || LIBRARIES.iter().chain(DATA).any(|name| has(name)) && !has(".git");
        let is_open = || fs::metadata(directory).is_ok_and(|it| it.mode() & 0o055 != 0);
        is_installed && !(entries.iter().any(is_private) && is_open())
    }

    fn add_directory(&mut self, directory: &Path) {
        if !self.directories.iter().any(|known| known == directory) {
            self.directories.push(directory.to_owned());
        }
    }

    /// Shows what the links in a directory of programs lead to.
    fn follow_links_in(&mut self, directory: &Path) {
        let Ok(entries) = fs::read_dir(directory) else { return };
        let is_link = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_symlink());
        let links = entries.flatten().filter(is_link).map(|entry| entry.path());
        let mut leads_out = false;
        for (count, link) in links.enumerate() {
            if count == MOST_LINKS {
                // Links into the own prefix, as Homebrew makes thousands, are no reason for a note.
                if leads_out {
                    let text = format!("only the first {MOST_LINKS} links in it are followed");
                    self.view.note(&directory.display().to_string(), &text, Some(show_more()));
                }
                return;
            }
            if fs::read_link(&link).is_ok_and(|text| !self.stays(directory, &text)) {
                if !leads_out && !self.is_closed(directory) || !self.follow(&link) {
                    return;
                }
                leads_out = true;
            }
        }
    }

    /// Whether only root or the caller may put links there.
    fn is_closed(&self, directory: &Path) -> bool {
        let trusted = [0, self.inputs.caller.uid];
        fs::metadata(directory).is_ok_and(|it| another_writer(directory, &it, &trusted).is_none())
    }

    /// Whether a link with this text leads to what is visible, as far as the text says.
    fn stays(&self, directory: &Path, text: &Path) -> bool {
        if text.is_relative() && !text.components().any(|part| part == Component::ParentDir) {
            return true;
        }
        let target = lexically(directory, text);
        system::is_system_path(&target) || is_visible(self.view, &target)
    }

    /// Shows the prefix of the program that a link leads to. Returns whether to go on with this directory.
    fn follow(&mut self, link: &Path) -> bool {
        let Some(resolved) = fit(self.inputs, link) else { return true };
        let ResolvedPath { source, metadata, links } = &resolved;
        let is_program = metadata.is_file() && metadata.mode() & 0o111 != 0;
        if is_program && !is_visible(self.view, &source.path) {
            let directory = source.path.parent().unwrap_or(&source.path);
            if !self.may_show(link, directory, &resolved) {
                return false;
            }
            self.show_prefix(directory, &resolved);
        }
        self.view.offer_links(links, link, &source.path);
        true
    }

    /// Whether the directory of programs that `path` leads to, or the program in it, may be shown. Adds a
    /// note if not.
    fn may_show(&mut self, path: &Path, directory: &Path, resolved: &ResolvedPath) -> bool {
        let prefix = prefix_of(directory);
        let (own, owner) = ([0, self.inputs.caller.uid], resolved.metadata.uid());
        let trusted = [own[0], own[1], owner];
        let writer = |at: &Path| another_writer(at, &fs::metadata(at).ok()?, &trusted);
        if !own.contains(&owner)
            && let Some((open, who)) = prefix.ancestors().find_map(|at| Some((at, writer(at)?)))
        {
            let (path, end, open) = (path.display(), prefix.display(), open.display());
            let text = format!(
                "{path}: {end} is not shown, because it belongs to another user and {who} may write to {open}"
            );
            self.view.note("PATH", &text, Some(SettingKey::Ro.to(end).into()));
            return false;
        }
        is_trusted(self.view, self.inputs, path, resolved)
    }
}

/// Whether it is a file that only its owner may read.
fn is_private(entry: &fs::DirEntry) -> bool {
    entry.file_type().is_ok_and(|kind| kind.is_file())
        && entry.metadata().is_ok_and(|it| it.mode() & 0o077 == 0)
}

/// The directory that holds everything that programs in `directory` belong to.
fn prefix_of(directory: &Path) -> &Path {
    let packages = directory.ancestors().filter(|above| above.ends_with(NODE_MODULES)).last();
    match (packages, directory.parent()) {
        (Some(packages), _) => packages,
        (None, Some(above)) if is_of_programs(directory) => above,
        _ => directory,
    }
}

fn is_of_programs(directory: &Path) -> bool {
    directory.file_name().is_some_and(|name| OF_PROGRAMS.iter().any(|other| name == OsStr::new(other)))
}

/// Where `text` leads from `directory` if no part on the way is a link.
fn lexically(directory: &Path, text: &Path) -> PathBuf {
    let mut path = directory.to_owned();
    for part in text.components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}
