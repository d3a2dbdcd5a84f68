//! The files that a command line without `--policy` starts from: `kennel.toml` in the workspace, over
//! `config.toml` of the user. And the policies that `--policy` finds by name.
//!
//! Commands can write to a workspace, so its file counts only if the user has trusted exactly this text
//! (`trust`). The directory of the user's files, `~/.config/kennel`, stays read-only in every sandbox.

mod file;
pub(crate) mod init;
mod merge;
pub(crate) mod rules;
pub(crate) mod trust;

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use kennel::{
    Error, Policy,
    report::{Note, PolicyError, Remedy},
};

use crate::{flags::PolicyFlags, report};
use file::{ConfigFile, Links, Owner};
use merge::Layer;

/// The file of a workspace, in its top directory.
const FILE: &str = "kennel.toml";

/// The user's defaults. It is a named policy, too.
const DEFAULTS: &str = "config";

/// What files say. Flags come over it.
pub(crate) struct Start {
    pub(crate) policy: Policy,
    /// The files and what each says, the strongest last.
    pub(crate) files: Vec<(PathBuf, Policy)>,
    /// The path from the workspace to the current directory, where the paths of flags start.
    pub(crate) below: PathBuf,
    /// The file that names the profile, also if that is the default one.
    pub(crate) profile_from: Option<PathBuf>,
}

impl Start {
    /// Whether the current directory is below the workspace.
    pub(crate) fn is_below(&self) -> bool {
        !self.below.as_os_str().is_empty()
    }
}

/// The files that a policy starts from.
enum Source<'f> {
    /// Only this one, which says everything, the workspace too.
    File(&'f Path),
    /// That of the user with this name.
    Named(&'f str),
    /// The user's defaults and that of the workspace.
    Usual,
    Nothing,
}

impl<'f> Source<'f> {
    fn of(policy: Option<&'f Path>, flags: &PolicyFlags) -> Self {
        match policy {
            Some(given) => named(given).map_or(Self::File(given), Self::Named),
            None if flags.no_config => Self::Nothing,
            None => Self::Usual,
        }
    }
}

/// Reads the policy that flags add to.
///
/// # Errors
/// A file cannot be used, or the one of the workspace has changed since it was trusted.
pub(crate) fn start(flags: &PolicyFlags) -> Result<Start, Error> {
    start_from(flags.policy.as_deref(), flags)
}

/// [`start`] with another value of `--policy`.
///
/// # Errors
/// Those of [`start`].
pub(crate) fn start_from(policy: Option<&Path>, flags: &PolicyFlags) -> Result<Start, Error> {
    let source = Source::of(policy, flags);
    if let Source::File(given) = source {
        let policy = Policy::load(given)?;
        // An open file is read once. What it says beyond the default is known anyway.
        let profile_from = (policy.profile != Policy::default().profile).then(|| given.to_owned());
        let files = vec![(given.to_owned(), policy.clone())];
        return Ok(Start { files, policy, below: PathBuf::new(), profile_from });
    }
    let place = Place::of(flags.workspace.as_deref());
    let (mut layers, mut notes) = (Vec::new(), Vec::new());
    match source {
        Source::Named(name) => layers.push(of_user(name, &place)?.ok_or_else(|| unknown(name))?),
        Source::Usual => {
            layers.extend(of_user(DEFAULTS, &place)?);
            layers.extend(of_workspace(&place, &mut notes)?);
        }
        Source::File(_) | Source::Nothing => {}
    }
    let names_workspace = layers.iter().any(|layer| layer.has("workspace"));
    let mut policy = merge::merged(&layers)?;
    policy.files = layers.iter().map(|layer| layer.file.clone()).collect();
    policy.notes = notes;
    let profile_from = layers.iter().rev().find(|layer| layer.has("profile")).map(|layer| layer.file.clone());
    let files = layers.into_iter().map(|layer| (layer.file, layer.policy)).collect();
    let below = place.widen(&mut policy, names_workspace);
    Ok(Start { policy, files, below, profile_from })
}

/// The workspace that flags or the current directory name.
struct Place {
    /// The directory with `kennel.toml`. `None`: there is no current directory.
    top: Option<PathBuf>,
    /// The current directory, if the workspace is found from there.
    here: Option<PathBuf>,
}

impl Place {
    fn of(given: Option<&Path>) -> Self {
        if let Some(given) = given {
            return Self { top: std::path::absolute(given).ok(), here: None };
        }
        let here = env::current_dir().ok();
        let top =
            here.as_deref().map(|here| kennel::internal::work_tree(here).unwrap_or_else(|| here.to_owned()));
        Self { top, here }
    }

    /// Where relative paths in the user's files start.
    fn directory(&self) -> &Path {
        self.top.as_deref().unwrap_or(Path::new("/"))
    }

    /// Without a name for it, the workspace is the whole work tree of git around the current directory.
    /// Commands and the paths of flags still start at the current directory. Returns the path between the
    /// two.
    fn widen(self, policy: &mut Policy, is_named: bool) -> PathBuf {
        let (Some(top), Some(here)) = (self.top, self.here) else { return PathBuf::new() };
        let workspace = if is_named { policy.workspace.clone() } else { top };
        let below = here.strip_prefix(&workspace).unwrap_or(Path::new("")).to_owned();
        if !below.as_os_str().is_empty() {
            policy.workspace = workspace;
            policy.cwd.get_or_insert(here);
        }
        below
    }
}

/// The name of a policy, if the value of `--policy` is one and no file.
fn named(given: &Path) -> Option<&str> {
    let name = given.to_str()?;
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    (!name.is_empty() && name.chars().all(is_plain)).then_some(name)
}

/// `$XDG_CONFIG_HOME/kennel` or `~/.config/kennel`. `None` without a home.
fn directory() -> Option<PathBuf> {
    let variable = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")))?;
    Some(base.join("kennel"))
}

/// The file of the user with that name. `None` without a home.
fn path_of(name: &str) -> Option<PathBuf> {
    Some(directory()?.join(format!("{name}.toml")))
}

/// Reads a file of the user, if there is one of that name.
fn of_user(name: &str, place: &Place) -> Result<Option<Layer>, Error> {
    let Some(path) = path_of(name) else { return Ok(None) };
    let file = file::read(&path, Links::Followed, Owner::Caller);
    let file = file.map_err(|source| unusable(&path, source, "mend it, or run without it: --no-config"))?;
    file.map(|file| Layer::parse(file, place.directory())).transpose()
}

/// The error for a name without a policy.
fn unknown(name: &str) -> Error {
    let directory = directory().unwrap_or_default();
    let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
    let names =
        entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".toml")?.to_owned()));
    let mut names: Vec<String> = names.take(20).collect();
    names.sort();
    let there = match names.is_empty() {
        true => "none is there".to_owned(),
        false => format!("there are {}", names.join(", ")),
    };
    let reason = format!(
        "no policy has that name in {}: {there}; for a file, the name must end in .toml or .json",
        directory.display()
    );
    PolicyError::Value { key: "--policy".to_owned(), value: name.to_owned(), reason }.into()
}

