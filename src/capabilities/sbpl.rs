//! Builds the Seatbelt text for capabilities on macOS, and the command that runs under it. Pure: resolves no
//! path.
//!
//! Seatbelt compares the real path of a file. On every macOS `/tmp`, `/var` and `/etc` are links into
//! `/private`, so this file writes paths through them that way. The caller resolves all other links.
//!
//! Nobody has run this on macOS yet: Kennel is built for Linux only, and this file waits for a port. The
//! tests of the text run everywhere. The operations and services are those that profiles in use agree on.
//! Apple has deprecated Seatbelt and `sandbox-exec` and does not document them, but they have worked the same
//! for years.

#[cfg(test)]
mod tests;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::path::{Component, Path, PathBuf};

use tokio::process::Command;

use crate::capabilities::Capabilities;
use crate::capabilities::declared::meant;
use crate::report::failure;
use crate::report::failure::{Boundary, Class, Details, Failure, failure_of};

/// Rules for every program: fork, inspect and signal processes of the same sandbox, and read sysctl values.
const BASE: &str = "\
(version 1)
(deny default)
(allow process-fork)
(allow process-info* (target same-sandbox))
(allow signal (target same-sandbox))
(allow sysctl-read)
";

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

/// Devices that every program may use.
const DEVICES: &[&str] = &["/dev/null", "/dev/random", "/dev/tty", "/dev/urandom", "/dev/zero"];

/// Directories in `/` that are links into `/private`.
const IN_PRIVATE: &[&str] = &["etc", "tmp", "var"];

/// Operations on a readable path. They include running programs there.
const READ: &str = "file-read* file-map-executable process-exec";

/// Operations on a writable path.
const WRITE: &str = "file-read* file-write* file-map-executable process-exec";

/// Why the Seatbelt text for capabilities cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {}: {reason}", failure::shown(path))]
#[non_exhaustive]
pub struct SbplError {
    /// The kind of path: `working directory`, `write path`, `read path`, `home`.
    pub what: &'static str,
    /// The declared path.
    pub path: PathBuf,
    /// Why a profile cannot contain it.
    pub reason: &'static str,
}

failure_of!(SbplError);

impl SbplError {
    /// The machine-readable failure.
    #[must_use]
    pub fn failure(&self) -> Failure {
        Failure::new(Class::CapabilityDenied, Boundary::Action, failure::chain(self), Details::None)
    }
}

/// Builds the Seatbelt text for `caps` and a command in `cwd`, for `sandbox-exec -p`. The text begins with
/// `(version 1) (deny default)` and grants what is declared. It grants the same as a layer on Linux, as far
/// as Seatbelt can express it. It gives the command no private `/tmp`.
///
/// `cwd` and the declared paths should be canonical, because Seatbelt compares the real path of a file. The
/// text treats `/tmp`, `/var` and `/etc` as links into `/private`. `~/` means `HOME`. The text does not
/// restrict the environment.
///
/// This version of Kennel is built for Linux only, where the text can be built but not used.
///
/// ```
/// use kennel::capabilities::{Capabilities, sbpl};
///
/// let write_paths = vec!["/tmp/a \"b\"".into()];
/// let caps = Capabilities { net: false, write_paths, ..Capabilities::default() };
/// let text = sbpl(&caps, "/Users/me/repo".as_ref())?;
/// assert!(text.starts_with("(version 1)\n(deny default)\n"));
/// assert!(text.contains(r#"(subpath "/private/tmp/a \"b\"")"#) && !text.contains("network"));
/// # Ok::<(), kennel::capabilities::SbplError>(())
/// ```
///
/// # Errors
/// A path is not UTF-8, contains NUL or `..`, is `/` (on Linux, that can be read without its secrets), or has
/// an unknown form; `cwd` is not absolute.
pub fn sbpl(caps: &Capabilities, cwd: &Path) -> Result<String, SbplError> {
    text(caps, cwd, env::var_os("HOME").as_deref())
}

