//! What a policy grants on macOS: its paths, resolved, as places of a profile. Reads the file system, and
//! writes nothing.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use serde::{Deserialize, Serialize};

use crate::caller::{Caller, runtime_directory};
use crate::policy::Policy;
use crate::policy::mount::Mount;
use crate::policy::profile::{Git, Toolchains};
use crate::policy::secrets::{HOME_SECRETS, SYSTEM_SECRETS};
use crate::report::error::Error;
use crate::report::place_kind::PlaceKind;
use crate::report::shortage::of_path;
use crate::seatbelt::{Grants, SeatbeltPath, Use};

/// Toolchains and their caches below HOME, read-only. Add a row for another one; never one with secrets that
/// `policy/secrets.rs` does not have.
const TOOLCHAINS: &[&str] = &[
    ".asdf",
    ".bun",
    ".cargo",
    ".deno",
    ".gradle",
    ".local/bin",
    ".local/share/mise",
    ".local/share/uv",
    ".m2",
    ".npm",
    ".nvm",
    ".pyenv",
    ".rbenv",
    ".rustup",
    ".sdkman",
    ".volta",
    "Library/Caches/Homebrew",
    "Library/Python",
    "go",
];

/// Places of secrets below HOME that only macOS has.
const MACOS_HOME_SECRETS: &[&str] = &[
    "Library/Application Support/BraveSoftware",
    "Library/Application Support/Chromium",
    "Library/Application Support/Firefox",
    "Library/Application Support/Google/Chrome",
    "Library/Application Support/Microsoft Edge",
    "Library/Application Support/com.apple.TCC",
    "Library/Cookies",
    "Library/Group Containers",
    "Library/Keychains",
    "Library/Mail",
    "Library/Messages",
    "Library/Safari",
];

/// Places of secrets of the system that only macOS has.
const MACOS_SYSTEM_SECRETS: &[&str] = &[
    "/Library/Keychains",
    "/private/etc/master.passwd",
    "/private/var/db/dslocal",
    "/private/var/run/docker.sock",
];

/// The places of a policy, and where commands start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Places {
    /// Everything but the temporary directory and the network, which each command has its own.
    pub(crate) grants: Grants,
    /// Where commands start.
    pub(crate) directory: PathBuf,
    /// The places with their paths on disk.
    pub(crate) shown: Vec<ShownPlace>,
}

/// A place of a policy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ShownPlace {
    pub(crate) path: PathBuf,
    pub(crate) granted: Use,
    pub(crate) what: PlaceKind,
}

impl Places {
    /// Resolves the paths of a valid policy.
    ///
    /// # Errors
    /// A path does not exist, cannot be reached, or no profile can name it.
    pub(crate) fn of(policy: &Policy, caller: &Caller) -> Result<Self, Error> {
        let meaning = policy.profile.meaning();
        let mut found = Found { caller, shown: Vec::new(), places: Vec::new() };
        let granted = if meaning.writes { Use::Write } else { Use::Read };
        let workspace = found.add(PlaceKind::Workspace, &policy.workspace, granted)?;
        for mount in &policy.mounts {
            match mount {
                Mount::ReadOnly { source, .. } => {
                    drop(found.add(PlaceKind::ReadOnlyGrant, source, Use::Read)?)
                }
                Mount::ReadWrite { source, .. } => {
                    drop(found.add(PlaceKind::ReadWriteGrant, source, Use::Write)?)
                }
                // Nothing need be there.
                Mount::Mask { path } => drop(found.add_if_there(PlaceKind::Mask, path, Use::Hidden)?),
                _ => {}
            }
        }
        for path in &policy.protect {
            found.add_if_there(PlaceKind::ProtectedPath, &policy.workspace.join(path), Use::Read)?;
        }
        for file in &policy.files {
            found.add_if_there(PlaceKind::ProtectedPath, file, Use::Read)?;
        }
        if let Some(audit) = &policy.audit {
            found.add_if_there(PlaceKind::File, &audit.path, Use::Hidden)?;
        }
        if meaning.knows_caller && policy.toolchains == Toolchains::Auto && !meaning.shows_host {
            let toolchains = TOOLCHAINS.iter().map(|name| caller.home.join(name));
            for directory in toolchains.chain(caller.search_path()) {
                found.add_toolchain(&directory)?;
            }
        }
        found.hide_secrets(meaning.shows_host)?;
        let directory = match &policy.cwd {
            Some(cwd) => found.resolve("working directory", cwd)?,
            None => workspace,
        };
        let grants = Grants {
            tools: policy.toolchains == Toolchains::Auto,
            reads_all: meaning.shows_host,
            places: found.places,
            protects_git: policy.git != Git::Trust,
            ..Grants::default()
        };
        let places = Self { grants, directory, shown: found.shown };
        places.check_directory(&places.directory)?;
        Ok(places)
    }

