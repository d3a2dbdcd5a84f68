//! The caller's own configuration of git, as commands see it: a copy without credentials, and without files
//! elsewhere.
//!
//! Commands cannot change what is copied here: it is protected in every writable grant, with the links on the
//! way. A file that the configuration names is copied only if no link leads there, because commands may have
//! made that link.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use nix::fcntl::OFlag;

use crate::policy::profile::Git;
use crate::protect::git::config::{Variable, variables};
use crate::protect::git::{contents, read_followed};
use crate::report::failure::shown;
use crate::report::place_kind::PlaceKind;
use crate::report::remedy::{SettingKey, remedy};
use crate::sys::dirfd::open_without_links;
use crate::sys::file_system::regular;
use crate::sys::own_path;
use crate::view::inputs::Inputs;
use crate::view::paths::source::BindSource;
use crate::view::{LARGEST_COPY, Node, View, secrets};

/// Variables whose value is a file that git reads.
const FILES: &[(&str, &str)] =
    &[("core", "excludesfile"), ("core", "attributesfile"), ("commit", "template"), ("mailmap", "file")];

/// Parts of keys whose values are credentials, or programs that ask for them.
const CREDENTIALS: &[&str] = &["pass", "token", "secret", "extraheader", "cookie"];

/// What is copied, and from where.
struct Copies<'c> {
    view: &'c mut View,
    inputs: &'c Inputs<'c>,
    workspace: &'c Path,
    /// The directory of git in `XDG_CONFIG_HOME`, or in `~/.config`.
    directory: PathBuf,
}

/// Shows `~/.gitconfig` and the files of `~/.config/git`, unless the view shows something there, or the
/// profile hides the caller.
pub(crate) fn show_config(view: &mut View, inputs: &Inputs<'_>, workspace: &BindSource) {
    if !inputs.policy.profile.meaning().knows_caller || inputs.policy.git == Git::Workspace {
        return;
    }
    let home = &inputs.caller.home;
    let named = inputs.caller.path_in("XDG_CONFIG_HOME");
    let directory = named.unwrap_or_else(|| home.join(".config")).join("git");
    let mut copies = Copies { view, inputs, workspace: &workspace.path, directory };
    copies.config(&home.join(".gitconfig"));
    if inputs.names.may_exist(&copies.directory) && copies.directory.is_dir() {
        copies.config(&copies.directory.join("config"));
        for name in ["attributes", "ignore"] {
            let path = copies.directory.join(name);
            let text = copies.read(&path).unwrap_or_default();
            copies.offer(&path, text);
        }
    }
}

/// Whether a configuration file of the caller has an address for commits.
pub(crate) fn has_identity(path: &Path) -> bool {
    let text = read_followed(path).ok().flatten().unwrap_or_default();
    variables(&text).any(|variable| variable.is("user", "email"))
}

