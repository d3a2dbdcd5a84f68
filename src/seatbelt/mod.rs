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

mod git;
#[cfg(test)]
pub(crate) mod tests;

use std::fmt::Write;
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

/// What every program needs: each line, and why.
const BASE: &[(&str, &str)] = &[
    ("(import \"system.sb\")", "what Apple grants its own services: the loader, locales, time zones"),
    ("(allow process-fork)", "programs start others"),
    ("(deny process-info*)", "system.sb may allow it"),
    ("(allow process-info* (target same-sandbox))", "of its own processes, not of others"),
    ("(allow signal (target same-sandbox))", "to its own processes, not to others"),
    ("(allow ipc-posix-sem)", "locks of Python's multiprocessing"),
    ("(allow ipc-posix-shm*)", "shared memory of Python's multiprocessing and of browsers"),
    ("(allow pseudo-tty)", "script(1), expect(1), tests of terminals"),
    ("(allow file-read-metadata (literal \"/\"))", "getcwd(3) and realpath(3) start there"),
    ("(allow file-read-data (literal \"/\"))", "the loader lists it"),
];

/// What programs ask the kernel: the processors, the version of the system, its limits.
const SYSCTLS: &[&str] = &[
    "kern.argmax",
    "kern.boottime",
    "kern.hostname",
    "kern.maxfiles",
    "kern.maxfilesperproc",
    "kern.maxproc",
    "kern.ngroups",
    "kern.secure_kernel",
    "kern.tcsm_available",
    "kern.tcsm_enable",
    "kern.usrstack64",
    "kern.version",
    "machdep.ptrauth_enabled",
    "security.mac.lockdown_mode_state",
    "sysctl.name2oid",
    "sysctl.proc_cputype",
    "vm.loadavg",
];

/// The same by the beginning of their names.
const SYSCTL_PREFIXES: &[&str] = &["hw.", "kern.os", "machdep.cpu."];

/// The arguments and the environment of any process of the user. system.sb may allow them.
const ARGUMENTS: &str = "kern.procargs";

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

/// The socket of the resolver of names.
const RESOLVER: &str = "/private/var/run/mDNSResponder";

/// The interfaces of the machine.
const INTERFACES: &str = "net.routetable.";

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

/// What is none of the system in there: the data of Homebrew's services, and every file by a second name.
const CLOSED: &[&str] = &["/System/Volumes/Data", "/opt/homebrew/var", "/usr/local/var"];

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

/// Operations on a writable path besides. Unix sockets are files: a server behind one acts for whoever
/// connects.
const CHANGE: &str = "file-write* network-bind network-outbound";

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

/// What may be done with a path and all below it, the stricter last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Use {
    /// Reading and writing.
    Write,
    /// Reading, and running programs.
    Read,
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
    /// Places in any order: the one that is nearest to a path decides, of several for one path the strictest.
    pub(crate) places: Vec<(SeatbeltPath, Use)>,
    /// Links that led to places.
    pub(crate) links: Vec<SeatbeltPath>,
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
        allow(&mut text, "sysctl-read", "sysctl-name", SYSCTLS);
        allow(&mut text, "sysctl-read", "sysctl-name-prefix", SYSCTL_PREFIXES);
        deny(&mut text, "sysctl-read", "sysctl-name-prefix", &[ARGUMENTS]);
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
        deny(&mut text, READ, "subpath", CLOSED);
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
                        deny(&mut text, CHANGE, "subpath", &path);
                    }
                }
                Use::Write => {
                    allow(&mut text, READ, "subpath", &path);
                    allow(&mut text, CHANGE, "subpath", &path);
                }
                Use::Hidden => {
                    deny(&mut text, READ, "subpath", &path);
                    deny(&mut text, CHANGE, "subpath", &path);
                }
            }
        }
        let kept = self.kept_in_place();
        deny(&mut text, "file-write-unlink", "literal", &kept);
        let links = kept.iter().map(|path| all(&[quoted("literal", path), LINK.to_owned()]));
        rule(&mut text, "deny", "file-write-create", links);
        if self.protects_git {
            git::protect(&mut text);
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
                // A socket that is a file is none of these.
                rule(text, "allow", "network*", ["(local ip)", "(remote ip)"]);
                text.push_str("(allow system-socket)\n");
                allow(text, "network-outbound", "literal", &[RESOLVER]);
                allow(text, "sysctl-read", "sysctl-name-prefix", &[INTERFACES]);
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

    /// The places and the links that led to them, each with the directories above, as far as commands can
    /// write there. Seatbelt compares paths, and the next sandbox resolves them again: a command that could
    /// rename one, or make it a link, would choose what they mean.
    fn kept_in_place(&self) -> Vec<String> {
        let named = self.places.iter().map(|(path, _)| path).chain(&self.links);
        let ways = named.flat_map(|path| [&*path.0].into_iter().chain(path.above()));
        sorted(ways.filter(|path| self.is_written(path)).map(str::to_owned))
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
pub(crate) fn is_of_system(path: &SeatbeltPath, tools: bool) -> bool {
    let path = Path::new(&path.0);
    let is_in = |place: &str| path.starts_with(place);
    system(tools).any(is_in) && !CLOSED.iter().copied().any(is_in)
}

/// A symbolic link.
const LINK: &str = "(vnode-type SYMLINK)";

fn sorted(paths: impl Iterator<Item = String>) -> Vec<String> {
    let mut all: Vec<String> = paths.collect();
    all.sort();
    all.dedup();
    all
}

fn allow(text: &mut String, operations: &str, filter: &str, values: &[impl AsRef<str>]) {
    rule(text, "allow", operations, values.iter().map(|value| quoted(filter, value.as_ref())));
}

fn deny(text: &mut String, operations: &str, filter: &str, values: &[impl AsRef<str>]) {
    rule(text, "deny", operations, values.iter().map(|value| quoted(filter, value.as_ref())));
}

/// Appends one rule, for what one of the filters matches. Appends nothing for an empty list, because a rule
/// without a filter holds for everything.
fn rule(
    text: &mut String,
    verdict: &str,
    operations: &str,
    filters: impl IntoIterator<Item = impl AsRef<str>>,
) {
    let filters: String = filters.into_iter().map(|filter| format!("\n    {}", filter.as_ref())).collect();
    if !filters.is_empty() {
        let _ = writeln!(text, "({verdict} {operations}{filters})");
    }
}

fn quoted(filter: &str, value: &str) -> String {
    format!("({filter} \"{}\")", escaped(value))
}

/// A filter for what all of these match.
fn all(filters: &[String]) -> String {
    format!("(require-all {})", filters.join(" "))
}

fn not(filter: &str) -> String {
    format!("(require-not {filter})")
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
