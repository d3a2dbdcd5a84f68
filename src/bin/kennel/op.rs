//! `kennel op`: one operation of a manifest. Credentials pass through here, so this process leaves none of them behind: no core,
//! nothing in its memory or environment once the program has them.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Seek as _},
    mem,
    os::unix::fs::FileExt,
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
    args::Op, descriptor::write_all, flags, process, process::interrupted, report, terminal::no_thread,
};

/// Longest credential, in bytes: a variable of an environment cannot be longer.
const LONGEST: u64 = 128 << 10;

/// Runs `kennel op`.
pub(crate) fn op(op: &Op) -> Result<ExitCode, Error> {
    // Before the next step, after which an ordinary user may not open its own memory.
    let own = OwnEnvironment::open();
    // A core has what was in memory, and who may trace this process can read it. Where neither is to be had, credentials
    // are still wiped as soon as they are handed over.
    let _ = prctl::set_dumpable(false);
    // Not 0: the sandbox could not set its own 1 then, and 0 starts a core handler behind a pipe all the same.
    let _ = setrlimit(Resource::RLIMIT_CORE, 1, 1);
    let policy = Manifest::load(&op.manifest).map(SpawnPolicy::new).map_err(SpawnError::from);
    let json = op.json.as_deref().map(|path| create_report(path, policy.as_ref().ok())).transpose()?;
    // A pipe may be silent for long: as long as nothing runs, signals end this process at once.
    let given = policy.map(|policy| (from_files(&op.credential, &policy), policy));
    let runtime = process::runtime(process::IDLE)?;
    let showing = Showing::ready()?;
    runtime.block_on(process::have_a_thread())?;
    let result = runtime.block_on(async {
        tokio::select! {
            // What was started goes with the future.
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
        runtime.block_on(showing.show(output));
    }
    let mut told = Ok(());
    if let (Some(file), Some(path)) = (&json, &op.json) {
        let report = match &result {
            Ok(output) => Report::of_outcome(output),
            Err(error) => Report::failed(error),
        };
        told = report::write(file, path, &report::object(&report));
    }
    // What was refused is said also where the report could not be written.
    let output = result?;
    report::end(&output, op.quiet);
    told?;
    Ok(output.exit_code().into())
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
    // Before anything else looks at our environment, and copies it.
    let given = Given(Mutex::new(credentials(read?, &envelope, own.as_ref().ok())?));
    drop(own);
    policy.spawn(&envelope, &given).await
}

/// Credentials, by the variables that they come in.
type Secrets = BTreeMap<String, Secret>;

/// The credentials that were given. Each can be had once, because secrets are not copied.
struct Given(Mutex<Secrets>);

impl CredentialResolver for Given {
    fn resolve<'r>(&'r self, key: &'r str) -> Resolving<'r> {
        let secret = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        Box::pin(async { Ok(secret) })
    }
}

/// Creates the file of `--json`, which passes no link itself. Nor must one lead there that an earlier program left.
///
/// # Errors
/// It cannot be created, or a program could have led us elsewhere.
fn create_report(path: &Path, policy: Option<&SpawnPolicy>) -> Result<File, Error> {
    let parent = std::path::absolute(path).ok().and_then(|path| path.parent().map(Path::to_owned));
    if let (Some(policy), Some(parent)) = (policy, parent) {
        policy.check_outside("directory of the report", &parent).map_err(Error::from)?;
    }
    report::create(path)
}

/// The credentials in the files that were named. A file that programs could exchange is not opened: we may read more than
/// they.
fn from_files(named: &[(String, PathBuf)], policy: &SpawnPolicy) -> Result<Secrets, SpawnError> {
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

/// The credentials of the envelope: those that were `read`, else from this process's environment.
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
        // Wiped there also where a file goes before it.
        if let (Some(secret), false) = (taken_from_environment(key, own), read.contains_key(key)) {
            read.insert(key.clone(), secret);
        }
    }
    Ok(read)
}

/// The contents of a file, without the newline that editors put at its end.
fn read(path: &Path) -> io::Result<Secret> {
    // Room for all of it, so that no half of it stays where it was before it grew.
    let mut value = Vec::with_capacity(usize::try_from(LONGEST).unwrap_or_default() + 2);
    let file = match inherited_descriptor(path) {
        Some(given) => given?.into(),
        None => File::open(path)?,
    };
    file.take(LONGEST + 1).read_to_end(&mut value)?;
    if value.len() as u64 > LONGEST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "is larger than 128 KiB"));
    }
    if value.ends_with(b"\n") {
        value.pop();
    }
    Ok(Secret::from(value))
}

/// A variable of our environment. It is wiped there: others may read the environment of a process that runs.
fn taken_from_environment(key: &str, own: Option<&OwnEnvironment>) -> Option<Secret> {
    use std::os::unix::ffi::OsStringExt;
    let value = std::env::var_os(key)?.into_vec();
    // Where it cannot be, as in an emulated machine, it is as open as it was in the environment of whoever called.
    let _ = own.map(|own| own.wipe(key));
    Some(Secret::from(value))
}

/// The memory that the kernel made our environment in, and shows as /proc/PID/environ.
struct OwnEnvironment {
    variables: File,
    memory: File,
    /// `env_start` of proc_pid_stat(5).
    start: u64,
    /// From there to `env_end`.
    length: usize,
}

impl OwnEnvironment {
    fn open() -> io::Result<Self> {
        let stat = std::fs::read_to_string("/proc/self/stat")?;
        // The second field, the name, may have spaces and parentheses in it; the third comes after its last one.
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

    /// Overwrites the value of a variable.
    fn wipe(&self, key: &str) -> io::Result<()> {
        // Room for all of it: what it grew out of would not be wiped.
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

/// A thread that writes what the program wrote to where it would have written it: where nobody reads that, a signal ends us
/// all the same. It is had before the program runs.
struct Showing {
    output: mpsc::Sender<[Vec<u8>; 2]>,
    shown: oneshot::Receiver<[io::Result<()>; 2]>,
}

impl Showing {
    /// # Errors
    /// No thread is to be had.
    fn ready() -> Result<Self, Error> {
        let (output, written) = mpsc::channel::<[Vec<u8>; 2]>();
        let (told, shown) = oneshot::channel();
        let writes = move || {
            if let Ok([stdout, stderr]) = written.recv() {
                let _ = told.send([write_all(io::stdout(), &stdout), write_all(io::stderr(), &stderr)]);
            }
        };
        thread::Builder::new().spawn(writes).map_err(no_thread)?;
        Ok(Self { output, shown })
    }

    /// Shows the output, and enters what of it could not be written.
    async fn show(self, output: &mut Output) {
        let streams = [mem::take(&mut output.stdout), mem::take(&mut output.stderr)];
        // The thread waits for it.
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
        // Who reads no further has seen enough; the status says the rest.
        let failed = |error: &io::Error| error.kind() != io::ErrorKind::BrokenPipe;
        let [stdout, stderr] = shown.map(|written| written.err().filter(failed));
        output.outcome.truncated |= stdout.is_some() || stderr.is_some();
        // What could not be said on stderr is no reason to call a success a failure.
        output.outcome.unwritten =
            stdout.map(|source| Error::Io { what: "write what the program wrote", source }.chain());
    }
}
