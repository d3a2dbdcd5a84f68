//! A small root file system, made of programs of the host.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use kennel::probe::{Host, Version};

use super::{TempDir, workspace};

/// What tests run in it.
const PROGRAMS: &[&str] = &[
    "sh", "cat", "chmod", "dd", "env", "id", "ln", "ls", "mkdir", "mknod", "mv", "pwd", "readlink", "rm",
    "rmdir", "sleep", "stat", "touch",
];

/// Leaves a test on a host where such a root cannot be made or mounted.
macro_rules! require_root {
    () => {
        crate::support::require!(crate::support::has("ldd"), "ldd");
        crate::support::require!(
            crate::support::keeps_changes_in_memory(),
            "changes of another root in memory"
        );
    };
}
pub(crate) use require_root;

/// Whether the tmpfs of this kernel has the user attributes that an overlay needs for its changes.
pub fn keeps_changes_in_memory() -> bool {
    Host::detect().kernel >= Version(6, 6)
}

/// A directory with [`PROGRAMS`], the libraries that they load, and two users. `/bin` and `/lib` are links,
/// as on most hosts.
pub fn other_root() -> TempDir {
    let root = workspace();
    for directory in ["etc", "root", "tmp", "usr/bin", "usr/lib", "usr/lib64"] {
        fs::create_dir_all(root.path().join(directory)).unwrap();
    }
    for name in ["bin", "lib", "lib64"] {
        symlink(format!("usr/{name}"), root.path().join(name)).unwrap();
    }
    let users = "root:x:0:0:root:/root:/bin/sh\nguest:x:7:8:guest:/home/guest:/bin/sh\n";
    fs::write(root.path().join("etc/passwd"), users).unwrap();
    fs::write(root.path().join("etc/group"), "root:x:0:\nguests:x:8:\nstaff:x:50:\n").unwrap();
    for file in files() {
        // The same place, with what a link of the host leads to.
        let at = root.path().join(file.strip_prefix("/").unwrap());
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::copy(&file, at).unwrap();
    }
    root
}

/// The programs, as they are found on PATH, and what ldd(1) says that they load.
fn files() -> BTreeSet<PathBuf> {
    let mut files = BTreeSet::new();
    for program in PROGRAMS {
        let program = ["/usr/bin", "/bin"].map(|at| Path::new(at).join(program));
        let program = program.iter().find(|path| path.exists()).expect("a program of every host");
        let listed = Command::new("ldd").arg(program).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        files.extend(listed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from));
        files.insert(program.clone());
    }
    files
}
