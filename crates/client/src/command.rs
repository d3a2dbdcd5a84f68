//! A command to run in a session, in the shape of `tokio::process`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::future::{Future, pending};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::Method;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::child::{Child, Pipes, why};
use crate::error::Error;
use crate::events::{Event, Events, KEEPALIVE, framed};
use crate::files::text;
use crate::outcome::{Outcome, Output};
use crate::server::{Call, unique};
use crate::session::Access;
use crate::unless_dropped;

/// How much later than the server this program gives up a command with a timeout.
const GRACE: Duration = Duration::from_secs(10);

/// Bytes of stdout and of stderr that are collected, unless the caller says otherwise.
const MOST_OUTPUT: usize = 64 << 20;

/// A command to run in a [`Session`](crate::Session).
#[derive(Clone, Debug)]
pub struct Command {
    access: Access,
    program: OsString,
    arguments: Vec<OsString>,
    variables: BTreeMap<OsString, OsString>,
    directory: Option<PathBuf>,
    timeout: Option<Duration>,
    pipes: Pipes,
    most_output: usize,
    kill_on_drop: bool,
}

/// What a standard stream of a command is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stdio(pub(crate) bool);

impl Stdio {
    /// `/dev/null`: the default, as there is nothing to inherit.
    #[must_use]
    pub fn null() -> Self {
        Self(false)
    }

    /// A pipe. Its other end is in [`Child`].
    #[must_use]
    pub fn piped() -> Self {
        Self(true)
    }
}

impl Command {
    pub(crate) fn new(access: Access, program: &OsStr) -> Self {
        Self {
            access,
            program: program.to_owned(),
            arguments: Vec::new(),
            variables: BTreeMap::new(),
            directory: None,
            timeout: None,
            pipes: Pipes::default(),
            most_output: MOST_OUTPUT,
            kill_on_drop: true,
        }
    }

