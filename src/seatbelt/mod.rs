//! The one writer of Seatbelt profiles (SBPL), the text that `sandbox-exec -p` of macOS takes. Pure: it looks
//! at no file.
//!
//! Seatbelt refuses what no rule allows, and of the rules that match, the last one counts. It compares the
//! real path of a file. On every macOS `/tmp`, `/var` and `/etc` are links into `/private`, so
//! [`SeatbeltPath`] writes paths through them that way. The caller resolves all other links.
//!
//! Nobody has run these profiles on macOS yet. The operations and services are those that profiles in use
//! agree on. Apple has deprecated Seatbelt and `sandbox-exec` and does not document them, but they have
//! worked the same for years.

#[cfg(test)]
mod tests;

use std::fmt::Write;
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

/// What every program needs: each line, and why.
const BASE: &[(&str, &str)] = &[
    ("(import \"system.sb\")", "what Apple grants its own services: the loader, locales, time zones"),
    ("(allow process-fork)", "programs start others"),
    ("(allow process-info* (target same-sandbox))", "of its own processes, not of others"),
    ("(allow signal (target same-sandbox))", "to its own processes, not to others"),
    ("(allow sysctl-read)", "the number of processors, the version of the system"),
    ("(allow ipc-posix-sem)", "locks of Python's multiprocessing"),
    ("(allow ipc-posix-shm*)", "shared memory of Python's multiprocessing and of browsers"),
    ("(allow pseudo-tty)", "script(1), expect(1), tests of terminals"),
    ("(allow file-read-metadata (literal \"/\"))", "getcwd(3) and realpath(3) start there"),
    ("(allow file-read-data (literal \"/\"))", "the loader lists it"),
];

/// System services that the C library needs for users, groups, time zones and logging.
const SERVICES: &[&str] = &[
    "com.apple.logd",
    "com.apple.system.logger",
    "com.apple.system.notification_center",
    "com.apple.system.opendirectoryd.libinfo",
    "com.apple.system.opendirectoryd.membership",
];

/// System services that resolve names and check certificates.
const NETWORK_SERVICES: &[&str] =
    &["com.apple.SystemConfiguration.configd", "com.apple.dnssd.service", "com.apple.trustd.agent"];

/// Directories that programs need to start.
const SYSTEM: &[&str] = &[
    "/bin",
    "/private/etc",
    "/private/var/db/dyld",
    "/private/var/db/timezone",
    "/private/var/select",
    "/sbin",
    "/System",
    "/usr",
];

/// The rest of the system default: directories of developer tools.
const TOOLS: &[&str] =
    &["/Applications/Xcode.app", "/Library/Apple", "/Library/Developer", "/Library/Frameworks", "/opt"];

/// Devices that every program may use. The terminal is among them: a command has no controlling terminal, so
/// it cannot type there (TIOCSTI).
const DEVICES: &[&str] = &[
    "/dev/dtracehelper",
    "/dev/null",
    "/dev/ptmx",
    "/dev/random",
    "/dev/stderr",
    "/dev/stdin",
    "/dev/stdout",
    "/dev/tty",
    "/dev/urandom",
    "/dev/zero",
];

/// Descriptors by path, as `<(…)` of a shell names them, and terminals.
const DEVICE_NAMES: &[&str] = &["^/dev/fd/[0-9]+$", "^/dev/ttys[0-9]+$"];

/// Directories in `/` that are links into `/private`.
const IN_PRIVATE: &[&str] = &["etc", "tmp", "var"];

/// Operations on a readable path. They include running programs there.
const READ: &str = "file-read* file-map-executable process-exec";

/// Operations on a writable path.
const WRITE: &str = "file-read* file-write* file-map-executable process-exec";

/// Operations on a hidden path.
const ALL: &str = "file-read* file-write* file-map-executable process-exec";

/// An absolute path as Seatbelt sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct SeatbeltPath(String);

