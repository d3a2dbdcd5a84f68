//! Credentials from files and the environment, and files that programs of a manifest must not redirect.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek as _},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use kennel::{
    Error,
    broker::{SpawnError, SpawnPolicy},
    internal::inherited_descriptor,
};
use nix::sys::{
    prctl,
    resource::{Resource, setrlimit},
};
use zeroize::Zeroizing;

use crate::report;

/// Longest credential in bytes: the kernel's limit for one environment string.
const MAX_CREDENTIAL: u64 = 128 << 10;

/// The values of credentials by name. They are wiped when they are dropped.
pub(crate) type Secrets = BTreeMap<String, Zeroizing<Vec<u8>>>;

/// Keeps credentials out of core dumps and from tracers. Returns what wipes variables.
pub(crate) fn hide_memory() -> io::Result<OwnEnvironment> {
    // The next step takes an ordinary user's right to open its own memory, so open it first.
    let own = OwnEnvironment::open();
    // A core dump or a tracer could show the credentials. If either call fails, Kennel still wipes each
    // credential as soon as it hands it over.
    let _ = prctl::set_dumpable(false);
    // Not 0: the sandbox sets the limit to 1 and could not raise it. A limit of 0 also does not stop a core
    // handler behind a pipe.
    let _ = setrlimit(Resource::RLIMIT_CORE, 1, 1);
    own
}

/// Creates the file of `--json`. [`report::create`] follows no link; this also rejects a directory where an
/// earlier program could have left one.
///
/// # Errors
/// The file cannot be created, or a program could have redirected the path.
pub(crate) fn create_report(path: &Path, policy: Option<&SpawnPolicy>) -> Result<File, Error> {
    let parent = std::path::absolute(path).ok().and_then(|path| path.parent().map(Path::to_owned));
    if let (Some(policy), Some(parent)) = (policy, parent) {
        policy.check_outside("directory of the report", &parent).map_err(Error::from)?;
    }
    report::create(path)
}

/// Refuses a file that programs of the manifest could replace: this process may read more than they may.
///
/// # Errors
/// They could.
pub(crate) fn check_outside(policy: &SpawnPolicy, what: &'static str, path: &Path) -> Result<(), SpawnError> {
    if inherited_descriptor(path).is_some() { Ok(()) } else { policy.check_outside(what, path) }
}

/// Opens a file, or the descriptor that the path names.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    match inherited_descriptor(path) {
        Some(given) => given.map(File::from),
        None => File::open(path),
    }
}

/// Reads credentials from the named files. Refuses those that programs could replace.
pub(crate) fn read_files(named: &[(String, PathBuf)], policy: &SpawnPolicy) -> Result<Secrets, SpawnError> {
    let mut secrets = Secrets::new();
    for (key, path) in named {
        if secrets.contains_key(key) {
            let reason = "is given twice".to_owned();
            return Err(Error::Command { what: "--credential", value: key.clone(), reason }.into());
        }
        check_outside(policy, "credential file", path)?;
        let secret = read(path).map_err(|error| {
            let source = io::Error::new(error.kind(), format!("{}: {error}", path.display()));
            SpawnError::CredentialFailed { key: key.clone(), source: source.into() }
        })?;
        secrets.insert(key.clone(), secret);
    }
    Ok(secrets)
}

/// Completes the credentials `read` from files with those from this process's environment. `taken` are the
/// names that are needed.
pub(crate) fn complete(
    mut read: Secrets,
    taken: &[String],
    own: Option<&OwnEnvironment>,
) -> Result<Secrets, SpawnError> {
    if let Some(key) = read.keys().find(|key| !taken.contains(key)) {
        let reason = "it takes no credential of that name".to_owned();
        return Err(Error::Command { what: "--credential", value: key.clone(), reason }.into());
    }
    for key in taken {
        // Wipe the variable even if a file replaces it.
        if let (Some(secret), false) = (take_from_environment(key, own), read.contains_key(key)) {
            read.insert(key.clone(), secret);
        }
    }
    Ok(read)
}

/// Reads a file, without a newline at its end.
fn read(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    // Reserve the full size: growing would leave a copy of the secret in freed memory.
    let mut value =
        Zeroizing::new(Vec::with_capacity(usize::try_from(MAX_CREDENTIAL).unwrap_or_default() + 2));
    open(path)?.take(MAX_CREDENTIAL + 1).read_to_end(&mut value)?;
    if value.len() as u64 > MAX_CREDENTIAL {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "is larger than 128 KiB"));
    }
    if value.ends_with(b"\n") {
        value.pop();
    }
    Ok(value)
}

/// Takes a variable from the environment and wipes it there: other processes can read /proc/PID/environ.
fn take_from_environment(key: &str, own: Option<&OwnEnvironment>) -> Option<Zeroizing<Vec<u8>>> {
    use std::os::unix::ffi::OsStringExt;
    let value = Zeroizing::new(std::env::var_os(key)?.into_vec());
    // If wiping fails, as under emulation, the value stays as readable as it was in the caller's environment.
    let _ = own.map(|own| own.wipe(key));
    Some(value)
}

/// The memory where the kernel stored this process's environment, shown as /proc/PID/environ.
pub(crate) struct OwnEnvironment {
    variables: File,
    memory: File,
    /// `env_start` of proc_pid_stat(5).
    start: u64,
    /// `env_end` minus `env_start`.
    length: usize,
}

impl OwnEnvironment {
    fn open() -> io::Result<Self> {
        let stat = std::fs::read_to_string("/proc/self/stat")?;
        // The second field is the name and may contain spaces and parentheses. The third follows the last
        // `)`.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let mut ends = fields.split_whitespace().skip(50 - 3).map_while(|field| field.parse::<u64>().ok());
        let (start, end) = ends.next().zip(ends.next()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self {
            variables: File::open("/proc/self/environ")?,
            memory: File::options().write(true).open("/proc/self/mem")?,
            start,
            length: usize::try_from(end.saturating_sub(start)).map_err(io::Error::other)?,
        })
    }

    /// Overwrites the value of a variable with zeros.
    fn wipe(&self, key: &str) -> io::Result<()> {
        // Reserve the full size: growing would leave an unwiped copy.
        let mut variables = Zeroizing::new(Vec::with_capacity(self.length + 1));
        (&self.variables).rewind()?;
        (&self.variables).read_to_end(&mut variables)?;
        let mut at = self.start;
        for variable in variables.split(|&byte| byte == 0) {
            if let Some(value) =
                variable.strip_prefix(key.as_bytes()).and_then(|rest| rest.strip_prefix(b"="))
            {
                self.memory.write_all_at(&vec![0; value.len()], at + key.len() as u64 + 1)?;
            }
            at += variable.len() as u64 + 1;
        }
        Ok(())
    }
}