    /// Adds an argument.
    pub fn arg(&mut self, argument: impl AsRef<OsStr>) -> &mut Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(&mut self, arguments: impl IntoIterator<Item = A>) -> &mut Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Sets a variable of the command's environment.
    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.variables.insert(name.as_ref().to_owned(), value.as_ref().to_owned());
        self
    }

    /// Sets the working directory. Default: the sandbox's own, in which a relative path starts.
    pub fn current_dir(&mut self, directory: impl AsRef<Path>) -> &mut Self {
        self.directory = Some(directory.as_ref().to_owned());
        self
    }

    /// Sets the wall time of the command. When it is over, the server kills every process of the command.
    pub fn timeout(&mut self, timeout: Duration) -> &mut Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets standard input. Default: null.
    pub fn stdin(&mut self, stdin: Stdio) -> &mut Self {
        self.pipes.stdin = stdin.0;
        self
    }

    /// Sets standard output. Default: null; for [`output`](Self::output), collected.
    pub fn stdout(&mut self, stdout: Stdio) -> &mut Self {
        self.pipes.stdout = stdout.0;
        self
    }

    /// Sets standard error. Default: null; for [`output`](Self::output), collected.
    pub fn stderr(&mut self, stderr: Stdio) -> &mut Self {
        self.pipes.stderr = stderr.0;
        self
    }

    /// Sets how many bytes of stdout and of stderr are collected. A command that writes more is killed, and
    /// the call fails with [`Error::TooLarge`]. Default: 64 MiB.
    pub fn max_output(&mut self, bytes: usize) -> &mut Self {
        self.most_output = bytes;
        self
    }

    /// Whether dropping the [`Child`] kills the command. Default: true. With false, it runs on until its
    /// timeout or the end of the session.
    pub fn kill_on_drop(&mut self, kill: bool) -> &mut Self {
        self.kill_on_drop = kill;
        self
    }

    /// Starts the command and returns once its program runs. If the future is dropped, the command is killed.
    ///
    /// ```no_run
    /// # async fn example(session: kennel_client::Session) -> Result<(), Box<dyn std::error::Error>> {
    /// use kennel_client::Stdio;
    /// use tokio::io::{AsyncBufReadExt, BufReader};
    ///
    /// let mut child = session.command("make").stdout(Stdio::piped()).spawn().await?;
    /// let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    /// while let Some(line) = lines.next_line().await? {
    ///     println!("{line}");
    /// }
    /// println!("{}", child.wait().await?.status);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Refused`] with 404 for a program or directory that is not there, 429 for too many commands;
    /// [`Error::SessionLost`]; [`Error::Cut`] and others, if it cannot be known whether it runs: then it is
    /// killed.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn spawn(&mut self) -> Result<Child, Error> {
        self.clone().start().await
    }

    /// Runs the command to its end, without its output.
    ///
    /// # Errors
    /// As for [`spawn`](Self::spawn) and [`Child::wait`]. A command that fails is not an error: see
    /// [`Outcome::status`].
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn status(&mut self) -> Result<Outcome, Error> {
        let mut command = self.clone();
        command.pipes = Pipes::default();
        command.start().await?.wait().await
    }

    /// Runs the command to its end and collects its output. The future does not borrow the command: futures
    /// of several can be collected, and run at the same time. If the future is dropped, the command is
    /// killed.
    ///
    /// # Errors
    /// As for [`spawn`](Self::spawn) and [`Child::wait_with_output`].
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub fn output(&mut self) -> impl Future<Output = Result<Output, Error>> + Send + use<> {
        let mut command = self.clone();
        command.pipes = Pipes { stdin: false, stdout: true, stderr: true };
        async move { command.start().await?.wait_with_output().await }
    }

    /// Like [`output`](Self::output), with `input` as standard input.
    ///
    /// # Errors
    /// As for [`output`](Self::output). A command that does not read all of its input is not an error.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn output_with_input(&mut self, input: &[u8]) -> Result<Output, Error> {
        let mut command = self.clone();
        command.pipes = Pipes { stdin: true, stdout: true, stderr: true };
        let mut child = command.start().await?;
        let pipe = child.stdin.take();
        let write = async {
            if let Some(mut pipe) = pipe {
                // The command may close its input early. Its outcome tells whether that was a failure.
                let _ = pipe.write_all(input).await;
            }
            pending().await
        };
        tokio::select! {
            output = child.wait_with_output() => output,
            never = write => never,
        }
    }

    /// Starts it in a task: a future that is dropped before the server has told the number of the command
    /// could not kill it.
    async fn start(self) -> Result<Child, Error> {
        let tag = unique();
        let call = self.call(&tag)?;
        unless_dropped(async move {
            let begun = self.begin(call).await;
            let may_run = |error: &Error| {
                use Error::{Invalid, Refused, SessionLost, Unreachable};
                !matches!(error, Invalid { .. } | Refused { .. } | SessionLost { .. } | Unreachable { .. })
            };
            if begun.as_ref().is_err_and(may_run) {
                let access = self.access.clone();
                self.access.spawn(async move { access.kill(&json!({ "tag": tag })).await });
            }
            let (pid, events) = begun?;
            Ok(Child::new(self.access, pid, events, self.pipes, self.most_output, self.kill_on_drop))
        })
        .await
    }

    fn call(&self, tag: &str) -> Result<Call, Error> {
        let arguments: Result<Vec<_>, _> = self.arguments.iter().map(|argument| text(argument)).collect();
        let variables = self.variables.iter().map(|(name, value)| Ok((text(name)?, text(value)?)));
        let variables: BTreeMap<_, _> = variables.collect::<Result<_, Error>>()?;
        let mut process = json!({ "cmd": text(&self.program)?, "args": arguments?, "envs": variables });
        if let Some(directory) = &self.directory {
            process["cwd"] = text(directory)?.into();
        }
        let request = json!({ "process": process, "tag": tag, "stdin": self.pipes.stdin });
        let call = self.access.call(Method::POST, "/process.Process/Start");
        let mut call = call.header("keepalive-ping-interval", &KEEPALIVE.to_string());
        if let Some(timeout) = self.timeout {
            call = call.header("connect-timeout-ms", &timeout.as_millis().max(1).to_string());
        }
        Ok(call.body("application/connect+json", framed(&request)?))
    }

    /// Starts it, and returns its number and what follows.
    async fn begin(&self, call: Call) -> Result<(u32, Events), Error> {
        let server = &self.access.server;
        let longest = self.timeout.map(|timeout| timeout.saturating_add(GRACE));
        let mut events = Events::new(server.open(call).await?.into_body(), longest);
        match timeout(server.longest(), events.next()).await.map_err(|_| server.late())? {
            Ok(Event::Start { pid }) => Ok((pid, events)),
            Ok(_) => Err(Error::protocol("a command's stream begins with something else")),
            Err(over) => Err(why(&self.access, over).await),
        }
    }
}