impl Copies<'_> {
    /// Copies a configuration file, and the files that it names.
    fn config(&mut self, path: &Path) {
        let mut text = Vec::new();
        for variable in variables(&self.read(path).unwrap_or_default()) {
            if self.keeps(&variable, path) {
                variable.write_to(&mut text);
            }
        }
        self.offer(path, text);
    }

    /// Whether commands see this variable. Copies what it names.
    fn keeps(&mut self, variable: &Variable, path: &Path) -> bool {
        let value = variable.value.as_deref().unwrap_or_default();
        if matches!(&*variable.section, "include" | "includeif") {
            return self.keeps_include(variable, self.expand(value, Some(path)));
        }
        if FILES.iter().any(|(section, key)| variable.is(section, key))
            && let Some(file) = self.expand(value, None)
            && let Ok(text) = read_without_links(&file)
        {
            self.offer_plain(&file, text);
        }
        !is_credential(variable)
    }

    /// Includes of files that commands do not see are left out. A file in git's own directory is copied.
    fn keeps_include(&mut self, variable: &Variable, file: Option<PathBuf>) -> bool {
        let Some(file) = file.filter(|_| variable.key == "path") else { return false };
        let is_shown = |view: &View| view.host_path(&file).is_some_and(|shown| shown == file);
        if is_shown(self.view) {
            return true;
        }
        if file.starts_with(&self.directory) && !file.ends_with("config") {
            // One level: what the included file includes is left out.
            let text = read_without_links(&file).unwrap_or_default();
            let mut kept = Vec::new();
            variables(&text)
                .filter(|it| !it.section.starts_with("include") && !is_credential(it))
                .for_each(|it| it.write_to(&mut kept));
            self.offer(&file, kept);
            return true;
        }
        if self.applies(variable) && fs::symlink_metadata(&file).is_ok() {
            let text = format!("your configuration of git includes {}, which is left out", shown(&file));
            self.view.note("git", &text, Some(remedy![SettingKey::Ro.to(file.display()), " shows it"]));
        }
        false
    }

    /// Whether an include surely applies to the workspace: git-config(1), "Conditional includes".
    fn applies(&self, include: &Variable) -> bool {
        let Some(condition) = &include.subsection else { return include.section == "include" };
        let directory = condition.strip_prefix(b"gitdir:").or_else(|| condition.strip_prefix(b"gitdir/i:"));
        let directory = directory.filter(|directory| directory.ends_with(b"/"));
        let directory = directory.and_then(|directory| self.expand(directory, None));
        directory.is_some_and(|directory| self.workspace.starts_with(directory))
    }

    /// The file that a value names. A relative one starts at the directory of the file `from`.
    fn expand(&self, value: &[u8], from: Option<&Path>) -> Option<PathBuf> {
        let value = Path::new(OsStr::from_bytes(value));
        match value.strip_prefix("~") {
            Ok(rest) => Some(self.inputs.caller.home.join(rest)),
            Err(_) if value.is_absolute() => Some(value.to_owned()),
            Err(_) => Some(from?.parent()?.join(value)).filter(|_| !value.as_os_str().is_empty()),
        }
    }

    /// The text of a file of the user's; links are followed.
    fn read(&self, path: &Path) -> Option<Vec<u8>> {
        if !self.inputs.names.may_exist(path) {
            return None;
        }
        let text = read_followed(path).ok()?.filter(|text| text.len() <= LARGEST_COPY)?;
        let at = fs::canonicalize(path).ok()?;
        (!secrets::is_secret(&at, self.inputs.caller)).then_some(text)
    }

    /// Puts a file where git looks for it. If `XDG_CONFIG_HOME` is not passed on, git looks in `~/.config`.
    fn offer(&mut self, path: &Path, text: Vec<u8>) {
        if text.is_empty() {
            return;
        }
        if let Ok(name) = path.strip_prefix(&self.directory) {
            let usual = self.inputs.caller.home.join(".config/git").join(name);
            if usual != path {
                self.offer_plain(&usual, text.clone());
            }
        }
        self.offer_plain(path, text);
    }

    fn offer_plain(&mut self, path: &Path, text: Vec<u8>) {
        if self.view.is_free(path) && !secrets::is_secret(path, self.inputs.caller) {
            self.view.offer(PlaceKind::File, path, Node::file(text));
        }
    }
}

/// The text of a small regular file that no link leads to.
fn read_without_links(path: &Path) -> io::Result<Vec<u8>> {
    let held = open_without_links(path, OFlag::empty())?;
    regular(&held)?;
    let text = contents(fs::File::open(own_path(&held))?)?;
    if text.len() <= LARGEST_COPY { Ok(text) } else { Err(io::ErrorKind::FileTooLarge.into()) }
}

/// Whether a variable holds a credential, or says how to get one.
fn is_credential(variable: &Variable) -> bool {
    let value = variable.value.as_deref().unwrap_or_default();
    let subsection = variable.subsection.as_deref().unwrap_or_default();
    variable.section == "credential"
        || CREDENTIALS.iter().any(|part| variable.key.contains(part))
        || [value, subsection].into_iter().any(has_credential)
}

/// Whether a text has a URL with a password or a token in it, or a header with one.
fn has_credential(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text).to_ascii_lowercase();
    let in_url = |(at, mark): (usize, &str)| {
        let (before, after) =
            (text.get(..at).unwrap_or_default(), text.get(at + mark.len()..).unwrap_or_default());
        let authority = after.split(['/', '?', '#', '"', '\'', ' ']).next().unwrap_or_default();
        let user = authority.rsplit_once('@').map(|(user, _)| user);
        // The name of a user alone is a credential only for a web server: a token.
        user.is_some_and(|user| user.contains(':') || before.ends_with("http") || before.ends_with("https"))
    };
    text.match_indices("://").any(in_url) || text.contains("authorization:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_told_from_settings() {
        for (text, is_kept) in [
            ("[user] name = me", true),
            ("[alias] st = status", true),
            ("[safe] directory = /srv/x", true),
            ("[http] proxy = http://proxy:3128", true),
            ("[url \"ssh://git@host/\"] insteadOf = https://host/", true),
            ("[url \"git@host:\"] insteadOf = https://host/", true),
            ("[credential] helper = store", false),
            ("[credential \"https://host\"] username = me", false),
            ("[CREDENTIAL] useHttpPath", false),
            ("[http \"https://host/\"] extraHeader = x", false),
            ("[http] proxy = http://me:word@proxy:3128", false),
            ("[url \"https://token@host/\"] insteadOf = https://host/", false),
            ("[url \"https://x:y@host/\"] insteadOf = https://host/", false),
            ("[url \"ssh://git:word@host/\"] insteadOf = https://host/", false),
            ("[sendemail] smtpPass = x", false),
            ("[github] token = x", false),
            ("[core] askPass = x", false),
            ("[alias] get = !curl -H 'Authorization: Bearer x'", false),
        ] {
            let variable = variables(text.as_bytes()).next().expect(text);
            assert_eq!(!is_credential(&variable), is_kept, "{text}");
        }
    }
}
