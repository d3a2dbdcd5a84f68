//! The spawn broker starts programs with what their manifest grants and refuses everything else. A credential
//! reaches its program and nobody else.
//!
//! | module | promise |
//! | --- | --- |
//! | `op` | `kennel op`: real programs with a manifest |
//! | `grants` | files, network, variables, limits: what is granted works, and the rest does not |
//! | `hash` | the bytes that run are the bytes that were hashed |
//! | `secrets` | the places that no credential may reach |
//! | `reach` | programs cannot redirect the files that `kennel op` itself reads and writes |
//! | `help` | asking programs for their help |

mod grants;
mod hash;
mod help;
mod op;
mod reach;
mod secrets;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use kennel::{
    Secret,
    broker::{CredentialResolver, Envelope, Manifest, Resolving, SpawnError, SpawnPolicy},
};

use crate::support::{TempDir, kennel_path, workspace, write_program};

/// A home directory with the shell script `tool` and the directories `in` and `out`.
struct Home {
    dir: TempDir,
}

impl Home {
    fn new(script: &str) -> Self {
        let home = Self { dir: workspace() };
        for name in ["bin", "in", "out"] {
            fs::create_dir(home.at(name)).unwrap();
        }
        home.program("tool", script);
        home
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn program(&self, name: &str, script: &str) {
        write_script(&self.at("bin").join(name), script);
    }

    /// The text of a manifest with `tool` and these keys of `[capabilities.spawn]`. `~` in it means this home
    /// directory.
    fn manifest(&self, spawn: &str) -> String {
        let text = format!("[capabilities.spawn]\nprograms = [{{ path = '~/bin/tool' }}]\n{spawn}");
        text.replace("'~", &format!("'{}", self.dir.path().display()))
    }

    fn spawn_policy(&self, spawn: &str) -> SpawnPolicy {
        SpawnPolicy::new(Manifest::from_toml(&self.manifest(spawn)).unwrap())
    }

    /// `kennel op` with this manifest.
    fn op(&self, manifest: &str, operation: &[&str]) -> Command {
        fs::write(self.at("manifest.toml"), manifest).unwrap();
        let mut command = Command::new(kennel_path());
        command.current_dir(self.dir.path()).env("HOME", self.dir.path()).env("LC_ALL", "C");
        command.args(["op", "manifest.toml"]).args(operation);
        command
    }

    fn run_op(&self, manifest: &str, operation: &[&str]) -> Output {
        self.op(manifest, operation).output().unwrap()
    }
}

fn write_script(path: &Path, script: &str) {
    write_program(path, format!("#!/bin/sh\n{script}\n"));
}

/// `tool` with these arguments.
fn tool(argv: &[&str]) -> Envelope {
    Envelope::new("tool", argv)
}

/// `tool`, which asks for the credential TOKEN.
fn tool_with_token(argv: &[&str]) -> Envelope {
    Envelope { credential_env_keys: vec!["TOKEN".to_owned()], ..tool(argv) }
}

/// The stdout of a program that succeeded.
fn said(output: Result<kennel::Output, SpawnError>) -> String {
    let output = output.unwrap_or_else(|error| panic!("{}", error.chain()));
    assert!(output.outcome.status.success(), "{output:?}\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns this text for every key. It calls a function first and counts its calls.
struct Keys<F: Fn() + Send + Sync> {
    value: &'static str,
    first: F,
    asked: AtomicU32,
    turn: Mutex<()>,
}

impl<F: Fn() + Send + Sync> Keys<F> {
    fn after(value: &'static str, first: F) -> Self {
        Self { value, first, asked: AtomicU32::new(0), turn: Mutex::new(()) }
    }

    fn asked(&self) -> u32 {
        self.asked.load(Ordering::Relaxed)
    }
}

fn keys(value: &'static str) -> Keys<fn()> {
    Keys::after(value, || {})
}

impl<F: Fn() + Send + Sync> CredentialResolver for Keys<F> {
    fn resolve<'r>(&'r self, _: &'r str) -> Resolving<'r> {
        Box::pin(async move {
            let _turn = self.turn.lock().unwrap();
            self.asked.fetch_add(1, Ordering::Relaxed);
            (self.first)();
            Ok(Some(Secret::from(self.value.to_owned())))
        })
    }
}