impl SeatbeltPath {
    /// # Errors
    /// Why no profile can contain it.
    pub(crate) fn new(path: &Path) -> Result<Self, &'static str> {
        let text = path.to_str().ok_or("is not UTF-8")?;
        if text.contains('\0') {
            return Err("contains a NUL");
        }
        if !path.is_absolute() {
            return Err("is not absolute");
        }
        let mut names = Vec::new();
        for part in path.components() {
            match part {
                Component::Normal(name) => names.extend(name.to_str()),
                Component::ParentDir => return Err("contains ..; resolve it first"),
                _ => {}
            }
        }
        // Seatbelt would see secrets behind links, which this text does not resolve.
        let first = names
            .first()
            .ok_or("is the root directory, which holds secrets too; list the directories that are needed")?;
        let prefix = if IN_PRIVATE.contains(first) { "/private/" } else { "/" };
        Ok(Self(format!("{prefix}{}", names.join("/"))))
    }

    /// Whether it is `other` or below it.
    pub(crate) fn is_in(&self, other: &Self) -> bool {
        Path::new(&self.0).starts_with(&other.0)
    }

    /// The directories above it, the nearest first, without the root.
    fn above(&self) -> impl Iterator<Item = &str> {
        let above = Path::new(&self.0).ancestors().skip(1).filter_map(Path::to_str);
        above.filter(|directory| *directory != "/")
    }
}

/// What may be done with a path and all below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Use {
    /// Reading, and running programs.
    Read,
    /// Reading and writing.
    Write,
    /// Nothing.
    Hidden,
}

/// What the network of a command reaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reach {
    #[default]
    Nowhere,
    /// This port of 127.0.0.1.
    Loopback(u16),
    Everywhere,
}

/// What a profile grants.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Grants {
    /// Whether developer tools of the system are readable.
    pub(crate) tools: bool,
    /// Whether all files are readable that nothing hides.
    pub(crate) reads_all: bool,
    /// Places in any order: the one that is nearest to a path decides.
    pub(crate) places: Vec<(SeatbeltPath, Use)>,
    /// Whether nobody may write what git obeys, in any repository.
    pub(crate) protects_git: bool,
    pub(crate) reach: Reach,
}

impl Grants {
    /// The text. It begins with `(version 1) (deny default)`.
    pub(crate) fn profile(&self) -> String {
        let mut text = "(version 1)\n(deny default)\n".to_owned();
        for (rule, why) in BASE {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{rule} ; {why}");
        }
        allow(&mut text, "mach-lookup", "global-name", SERVICES);
        allow(&mut text, "file-read* file-write-data file-ioctl", "literal", DEVICES);
        allow(&mut text, "file-read* file-write-data file-ioctl", "regex", DEVICE_NAMES);
        if self.reads_all {
            allow(&mut text, READ, "subpath", &["/"]);
        } else {
            let system: Vec<&str> = system(self.tools).collect();
            allow(&mut text, "file-read-metadata", "literal", &self.links_and_ways());
            allow(&mut text, READ, "subpath", &system);
        }
        self.network(&mut text);
        // The nearest place decides, so it comes last.
        let mut places: Vec<&(SeatbeltPath, Use)> = self.places.iter().collect();
        places.sort_by_key(|(path, granted)| (path.above().count(), path, *granted as u8));
        places.dedup();
        for (path, granted) in &places {
            let path = [&*path.0];
            match granted {
                Use::Read => {
                    allow(&mut text, READ, "subpath", &path);
                    if self.is_written(path[0]) {
                        deny(&mut text, "file-write*", "subpath", &path);
                    }
                }
                Use::Write => {
                    allow(&mut text, WRITE, "subpath", &path);
                    allow(&mut text, "network-bind network-outbound", "subpath", &path);
                }
                Use::Hidden => deny(&mut text, ALL, "subpath", &path),
            }
        }
        deny(&mut text, "file-write-unlink", "literal", &self.kept_in_place());
        if self.protects_git {
            deny(&mut text, "file-write*", "regex", GIT);
        }
        text
    }

