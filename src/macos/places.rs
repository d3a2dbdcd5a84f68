//! What a policy grants on macOS: its paths, resolved, as places of a profile. Reads the file system, and
//! writes nothing.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use serde::{Deserialize, Serialize};

use crate::caller::toolchains::{TABLE, home_of, parts};
use crate::caller::{Caller, runtime_directory};
use crate::macos::way::Way;
use crate::policy::Policy;
use crate::policy::mount::Mount;
use crate::policy::obeyed::OBEYED;
use crate::policy::profile::{Git, Toolchains};
use crate::policy::secrets::{HOME_SECRETS, SYSTEM_SECRETS};
use crate::report::error::Error;
use crate::report::place_kind::PlaceKind;
use crate::report::shortage::of_path;
use crate::seatbelt::{self, Grants, SeatbeltPath, Use};

/// Toolchains and caches below HOME that only macOS has.
const MACOS_TOOLCHAINS: &[&str] = &["Library/Caches/Homebrew", "Library/Python"];

/// What programs outside obey below HOME, of git and on macOS.
const MACOS_OBEYED: &[&str] = &[
    ".config/git",
    ".gitconfig",
    "Library/Application Scripts",
    "Library/Application Support/Code",
    "Library/Application Support/VSCodium",
    "Library/Application Support/iTerm2",
    "Library/Input Methods",
    "Library/LaunchAgents",
    "Library/Preferences",
    "Library/QuickLook",
    "Library/Scripts",
    "Library/Services",
];

/// Places of secrets below HOME that only macOS has.
const MACOS_HOME_SECRETS: &[&str] = &[
    ".bash_sessions",
    ".zsh_sessions",
    "Library/Application Support/BraveSoftware",
    "Library/Application Support/Chromium",
    "Library/Application Support/Firefox",
    "Library/Application Support/Google/Chrome",
    "Library/Application Support/Microsoft Edge",
    "Library/Application Support/com.apple.TCC",
    "Library/Containers",
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
        let mut found =
            Found { caller, shown: Vec::new(), places: Vec::new(), named: Vec::new(), links: Vec::new() };
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
                Mount::Mask { path } => found.hide(PlaceKind::Mask, path)?,
                _ => {}
            }
        }
        found.protect(policy)?;
        if let Some(audit) = &policy.audit {
            found.hide(PlaceKind::File, &audit.path)?;
        }
        let tools = policy.toolchains == Toolchains::Auto;
        if meaning.knows_caller && tools && !meaning.shows_host {
            found.add_toolchains()?;
        }
        found.hide_secrets(meaning.shows_host, tools)?;
        let directory = match &policy.cwd {
            Some(cwd) => found.resolve("working directory", cwd)?,
            None => workspace,
        };
        let grants = Grants {
            tools,
            reads_all: meaning.shows_host,
            places: found.places,
            links: found.links,
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
            None => self.grants.reads_all || is_system(path, self.grants.tools),
        };
        if is_visible { Ok(()) } else { Err(not_a_directory(path, "is not visible in the sandbox")) }
    }
}

fn not_a_directory(path: &Path, reason: &str) -> Error {
    let (what, value) = (crate::report::error::WORKING_DIRECTORY, path.display().to_string());
    Error::Command { what, value, reason: reason.to_owned() }
}

/// Whether every program may read a real path.
fn is_system(path: &Path, tools: bool) -> bool {
    SeatbeltPath::new(path).is_ok_and(|path| seatbelt::is_of_system(&path, tools))
}

/// What was found so far.
struct Found<'c> {
    caller: &'c Caller,
    shown: Vec<ShownPlace>,
    places: Vec<(SeatbeltPath, Use)>,
    /// What the policy grants, as it names it.
    named: Vec<PathBuf>,
    links: Vec<SeatbeltPath>,
}

