//! Executables beside `kennel` that do what few people run, so that `kennel run` carries nothing of it: as
//! git and cargo do. Kennel looks for them in its own directory and nowhere else. On PATH, somebody else
//! could choose the program.

use std::{
    convert::Infallible,
    env,
    ffi::{CString, OsString},
    fs, io,
    os::unix::{ffi::OsStringExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use kennel::Error;
use nix::unistd::execv;

/// An executable beside this one.
pub(crate) struct Executable {
    name: &'static str,
    /// What to do if it is missing.
    remedy: &'static str,
}

pub(crate) const MCP: Executable = Executable {
    name: "kennel-mcp",
    remedy: "the package kennel-cli puts it beside kennel: cargo install --locked --path crates/cli",
};

pub(crate) const CONNECTOR: Executable = Executable {
    name: "kennel-connector",
    remedy: "the package kennel-cli puts it beside kennel, with the feature wasm: \
             cargo install --locked --path crates/cli --features wasm",
};

pub(crate) const IMAGE: Executable = Executable {
    name: "kennel-image",
    remedy: "the package kennel-cli puts it beside kennel: cargo install --locked --path crates/cli",
};

pub(crate) const SERVER: Executable = Executable {
    name: "kennel-server",
    remedy: "the package kennel-server puts it beside kennel: cargo install --locked --path crates/server",
};

/// A directory in which everybody may make files, and nobody may replace those of others.
const SHARED: u32 = libc::S_ISVTX | 0o002;

/// Executes it in the place of this process, with the same words. Returns only if that fails.
///
/// # Errors
/// It is missing, or it is in a directory where everybody may put a program, such as /tmp.
pub(crate) fn execute(program: &Executable) -> Result<ExitCode, Error> {
    become_beside(program, env::args_os())
}

/// As [`execute`], with the words `kennel VERB` and these.
pub(crate) fn execute_with(program: &Executable, verb: &str, words: &[OsString]) -> Result<ExitCode, Error> {
    become_beside(program, ["kennel", verb].map(OsString::from).into_iter().chain(words.iter().cloned()))
}

fn become_beside(program: &Executable, words: impl Iterator<Item = OsString>) -> Result<ExitCode, Error> {
    let path = path_of(program)?;
    match become_program(path.clone().into_os_string(), words) {
        Err(error) => Err(unusable(path, error, program.remedy.to_owned())),
    }
}

/// A command that executes it in a process of its own.
///
/// # Errors
/// It is missing, or it is in a directory where everybody may put a program, such as /tmp.
pub(crate) fn command(program: &Executable) -> Result<Command, Error> {
    let path = path_of(program)?;
    match fs::metadata(&path) {
        Err(error) => Err(unusable(path, error, program.remedy.to_owned())),
        Ok(_) => Ok(Command::new(path)),
    }
}

fn unusable(path: PathBuf, source: io::Error, remedy: String) -> Error {
    Error::Grant { what: "program", path, source, remedy: Some(remedy.into()) }
}

/// Where it is.
fn path_of(Executable { name, .. }: &Executable) -> Result<PathBuf, Error> {
    let own = env::current_exe().map_err(|source| Error::Io { what: "find this executable", source })?;
    let directory = own.parent().unwrap_or(Path::new("/"));
    let path = directory.join(name);
    let mode = fs::metadata(directory).map_or(0, |found| found.permissions().mode());
    if mode & SHARED == SHARED {
        let reason = io::Error::other("everybody may put a program there");
        let remedy = format!("move kennel and {name} to a directory of your own");
        return Err(unusable(path, reason, remedy));
    }
    Ok(path)
}

/// execv(3). The standard library would change signals on the way.
fn become_program(path: OsString, words: impl Iterator<Item = OsString>) -> io::Result<Infallible> {
    let path = CString::new(path.into_vec())?;
    let words = words.map(|word| CString::new(word.into_vec())).collect::<Result<Vec<_>, _>>()?;
    Ok(execv(&path, &words)?)
}

/// For an executable of this kind that was not started by `kennel`.
pub(crate) fn wrong_words(verb: &'static str) -> Error {
    Error::Command {
        what: "program",
        value: format!("kennel-{verb}"),
        reason: format!("`kennel {verb}` starts it"),
    }
}
