//! A throw-away world for one test: a workspace, and a home and a runtime directory beside it. A test that
//! needs only an empty directory uses [`workspace`].

use std::{
    fs::{Permissions, set_permissions},
    ops::Deref,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

use kennel::{Mount, Policy, Profile, Session};

use super::{TempDir, kennel_path, payload_path, workspace};

/// Variables that would lead `kennel` out of the world.
const LEAD_OUT: [&str; 8] = [
    "CARGO_HOME",
    "PIP_CACHE_DIR",
    "PYENV_ROOT",
    "RUSTUP_HOME",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
    "npm_config_cache",
];

/// A workspace, which it dereferences to. The other directories are made when somebody asks for them. All are
/// removed with it.
pub struct World {
    workspace: TempDir,
    home: OnceLock<TempDir>,
    runtime: OnceLock<TempDir>,
    /// What its policies have that others do not.
    change: fn(Policy) -> Policy,
}

impl World {
    /// With an empty workspace in /tmp.
    pub fn new() -> Self {
        Self::of(workspace())
    }

    /// With this workspace.
    pub fn of(workspace: TempDir) -> Self {
        Self { workspace, home: OnceLock::new(), runtime: OnceLock::new(), change: |policy| policy }
    }

    /// With this home.
    pub fn at_home(home: TempDir) -> Self {
        Self { home: OnceLock::from(home), ..Self::new() }
    }

    /// Its policies are changed so.
    pub fn with(self, change: fn(Policy) -> Policy) -> Self {
        Self { change, ..self }
    }

    /// A path in the workspace.
    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// The home of the user, elsewhere than the workspace. It is empty at first.
    pub fn home(&self) -> &Path {
        self.home.get_or_init(workspace).path()
    }

    /// A path in the home.
    pub fn in_home(&self, name: impl AsRef<Path>) -> PathBuf {
        self.home().join(name)
    }

    /// The place of the sockets of sessions.
    pub fn runtime(&self) -> &Path {
        self.runtime.get_or_init(runtime).path()
    }

    /// A policy to start from: a writable workspace and no network. Messages are in English.
    pub fn policy(&self) -> Policy {
        (self.change)(policy_at(self.path()))
    }

    /// A policy of this profile.
    pub fn policy_of(&self, profile: Profile) -> Policy {
        Policy { profile, ..self.policy() }
    }

    /// A policy with `tests/payload` at `/payload`.
    pub fn with_payload(&self) -> Policy {
        self.policy().mount(payload())
    }

    /// A session with [`World::policy`].
    pub async fn session(&self) -> Session {
        Session::prepare(&self.policy()).await.expect("a session")
    }

    /// A session whose commands can run any attempt.
    pub async fn probing(&self) -> Session {
        Session::prepare(&self.with_payload()).await.expect("a session")
    }

    /// A program in the workspace, not yet started, for a user with this home and these sockets.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.current_dir(self.path()).env("LC_ALL", "C").env("HOME", self.home());
        command.env("XDG_RUNTIME_DIR", self.runtime());
        for variable in LEAD_OUT {
            command.env_remove(variable);
        }
        command
    }

    /// `kennel WORDS…`, not yet started.
    pub fn kennel(&self, words: &[&str]) -> Command {
        let mut kennel = self.command(kennel_path());
        kennel.args(words);
        kennel
    }

    /// `kennel run FLAGS` of a script, not yet started.
    pub fn script(&self, flags: &[&str], script: &str) -> Command {
        self.kennel(&[&["run"], flags, &["--", "sh", "-c", script]].concat())
    }

    /// Runs a script with `kennel run FLAGS`.
    pub fn run(&self, flags: &[&str], script: &str) -> Output {
        self.script(flags, script).output().unwrap()
    }
}

impl Deref for World {
    type Target = TempDir;

    fn deref(&self) -> &TempDir {
        &self.workspace
    }
}

impl AsRef<Path> for World {
    fn as_ref(&self) -> &Path {
        self.path()
    }
}

/// A directory that only we can enter.
pub fn runtime() -> TempDir {
    let dir = TempDir::new("kennel-test-run-", "/tmp");
    set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
    dir
}

/// [`World::policy`] for another workspace.
pub fn policy_at(workspace: impl Into<PathBuf>) -> Policy {
    Policy::profile(Profile::NoNetwork, workspace).set_env("LC_ALL", "C")
}

/// `tests/payload`, granted at `/payload`.
pub fn payload() -> Mount {
    Mount::ReadOnly { source: payload_path(), target: Some("/payload".into()) }
}
