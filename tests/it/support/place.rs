//! Directories of tests, which go with them whatever became of what is in them.

use std::{
    env,
    fs::{Permissions, create_dir_all, set_permissions, write},
    ops::Deref,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

/// A temporary directory that can be removed even where something is mounted on it, or where what lies in it may not be
/// listed, as the working directory of an overlay.
pub struct TempDir(tempfile::TempDir);

impl TempDir {
    /// An empty one in `place`, that only we can enter.
    pub fn new(prefix: &str, place: impl AsRef<Path>) -> Self {
        Self(tempfile::Builder::new().prefix(prefix).tempdir_in(place).unwrap())
    }
}

impl Deref for TempDir {
    type Target = tempfile::TempDir;

    fn deref(&self) -> &tempfile::TempDir {
        &self.0
    }
}

impl AsRef<Path> for TempDir {
    fn as_ref(&self) -> &Path {
        self.path()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let clear = "while umount -lq \"$0\" 2>&-; do :; done; chmod -Rf u+rwX \"$0\"";
        let _ = Command::new("sh").args(["-c", clear]).arg(self.path()).status();
    }
}

/// An empty workspace in /tmp.
pub fn workspace() -> TempDir {
    workspace_in(Path::new("/tmp"))
}

/// One elsewhere.
pub fn workspace_in(place: &Path) -> TempDir {
    let dir = TempDir::new("kennel-test-", place);
    set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    dir
}

/// One on a disk: where `KENNEL_DISK` says, which every virtual machine must, or else in /tmp, whatever that lies on.
pub fn workspace_on_disk() -> TempDir {
    let disk = env::var_os("KENNEL_DISK").map(PathBuf::from);
    assert!(disk.is_some() || env::var_os("KENNEL_CGROUPS").is_none(), "there must be a disk here");
    workspace_in(disk.as_deref().unwrap_or(Path::new("/tmp")))
}

/// What `git init` writes there.
pub const GIT_CONFIG: &str = "[core]\n\trepositoryformatversion = 0\n";

/// What git takes for a repository, at `path`.
pub fn make_repository(path: &Path) {
    for directory in ["objects", "refs", "hooks"] {
        create_dir_all(path.join(directory)).unwrap();
    }
    write(path.join("HEAD"), "ref: refs/heads/x\n").unwrap();
    write(path.join("config"), GIT_CONFIG).unwrap();
}
