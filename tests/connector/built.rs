//! Programs that are built from `guests/`, once for each content of their sources and each version of their
//! tools. The bench uses this file, too.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::{env, fs, process};

use sha2::{Digest, Sha256};

/// What is built, or why it cannot be.
pub(crate) type Built = &'static Result<PathBuf, String>;

/// A program in Go, for `GOOS=wasip1`.
pub(crate) fn mail() -> Built {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(|| go("mail", "mail.wasm", &[("GOOS", "wasip1"), ("GOARCH", "wasm")]))
}

/// The same program for this machine.
pub(crate) fn native_mail() -> Built {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(|| go("mail", "mail", &[("CGO_ENABLED", "0")]))
}

/// A program in Go that spawns, for `GOOS=wasip1`.
pub(crate) fn issues() -> Built {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(|| go("issues", "issues.wasm", &[("GOOS", "wasip1"), ("GOARCH", "wasm")]))
}

/// A program in C, for WASI preview 1.
pub(crate) fn notes() -> Built {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(|| {
        let source = guests().join("notes.c");
        build("notes.wasm", &source, Path::new("clang"), "--version", |clang, to| {
            clang.args(["--target=wasm32-wasi", "-O2", "-Wall", "-Werror", "-o"]).arg(to).arg(&source);
        })
    })
}

/// A component in Python.
pub(crate) fn weather() -> Built {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(|| {
        let source = guests().join("weather");
        build("weather.wasm", &source, &tool("componentize-py"), "--version", |python, to| {
            python.current_dir(&source).args(["-q", "-d", "connector.wit", "-w", "connector"]);
            python.args(["componentize", "app", "-o"]).arg(to);
        })
    })
}

fn go(guest: &str, name: &str, environment: &[(&str, &str)]) -> Result<PathBuf, String> {
    let source = guests().join(guest);
    build(name, &source, &tool("go"), "version", |go, to| {
        // No network, and nothing in the home of whoever runs this.
        go.current_dir(&source).env("GOCACHE", kept().join("go")).env("GOPATH", kept().join("go-path"));
        go.env("GOTOOLCHAIN", "local")
            .env("GOPROXY", "off")
            .env("GOENV", "off")
            .envs(environment.iter().copied());
        go.args(["build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o"]).arg(to).arg(".");
    })
}

/// The sources. A test and a benchmark of two packages use them.
fn guests() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let mut guests = package.map(|directory| directory.join("tests/connector/guests"));
    guests.find(|guests| guests.is_dir()).expect("the sources of the guests")
}

/// Where what was built is kept.
fn kept() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("guests")
}

/// A tool that `scripts/guest-tools` installs below the target directory.
pub(crate) fn tool(name: &str) -> PathBuf {
    let place = Path::new("guest-tools/bin").join(name);
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).ancestors();
    target.map(|dir| dir.join(&place)).find(|path| path.exists()).unwrap_or(place)
}

/// Builds `name` from `source`, a file or a directory of files, unless it is there already.
fn build(
    name: &str,
    source: &Path,
    tool: &Path,
    version: &str,
    arguments: impl FnOnce(&mut Command, &Path),
) -> Result<PathBuf, String> {
    let told = Command::new(tool).arg(version).output();
    let told = told.map_err(|error| format!("{}: {error}: run scripts/guest-tools", tool.display()))?;
    let mut hash = Sha256::new();
    hash.update(&told.stdout);
    for file in files(source) {
        hash.update(fs::read(file).expect("a source"));
        hash.update([0]);
    }
    let kept = kept();
    fs::create_dir_all(&kept).expect("a directory");
    let hash: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let path = kept.join(format!("{hash}-{name}"));
    if !path.exists() {
        // Another process may build it at the same time.
        let made = kept.join(format!("{}-{hash}-{name}", process::id()));
        let mut command = Command::new(tool);
        arguments(&mut command, &made);
        let output = command.output().expect("a tool");
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        fs::rename(made, &path).expect("a new file");
    }
    Ok(path)
}

fn files(source: &Path) -> Vec<PathBuf> {
    if source.is_file() {
        return vec![source.to_owned()];
    }
    let entries = fs::read_dir(source).expect("sources");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a source").path()).collect();
    files.retain(|path| path.is_file());
    files.sort();
    files
}
