//! Root of another root, who has two capabilities in the sandbox's own user namespace and a filter of its
//! own: what that opens, and what it must not.
//!
//! | module | what is tried |
//! | --- | --- |
//! | `rights` | more capabilities, other identities, other roots, init |
//! | `grants` | files of the host: set-id bits, read-only grants, covers, protected paths, owners of others |

mod grants;
mod rights;

use std::path::Path;

use super::check;
use crate::support::{
    TempDir, attempt, is_without_user_namespace, other_root, require_root, shell, skip, stdout, workspace,
};

/// Leaves a test on a host where nobody is root of another root.
macro_rules! root_of_another {
    () => {{
        require_root!();
        if is_without_user_namespace() {
            return skip(module_path!(), "root has no user namespace here");
        }
        Rooted { root: other_root(), here: workspace() }
    }};
}
use root_of_another;

/// Another root, and a workspace that it shows.
struct Rooted {
    root: TempDir,
    here: TempDir,
}

impl Rooted {
    fn flags<'f>(&'f self, more: &[&'f str]) -> Vec<&'f str> {
        [&["--root", self.root.path().to_str().unwrap(), "--workspace", "."], more].concat()
    }

    fn workspace(&self) -> &Path {
        self.here.path()
    }

    /// Makes the calls as root, and compares every result.
    fn check(&self, expected: super::Expected<'_>) {
        check(self.workspace(), &self.flags(&[]), expected);
    }

    /// What a script prints, as root.
    fn says(&self, more: &[&str], script: &str) -> String {
        let output = shell(self.workspace(), &self.flags(more), script);
        assert!(output.status.success(), "{output:?}");
        stdout(&output)
    }
}