    /// Resolves the directory of one command.
    ///
    /// # Errors
    /// It does not exist or is not visible.
    pub(crate) fn directory_at(&self, given: &Path) -> Result<PathBuf, Error> {
        let path = fs::canonicalize(self.directory.join(given));
        let path = path.map_err(|error| not_a_directory(given, &error.to_string()))?;
        self.check_directory(&path)?;
        Ok(path)
    }

    fn check_directory(&self, path: &Path) -> Result<(), Error> {
        if !path.is_dir() {
            return Err(not_a_directory(path, "is not a directory"));
        }
        let holding = self.shown.iter().filter(|place| path.starts_with(&place.path));
        let nearest = holding.max_by_key(|place| place.path.as_os_str().len());
        let is_visible = match nearest {
            Some(place) => place.granted != Use::Hidden,
            None => self.grants.reads_all || crate::seatbelt::is_of_system(path, self.grants.tools),
        };
        if is_visible { Ok(()) } else { Err(not_a_directory(path, "is not visible in the sandbox")) }
    }
}

fn not_a_directory(path: &Path, reason: &str) -> Error {
    let (what, value) = (crate::report::error::WORKING_DIRECTORY, path.display().to_string());
    Error::Command { what, value, reason: reason.to_owned() }
}

/// What was found so far.
struct Found<'c> {
    caller: &'c Caller,
    shown: Vec<ShownPlace>,
    places: Vec<(SeatbeltPath, Use)>,
}

impl Found<'_> {
    fn resolve(&self, what: &'static str, given: &Path) -> Result<PathBuf, Error> {
        fs::canonicalize(self.caller.absolute(given)).map_err(|source| self.refused(what, given, source))
    }

    fn refused(&self, what: &'static str, given: &Path, source: io::Error) -> Error {
        let remedy = of_path(&source, "run as a user who may reach it", "name a path that exists");
        Error::Grant { what, path: given.to_owned(), source, remedy: Some(remedy) }
    }

    fn add(&mut self, what: PlaceKind, given: &Path, granted: Use) -> Result<PathBuf, Error> {
        let path = self.resolve(what.as_str(), given)?;
        self.put(what, given, &path, granted)?;
        Ok(path)
    }

    /// The same for what need not be there.
    fn add_if_there(&mut self, what: PlaceKind, given: &Path, granted: Use) -> Result<(), Error> {
        match fs::canonicalize(self.caller.absolute(given)) {
            Ok(path) => self.put(what, given, &path, granted),
            // What hides it if a command makes it.
            Err(_) if granted == Use::Hidden => {
                let path = self.caller.absolute(given);
                self.put(what, given, &path, granted)
            }
            Err(_) => Ok(()),
        }
    }

    /// A directory of programs, which stays writable where the policy grants that.
    fn add_toolchain(&mut self, directory: &Path) -> Result<(), Error> {
        let Ok(path) = fs::canonicalize(directory) else { return Ok(()) };
        let is_granted = self.shown.iter().any(|place| path.starts_with(&place.path));
        // PATH may name a directory that holds everything.
        if is_granted || self.caller.holds_home(&path) {
            return Ok(());
        }
        self.put(PlaceKind::Toolchain, directory, &path, Use::Read)
    }

    fn put(&mut self, what: PlaceKind, given: &Path, path: &Path, granted: Use) -> Result<(), Error> {
        let invalid =
            |reason| self.refused(what.as_str(), given, io::Error::new(io::ErrorKind::InvalidInput, reason));
        let place = SeatbeltPath::new(path).map_err(invalid)?;
        self.shown.push(ShownPlace { path: path.to_owned(), granted, what });
        self.places.push((place, granted));
        Ok(())
    }

    /// Hides secrets in what is granted, unless the policy names exactly that path.
    fn hide_secrets(&mut self, shows_host: bool) -> Result<(), Error> {
        let homes = self.caller.homes.clone();
        let of_home = homes
            .iter()
            .flat_map(|home| HOME_SECRETS.iter().chain(MACOS_HOME_SECRETS).map(move |name| home.join(name)));
        // Records of sessions hold their variables.
        let own = runtime_directory(env::var_os("XDG_RUNTIME_DIR").as_deref(), self.caller.uid);
        let all =
            of_home.chain([own]).chain(SYSTEM_SECRETS.iter().chain(MACOS_SYSTEM_SECRETS).map(PathBuf::from));
        for secret in all {
            let Ok(path) = fs::canonicalize(&secret) else { continue };
            let is_shown = shows_host || self.shown.iter().any(|place| path.starts_with(&place.path));
            let is_named = self.shown.iter().any(|place| place.path == path);
            if is_shown && !is_named {
                self.put(PlaceKind::Secret, &secret, &path, Use::Hidden)?;
            }
        }
        Ok(())
    }
}
