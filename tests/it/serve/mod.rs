//! Sessions that listen: processes of the same user run commands in them, and nobody else can.

mod death;
mod detached;
mod hostile;
mod lingering;
mod peers;
mod place;
mod ports;
mod processes;
mod questions;
mod removed;
mod secrets;
mod shells;
mod shortage;
mod signals;
mod status;

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use nix::{sys::signal::Signal, unistd::Pid};

use crate::support::{TempDir, kennel_path, runtime, workspace};

/// A session in a process of its own, with a runtime directory and a workspace of its own.
pub struct Hosted {
    pub workspace: TempDir,
    pub runtime: TempDir,
    pub socket: PathBuf,
    host: Child,
}

impl Hosted {
    pub fn start(flags: &[&str]) -> Self {
        Self::start_in(runtime(), flags)
    }

    pub fn start_in(runtime: TempDir, flags: &[&str]) -> Self {
        Self::begin(runtime, |start| start.args(flags))
    }

    /// A session with this home directory.
    pub fn start_for(home: &Path, flags: &[&str]) -> Self {
        Self::begin(runtime(), |start| start.env("HOME", home).args(flags))
    }

    fn begin(runtime: TempDir, change: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        let workspace = workspace();
        let mut start = at(runtime.path(), workspace.path());
        start.args(["session", "start", "--name", "s", "--foreground"]);
        let mut host = change(&mut start).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(host.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.ends_with("/kennel/s.sock\n"), "the session did not start: {line:?}");
        Self { workspace, runtime, socket: line.trim_end().into(), host }
    }

    /// The process of the session.
    pub fn host(&self) -> u32 {
        self.host.id()
    }

    /// The installed client.
    pub fn client(&self) -> PathBuf {
        self.socket.with_file_name("kennel-exec")
    }

    /// `kennel-exec SOCKET -- COMMAND…` in the workspace, not yet started.
    pub fn exec(&self, command: &[&str]) -> Command {
        let mut exec = Command::new(self.client());
        exec.current_dir(&self.workspace).env("LC_ALL", "C").arg(&self.socket).arg("--").args(command);
        exec
    }

    /// Runs a shell script in the session.
    pub fn shell(&self, script: &str) -> Output {
        self.exec(&["sh", "-c", script]).output().unwrap()
    }

    /// `kennel ARGUMENTS…` in the workspace, with this runtime directory.
    pub fn kennel(&self, arguments: &[&str]) -> Command {
        let mut kennel = at(self.runtime.path(), self.workspace.path());
        kennel.args(arguments);
        kennel
    }

    /// Waits until the host has ended by itself.
    pub fn ended(&mut self) -> std::process::ExitStatus {
        crate::support::ends("the session", &mut self.host)
    }

    /// Kills the host with SIGKILL.
    pub fn kill(&mut self) {
        self.host.kill().unwrap();
        self.host.wait().unwrap();
    }

    /// Whether the session still runs commands.
    pub fn is_well(&self) -> bool {
        self.shell("exit 7").status.code() == Some(7)
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        let _ = self.host.kill();
        let _ = self.host.wait();
    }
}

/// `kennel` with a runtime directory, in a workspace.
pub fn at(runtime: &Path, workspace: &Path) -> Command {
    let mut kennel = Command::new(kennel_path());
    kennel.env("XDG_RUNTIME_DIR", runtime).env("LC_ALL", "C").current_dir(workspace);
    kennel
}

/// Sends a signal to a child of ours.
pub fn signal(child: &Child, signal: Signal) {
    nix::sys::signal::kill(Pid::from_raw(child.id().try_into().unwrap()), signal).unwrap();
}
