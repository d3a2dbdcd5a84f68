//! `kennel op`: runs one operation of a manifest; its credentials leave no copy in this process.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek as _},
    mem,
    os::unix::{fs::FileExt, process::ExitStatusExt},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Mutex, PoisonError, mpsc},
    thread,
};

use kennel::{
    CredentialResolver, Envelope, Error, Manifest, Output, Report, Resolving, Secret, SpawnError,
    SpawnPolicy, inherited_descriptor,
};
use nix::sys::{
    prctl,
    resource::{Resource, setrlimit},
};
use tokio::sync::oneshot;

use crate::{
    args::Op, descriptor::write_all, flags, process, process::interrupted, report, terminal::thread_error,
};

/// Longest credential in bytes: the kernel's limit for one environment string.
const MAX_CREDENTIAL: u64 = 128 << 10;

/// Runs `kennel op`.
pub(crate) fn op(op: &Op) -> Result<ExitCode, Error> {
    // The next step takes an ordinary user's right to open its own memory, so open it first.
    let own = OwnEnvironment::open();
    // A core dump or a tracer could show the credentials. If either call fails, Kennel still wipes each
    // credential as soon as it hands it over.
    let _ = prctl::set_dumpable(false);
    // Not 0: the sandbox sets the limit to 1 and could not raise it. A limit of 0 also does not stop a core
    // handler behind a pipe.
    let _ = setrlimit(Resource::RLIMIT_CORE, 1, 1);
    let policy = Manifest::load(&op.manifest).map(SpawnPolicy::new).map_err(SpawnError::from);
    let json = op.json.as_deref().map(|path| create_report(path, policy.as_ref().ok())).transpose()?;
    // A pipe may send nothing for long. No program runs yet, so a signal may end this process at once.
    let given = policy.map(|policy| (read_files(&op.credential, &policy), policy));
    let runtime = process::runtime(process::IDLE_THREAD)?;
    let writer = OutputWriter::start()?;
    runtime.block_on(process::start_blocking_thread())?;
    let result = runtime.block_on(async {
        tokio::select! {
            // Dropping the future ends what it started.
            biased;
            status = interrupted() => Err(status),
            output = spawn(op, own, given) => Ok(output),
        }
    });
    let mut result = match result {
        Ok(result) => result.map_err(Error::from),
        Err(status) => return Ok(status?.into()),
    };
    if let Ok(output) = &mut result {
        runtime.block_on(writer.show(output));
    }
    let mut written = Ok(());
    if let (Some(file), Some(path)) = (&json, &op.json) {
        let report = match &result {
            Ok(output) => Report::of_outcome(output),
            Err(error) => Report::failed(error),
        };
        written = report::write(file, path, &report::object(&report));
    }
    // Report an error of the program even if the JSON report could not be written.
    let output = result?;
    report::end(&output, op.quiet);
    written?;
    Ok(process::end(output.exit_code(), output.status.signal()))
}

async fn spawn(
    op: &Op,
    own: io::Result<OwnEnvironment>,
    given: Result<(Result<Secrets, SpawnError>, SpawnPolicy), SpawnError>,
) -> Result<Output, SpawnError> {
    let (read, mut policy) = given?;
    if let Some(log) = &op.audit {
        policy = policy.audit(flags::log(log)?)?;
    }
    let values: Vec<(&str, &str)> = op.arg.iter().map(|(name, value)| (&**name, &**value)).collect();
    let envelope = policy.operation(&op.operation, &values)?;
    // Take the credentials before other code copies the environment.
    let given = GivenCredentials(Mutex::new(credentials(read?, &envelope, own.as_ref().ok())?));
    drop(own);
    policy.spawn(&envelope, &given).await
}

/// Credentials by variable name.
type Secrets = BTreeMap<String, Secret>;

/// The credentials that the caller gave. Each is handed over once: secrets are not copied.
struct GivenCredentials(Mutex<Secrets>);

impl CredentialResolver for GivenCredentials {
    fn resolve<'r>(&'r self, key: &'r str) -> Resolving<'r> {
        let secret = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        Box::pin(async { Ok(secret) })
    }
}

/// Creates the file of `--json`. [`report::create`] follows no link; this also rejects a directory where an
/// earlier program could have left one.
///
/// # Errors
/// The file cannot be created, or a program could have redirected the path.
fn create_report(path: &Path, policy: Option<&SpawnPolicy>) -> Result<File, Error> {
    let parent = std::path::absolute(path).ok().and_then(|path| path.parent().map(Path::to_owned));
    if let (Some(policy), Some(parent)) = (policy, parent) {
        policy.check_outside("directory of the report", &parent).map_err(Error::from)?;
    }
    report::create(path)
}

