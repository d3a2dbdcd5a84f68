//! What is on PATH: each program with the whole prefix that it was installed into.
//!
//! A prefix is the directory that holds `bin`: an unpacked JDK, a virtual environment, `/opt/tool`. Programs find their
//! libraries and data below it. A link in a directory of programs may lead to another prefix, which is shown too.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nix::sys::statfs::{FsType, statfs};

use crate::view::inputs::Inputs;
use crate::view::resolved_path::ResolvedPath;
use crate::view::source::{BindSource, exists};
use crate::view::{Unlayered, View, layers, secrets, system};

/// Names of directories of programs. Their prefix is the directory above.
const OF_PROGRAMS: &[&str] = &[".bin", "Scripts", "bin", "cmd", "condabin", "sbin", "shims"];

/// Packages of Node.js load each other from the directory that holds all of them.
const NODE_MODULES: &str = "node_modules";

/// What is shown beside a directory of programs if its prefix holds other things too, as `~/.local` does.
const PARTS: &[&str] = &["include", "lib", "lib64", "libexec"];

/// What an installation has beside its programs. A directory of a person, such as `~/Documents`, may have a `bin` too.
const SIGNS: &[&str] =
    &["conda-meta", "include", "jars", "lib", "lib64", "libexec", "libs", "pyvenv.cfg", "resources", "share"];

/// No program is installed in one of these, or is a directory directly below `/`, or below `/var`.
const NEVER: &[&str] = &["/boot", "/dev", "/etc", "/proc", "/run", "/sys"];

/// Directories of the system that are looked at for links, because administrators put links to other prefixes there.
const LOCAL: &[&str] = &["/usr/local/bin", "/usr/local/sbin"];

/// How many prefixes are shown, and how many links are looked at.
const MOST_PREFIXES: usize = 64;
const MOST_LINKS: usize = 4096;

/// A directory with this many links into its own prefix, and none out of it, is taken for a farm of such links.
const FARM: usize = 64;

/// How many entries of a prefix are looked at for files of its owner alone.
const MOST_ENTRIES: usize = 256;

/// 9P, of linux/magic.h.
const V9FS_MAGIC: FsType = FsType(0x0102_1997);

/// The name of a shown prefix in messages.
const WHAT: &str = "toolchain";

/// Shows what the caller's PATH leads to.
pub(crate) fn show(view: &mut View, inputs: &Inputs<'_>) {
    let mut search = Search { view, inputs, prefixes: 0, links: 0, directories: Vec::new() };
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
    search.note_limits();
}

/// Shows a directory that a variable of the caller names, or a row of a table, if it is fit. Links on the way are allowed,
/// unless commands may have made them. A variable must not be able to expose HOME, a secret, or a place of the system.
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
        view.offer(WHAT, path, node);
    }
}

/// Resolves `path` if something is there that may be shown.
pub(crate) fn fit(inputs: &Inputs<'_>, path: &Path) -> Option<ResolvedPath> {
    let may_be = !secrets::is_secret(path, inputs.caller) && inputs.names.may_exist(path);
    let resolved = may_be.then(|| ResolvedPath::resolve(path).ok())??;
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
    let link = resolved.link_in_writable_grant(view).or_else(|| link_in_project(resolved, inputs));
    let Some(link) = link.map(Path::to_owned) else { return true };
    let (end, link) = (resolved.source.path.display(), link.display());
    let text = format!("not shown, because commands could have made the link {link}, which leads to {end}");
    view.note(&path.display().to_string(), &text, Some(&format!("--ro {end}")));
    false
}

/// The first link on the way that is in a repository below HOME. It is a workspace, or was one or will be, so its commands
/// may have made that link.
fn link_in_project<'r>(resolved: &'r ResolvedPath, inputs: &Inputs<'_>) -> Option<&'r Path> {
    let in_repository = |at: &Path| {
        let home = inputs.caller.homes.iter().find(|home| at.starts_with(home));
        home.is_some_and(|home| {
            let around = at.ancestors().skip(1).take_while(|above| above != home);
            around.into_iter().any(|above| exists(&above.join(".git")))
        })
    };
    resolved.links.iter().map(|link| &*link.at).find(|at| in_repository(at))
}

