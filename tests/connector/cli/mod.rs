//! `kennel connector`: the command line, as root and as an ordinary user.
//!
//! | module | promise |
//! | --- | --- |
//! | `calls` | a call: its arguments, its output, its exit status |
//! | `refused` | bad input is refused with the file, the cause and the remedy |
//! | `secrets` | credentials reach the host and nothing else; programs cannot redirect what is read |
//! | `kept` | compiled code: where it is kept, and what happens if it cannot be |
//! | `shown` | `check`, and help |

mod calls;
mod kept;
mod refused;
mod secrets;
mod shown;

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::support::NOTHING;

/// An ordinary user.
const USER: u32 = 1000;

/// A home with the connector `c.wasm` and the manifest `m.toml`.
struct Home {
    dir: TempDir,
    /// The user, if it is not the one of the tests.
    user: Option<u32>,
}

impl Home {
    fn new(program: &[u8]) -> Self {
        Self::with(NOTHING, program)
    }

    fn with(manifest: &str, program: &[u8]) -> Self {
        let home = Self { dir: tempfile::tempdir().unwrap(), user: None };
        home.write("m.toml", manifest);
        home.write("c.wasm", program);
        home
    }

    /// The same for root and for an ordinary user, or for the user of the tests only.
    fn for_all(manifest: &str, program: &[u8]) -> Vec<Self> {
        let mut homes = vec![Self::with(manifest, program)];
        if nix::unistd::geteuid().is_root() {
            homes.push(Self { user: Some(USER), ..Self::with(manifest, program) });
            homes[1].hand_over("");
            homes[1].hand_over("m.toml");
            homes[1].hand_over("c.wasm");
        }
        homes
    }

    fn hand_over(&self, path: &str) {
        chown(self.at(path), self.user, self.user).unwrap();
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn write(&self, path: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        fs::write(self.at(path), contents).unwrap();
        self.hand_over(path);
        self.at(path)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap()
    }

    /// `kennel connector` with these words, in the home.
    fn kennel(&self, words: &[&str]) -> Command {
        // What `kennel connector` executes, by its descriptor: an ordinary user may not be able to get to the
        // directory of the build.
        let program = File::open(env!("CARGO_BIN_EXE_kennel-connector")).unwrap();
        let mut command = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()));
        // The descriptor stays open until the program has started.
        std::mem::forget(program);
        command.arg0("kennel").arg("connector").args(words).current_dir(self.at(""));
        command.env_clear().env("HOME", self.at("")).env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    fn output(&self, words: &[&str]) -> Output {
        self.kennel(words).output().unwrap()
    }

    /// `kennel connector run` of the operation `op` with further words.
    fn run(&self, words: &[&str]) -> Output {
        self.output(&[&["run", "c.wasm", "op", "--manifest", "m.toml"], words].concat())
    }

    /// The names of what is kept of compiled code.
    fn kept(&self) -> Vec<PathBuf> {
        files(&self.at(".cache/kennel/connectors"))
    }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
}

/// Exit status, stdout and stderr.
fn told(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Asserts that a call failed with this status and these words on stderr, and gave nothing else.
#[track_caller]
fn fails(output: &Output, code: i32, words: &[&str]) {
    let (status, stdout, stderr) = told(output);
    assert_eq!((status, &*stdout), (Some(code), ""), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "`{word}` is not in: {stderr}");
    }
    assert!(stderr.lines().all(|line| line.starts_with("kennel: ")), "{stderr}");
}