/// Like [`sbpl`], with the given `HOME`.
fn text(caps: &Capabilities, cwd: &Path, home: Option<&OsStr>) -> Result<String, SbplError> {
    let cwd_text = checked("working directory", cwd, cwd)?;
    let all = |what: &'static str, paths: &[PathBuf]| {
        paths
            .iter()
            .map(|path| {
                let refused = |reason| SbplError { what, path: path.to_owned(), reason };
                checked(what, path, &meant(path, cwd, home.map(Path::new)).map_err(refused)?)
            })
            .collect::<Result<Vec<String>, SbplError>>()
    };
    let written = once_each(std::iter::once(cwd_text).chain(all("write path", &caps.write_paths)?));
    let read = once_each(all("read path", &caps.read_paths)?);
    let tools = if read.is_empty() { TOOLS } else { &[] };
    let system: Vec<&str> = SYSTEM.iter().chain(tools).copied().collect();

    let mut text = BASE.to_owned();
    rule(&mut text, "mach-lookup", "global-name", SERVICES);
    rule(&mut text, "file-read*", "literal", &["/"]);
    rule(&mut text, "file-read-metadata", "literal", &links_and_ways(written.iter().chain(&read)));
    rule(&mut text, "file-read* file-write-data file-ioctl", "literal", DEVICES);
    rule(&mut text, READ, "subpath", &system);
    rule(&mut text, READ, "subpath", &read);
    rule(&mut text, WRITE, "subpath", &written);
    if caps.net {
        text.push_str("(allow network*)\n(allow system-socket)\n");
        rule(&mut text, "mach-lookup", "global-name", NETWORK_SERVICES);
    }
    Ok(text)
}

/// The path as Seatbelt sees it.
fn checked(what: &'static str, given: &Path, path: &Path) -> Result<String, SbplError> {
    let refused = |reason| Err(SbplError { what, path: given.to_owned(), reason });
    let Some(text) = path.to_str() else { return refused("is not UTF-8") };
    if text.contains('\0') {
        return refused("contains a NUL");
    }
    if !path.is_absolute() {
        return refused("is not absolute");
    }
    let mut names = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => names.extend(name.to_str()),
            Component::ParentDir => return refused("contains ..; resolve it first"),
            _ => {}
        }
    }
    // Seatbelt would see secrets behind links, which this text does not resolve.
    let Some(first) = names.first() else {
        return refused(
            "is the root directory, which holds secrets too; list the directories that are needed",
        );
    };
    let prefix = if IN_PRIVATE.contains(first) { "/private/" } else { "/" };
    Ok(format!("{prefix}{}", names.join("/")))
}

/// Removes duplicates and keeps the order.
fn once_each(paths: impl IntoIterator<Item = String>) -> Vec<String> {
    paths.into_iter().fold(Vec::new(), |mut kept, path| {
        if !kept.contains(&path) {
            kept.push(path);
        }
        kept
    })
}

/// The links into `/private`, and every directory above a path. A program may read their metadata but not
/// list them.
fn links_and_ways<'p>(paths: impl Iterator<Item = &'p String>) -> Vec<String> {
    let links = IN_PRIVATE.iter().map(|name| format!("/{name}"));
    let ways = paths.flat_map(|path| Path::new(path).ancestors().skip(1));
    let ways = ways.filter_map(Path::to_str).filter(|way| *way != "/").map(str::to_owned);
    let mut all: Vec<String> = links.chain(ways).collect();
    all.sort();
    all.dedup();
    all
}

/// Appends one rule. Appends nothing for an empty list, because a rule without a filter allows everything.
fn rule(text: &mut String, operations: &str, filter: &str, values: &[impl AsRef<str>]) {
    if values.is_empty() {
        return;
    }
    text.push_str("(allow ");
    text.push_str(operations);
    for value in values {
        // Writing to a String cannot fail.
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

/// A fixed path, the same on every macOS. The caller may have changed PATH, so Kennel does not search it.
const SANDBOX_EXEC: &str = "/usr/bin/sandbox-exec";

/// The command `sandbox-exec -p PROFILE PROGRAM ARG…`. `program` is an absolute path.
#[cfg_attr(not(test), expect(dead_code, reason = "waits for a port to macOS"))]
pub(crate) fn command(profile: &str, program: &Path, args: &[OsString], cwd: &Path) -> Command {
    let mut command = Command::new(SANDBOX_EXEC);
    command.arg("-p").arg(profile).arg(program).args(args).current_dir(cwd);
    command
}

#[cfg(test)]
mod exec_tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn profile_comes_as_one_argument_before_the_program() {
        let args = ["--".into(), "-p".into()];
        let command = command("(version 1)", Path::new("/bin/x"), &args, Path::new("/w"));
        let given: Vec<&OsStr> = command.as_std().get_args().collect();
        assert_eq!(given, ["-p", "(version 1)", "/bin/x", "--", "-p"]);
        assert_eq!(command.as_std().get_program(), SANDBOX_EXEC);
    }
}
