//! What enforces capabilities on macOS: `sandbox-exec` with the text of [`sbpl`].

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command as StdCommand;
use std::{fs, io};

use tokio::process::Command;

use crate::caller::Caller;
use crate::capabilities::declared::meant;
use crate::capabilities::sbpl::grants;
use crate::capabilities::{Capabilities, Layer, RunLimits, environment, run_limits};
use crate::macos::cell::SANDBOX_EXEC;
use crate::macos::way::Way;
use crate::process::program::{check_words, executable};
use crate::report::error::Error;
use crate::report::outcome::Output;
use crate::seatbelt::SeatbeltPath;
use crate::sys::own_session::three_descriptors;

/// The strongest layer of this host for `caps`: [`Layer::Lightweight`] if they need no more, else
/// [`Layer::MacosSandboxExec`], or [`Layer::None`] without `sandbox-exec`.
///
/// ```
/// use kennel::capabilities::{Capabilities, Layer, resolve_layer};
///
/// assert_eq!(resolve_layer(&Capabilities::default()), Layer::Lightweight);
/// ```
#[must_use]
pub fn resolve_layer(caps: &Capabilities) -> Layer {
    match caps.engages_layer() {
        false => Layer::Lightweight,
        true if Path::new(SANDBOX_EXEC).exists() => Layer::MacosSandboxExec,
        true => Layer::None,
    }
}

/// Returns a command confined to `caps`, and the layer that enforces this. The command is a plain `tokio`
/// command: set its standard descriptors and spawn it as any other. The command gets no temporary directory:
/// declare one to write, if it needs one.
///
/// It is async and can fail, as on Linux, where a session is prepared for the command.
///
/// # Errors
/// A directory or path does not exist; a program or argument cannot be passed to a process; a profile cannot
/// name a path; this Mac has no `sandbox-exec`.
pub async fn wrap_command(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    cwd: impl AsRef<Path>,
    caps: &Capabilities,
) -> Result<(Command, Layer), Error> {
    let (command, layer) = wrapped(program.as_ref(), args, cwd.as_ref(), caps, Path::new(SANDBOX_EXEC))?;
    Ok((command.into(), layer))
}

/// Runs a command to its end, confined to `caps` and `limits`, without input, and collects its output. At the
/// end, or when the future is dropped, Kennel kills the process group of the command.
///
/// # Errors
/// Those of [`wrap_command`]; invalid limits; anything that keeps the program from running.
///
/// # Panics
/// Outside of a tokio runtime with I/O and time enabled.
pub async fn run_command(
    program: impl AsRef<OsStr>,
    args: impl IntoIterator<Item = impl AsRef<OsStr>>,
    cwd: impl AsRef<Path>,
    caps: &Capabilities,
    limits: &RunLimits,
) -> Result<(Output, Layer), Error> {
    limits.limits().check()?;
    let program = program.as_ref();
    let (command, layer) = wrapped(program, args, cwd.as_ref(), caps, Path::new(SANDBOX_EXEC))?;
    Ok((run_limits::run(command, program, limits).await?, layer))
}

fn wrapped(
    program: &OsStr,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    cwd: &Path,
    caps: &Capabilities,
    sandbox_exec: &Path,
) -> Result<(StdCommand, Layer), Error> {
    let arguments: Vec<_> = arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
    check_words(program, &arguments)?;
    let caller = Caller::current();
    let variables = environment::variables(&caps.env, &caller.environment, caps.engages_layer())?;
    let directory = fs::canonicalize(cwd).and_then(|directory| match directory.is_dir() {
        true => Ok(directory),
        false => Err(io::ErrorKind::NotADirectory.into()),
    });
    let directory = directory.map_err(|source| grant("working directory", cwd, source))?;
    let path = variables.get(OsStr::new("PATH")).map(AsRef::as_ref);
    let place = executable(program, path, &directory);
    let (mut command, layer) = if caps.engages_layer() {
        if !sandbox_exec.exists() {
            return Err(grant("sandbox-exec", sandbox_exec, io::ErrorKind::NotFound.into()));
        }
        let profile = profile(caps, cwd, &directory, &caller)?;
        let mut command = StdCommand::new(sandbox_exec);
        command.arg("-p").arg(profile).arg(place);
        three_descriptors(&mut command);
        (command, Layer::MacosSandboxExec)
    } else {
        let mut command = StdCommand::new(place);
        command.arg0(program);
        (command, Layer::Lightweight)
    };
    command.args(arguments).current_dir(&directory).env_clear().envs(variables);
    Ok((command, layer))
}

