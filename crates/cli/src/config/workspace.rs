//! Which workspace a command line means, and where its file is.

use std::{
    env,
    path::{Path, PathBuf},
};

use kennel::Policy;

/// The file of a workspace, in its top directory.
pub(super) const FILE: &str = "kennel.toml";

/// The workspace that flags or the current directory name.
pub(super) struct Workspace {
    /// The directory with `kennel.toml`. `None`: there is no current directory.
    pub(super) top: Option<PathBuf>,
    /// The current directory, if the workspace is found from there.
    pub(super) here: Option<PathBuf>,
}

impl Workspace {
    pub(super) fn of(given: Option<&Path>) -> Self {
        if let Some(given) = given {
            return Self { top: std::path::absolute(given).ok(), here: None };
        }
        let here = env::current_dir().ok();
        let top =
            here.as_deref().map(|here| kennel::internal::work_tree(here).unwrap_or_else(|| here.to_owned()));
        Self { top, here }
    }

    /// Where relative paths in the user's files start.
    pub(super) fn directory(&self) -> &Path {
        self.top.as_deref().unwrap_or(Path::new("/"))
    }

    /// Without a name for it, the workspace is the whole work tree of git around the current directory.
    /// Commands and the paths of flags still start at the current directory. Returns the path between the
    /// two.
    pub(super) fn widen(self, policy: &mut Policy, is_named: bool) -> PathBuf {
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
