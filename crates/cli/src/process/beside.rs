//! Executables beside `kennel` that do what few people run, so that `kennel run` carries nothing of it: as
//! git and cargo do. Kennel looks for them in its own directory and nowhere else. On PATH, somebody else
//! could choose the program.

use std::{
    convert::Infallible,
    env,
    ffi::{CString, OsString},
    fs, io,
    os::unix::{ffi::OsStringExt, fs::PermissionsExt},
    path::Path,
    process::ExitCode,
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

/// A directory in which everybody may make files, and nobody may replace those of others.
const SHARED: u32 = libc::S_ISVTX | 0o002;

/// Executes it in the place of this process, with the same words. Returns only if that fails.
///
/// # Errors
/// It is missing, or it is in a directory where everybody may put a program, such as /tmp.
pub(crate) fn execute(Executable { name, remedy }: &Executable) -> Result<ExitCode, Error> {
    let own = env::current_exe().map_err(|source| Error::Io { what: "find this executable", source })?;
    let directory = own.parent().unwrap_or(Path::new("/"));
    let path = directory.join(name);
    let failed = |source, remedy: String| Error::Grant {
        what: "program",
        path: path.clone(),
        source,
        remedy: Some(remedy.into()),
    };
    let mode = fs::metadata(directory).map_or(0, |found| found.permissions().mode());
    if mode & SHARED == SHARED {
        let reason = io::Error::other("everybody may put a program there");
        return Err(failed(reason, format!("move kennel and {name} to a directory of your own")));
    }
    match become_program(path.clone().into_os_string()) {
        Err(error) => Err(failed(error, (*remedy).to_owned())),
    }
}

/// execv(3). The standard library would change signals on the way.
fn become_program(path: OsString) -> io::Result<Infallible> {
    let path = CString::new(path.into_vec())?;
    let words = env::args_os().map(|word| CString::new(word.into_vec())).collect::<Result<Vec<_>, _>>()?;
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
