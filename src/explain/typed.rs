//! What of the sandbox stands in the way of what the caller typed: paths, git, the directory.
//!
//! This may look whether a path exists outside, because the caller named it. It names no path that a link
//! leads to, because commands may have made that link.

use std::path::Path;

use nix::unistd::{AccessFlags, access};

use crate::explain::{Explainer, Finding, LastLink, grant, is_deep, is_writable_outside, possible, resolve};
use crate::policy::profile::Git;
use crate::policy::secrets::is_secret_of;
use crate::protect::git;
use crate::report::denial::{shown, trust_git};
use crate::report::enforcement::Note;
use crate::report::place_kind::PlaceKind;
use crate::report::remedy::{SettingKey, remedy};
use crate::sys::lexical;
use crate::view::Node;
use crate::view::paths::source::exists;

impl Explainer {
    /// Whether no symbolic link is on the way to `path`.
    pub(crate) fn is_direct(&self, path: &Path) -> bool {
        let path = lexical::clean(path);
        resolve(&self.view, &path, LastLink::Followed).is_some_and(|target| target == path)
    }

    /// Whether a path is a known place of secrets.
    pub(crate) fn is_secret(&self, path: &Path) -> bool {
        is_secret_of(path, &self.policy.homes)
    }

    /// The wall before `path`, if a setting helps. `is_output`: a shell opens it for writing. Otherwise it
    /// counts as written to only if nothing is there, but its directory is: `s/a/b/` is no path.
    pub(crate) fn hint(&self, path: &Path, is_output: bool) -> Option<Note> {
        if !self.is_direct(path) {
            return None;
        }
        match self.absent(path, false, &[]).or_else(|| self.absent_in_root(path)) {
            Some(hidden) => self.hidden(path, is_output, &hidden.reason),
            None if is_output || self.may_be_made(path) => self.unwritable(path, is_output),
            None => None,
        }
    }

    /// Another root has nothing at `path`.
    fn absent_in_root(&self, path: &Path) -> Option<Finding> {
        let root = self.view.root.as_ref().filter(|_| self.view.is_of_root(path))?;
        let reason = "the root has no such file, and of the host only what is granted is shown";
        root.kind(path).is_none().then(|| possible(reason, None))
    }

    /// Something of the caller's directory, of which another root without a workspace shows nothing.
    pub(crate) fn hint_of_directory_outside(&self, word: &str) -> Option<Note> {
        let directory = self.policy.directory_outside.as_ref()?;
        let is_name = !word.is_empty() && word != "." && !word.starts_with(['-', '/']);
        let text = format!("it is in {}, of which the sandbox shows nothing", shown(directory));
        let remedy = remedy![SettingKey::Workspace.to(directory.display()), " shows the directory"];
        (is_name && exists(&directory.join(word)))
            .then(|| Note::new(&shown(Path::new(word)), &text, Some(remedy)))
    }

    /// Whether the sandbox shows something at `path`.
    fn is_there(&self, path: &Path) -> bool {
        self.view.get(path).is_some() || self.view.host_path(path).is_some_and(|shown| exists(&shown))
    }

    fn may_be_made(&self, path: &Path) -> bool {
        !self.is_there(path) && path.parent().is_some_and(|parent| self.is_there(parent))
    }

    /// A path that exists outside, or whose directory does.
    fn hidden(&self, path: &Path, is_output: bool, reason: &str) -> Option<Note> {
        let is_fair =
            |parent: &&Path| is_deep(parent) && self.may_be_granted(parent) && !self.is_secret(parent);
        let parent = path.parent().filter(is_fair);
        let place = exists(path).then_some(path).or(parent.filter(|parent| exists(parent)))?;
        let remedy = match is_output {
            true if is_writable_outside(place, place) => {
                remedy![grant(SettingKey::Rw, place, place)?, " makes it writable"]
            }
            false if access(place, AccessFlags::R_OK).is_ok() => {
                remedy![grant(SettingKey::Ro, place, place)?, " shows it"]
            }
            _ => return None,
        };
        Some(Note::new(&shown(path), reason, Some(remedy)))
    }

    fn unwritable(&self, path: &Path, is_output: bool) -> Option<Note> {
        let Finding { reason, setting, .. } = self.read_only(path, &[])?;
        let remedy = setting.map(|setting| remedy![setting, " allows it"]);
        let helps = remedy.is_some() || is_output;
        helps.then(|| Note::new(&shown(path), &reason, remedy))
    }

    /// For a path that is there: the wall that keeps the command from changing it, if a setting helps.
    pub(crate) fn hint_of_change(&self, path: &Path) -> Option<Note> {
        let is_known = self.is_direct(path) && self.is_there(path) && !self.is_secret(path);
        let Finding { reason, setting, .. } = self.read_only(path, &[]).filter(|_| is_known)?;
        Some(Note::new(&shown(path), &reason, Some(remedy![setting?, " would allow changes"])))
    }

    /// Whether a whole directory is a fair thing to grant.
    pub(super) fn may_be_granted(&self, directory: &Path) -> bool {
        let is_home = self.policy.homes.iter().any(|home| home.starts_with(directory));
        directory != Path::new("/") && !is_home && !self.is_private(directory)
    }

    /// Whether a private directory is at `path`.
    fn is_private(&self, path: &Path) -> bool {
        let node = self.view.get(path).map(|place| &place.node);
        matches!(node, Some(Node::Private { .. } | Node::Tmpfs { .. }))
    }

    /// For a program that searches a file in the directories above: the nearest one is in a directory that
    /// the sandbox does not show.
    pub(crate) fn hint_of_directory(&self, directory: &Path, file: &str) -> Option<Note> {
        let above = directory.ancestors().find(|above| exists(&above.join(file)))?;
        if self.view.host_path(&above.join(file)).is_some() || !self.may_be_granted(above) {
            return None;
        }
        let text = format!("{file} of {} is not visible in a subdirectory", shown(above));
        let remedy = remedy![grant(SettingKey::Rw, above, above)?, " shows it"];
        Some(Note::new(&shown(directory), &text, Some(remedy)))
    }

    /// git writes in a place that programs outside obey, in the repository around `directory`.
    pub(crate) fn hint_of_git_settings(&self, directory: &Path) -> Option<Note> {
        let repository = directory.ancestors().find(|above| exists(&above.join(".git")))?;
        let is_walled = self.view.within(repository).any(|(_, place)| place.what == PlaceKind::ObeyedByGit);
        let text = "the settings and hooks of the repository are read-only";
        (self.policy.git == Git::Protect && is_walled)
            .then(|| Note::new("git", text, Some(remedy![trust_git(), " allows it"])))
    }

    /// git knows no name and address for a commit, because the sandbox does not show the caller's
    /// configuration.
    pub(crate) fn hint_of_identity(&self) -> Option<Note> {
        let names = [".gitconfig", ".config/git/config"];
        let is_hidden = |name: &&str| {
            let inside = self.policy.home.join(name);
            self.view.get(&inside).is_none() && self.view.host_path(&inside).is_none()
        };
        let mut hidden =
            names.into_iter().filter(is_hidden).map(|name| (name, self.policy.home_outside.join(name)));
        let (name, file) = hidden.find(|(_, file)| git::user::has_identity(file))?;
        let setting = match self.policy.git {
            Git::Workspace => SettingKey::Git.to("protect"),
            _ => grant(SettingKey::Ro, &file, &self.policy.home.join(name))?,
        };
        let text = format!("your name and address are in {}, which the sandbox does not show", shown(&file));
        Some(Note::new("git", &text, Some(remedy![setting, " shows it"])))
    }
}
