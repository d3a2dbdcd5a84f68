//! The files that a command line without `--policy` starts from: `kennel.toml` in the workspace, over
//! `config.toml` of the user. And the policies that `--policy` finds by name. No other flag counts here.
//!
//! Commands can write to a workspace, so its file counts only if the user has trusted exactly this text
//! (`trust`). The directory of the user's files, `~/.config/kennel`, stays read-only in every sandbox.

mod file;
pub(crate) mod images;
pub(crate) mod init;
mod merge;
pub(crate) mod rules;
mod source;
pub(crate) mod trust;
mod workspace;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use kennel::{
    Error, Policy,
    report::{Note, PolicyError},
};

use crate::{args::policy::PolicyFlags, report};
use file::{ConfigFile, Links, Owner};
use merge::Layer;
use source::{DEFAULTS, Source, directory, path_of, unusable};
use workspace::{FILE, Workspace};

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
    let place = Workspace::of(flags.workspace.as_deref());
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
    let is_shown = names_workspace
        || flags.workspace.is_some()
        || !(flags.names_root() || policy.root.is_some() || policy.image.is_some());
    let below = match is_shown {
        true => place.widen(&mut policy, names_workspace),
        false => {
            policy.workspace = PathBuf::new();
            PathBuf::new()
        }
    };
    Ok(Start { policy, files, below, profile_from })
}

/// Reads a file of the user, if there is one of that name.
fn of_user(name: &str, place: &Workspace) -> Result<Option<Layer>, Error> {
    let Some(path) = path_of(name) else { return Ok(None) };
    let file = file::read(&path, Links::Followed, Owner::Caller);
    let file = file.map_err(|source| unusable(&path, source, "mend it, or run without it: --no-config"))?;
    let Some(mut file) = file else { return Ok(None) };
    if name == DEFAULTS {
        let text = images::without(&file.text);
        if text.trim().is_empty() && !file.text.trim().is_empty() {
            return Ok(None);
        }
        file.text = text.into_owned();
    }
    Layer::parse(file, place.directory()).map(Some)
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
fn of_workspace(place: &Workspace, notes: &mut Vec<Note>) -> Result<Option<Layer>, Error> {
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