/// Reads credentials from the named files. Refuses a file that programs could replace: this process may read
/// more than they may.
fn read_files(named: &[(String, PathBuf)], policy: &SpawnPolicy) -> Result<Secrets, SpawnError> {
    let mut secrets = Secrets::new();
    for (key, path) in named {
        if secrets.contains_key(key) {
            let reason = "is given twice".to_owned();
            return Err(Error::Command { what: "--credential", value: key.clone(), reason }.into());
        }
        if inherited_descriptor(path).is_none() {
            policy.check_outside("credential file", path)?;
        }
        let secret = read(path).map_err(|error| {
            let source = io::Error::new(error.kind(), format!("{}: {error}", path.display()));
            SpawnError::CredentialFailed { key: key.clone(), source: source.into() }
        })?;
        secrets.insert(key.clone(), secret);
    }
    Ok(secrets)
}

/// Completes the credentials `read` from files with those from this process's environment.
fn credentials(
    mut read: Secrets,
    envelope: &Envelope,
    own: Option<&OwnEnvironment>,
) -> Result<Secrets, SpawnError> {
    if let Some(key) = read.keys().find(|key| !envelope.credential_env_keys.contains(key)) {
        let reason = "the operation takes no credential of that name".to_owned();
        return Err(Error::Command { what: "--credential", value: key.clone(), reason }.into());
    }
    for key in &envelope.credential_env_keys {
        // Wipe the variable even if a file replaces it.
        if let (Some(secret), false) = (take_from_environment(key, own), read.contains_key(key)) {
            read.insert(key.clone(), secret);
        }
    }
    Ok(read)
}

/// Reads a file, without a newline at its end.
fn read(path: &Path) -> io::Result<Secret> {
    // Reserve the full size: growing would leave a copy of the secret in freed memory.
    let mut value = Vec::with_capacity(usize::try_from(MAX_CREDENTIAL).unwrap_or_default() + 2);
    let file = match inherited_descriptor(path) {
        Some(given) => given?.into(),
        None => File::open(path)?,
    };
    file.take(MAX_CREDENTIAL + 1).read_to_end(&mut value)?;
    if value.len() as u64 > MAX_CREDENTIAL {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "is larger than 128 KiB"));
    }
    if value.ends_with(b"\n") {
        value.pop();
    }
    Ok(Secret::from(value))
}

/// Takes a variable from the environment and wipes it there: other processes can read /proc/PID/environ.
fn take_from_environment(key: &str, own: Option<&OwnEnvironment>) -> Option<Secret> {
    use std::os::unix::ffi::OsStringExt;
    let value = std::env::var_os(key)?.into_vec();
    // If wiping fails, as under emulation, the value stays as readable as it was in the caller's environment.
    let _ = own.map(|own| own.wipe(key));
    Some(Secret::from(value))
}

/// The memory where the kernel stored this process's environment, shown as /proc/PID/environ.
struct OwnEnvironment {
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
        let mut variables = zeroize::Zeroizing::new(Vec::with_capacity(self.length + 1));
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

/// A thread that writes the program's output to stdout and stderr. A signal still ends this process if nobody
/// reads. The thread starts before the program, which could use up all threads.
struct OutputWriter {
    output: mpsc::Sender<[Vec<u8>; 2]>,
    shown: oneshot::Receiver<[io::Result<()>; 2]>,
}

impl OutputWriter {
    /// # Errors
    /// The system cannot start a thread.
    fn start() -> Result<Self, Error> {
        let (output, written) = mpsc::channel::<[Vec<u8>; 2]>();
        let (told, shown) = oneshot::channel();
        let writes = move || {
            if let Ok([stdout, stderr]) = written.recv() {
                let _ = told.send([write_all(io::stdout(), &stdout), write_all(io::stderr(), &stderr)]);
            }
        };
        thread::Builder::new().spawn(writes).map_err(thread_error)?;
        Ok(Self { output, shown })
    }

    /// Shows the output and records what could not be written.
    async fn show(self, output: &mut Output) {
        let streams = [mem::take(&mut output.stdout), mem::take(&mut output.stderr)];
        // The thread waits for this message.
        let _ = self.output.send(streams);
        let shown = tokio::select! {
            biased;
            shown = self.shown => shown.ok(),
            _ = interrupted() => None,
        };
        let Some(shown) = shown else {
            output.outcome.truncated = true;
            output.outcome.unwritten = Some("the program's output was not read".to_owned());
            return;
        };
        // A reader that closes early has read enough. The exit status still tells how the program ended.
        let failed = |error: &io::Error| error.kind() != io::ErrorKind::BrokenPipe;
        let [stdout, stderr] = shown.map(|written| written.err().filter(failed));
        output.outcome.truncated |= stdout.is_some() || stderr.is_some();
        // An unwritten stderr does not turn a success into a failure.
        output.outcome.unwritten =
            stdout.map(|source| Error::Io { what: "write the program's output", source }.chain());
    }
}
