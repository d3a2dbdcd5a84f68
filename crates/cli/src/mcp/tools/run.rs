//! The tool `run`: one command, its output and its end.

use std::{collections::BTreeMap, future::pending, io, time::Duration};

use kennel::{
    Child, ChildOutput, ChildStdin, Command, Error, Outcome, Session, Stdio,
    internal::LeftPipes,
    report::{Limit, SettingKey},
};
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::mcp::{
    answer::{Answer, refused, short},
    output::{
        overflow::{Outputs, Stream},
        progress::{Listener, Meter},
        result::{CommandResult, Ending, Written},
    },
};

/// How many bytes of each output a result has, if the call does not say. Agents show a model about as much.
const OUTPUT: u64 = 30_000;

/// The most that a call can ask for.
const MOST_OUTPUT: u64 = 1 << 20;

/// Longer than any command runs.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How long a pipe that others still hold has to be silent after the command's end.
const SILENCE: Duration = Duration::from_millis(20);

/// The largest pipe of an ordinary user, in bytes: the default of `fs.pipe-max-size`.
const LARGEST_PIPE: u64 = 1 << 20;

/// The arguments of `run`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    /// The program and its arguments, without a shell. Give either this or `command`.
    argv: Option<Vec<String>>,
    /// A command line for `sh -c`. Give either this or `argv`.
    command: Option<String>,
    /// The directory to start in, a path in the sandbox. A relative path starts where commands start.
    cwd: Option<String>,
    /// Variables to set. The sandbox keeps some as they are, such as HOME and those of the proxy: to set one
    /// is an error.
    env: Option<BTreeMap<String, String>>,
    /// Text for stdin, which is otherwise /dev/null.
    stdin: Option<String>,
    /// Kill the command after this many milliseconds. The policy may have a shorter limit.
    timeout_ms: Option<u64>,
    /// How many bytes of stdout, and of stderr, the result has. Default: 30000. At most 1048576. A file in
    /// the sandbox has the rest.
    max_output_bytes: Option<u64>,
}

/// The time limit of a call.
pub(crate) fn time_limit(milliseconds: Option<u64>) -> Option<Duration> {
    milliseconds.map(|milliseconds| Duration::from_millis(milliseconds).min(LONGEST))
}

/// How many bytes a result keeps of each stream.
pub(crate) fn clip_size(asked: Option<u64>) -> usize {
    usize::try_from(asked.unwrap_or(OUTPUT).min(MOST_OUTPUT)).unwrap_or(0)
}

/// What a model can do if the limit of its own call ended the command. The flag of a person would not help.
pub(crate) fn own_limit(
    outcome: &mut Outcome,
    asked: Option<u64>,
    policy: Option<Duration>,
) -> Option<&'static str> {
    let asked = time_limit(asked)?;
    if outcome.limit != Some(Limit::WallTime) || policy.is_some_and(|policy| policy <= asked) {
        return None;
    }
    outcome.hints.retain(|hint| !hint.sets(SettingKey::Timeout));
    Some(
        "that is the `timeout_ms` of this call: give it more, or leave the command in the background with its output in a file",
    )
}

/// What calls share.
pub(crate) struct Shared {
    pub(crate) left: LeftPipes,
    pub(crate) outputs: Outputs,
    /// The time limit of the policy.
    pub(crate) timeout: Option<Duration>,
}

impl Run {
    /// Runs it. Dropping the future kills the command.
    pub(crate) async fn call(self, session: &Session, shared: &Shared, listener: &Listener) -> Answer {
        let mut command = self.prepare(session)?;
        let stdin = self.stdin.map(String::into_bytes);
        command.stdin(if stdin.is_some() { Stdio::piped() } else { Stdio::null() });
        let stream = |name| shared.outputs.stream(session, name, clip_size(self.max_output_bytes));
        let mut streams = [stream("stdout"), stream("stderr")];
        let meter = Meter::default();
        let work = collect(&mut command, stdin, &mut streams, &meter, &shared.left);
        match listener.during(Some(&meter), work).await {
            Ok((mut outcome, [out_dropped, err_dropped])) => {
                let [stdout, stderr] = streams;
                let (stdout, stderr) =
                    tokio::join!(Written::of(stdout, out_dropped), Written::of(stderr, err_dropped));
                let advice = own_limit(&mut outcome, self.timeout_ms, shared.timeout);
                Ok(Ending { outcome: &outcome, stdout, stderr, advice, shell: None }.answer())
            }
            Err(error) => Err(CommandResult::failed(&error)),
        }
    }