/// Reads the file of the workspace, if the user trusts it. Notes it, and says so at once, if it is there and
/// not used.
///
/// # Errors
/// It is not what the user has trusted: without it, commands could have rights that it takes away.
fn of_workspace(place: &Place, notes: &mut Vec<Note>) -> Result<Option<Layer>, Error> {
    let Some(top) = &place.top else { return Ok(None) };
    let found = file::read(&top.join(FILE), Links::Refused, Owner::Any);
    if matches!(found, Ok(None)) {
        return Ok(None);
    }
    let path = fs::canonicalize(top).unwrap_or_else(|_| top.clone()).join(FILE);
    let trusted = trust::of(&path)?;
    let why = match found {
        Ok(Some(file)) if trusted.as_ref() == Some(&file.text) => {
            let directory = path.parent().unwrap_or(top).to_owned();
            return Layer::parse(ConfigFile { path, ..file }, &directory).map(Some);
        }
        Ok(_) if trusted.is_some() => io::Error::other("it has changed since you trusted it"),
        Ok(_) => io::Error::other("you have not trusted it"),
        Err(error) => error,
    };
    let whose = if place.here.is_some() { String::new() } else { format!(" {}", top.display()) };
    if trusted.is_some() {
        let remedy = format!(
            "look at it (kennel trust --show{whose}), then run `kennel trust{whose}`; or run without it: --no-config"
        );
        return Err(unusable(&path, why, remedy));
    }
    let remedy = format!("look at it, then run `kennel trust{whose}`");
    let note = Note::new(&path.to_string_lossy(), &format!("not used, because {why}"), Some(remedy.into()));
    // Also with --quiet, and if the command does not start.
    report::note(&note);
    notes.push(note);
    Ok(None)
}

/// The error for a configuration that cannot be used.
fn unusable(path: &Path, source: io::Error, remedy: impl Into<Remedy>) -> Error {
    Error::Grant { what: "configuration", path: path.to_owned(), source, remedy: Some(remedy.into()) }
}
