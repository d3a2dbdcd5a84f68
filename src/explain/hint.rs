//! What of the sandbox stands in the way of what the caller typed: paths, git, the directory.
//!
//! This may look whether a path exists outside, because the caller named it. It names no path that a link
//! leads to, because commands may have made that link.

use std::path::Path;

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};

use crate::explain::{Explainer, Finding, LastLink, grant, is_writable_outside, resolve};
use crate::policy::profile::Git;
use crate::protect::git;
use crate::report::denial::{shown, trust_git};
use crate::report::enforcement::Note;
use crate::report::remedy::{SettingKey, remedy};
use crate::sys::lexical;
use crate::view::place_kind::PlaceKind;
use crate::view::source::exists;
use crate::view::{Node, secrets};

/// What a program does with a path of its command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// It reads it, as far as Kennel knows.
    Read,
    /// It makes it, or writes into it.
    Write,
    /// It replaces or removes it, which needs the directory.
    Replace,
}

impl Explainer {
    /// Whether something of the host is visible at `path`.
    pub(crate) fn shows(&self, path: &Path) -> bool {
        self.view.host_path(path).is_some_and(|shown| exists(&shown))
    }

    /// Whether no symbolic link is on the way to `path`.
    pub(crate) fn is_direct(&self, path: &Path) -> bool {
        let path = lexical::clean(path);
        resolve(&self.view, &path, LastLink::Followed).is_some_and(|target| target == path)
    }

    /// Whether a path is a known place of secrets.
    pub(crate) fn is_secret(&self, path: &Path) -> bool {
        secrets::is_secret_of(path, &self.policy.homes)
    }

    /// The wall before `path`, if the path exists outside and a setting helps.
    pub(crate) fn hint(&self, path: &Path, used: Use) -> Option<Note> {
        let path = &lexical::clean(path);
        if !self.is_direct(path) {
            return None;
        }
        match self.absent(path, false, &[]) {
            Some(hidden) => self.hidden(path, used, &hidden.reason),
            None if used == Use::Read => None,
            None => self.unwritable(path, used),
        }
    }

    fn hidden(&self, path: &Path, used: Use, reason: &str) -> Option<Note> {
        let is_readable = || access(path, AccessFlags::R_OK).is_ok();
        if used == Use::Read {
            let grant = grant(SettingKey::Ro, path, path).filter(|_| is_readable())?;
            return Some(Note::new(&shown(path), reason, Some(remedy![grant, " shows it"])));
        }
        let parent = path.parent()?;
        if used == Use::Write && self.is_private(parent) && !path.is_dir() {
            // Anything can be made there.
            return None;
        }
        let parent = Some(parent).filter(|parent| self.may_be_granted(parent) && exists(parent));
        let place = match used {
            Use::Write if exists(path) => Some(path),
            _ => parent.or_else(|| Some(path).filter(|path| exists(path))),
        };
        let place = place.filter(|place| is_writable_outside(place, place))?;
        let grant = grant(SettingKey::Rw, place, place)?;
        Some(Note::new(&shown(path), reason, Some(remedy![grant, " makes it writable"])))
    }

    fn unwritable(&self, path: &Path, used: Use) -> Option<Note> {
        if used == Use::Replace
            && let Some((subject, Finding { reason, setting: Some(grant), .. })) =
                self.replaced_file(path, Errno::EBUSY)
        {
            let remedy = remedy![grant, " in place of its own grant allows it"];
            return Some(Note::new(&shown(&subject), &reason, Some(remedy)));
        }
        let Finding { reason, setting, .. } = self.read_only(path, &[])?;
        let remedy = setting.map(|setting| remedy![setting, " allows it"]);
        // What may only be read by a program that can also replace it, such as sed, is no reason by itself.
        let helps = remedy.is_some() || used == Use::Write;
        helps.then(|| Note::new(&shown(path), &reason, remedy))
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

    /// For a program that searches one of `markers` in the directories above: the nearest one is in a
    /// directory that the sandbox does not show.
    pub(crate) fn hint_of_directory(&self, directory: &Path, markers: &[&str]) -> Option<Note> {
        let marker_in = |above: &Path| markers.iter().find(|marker| exists(&above.join(marker)));
        let (above, marker) = directory.ancestors().find_map(|above| Some((above, marker_in(above)?)))?;
        if self.view.host_path(&above.join(marker)).is_some() || !self.may_be_granted(above) {
            return None;
        }
        let text = format!("{marker} of {} is not visible in a subdirectory", shown(above));
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