impl Found<'_> {
    /// The real path of what must be there.
    fn resolve(&self, what: &'static str, given: &Path) -> Result<PathBuf, Error> {
        fs::canonicalize(self.caller.absolute(given)).map_err(|source| self.refused(what, given, source))
    }

    fn refused(&self, what: &'static str, given: &Path, source: io::Error) -> Error {
        let remedy = of_path(&source, "run as a user who may reach it", "name a path that exists");
        Error::Grant { what, path: given.to_owned(), source, remedy: Some(remedy) }
    }

    /// Where a path leads, whether or not anything is there.
    fn way(&self, what: PlaceKind, given: &Path) -> Result<Way, Error> {
        Way::of(&self.caller.absolute(given)).map_err(|source| self.refused(what.as_str(), given, source))
    }

    /// A place that the policy grants.
    fn add(&mut self, what: PlaceKind, given: &Path, granted: Use) -> Result<PathBuf, Error> {
        self.resolve(what.as_str(), given)?;
        let way = self.way(what, given)?;
        self.put(what, given, &way, granted)?;
        self.named.push(self.caller.absolute(given));
        Ok(way.end)
    }

    /// Hides a path. Nothing need be there.
    fn hide(&mut self, what: PlaceKind, given: &Path) -> Result<(), Error> {
        let way = self.way(what, given)?;
        self.put(what, given, &way, Use::Hidden)
    }

    /// Takes the writing of what the policy protects, of its own files, and of what programs outside obey
    /// below a home, as far as commands can write there. Nothing need be there.
    fn protect(&mut self, policy: &Policy) -> Result<(), Error> {
        let own = policy.protect.iter().map(|path| policy.workspace.join(path));
        for given in own.chain(policy.files.iter().cloned()) {
            self.keep(&given)?;
        }
        let homes = self.caller.homes.clone();
        let obeyed = OBEYED.iter().chain(MACOS_OBEYED);
        for given in homes.iter().flat_map(|home| obeyed.clone().map(move |name| home.join(name))) {
            if !self.is_named(&given, &self.way(PlaceKind::ProtectedPath, &given)?) {
                self.keep(&given)?;
            }
        }
        Ok(())
    }

    fn keep(&mut self, given: &Path) -> Result<(), Error> {
        let way = self.way(PlaceKind::ProtectedPath, given)?;
        match self.is_written(&way.end) {
            true => self.put(PlaceKind::ProtectedPath, given, &way, Use::Read),
            false => self.keep_links(PlaceKind::ProtectedPath, given, &way),
        }
    }

    /// Shows toolchains and caches. They stay writable where the policy grants that.
    fn add_toolchains(&mut self) -> Result<(), Error> {
        let caller = self.caller;
        let of_table = TABLE.iter().flat_map(|row| {
            parts(row, &home_of(row, caller)).map(|path| (row.kind.place(), path)).collect::<Vec<_>>()
        });
        let own = MACOS_TOOLCHAINS.iter().map(|name| caller.home.join(name)).chain(caller.search_path());
        for (what, given) in of_table.chain(own.map(|path| (PlaceKind::Toolchain, path))) {
            let way = self.way(what, &given)?;
            let is_shown = self.shown.iter().any(|place| way.end.starts_with(&place.path));
            // A command may have put a link there.
            let is_chosen = way.links.iter().any(|link| self.is_written(link));
            // PATH may name a directory that holds everything.
            if way.end.exists() && !is_shown && !is_chosen && !caller.holds_home(&way.end) {
                self.put(what, &given, &way, Use::Read)?;
            }
        }
        Ok(())
    }

    fn put(&mut self, what: PlaceKind, given: &Path, way: &Way, granted: Use) -> Result<(), Error> {
        self.keep_links(what, given, way)?;
        let place = self.in_profile(what, given, &way.end)?;
        self.shown.push(ShownPlace { path: way.end.clone(), granted, what });
        self.places.push((place, granted));
        Ok(())
    }

    /// Keeps the links of a way as they are.
    fn keep_links(&mut self, what: PlaceKind, given: &Path, way: &Way) -> Result<(), Error> {
        for link in &way.links {
            self.links.push(self.in_profile(what, given, link)?);
        }
        Ok(())
    }

    fn in_profile(&self, what: PlaceKind, given: &Path, path: &Path) -> Result<SeatbeltPath, Error> {
        let invalid =
            |reason| self.refused(what.as_str(), given, io::Error::new(io::ErrorKind::InvalidInput, reason));
        SeatbeltPath::new(path).map_err(invalid)
    }

    /// Hides secrets in what is shown, unless the policy names exactly that path. Nothing need be there.
    fn hide_secrets(&mut self, shows_host: bool, tools: bool) -> Result<(), Error> {
        let homes = self.caller.homes.clone();
        let of_home = homes
            .iter()
            .flat_map(|home| HOME_SECRETS.iter().chain(MACOS_HOME_SECRETS).map(move |name| home.join(name)));
        // Records of sessions hold their variables.
        let own = runtime_directory(env::var_os("XDG_RUNTIME_DIR").as_deref(), self.caller.uid);
        let all =
            of_home.chain([own]).chain(SYSTEM_SECRETS.iter().chain(MACOS_SYSTEM_SECRETS).map(PathBuf::from));
        for secret in all {
            let way = self.way(PlaceKind::Secret, &secret)?;
            let is_granted = self.shown.iter().any(|place| way.end.starts_with(&place.path));
            if (shows_host || is_granted || is_system(&way.end, tools)) && !self.is_named(&secret, &way) {
                self.put(PlaceKind::Secret, &secret, &way, Use::Hidden)?;
            }
        }
        Ok(())
    }

    /// Whether the policy grants this very path. A link that leads there does not name it: a command may have
    /// put it in the place of what the policy names.
    fn is_named(&self, given: &Path, way: &Way) -> bool {
        self.named.iter().any(|named| named == given || *named == way.end)
    }

    fn is_written(&self, path: &Path) -> bool {
        let mut writable = self.shown.iter().filter(|place| place.granted == Use::Write);
        writable.any(|place| path.starts_with(&place.path))
    }
}
