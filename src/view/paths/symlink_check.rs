//! Refuses paths that commands can redirect. What Kennel grants, opens or trusts outside must not depend on a
//! link or directory that a command can replace.

use std::io;
use std::path::Path;

use crate::policy::audit::Audit;
use crate::policy::network::ForeignProxy;
use crate::report::error::Error;
use crate::report::failure::shown;
use crate::report::remedy::Remedy;
use crate::sys::inode::Identity;
use crate::view::View;
use crate::view::inputs::{Inputs, Subject};
use crate::view::paths::resolved as resolved_path;
use crate::view::paths::resolved::{ResolvedPath, is_within};
use crate::view::paths::source::BindSource;
use crate::view::paths::walk::deciding_places;

const REPLACEABLE: &str = "commands could replace it: it is reached through a writable grant";
const ELSEWHERE: &str = "name a path outside of all writable grants";

/// Refuses files that the policy makes Kennel use outside, if commands can replace them.
///
/// # Errors
/// Commands can replace such a file.
pub(crate) fn check(view: &View, inputs: &Inputs<'_>) -> Result<(), Error> {
    let absolute = |path: &Path| inputs.caller.absolute(path);
    // A cover or a read-only mount does not help: a command of another policy may get there.
    let is_granted_writable =
        |at: &Path| view.writable_directories().any(|(_, source)| is_within(at, &source.path));
    if let Some(audit) = &inputs.policy.audit {
        let path = absolute(&audit.path);
        if is_replaceable("audit log", &path, is_granted_writable)? {
            return Err(refused("audit log", &audit.path, REPLACEABLE, ELSEWHERE));
        }
        if is_log_granted(view, audit, &path) {
            let reason = "commands could write to it: it is a writable grant";
            return Err(refused("audit log", &audit.path, reason, ELSEWHERE));
        }
    }
    if let Some(file) = inputs.policy.files.iter().find(|file| is_itself_granted(view, &absolute(file))) {
        let what = if matches!(inputs.subject, Subject::Workspace) { "policy file" } else { "manifest" };
        let reason = "commands could write to it: it is a writable grant";
        return Err(refused(what, file, reason, "remove that grant, or grant its directory"));
    }
    if let Some(ForeignProxy { unix }) = &inputs.policy.network.proxy
        && is_replaceable("proxy socket", &absolute(unix), is_granted_writable)?
    {
        return Err(refused("proxy socket", unix, REPLACEABLE, ELSEWHERE));
    }
    Ok(())
}

/// A path of the host that the policy names, and what it resolves to. Exactly that source is granted.
pub(crate) struct PolicyPath<'p> {
    pub(crate) what: &'static str,
    pub(crate) given: &'p Path,
    pub(crate) resolved: ResolvedPath,
}

/// Refuses paths that lead over a link that a command may have made. The view must have all writable grants
/// already.
///
/// # Errors
/// There is such a link.
pub(crate) fn refuse_links_of_commands(view: &View, named: &[PolicyPath<'_>]) -> Result<(), Error> {
    let writable = resolved_path::writable(view);
    named.iter().try_for_each(|named| named.refuse_links_in(&writable))
}

impl PolicyPath<'_> {
    /// Refuses the path if it leads over a link in one of these directories. That holds for writable targets
    /// too: a second place in the sandbox would show protected or covered paths without their walls.
    ///
    /// # Errors
    /// There is such a link.
    pub(crate) fn refuse_links_in(&self, directories: &[&Path]) -> Result<(), Error> {
        let Some(link) = self.resolved.link_in(directories) else { return Ok(()) };
        let (link, end) = (shown(link), shown(&self.resolved.source.path));
        let reason =
            format!("commands could have made the link that leads there: {link} lies in a writable grant");
        let remedy = format!("name the place it leads to, {end}, if that is what you mean");
        Err(refused(self.what, self.given, reason, remedy))
    }
}

/// Refuses a directory of sockets that commands could replace, because programs outside trust the sockets
/// there.
///
/// # Errors
/// A writable grant shows the directory or a link on the way to it.
pub(crate) fn check_socket_directory(view: &View, directory: &Path) -> Result<(), Error> {
    const WHAT: &str = "directory of sockets";
    // The default directory is covered, also in a writable /tmp.
    if is_replaceable(WHAT, directory, |at| view.is_writable(at))? {
        Err(refused(WHAT, directory, REPLACEABLE, "put the sockets outside of all writable grants"))
    } else {
        Ok(())
    }
}

/// Whether commands decide where `path` leads: they can write to its directory, or to that of a link on the
/// way.
fn is_replaceable(
    what: &'static str,
    path: &Path,
    is_writable: impl Fn(&Path) -> bool,
) -> Result<bool, Error> {
    Ok(deciding_places(what, path)?.iter().any(|at| is_writable(at)))
}

/// Whether the log file itself, of any day, is a writable grant.
fn is_log_granted(view: &View, audit: &Audit, path: &Path) -> bool {
    let directory = |path: &Path| Identity::at(path.parent()?).ok();
    let own = directory(path);
    let is_log = |source: &BindSource| {
        own.is_some()
            && directory(&source.path) == own
            && source.path.file_name().is_some_and(|name| audit.is_called(name))
    };
    view.writable().any(|(_, source)| is_log(source))
}

/// Whether exactly this file, by any name, is a writable grant. If its directory is granted, the file is
/// protected.
fn is_itself_granted(view: &View, file: &Path) -> bool {
    let Ok(identity) = Identity::at(file) else { return false };
    view.writable().any(|(_, source)| source.identity == identity)
}

fn refused(what: &'static str, given: &Path, reason: impl Into<String>, remedy: impl Into<Remedy>) -> Error {
    let (path, source) = (given.to_owned(), io::Error::other(reason.into()));
    Error::Grant { what, path, source, remedy: Some(remedy.into()) }
}
