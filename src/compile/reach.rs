//! What is granted, opened or trusted outside lies where no command can lead it elsewhere: what they wrote would decide
//! then.

use std::{io, path::Path};

use super::{
    Parts,
    lexical::{self, clean},
    source::Source,
    view::{Node, View},
    walk::on_the_way,
};
use crate::{
    Error,
    failure::shown,
    policy::{Audit, ForeignProxy, Mount},
};

const LED: &str = "commands could put another there: it is reached through a writable grant";
const ELSEWHERE: &str = "name a place outside of what is granted writable";

/// Refuses what the policy has opened or granted outside, in reach of commands.
///
/// # Errors
/// There is such a thing.
pub(super) fn check(view: &View, parts: &Parts<'_>) -> Result<(), Error> {
    let absolute = |path: &Path| parts.caller.absolute(path);
    for mount in &parts.policy.mounts {
        let (what, given, target) = match mount {
            Mount::ReadOnly { source, target } => ("read-only grant", source, target.as_deref()),
            Mount::ReadWrite { source, target } => ("read-write grant", source, target.as_deref()),
            Mount::Device { path } => ("device", path, None),
            _ => continue,
        };
        let at = absolute(given);
        let (path, target) = (clean(&at), target.map(clean));
        if !is_shown(view, target.as_ref().unwrap_or(&path), &path) {
            not_led(view, (what, given, target.as_deref()), &at)?;
        }
    }
    // Also where a cover or a read-only mount keeps these commands away: those of another policy may go there.
    let is_granted_writable =
        |at: &Path| view.writable_directories().any(|(_, source)| at.starts_with(&source.path));
    if let Some(audit) = &parts.policy.audit {
        let path = absolute(&audit.path);
        if is_led("audit log", &path, is_granted_writable)? {
            return Err(in_reach("audit log", &audit.path, LED, ELSEWHERE));
        }
        if is_granted(view, audit, &path) {
            let reason = "commands could write to it: it is a writable grant";
            return Err(in_reach("audit log", &audit.path, reason, ELSEWHERE));
        }
    }
    if let Some(ForeignProxy { unix }) = &parts.policy.network.proxy
        && is_led("proxy socket", &absolute(unix), is_granted_writable)?
    {
        return Err(in_reach("proxy socket", unix, LED, ELSEWHERE));
    }
    Ok(())
}

/// Whether `path` leads to `end`, as was found, whatever commands have written: no link on the way lies in a writable grant.
/// For what is named in passing, by a variable, and not worth an error.
pub(super) fn leads_there(view: &View, path: &Path, end: &Path) -> bool {
    // No link was passed.
    if path == end {
        return true;
    }
    let Ok(mut places) = on_the_way("variable", path) else { return false };
    places.pop().is_some_and(|last| last == end) && !places.iter().any(|at| lies_in_writable(view, at))
}

fn lies_in_writable(view: &View, at: &Path) -> bool {
    view.writable_directories().any(|(_, source)| at != source.path && lexical::is_within(at, &source.path))
}

/// Whether `target` shows what the host has at `path`, and so no link was passed on the way to that.
fn is_shown(view: &View, target: &Path, path: &Path) -> bool {
    view.get(target)
        .is_some_and(|place| matches!(&place.node, Node::Bind { source, .. } if source.path == path))
}

/// Refuses a grant to which a link leads that a command may have laid. Also one that leads to what is writable anyway: there
/// it would show once more, without its walls, what is protected or covered.
fn not_led(
    view: &View,
    (what, given, target): (&'static str, &Path, Option<&Path>),
    path: &Path,
) -> Result<(), Error> {
    let mut places = on_the_way(what, path)?;
    let end = places.pop().unwrap_or_default();
    // Its own place, where the walk has come to: another place may show that too, and this one something else.
    if !is_shown(view, target.unwrap_or(&end), &end) {
        let reason = "it was exchanged while the sandbox was prepared";
        return Err(in_reach(what, given, reason, "run again; name the place it leads to"));
    }
    match places.iter().find(|at| lies_in_writable(view, at)) {
        Some(link) => {
            let link = shown(link);
            let reason = format!(
                "commands could have laid the link that leads there: {link} lies in a writable grant"
            );
            let remedy = format!("name the place it leads to, {}, if that is what you mean", shown(&end));
            Err(in_reach(what, given, reason, remedy))
        }
        None => Ok(()),
    }
}

/// Refuses a directory of sockets that commands could exchange: what lies there is executed and trusted outside.
///
/// # Errors
/// A writable grant shows it, or a link on the way to it.
pub(crate) fn sockets_out_of_reach(view: &View, directory: &Path) -> Result<(), Error> {
    const WHAT: &str = "directory of sockets";
    // The usual directory is covered, also in a writable /tmp.
    match is_led(WHAT, directory, |at| view.is_writable(at))? {
        true => Err(in_reach(WHAT, directory, LED, "have the sockets outside of what is granted writable")),
        false => Ok(()),
    }
}

/// Whether commands decide where `path` leads: they may write where it lies, or where a link on the way does.
fn is_led(what: &'static str, path: &Path, is_writable: impl Fn(&Path) -> bool) -> Result<bool, Error> {
    Ok(on_the_way(what, path)?.iter().any(|at| is_writable(at)))
}

/// Whether a log is granted writable itself, on whatever day.
fn is_granted(view: &View, audit: &Audit, path: &Path) -> bool {
    let directory = path.parent().and_then(|parent| parent.canonicalize().ok());
    let is_log = |source: &Source| {
        source.path.parent() == directory.as_deref()
            && source.path.file_name().is_some_and(|name| audit.is_called(name))
    };
    view.writable().any(|(_, source)| is_log(source))
}

fn in_reach(what: &'static str, given: &Path, reason: impl Into<String>, remedy: impl Into<String>) -> Error {
    let (path, source) = (given.to_owned(), io::Error::other(reason.into()));
    Error::Grant { what, path, source, remedy: Some(remedy.into()) }
}