/// The text for a declaration, with real paths, which Seatbelt compares. A path to write need not exist: the
/// command may make it.
fn profile(caps: &Capabilities, cwd: &Path, directory: &Path, caller: &Caller) -> Result<String, Error> {
    let mut links = way("working directory", &caller.absolute(cwd))?.links;
    let mut all = |what, given: &[PathBuf], may_miss: bool| {
        let real = |path: &PathBuf| {
            let meant = meant(path, directory, Some(&caller.home));
            let meant = meant.map_err(|reason| invalid(what, path, reason))?;
            if !may_miss {
                fs::metadata(&meant).map_err(|source| grant(what, path, source))?;
            }
            let way = way(what, &meant)?;
            links.extend(way.links);
            Ok(way.end)
        };
        given.iter().map(real).collect::<Result<Vec<PathBuf>, Error>>()
    };
    let resolved = Capabilities {
        write_paths: all("write path", &caps.write_paths, true)?,
        read_paths: all("read path", &caps.read_paths, false)?,
        ..caps.clone()
    };
    let mut grants =
        grants(&resolved, directory, None).map_err(|error| invalid(error.what, &error.path, error.reason))?;
    for link in &links {
        grants.links.push(SeatbeltPath::new(link).map_err(|reason| invalid("link", link, reason))?);
    }
    Ok(grants.profile())
}

fn way(what: &'static str, path: &Path) -> Result<Way, Error> {
    Way::of(path).map_err(|source| grant(what, path, source))
}

fn invalid(what: &'static str, given: &Path, reason: &'static str) -> Error {
    grant(what, given, io::Error::new(io::ErrorKind::InvalidInput, reason))
}

fn grant(what: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Grant { what, path: path.to_owned(), source, remedy: None }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn words(command: &StdCommand) -> Vec<String> {
        let all = std::iter::once(command.get_program()).chain(command.get_args());
        all.map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_profile_comes_as_one_argument_before_the_program() {
        let dir = tempfile::tempdir().expect("a directory");
        let cwd = fs::canonicalize(dir.path()).expect("a path");
        fs::write(cwd.join("sandbox-exec"), "").expect("a file");
        let caps = Capabilities { net: false, write_paths: vec!["new".into()], ..Capabilities::default() };
        let (command, layer) =
            wrapped(OsStr::new("/bin/sh"), ["--", "-p"], &cwd, &caps, &cwd.join("sandbox-exec")).expect("it");
        let given = words(&command);
        assert_eq!((layer, &*given[1]), (Layer::MacosSandboxExec, "-p"));
        assert!(given[2].contains(&format!("{}/new", cwd.display())), "what is missing may be made");
        assert_eq!(given[3..], ["/bin/sh", "--", "-p"]);
        symlink("/usr", cwd.join("link")).expect("a link");
        let caps = Capabilities { net: false, read_paths: vec!["link".into()], ..Capabilities::default() };
        let (command, _) =
            wrapped(OsStr::new("/bin/sh"), [""; 0], &cwd, &caps, &cwd.join("sandbox-exec")).expect("it");
        let kept = "/link\") (vnode-type SYMLINK))";
        assert!(words(&command)[2].contains(kept), "it still leads there next time");
        let free = Capabilities::default();
        let (command, layer) =
            wrapped(OsStr::new("/bin/sh"), ["x"], &cwd, &free, Path::new("/absent")).expect("it");
        assert_eq!((layer, words(&command)), (Layer::Lightweight, vec!["/bin/sh".into(), "x".into()]));
    }

    #[test]
    fn what_cannot_be_confined_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let there = dir.path().join("sandbox-exec");
        fs::write(&there, "").expect("a file");
        let read = |path: &str| Capabilities { read_paths: vec![path.into()], ..Capabilities::default() };
        let wrap = |program: &str, cwd: &Path, caps: &Capabilities, by: &Path| {
            wrapped(OsStr::new(program), [""; 0], cwd, caps, by).map(drop)
        };
        for (caps, program, cwd, by) in [
            (read("/absent"), "true", dir.path(), &*there),
            (read("/"), "true", dir.path(), &*there),
            (read("/usr"), "true", Path::new("/absent"), &*there),
            (read("/usr"), "true", &*there, &*there),
            (read("/usr"), "true", dir.path(), Path::new("/absent")),
            (read("/usr"), "", dir.path(), &*there),
            (read("/usr"), "a\0", dir.path(), &*there),
        ] {
            wrap(program, cwd, &caps, by).expect_err(program);
        }
        wrap("true", dir.path(), &read("/usr"), &there).expect("it");
    }
}