    fn prepare(&self, session: &Session) -> Result<Command, rmcp::model::CallToolResult> {
        let mut command = match (&self.argv, &self.command) {
            (Some(argv), None) => {
                let Some((program, arguments)) = argv.split_first() else {
                    return Err(refused("arguments: `argv` is empty: name a program"));
                };
                let mut command = session.command(program);
                command.args(arguments);
                command
            }
            (None, Some(line)) => {
                let mut command = session.command("sh");
                command.args(["-c", line]);
                command
            }
            _ => return Err(refused("arguments: give either `argv` or `command`")),
        };
        for (name, value) in self.env.iter().flatten() {
            if let Err(error) = session.check_client_variable(name, value) {
                let name = short(name);
                return Err(refused(format!(
                    "arguments: {error}; a person can start `kennel mcp` with --setenv {name}=VALUE"
                )));
            }
            command.env(name, value);
        }
        if let Some(directory) = &self.cwd {
            command.current_dir(directory);
        }
        if let Some(limit) = time_limit(self.timeout_ms) {
            command.timeout(limit);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).hints(true);
        Ok(command)
    }
}

/// Runs a command to its end and collects what it writes. Returns how many bytes of each stream the policy
/// dropped.
async fn collect(
    command: &mut Command,
    stdin: Option<Vec<u8>>,
    streams: &mut [Stream<'_>; 2],
    meter: &Meter,
    left: &LeftPipes,
) -> Result<(Outcome, [u64; 2]), Error> {
    let mut child = command.spawn().await?;
    let mut outputs = [child.stdout.take(), child.stderr.take()];
    let pipe = child.stdin.take();
    let mut outcome = until_end(&mut child, stdin, pipe, &mut outputs, streams, meter).await?;
    let [stdout, stderr] = outputs;
    outcome.count(stdout.as_ref(), stderr.as_ref());
    // A hint about a path tells whether it exists outside, which is nothing for whoever chooses the arguments
    // here.
    outcome.hints.retain(|hint| !hint.subject.trim_start_matches('\'').starts_with('/'));
    let dropped = [&stdout, &stderr].map(|pipe| pipe.as_ref().map_or(0, ChildOutput::dropped));
    [stdout, stderr].into_iter().flatten().for_each(|pipe| left.add(pipe));
    Ok((outcome, dropped))
}

async fn until_end(
    child: &mut Child,
    stdin: Option<Vec<u8>>,
    pipe: Option<ChildStdin>,
    [stdout, stderr]: &mut [Option<ChildOutput>; 2],
    [out, err]: &mut [Stream<'_>; 2],
    meter: &Meter,
) -> Result<Outcome, Error> {
    let reading = async {
        let read = tokio::try_join!(read(stdout, out, meter, None), read(stderr, err, meter, None));
        match read {
            Ok(_) => pending().await,
            Err(error) => error,
        }
    };
    let writing = async {
        if let (Some(text), Some(mut pipe)) = (stdin, pipe) {
            // The command may close its stdin early.
            let _ = pipe.write_all(&text).await;
        }
        pending::<()>().await;
    };
    let outcome = tokio::select! {
        outcome = child.wait() => outcome?,
        error = reading => return Err(Error::Io { what: "read the command's output", source: error }),
        () = writing => return Err(Error::Lost),
    };
    // A process in the background may hold the pipes.
    let rest =
        tokio::try_join!(read(stdout, out, meter, Some(SILENCE)), read(stderr, err, meter, Some(SILENCE)));
    rest.map_err(|source| Error::Io { what: "read the command's output", source })?;
    Ok(outcome)
}

/// Reads to the end of a stream, or until it is silent. Gives the stream up at its end.
async fn read(
    from: &mut Option<ChildOutput>,
    to: &mut Stream<'_>,
    meter: &Meter,
    silence: Option<Duration>,
) -> io::Result<()> {
    let Some(pipe) = from else { return Ok(()) };
    let mut piece = vec![0; 8192];
    let most = silence.map_or(u64::MAX, |_| pipe.seen().saturating_add(LARGEST_PIPE));
    while pipe.seen() < most {
        let count = match silence {
            None => pipe.read(&mut piece).await?,
            Some(silence) => match timeout(silence, pipe.read(&mut piece)).await {
                Ok(count) => count?,
                Err(_) => return Ok(()),
            },
        };
        let bytes = piece.get(..count).unwrap_or_default();
        if bytes.is_empty() {
            return Ok(());
        }
        // After what the policy keeps comes a line about the rest, which is no output.
        let written = (pipe.seen() - pipe.dropped()).saturating_sub(to.seen());
        let bytes = bytes.get(..usize::try_from(written).unwrap_or(usize::MAX)).unwrap_or(bytes);
        to.add(bytes);
        meter.add(bytes);
        to.write().await;
    }
    Ok(())
}
