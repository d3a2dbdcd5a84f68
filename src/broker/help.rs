//! Reads a program's `--help`, and tests whether this host can confine a spawn.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::broker::checked::{CheckedSpawn, NoCredentials, SpawnLimits};
use crate::broker::paths::Resolved;
use crate::broker::run;
use crate::caller::Caller;
use crate::policy::profile::Profile;
use crate::probe::Probe;
use crate::report::error::spawn::SpawnError;
use crate::report::failure;
use crate::report::failure::{Boundary, Class, Failure, failure_of};
use crate::report::finding::{Area, Found};
use crate::report::outcome::Output;
use crate::report::remedy::Remedy;

/// How long a program may take to print its help, in seconds.
const PATIENCE: u64 = 5;

/// Runs `program subcommands… --help` in a sandbox that shows the system and `cwd`, both read-only, and
/// nothing else: no network, no credentials, no home. Kennel kills it after 5 seconds, and keeps 1 MiB of
/// stdout and 256 KiB of stderr.
///
/// `program` is an absolute path, so that no variable decides what runs; [`run_help_by_name`] searches for a
/// program. A relative `cwd` starts at the caller's directory.
///
/// ```no_run
/// # async fn example() -> Result<(), kennel::broker::SpawnError> {
/// let help = kennel::broker::run_help("/usr/bin/gh", ".".as_ref(), &["issue", "create"]).await?;
/// println!("{}", String::from_utf8_lossy(&help.stdout));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The path is not absolute; the program does not exist; a subcommand begins with `-`; this host cannot
/// enforce the sandbox. A program that fails is not an error.
///
/// # Panics
/// Outside of a tokio runtime with I/O and time enabled.
pub async fn run_help(
    program: impl AsRef<Path>,
    cwd: &Path,
    subcommands: &[&str],
) -> Result<Output, SpawnError> {
    let program = program.as_ref();
    if !program.is_absolute() {
        return Err(refused("program", &program.to_string_lossy(), "is not an absolute path"));
    }
    help_of(program, &Caller::current(), cwd, subcommands).await
}

/// As [`run_help`], for the program of this name in the caller's `PATH`.
///
/// ```no_run
/// # async fn example() -> Result<(), kennel::broker::SpawnError> {
/// let help = kennel::broker::run_help_by_name("gh", ".".as_ref(), &["issue", "create"]).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The name has a slash; no directory of `PATH` has the program; else those of [`run_help`].
///
/// # Panics
/// As [`run_help`].
pub async fn run_help_by_name(
    name: impl AsRef<OsStr>,
    cwd: &Path,
    subcommands: &[&str],
) -> Result<Output, SpawnError> {
    let name = name.as_ref();
    if name.as_bytes().contains(&b'/') {
        return Err(refused("program", &name.to_string_lossy(), "has a slash, and is no name"));
    }
    let caller = Caller::current();
    let places = caller.search_path().into_iter().map(|directory| directory.join(name));
    let place = places.into_iter().find(|place| place.is_file()).ok_or_else(|| SpawnError::Load {
        program: name.to_string_lossy().into_owned(),
        source: io::ErrorKind::NotFound.into(),
    })?;
    help_of(&place, &caller, cwd, subcommands).await
}

async fn help_of(
    program: &Path,
    caller: &Caller,
    cwd: &Path,
    subcommands: &[&str],
) -> Result<Output, SpawnError> {
    if let Some(option) = subcommands.iter().find(|word| word.starts_with('-') || word.contains('\0')) {
        return Err(refused("subcommand", option, "begins with `-` or contains a NUL byte"));
    }
    let program = resolved(program, caller)
        .map_err(|source| SpawnError::Load { program: program.display().to_string(), source })?;
    let directory = resolved(cwd, caller);
    let directory = directory.map_err(|source| SpawnError::Path {
        what: "cwd",
        path: cwd.display().to_string(),
        source,
    })?;
    let called = program.named.display().to_string();
    let help = subcommands.iter().chain(&["--help"]).map(|&word| word.to_owned());
    let spawn = CheckedSpawn {
        argv: [called].into_iter().chain(help).collect(),
        reads: vec![directory.path.clone()],
        cwd: Some(directory.path),
        ..CheckedSpawn::of(program, SpawnLimits::most(PATIENCE))
    };
    spawn.run(&NoCredentials).await
}

fn refused(what: &'static str, asked: &str, reason: &str) -> SpawnError {
    let nothing: [&str; 0] = [];
    SpawnError::denied(Boundary::Action, what, asked, reason, nothing)
}

fn resolved(path: &Path, caller: &Caller) -> io::Result<Resolved> {
    let named = caller.absolute(path);
    let text = named.to_str().ok_or(io::Error::new(io::ErrorKind::InvalidInput, "is not UTF-8"))?;
    Resolved::of(text, &caller.home)
}

/// Why this host cannot confine a spawn.
///
/// ```
/// use kennel::{broker::Unavailable, report::Class};
///
/// let unavailable = Unavailable { reason: "no user namespaces".into(), remedy: None };
/// assert_eq!(unavailable.failure().class, Class::SpawnSandboxUnavailable);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Unavailable {
    /// What is missing, in one line.
    pub reason: String,
    /// How to fix it.
    pub remedy: Option<Remedy>,
}

failure_of!(Unavailable);

impl Unavailable {
    /// The machine-readable failure.
    #[must_use]
    pub fn failure(&self) -> Failure {
        let details = failure::platform(self.reason.clone(), self.remedy.clone());
        Failure::new(Class::SpawnSandboxUnavailable, Boundary::Sandbox, self.reason.clone(), details)
    }
}

/// Tests whether this host can confine a spawn. It starts a sandbox with every protection that a spawn
/// requires, and attempts forbidden actions from inside. This takes a few dozen milliseconds.
///
/// ```no_run
/// # async fn example() {
/// if let Err(unavailable) = kennel::broker::sandbox_available().await {
///     eprintln!("{unavailable}; hint: {}", unavailable.remedy.clone().unwrap_or_default());
/// }
/// # }
/// ```
///
/// # Errors
/// The first thing that is missing, and how to fix it.
///
/// # Panics
/// Outside of a tokio runtime with I/O and time enabled.
pub async fn sandbox_available() -> Result<(), Unavailable> {
    if let Err(error) = run::try_start().await {
        return Err(Unavailable { reason: error.chain(), remedy: error.remedy() });
    }
    let probe = Probe::run(Profile::ReadOnly).await;
    let probe = probe.map_err(|error| Unavailable { reason: error.chain(), remedy: None })?;
    let escaped = |area, state| area == Area::Attempt && state == Found::Missing;
    match probe.negatives().find(|finding| escaped(finding.area, finding.state)) {
        Some(finding) => Err(Unavailable {
            reason: format!("{}: {}", finding.name, finding.detail),
            remedy: finding.remedy.clone(),
        }),
        None => Ok(()),
    }
}
