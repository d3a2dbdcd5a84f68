//! `kennel op`: runs one operation of a manifest; its credentials leave no copy in this process.

use std::{
    io, mem,
    os::unix::process::ExitStatusExt,
    process::ExitCode,
    sync::{Mutex, PoisonError, mpsc},
    thread,
};

use kennel::{
    Error, Output, Secret,
    broker::{CredentialResolver, Manifest, Resolving, SpawnError, SpawnPolicy},
    report::Report,
};
use tokio::sync::oneshot;

use crate::{
    args::manifest::Op,
    manifest::credentials::{OwnEnvironment, Secrets, complete, create_report, hide_memory, read_files},
    policy::flags,
    process::{self, descriptor::write_all, exit_status, signals::interrupted, thread_error},
    report,
};

/// Runs `kennel op`.
pub(crate) fn op(op: &Op) -> Result<ExitCode, Error> {
    let own = hide_memory();
    let policy = Manifest::load(&op.manifest).map(SpawnPolicy::new).map_err(SpawnError::from);
    let notes = policy.iter().flat_map(|policy| policy.manifest().notes());
    notes.filter(|_| !op.quiet).for_each(report::note);
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
            Ok(output) => Report::of_outcome(&output.outcome),
            Err(error) => Report::failed(error),
        };
        written = report::write(file, path, &report::object(&report));
    }
    // Report an error of the program even if the JSON report could not be written.
    let output = result?;
    report::end(&output.outcome, op.quiet);
    written?;
    Ok(exit_status::end(output.outcome.exit_code(), output.outcome.status.signal()))
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
    let given =
        GivenCredentials(Mutex::new(complete(read?, &envelope.credential_env_keys, own.as_ref().ok())?));
    drop(own);
    policy.spawn(&envelope, &given).await
}

/// The credentials that the caller gave. Each is handed over once: secrets are not copied.
struct GivenCredentials(Mutex<Secrets>);

impl CredentialResolver for GivenCredentials {
    fn resolve<'r>(&'r self, key: &'r str) -> Resolving<'r> {
        let value = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        Box::pin(async { Ok(value.map(|mut value| Secret::from(mem::take(&mut *value)))) })
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
