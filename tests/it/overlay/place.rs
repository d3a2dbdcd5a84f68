//! A workspace whose changes are kept, and the commands that review them.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Output},
};

use crate::support::{TempDir, kennel_path, stderr, stdout, workspace_on_disk};

/// A workspace, and a place of its own for kept changes.
pub(super) struct Kept {
    pub(super) dir: TempDir,
    pub(super) state: TempDir,
    /// The place of the sockets of its sessions.
    runtime: TempDir,
}

/// Ends the test if the file system cannot keep changes. `upper` asserts what happens then.
macro_rules! require_kept {
    () => {{
        let kept = crate::overlay::place::Kept::new();
        crate::support::require!(
            xattr::set(kept.state.path(), "user.test", b"x").is_ok(),
            "user extended attributes on the file system of /tmp"
        );
        xattr::remove(kept.state.path(), "user.test").unwrap();
        kept
    }};
}

impl Kept {
    pub(super) fn new() -> Self {
        let [dir, state, runtime] = [(); 3].map(|()| workspace_on_disk());
        for own in [&state, &runtime] {
            fs::set_permissions(own.path(), PermissionsExt::from_mode(0o700)).unwrap();
        }
        Self { dir, state, runtime }
    }

    pub(super) fn kennel(&self, arguments: &[&str]) -> Command {
        let mut kennel = self.command(kennel_path());
        kennel.args(arguments);
        kennel
    }

    /// A program that starts in the workspace, and runs kennel with the places of this one.
    pub(super) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.dir.path()).env("LC_ALL", "C").env("XDG_STATE_HOME", self.state.path());
        command.env("XDG_RUNTIME_DIR", self.runtime.path()).env_remove("CLICOLOR_FORCE");
        command
    }

    pub(super) fn output(&self, arguments: &[&str]) -> Output {
        self.kennel(arguments).output().unwrap()
    }

    /// Runs a script that must succeed, with the flags of an overlay and others. Returns its stderr.
    pub(super) fn run(&self, flags: &[&str], script: &str) -> String {
        let all = [&["run", "--quiet", "--overlay"], flags, &["--", "sh", "-c", script]].concat();
        let output = self.output(&all);
        assert!(output.status.success(), "{script}: {output:?}");
        stderr(&output)
    }

    /// A command that must succeed. Returns its stdout.
    pub(super) fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        stdout(&output)
    }

    /// A command that must fail by Kennel itself. Returns its stdout and stderr.
    pub(super) fn fails(&self, arguments: &[&str]) -> [String; 2] {
        let output = self.output(arguments);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {output:?}");
        [stdout(&output), stderr(&output)]
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).unwrap();
    }

    pub(super) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap()
    }

    pub(super) fn exists(&self, name: &str) -> bool {
        self.dir.path().join(name).symlink_metadata().is_ok()
    }

    /// The directories that hold changes.
    pub(super) fn layers(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.state.path().join("kennel/changes")) else { return Vec::new() };
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}
pub(super) use require_kept;