struct Search<'v, 'i> {
    view: &'v mut View,
    inputs: &'v Inputs<'i>,
    prefixes: usize,
    links: usize,
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
        if is_of_windows(entry) {
            return;
        }
        let Some(resolved) = fit(self.inputs, entry) else { return };
        let directory = resolved.source.path.clone();
        if resolved.source.is_dir() && (is_visible(self.view, &directory) || self.may_show(entry, &resolved))
        {
            self.show_prefix(&directory, &resolved);
            self.view.offer_links(&resolved.links, entry, &directory);
        }
    }

    /// Shows the prefix of a directory of programs, or of a program.
    fn show_prefix(&mut self, directory: &Path, of: &ResolvedPath) {
        if is_visible(self.view, directory) {
            return self.add_directory(directory);
        }
        if self.prefixes == MOST_PREFIXES {
            return;
        }
        self.prefixes += 1;
        let prefix = prefix_of(directory);
        if let Some(whole) = self.whole(prefix, directory, of) {
            offer_at_its_path(self.view, self.inputs, whole);
        } else if of.source.is_dir() || is_of_programs(directory) && is_fit(directory, self.inputs) {
            let is_home = self.inputs.caller.homes.iter().any(|home| home == prefix);
            let parts =
                PARTS.iter().map(|part| prefix.join(part)).filter(|_| !is_home && prefix != directory);
            for place in [directory.to_owned()].into_iter().chain(parts) {
                if let Ok(source) = BindSource::exact(&place) {
                    offer_at_its_path(self.view, self.inputs, source);
                }
            }
        } else {
            return offer_at_its_path(self.view, self.inputs, of.source.clone());
        }
        self.add_directory(directory);
    }

    /// The prefix, if all of it may be shown.
    fn whole(&self, prefix: &Path, directory: &Path, of: &ResolvedPath) -> Option<BindSource> {
        let may_be = is_fit(prefix, self.inputs) && !secrets::holds_secret(prefix, self.inputs.caller);
        let source = may_be.then(|| BindSource::exact(prefix).ok())??;
        self.holds_only_programs(prefix, directory, of).then_some(source)
    }

    /// Whether a prefix holds programs and what they load, and nothing of a person, as far as one can see. Outside of HOME,
    /// every prefix does.
    fn holds_only_programs(&self, prefix: &Path, directory: &Path, of: &ResolvedPath) -> bool {
        let Some(below) = self.inputs.caller.homes.iter().find_map(|home| prefix.strip_prefix(home).ok())
        else {
            return true;
        };
        let Ok(entries) = fs::read_dir(prefix) else { return false };
        let entries: Vec<fs::DirEntry> = entries.flatten().take(MOST_ENTRIES).collect();
        // A file that others may not read, although they may enter the directory of programs, holds settings or credentials.
        let is_private = |entry: &fs::DirEntry| {
            entry.file_type().is_ok_and(|kind| kind.is_file())
                && entry.metadata().is_ok_and(|it| it.mode() & 0o077 == 0)
        };
        if fs::metadata(directory).is_ok_and(|it| it.mode() & 0o055 != 0) && entries.iter().any(is_private) {
            return false;
        }
        let has = |name: &str| entries.iter().any(|entry| entry.file_name() == *name);
        let is_of_tool = below.as_os_str().as_bytes().starts_with(b".") || prefix.ends_with(NODE_MODULES);
        match prefix == directory {
            _ if is_of_tool => true,
            true => of.source.is_dir() || below.components().count() > 1,
            false => SIGNS.iter().any(|name| has(name)) && !has(".git"),
        }
    }

    fn add_directory(&mut self, directory: &Path) {
        if !self.directories.iter().any(|known| known == directory) {
            self.directories.push(directory.to_owned());
        }
    }

    /// Shows what the links in a directory of programs lead to.
    fn follow_links_in(&mut self, directory: &Path) {
        let Ok(entries) = fs::read_dir(directory) else { return };
        let mut inward = 0;
        for entry in entries.flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                continue;
            }
            if inward == FARM || self.links == MOST_LINKS {
                return;
            }
            self.links += 1;
            let link = entry.path();
            match fs::read_link(&link) {
                Ok(text) if !self.stays(directory, &text) => {
                    // None of the links before this one counts: the directory is no farm.
                    inward = 0;
                    if !self.is_closed(directory) || !self.follow(&link) {
                        return;
                    }
                }
                _ => inward += 1,
            }
        }
    }

    /// Whether only root or the caller may put links there.
    fn is_closed(&self, directory: &Path) -> bool {
        fs::metadata(directory).is_ok_and(|it| it.mode() & 0o002 == 0 && self.is_own(&it))
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
            if !self.may_show(link, &resolved) {
                return false;
            }
            self.show_prefix(source.path.parent().unwrap_or(&source.path), &resolved);
        }
        self.view.offer_links(links, link, &source.path);
        true
    }

    /// Whether what `path` leads to may be shown. Adds a note if not.
    fn may_show(&mut self, path: &Path, resolved: &ResolvedPath) -> bool {
        let end = &resolved.source.path;
        let prefix = match resolved.source.is_dir() {
            true => prefix_of(end),
            false => prefix_of(end.parent().unwrap_or(end)),
        };
        let is_public = |path: &&Path| fs::metadata(path).is_ok_and(|it| it.mode() & 0o002 != 0);
        let public = || prefix.ancestors().find(is_public);
        if !self.is_own(&resolved.metadata)
            && let Some(open) = public()
        {
            let (path, end, open) = (path.display(), prefix.display(), open.display());
            let text = format!(
                "{path}: {end} is not shown, because it belongs to another user and every user may write to {open}"
            );
            self.view.note("PATH", &text, Some(&format!("--ro {end}")));
            return false;
        }
        is_trusted(self.view, self.inputs, path, resolved)
    }

    /// Whether root or the caller owns it.
    fn is_own(&self, metadata: &Metadata) -> bool {
        [0, self.inputs.caller.uid].contains(&metadata.uid())
    }

    fn note_limits(&mut self) {
        let text = match (self.prefixes, self.links) {
            (MOST_PREFIXES, _) => {
                format!("only the first {MOST_PREFIXES} directories outside of the system are shown")
            }
            (_, MOST_LINKS) => format!("only the first {MOST_LINKS} links in its directories are followed"),
            _ => return,
        };
        self.view.note("PATH", &text, Some("show what is missing with --ro"));
    }
}

/// Whether an entry is a directory of Windows. WSL puts many of them on PATH, below /mnt on a 9P file system. Their programs
/// do not run inside, and to list them takes long.
fn is_of_windows(entry: &Path) -> bool {
    entry.starts_with("/mnt") && statfs(entry).is_ok_and(|it| it.filesystem_type() == V9FS_MAGIC)
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