    fn network(&self, text: &mut String) {
        match self.reach {
            Reach::Nowhere => {}
            Reach::Loopback(port) => {
                allow(text, "network-outbound", "remote ip", &[format!("localhost:{port}")]);
            }
            Reach::Everywhere => {
                text.push_str("(allow network*)\n(allow system-socket)\n");
                allow(text, "mach-lookup", "global-name", NETWORK_SERVICES);
            }
        }
    }

    /// The links into `/private`, and every directory above a granted path. A program may read their metadata
    /// but not list them.
    fn links_and_ways(&self) -> Vec<String> {
        let links = IN_PRIVATE.iter().map(|name| format!("/{name}"));
        let granted = self.places.iter().filter(|(_, granted)| *granted != Use::Hidden);
        let ways = granted.flat_map(|(path, _)| path.above()).map(str::to_owned);
        sorted(links.chain(ways))
    }

    /// The directories, in writable places, above what is not writable. A command that could rename one would
    /// change what Seatbelt compares.
    fn kept_in_place(&self) -> Vec<String> {
        let closed = self.places.iter().filter(|(_, granted)| *granted != Use::Write);
        let above = closed.flat_map(|(path, _)| path.above()).filter(|path| self.is_written(path));
        sorted(above.map(str::to_owned))
    }

    /// Whether a path is in a writable place.
    fn is_written(&self, path: &str) -> bool {
        let mut writable = self.places.iter().filter(|(_, granted)| *granted == Use::Write);
        writable.any(|(place, _)| Path::new(path).starts_with(&place.0))
    }
}

/// The directories that every program may read; with `tools`, also those of developer tools.
pub(crate) fn system(tools: bool) -> impl Iterator<Item = &'static str> {
    let tools = if tools { TOOLS } else { &[] };
    SYSTEM.iter().chain(tools).copied()
}

/// Whether every program may read a path, as one of the system; with `tools`, also of developer tools.
pub(crate) fn is_of_system(path: &Path, tools: bool) -> bool {
    system(tools).any(|place| path.starts_with(place))
}

/// What git obeys, at any depth, whatever the case of the letters: most file systems of macOS ignore it.
/// `.git` itself is neither made nor renamed, or a directory of another name could become one.
const GIT: &[&str] = &[
    "/[.][gG][iI][tT]$",
    "/[.][gG][iI][tT]/(.*/)?([hH][oO][oO][kK][sS]|[rR][eE][mM][oO][tT][eE][sS]|[bB][rR][aA][nN][cC][hH][eE][sS])(/|$)",
    "/[.][gG][iI][tT]/(.*/)?([cC][oO][nN][fF][iI][gG]([.][wW][oO][rR][kK][tT][rR][eE][eE])?|[cC][oO][mM][mM][oO][nN][dD][iI][rR])$",
];

fn sorted(paths: impl Iterator<Item = String>) -> Vec<String> {
    let mut all: Vec<String> = paths.collect();
    all.sort();
    all.dedup();
    all
}

fn allow(text: &mut String, operations: &str, filter: &str, values: &[impl AsRef<str>]) {
    rule(text, "allow", operations, filter, values);
}

fn deny(text: &mut String, operations: &str, filter: &str, values: &[impl AsRef<str>]) {
    rule(text, "deny", operations, filter, values);
}

/// Appends one rule. Appends nothing for an empty list, because a rule without a filter holds for everything.
fn rule(text: &mut String, verdict: &str, operations: &str, filter: &str, values: &[impl AsRef<str>]) {
    if values.is_empty() {
        return;
    }
    let _ = write!(text, "({verdict} {operations}");
    for value in values {
        let _ = write!(text, "\n    ({filter} \"{}\")", escaped(value.as_ref()));
    }
    text.push_str(")\n");
}

/// Escapes `value` for a quoted string. Only `"` and `\` are special there. It also escapes line ends, so
/// that each value stays on one line.
fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for character in value.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            other => text.push(other),
        }
    }
    text
}
