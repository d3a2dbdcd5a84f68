//! `kennel connector run`: one call of a connector.

use std::{io, process::ExitCode, thread};

use kennel::{
    Error, Secret, Size, Span,
    broker::{CredentialResolver, Resolving, SpawnPolicy},
    connector::{Call, CallLimits, CallResult, Connector, ConnectorError, Grants, Runtime, RuntimeBuilder},
};
use serde_json::json;
use tokio::sync::oneshot;

use super::{failed, input, load, with_cache};
use crate::{
    args::connector::Run,
    credentials::{OwnEnvironment, Secrets, check_outside, complete, create_report, hide_memory, read_files},
    descriptor::write_all,
    flags, process,
    process::interrupted,
    remedy::FLAGS,
    report,
    terminal::thread_error,
};

/// Runs `kennel connector run`.
pub(super) fn run(run: &Run) -> Result<ExitCode, Error> {
    let own = hide_memory();
    let policy = load(&run.manifest);
    let json = run.json.as_deref().map(|path| create_report(path, policy.as_ref().ok())).transpose()?;
    // Until the call begins, a signal may end this process at once.
    let prepared =
        policy.map_err(ConnectorError::from).and_then(|policy| prepare(run, &policy, own.as_ref().ok()));
    drop(own);
    let tokio = process::runtime(process::IDLE_THREAD)?;
    tokio.block_on(process::start_blocking_thread())?;
    let ended = tokio.block_on(async {
        let call = async {
            let (connector, call) = prepared?;
            connector.invoke(call).await
        };
        tokio::select! {
            // Dropping the future ends what it started.
            biased;
            status = interrupted() => Err(status),
            ended = call => Ok(ended),
        }
    });
    let ended = match ended {
        Ok(ended) => ended,
        Err(status) => return Ok(status?.into()),
    };
    let mut written = Ok(());
    if let (Some(file), Some(path)) = (&json, &run.json) {
        written = report::write(file, path, &object(&ended));
    }
    let code = match ended {
        Err(error) => failed(&error),
        Ok(CallResult { output: None, .. }) => ExitCode::SUCCESS,
        Ok(CallResult { output: Some(output), .. }) => {
            let text = report::json(&output)? + "\n";
            tokio.block_on(print(text.into_bytes()))?
        }
    };
    written?;
    Ok(code)
}

/// Compiles the connector, and collects what its call needs.
fn prepare(
    run: &Run,
    policy: &SpawnPolicy,
    own: Option<&OwnEnvironment>,
) -> Result<(Connector, Call), ConnectorError> {
    let arguments = input::arguments(run, policy)?;
    let secrets = secrets(run, policy, own)?;
    // The program decides what becomes of the credential.
    let outside = |what, path| check_outside(policy, what, path).map_err(Error::from);
    outside("connector", &run.file)?;
    for file in &run.ca {
        outside("file of certificates", file)?;
    }
    if let Some(log) = &run.audit {
        // Check the path before anything is created there.
        outside("audit log", log)?;
    }
    let program = input::program(&run.file)?;
    let set_up = set_up(run)?;
    let runtime = if run.no_cache {
        set_up().build()?
    } else {
        let (runtime, note) = with_cache(set_up, policy)?;
        note.iter().filter(|_| !run.quiet).for_each(report::note);
        runtime
    };
    let connector = runtime.compile(policy.manifest(), &program)?;
    let limits =
        CallLimits { memory_bytes: run.memory.map(Size::bytes), wall_time: run.timeout.map(Span::duration) };
    let call = Call::new(&run.operation)
        .arguments(arguments)
        .limits(limits)
        .allow_hosts(&run.allow)
        .allow_programs(&run.program)
        .credentials(Bound(secrets));
    Ok((connector, call))
}

/// What sets up the runtime: more than once, if the cache cannot be used.
fn set_up(run: &Run) -> Result<impl Fn() -> RuntimeBuilder, Error> {
    let audit = run.audit.as_deref().map(flags::log).transpose()?;
    let (is_quiet, authorities, addresses) = (run.quiet, run.ca.clone(), run.allow_address.clone());
    Ok(move || {
        let builder = Runtime::builder().at_once(1).allow_addresses(&addresses);
        let builder = authorities.iter().fold(builder, |builder, file| builder.certificate_authority(file));
        let builder = match &audit {
            Some(log) => builder.audit(log.clone()),
            None => builder,
        };
        match is_quiet {
            true => builder,
            false => builder.log_sink(|_, line| {
                report::say(format_args!("kennel: log: {}: {}", line.level, line.message));
            }),
        }
    })
}

/// The credentials of the manifest that were given.
fn secrets(run: &Run, policy: &SpawnPolicy, own: Option<&OwnEnvironment>) -> Result<Secrets, Error> {
    let grants = Grants::of(policy.manifest());
    let kind = grants.credential.map(|credential| credential.kind);
    let names: Vec<_> = kind.into_iter().chain(grants.credential_variables).collect();
    Ok(complete(read_files(&run.credential, policy)?, &names, own)?)
}

/// The credentials of a call. Each request and each spawn gets a copy, which is wiped after it.
struct Bound(Secrets);

impl CredentialResolver for Bound {
    fn resolve<'r>(&'r self, name: &'r str) -> Resolving<'r> {
        Box::pin(async move { Ok(self.0.get(name).map(|value| Secret::from(value.to_vec()))) })
    }
}

/// The object of `--json`, on one line.
fn object(ended: &Result<CallResult, ConnectorError>) -> Vec<u8> {
    let (output, logs, failure) = match ended {
        Ok(result) => (result.output.as_ref(), &*result.logs, None),
        Err(error) => (None, error.logs(), Some(error.failure().clone().worded(FLAGS))),
    };
    report::json_line(&json!({"output": output, "logs": logs, "failure": failure}))
}

/// Prints the output on a thread of its own: a signal ends this process also if nobody reads. Returns its
/// exit status.
async fn print(text: Vec<u8>) -> Result<ExitCode, Error> {
    let (told, written) = oneshot::channel();
    thread::Builder::new().spawn(move || told.send(write_all(io::stdout(), &text))).map_err(thread_error)?;
    tokio::select! {
        biased;
        written = written => report::printed(written.unwrap_or(Ok(()))).map(|()| ExitCode::SUCCESS),
        status = interrupted() => Ok(status?.into()),
    }
}
