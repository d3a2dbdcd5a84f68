//! The paths that the policy names: those under `protect`, with what their patterns match, and the files that
//! the policy was read from.

use std::fs;
use std::path::{Path, PathBuf};

use crate::policy::glob::Pattern;
use crate::protect::grants::WritableGrants;
use crate::report::error::Error;
use crate::report::error::policy::PolicyError;
use crate::report::failure::shown;
use crate::view::View;
use crate::view::inputs::Inputs;
use crate::view::paths::search::{SearchBudget, StartedPattern, search};
use crate::view::paths::source::BindSource;
use crate::view::paths::walk::UnresolvedPath;

/// The result of [`paths`].
#[derive(Default)]
pub(crate) struct Named {
    pub(crate) paths: Vec<UnresolvedPath>,
    pub(crate) patterns: Vec<Pattern>,
    /// Directories of the host whose new entries may match a pattern.
    pub(crate) listed: Vec<PathBuf>,
}

/// A pattern of the policy.
struct NamedPattern<'p> {
    /// As the policy writes it.
    given: &'p PathBuf,
    pattern: Pattern,
    /// Whether there is a file of exactly this name.
    is_there: bool,
}

/// The paths that the policy names. A path or a pattern that names nothing is noted.
///
/// # Errors
/// The workspace has too much to search, or too much in it matches.
pub(crate) fn paths(
    view: &mut View,
    inputs: &Inputs<'_>,
    workspace: Option<&BindSource>,
    grants: &WritableGrants,
) -> Result<Named, Error> {
    let mut named = Named::default();
    let files = inputs.policy.files.iter();
    named.paths.extend(files.map(|file| UnresolvedPath::new(Path::new("/"), inputs.caller.absolute(file))));
    let Some(workspace) = workspace else { return Ok(named) };
    let mut patterns = Vec::new();
    for given in &inputs.policy.protect {
        let path = UnresolvedPath::new(&workspace.path, given);
        let is_there = fs::symlink_metadata(path.path()).is_ok();
        match Pattern::of_protect(given, &inputs.policy.workspace) {
            Some(pattern) => {
                let pattern = pattern.map_err(|reason| PolicyError::path("protect", given, reason))?;
                patterns.push(NamedPattern { given, pattern, is_there });
                // A name that is written like a pattern.
                named.paths.extend(is_there.then_some(path));
            }
            None => {
                named.paths.push(path);
                if !is_there {
                    let text = "nothing is there to protect; what a command makes there is moved aside";
                    view.note(&shown(given), text, None);
                }
            }
        }
    }
    if !patterns.is_empty() {
        named.search(view, workspace, &patterns, grants)?;
    }
    named.patterns = patterns.into_iter().map(|it| it.pattern).collect();
    Ok(named)
}

impl Named {
    /// Adds what patterns match in the workspace.
    fn search(
        &mut self,
        view: &mut View,
        workspace: &BindSource,
        patterns: &[NamedPattern<'_>],
        grants: &WritableGrants,
    ) -> Result<(), Error> {
        // Where nothing is writable, there is nothing to protect.
        if !grants.bases.overlaps(&workspace.path) {
            return Ok(());
        }
        let started: Vec<_> = patterns.iter().map(|it| StartedPattern::new(&it.pattern)).collect();
        let found = search(&workspace.path, &started, &mut SearchBudget::default()).map_err(|error| {
            let given = patterns.get(error.pattern).map_or(&workspace.path, |it| it.given);
            error.about("protected path", given)
        })?;
        for (NamedPattern { given, is_there, .. }, is_matched) in patterns.iter().zip(&found.is_matched) {
            if !is_there && !is_matched {
                let text = "nothing in the workspace matches this protected pattern; what a command makes is \
                            protected from the next command on";
                view.note(&shown(given), text, None);
            }
        }
        found.note_closed(view, &workspace.path, "", "read-only");
        let matches = found.matches.into_iter();
        self.paths.extend(matches.map(|path| UnresolvedPath::new(&workspace.path, path)));
        self.listed.extend(found.listed);
        Ok(())
    }
}
