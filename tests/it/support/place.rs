//! Directories for tests, removed with everything in them.

use std::{
    env,
    ffi::OsStr,
    fs::{Permissions, create_dir_all, read_to_string, remove_dir_all, set_permissions, write},
    ops::Deref,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

/// A temporary directory that can be removed even if something is mounted on it, or if it contains a
/// directory that may not be listed, such as the work directory of an overlay.
pub struct TempDir(tempfile::TempDir);

impl TempDir {
    /// An empty one in `place` that only we can enter.
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
        // Nearly every directory needs no program for this, and tests make thousands.
        if !self.is_mount_point() && remove_dir_all(self.path()).is_ok() {
            return;
        }
        // Never into what a test has mounted there: that may be a file system of the host.
        let clear = "while umount -lq \"$0\" 2>&-; do :; done; find \"$0\" -xdev -exec chmod -f u+rwX {} +";
        let _ = Command::new("sh").args(["-c", clear]).arg(self.path()).status();
    }
}

impl TempDir {
    /// Whether something is mounted on it or in it, or nobody can tell.
    fn is_mount_point(&self) -> bool {
        let name = self.path().file_name().and_then(OsStr::to_str);
        let (mounts, name) = (read_to_string("/proc/self/mountinfo"), name.unwrap_or_default());
        mounts.map_or(true, |mounts| mounts.contains(name))
    }
}

/// An empty workspace in /tmp.
pub fn workspace() -> TempDir {
    workspace_in(Path::new("/tmp"))
}

/// Writes these files into a directory. `contents` makes the contents of each of its name.
pub fn filled<'f>(dir: TempDir, files: &[&'f str], contents: impl Fn(&'f str) -> &'f str) -> TempDir {
    for file in files {
        let path = dir.path().join(file);
        create_dir_all(path.parent().unwrap()).unwrap();
        write(path, contents(file)).unwrap();
    }
    dir
}

/// An empty workspace in another directory.
pub fn workspace_in(place: &Path) -> TempDir {
    let dir = TempDir::new("kennel-test-", place);
    set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    dir
}

/// A workspace on a disk: in the directory `KENNEL_DISK`, which every virtual machine must set, or else in
/// /tmp, on any file system.
pub fn workspace_on_disk() -> TempDir {
    let disk = env::var_os("KENNEL_DISK").map(PathBuf::from);
    assert!(disk.is_some() || env::var_os("KENNEL_CGROUPS").is_none(), "there must be a disk here");
    workspace_in(disk.as_deref().unwrap_or(Path::new("/tmp")))
}

/// `git init` writes this config.
pub const GIT_CONFIG: &str = "[core]\n\trepositoryformatversion = 0\n";

/// Makes a directory at `path` that git takes for a repository.
pub fn make_repository(path: &Path) {
    for directory in ["objects", "refs", "hooks"] {
        create_dir_all(path.join(directory)).unwrap();
    }
    write(path.join("HEAD"), "ref: refs/heads/x\n").unwrap();
    write(path.join("config"), GIT_CONFIG).unwrap();
}

/// A workspace that git takes for a repository, with a hook and the config `[core]`.
pub fn repository() -> TempDir {
    let dir = workspace();
    make_repository(&dir.path().join(".git"));
    write(dir.path().join(".git/config"), "[core]\n").unwrap();
    write(dir.path().join(".git/hooks/pre-commit"), "#!/bin/sh\n").unwrap();
    dir
}
