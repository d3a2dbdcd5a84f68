//! One command in a sandbox of its own, with its files in and out, as one request.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Method;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::Error;
use crate::files::text;
use crate::report::Report;
use crate::server::Server;

/// The time of the command, unless the caller says otherwise: as the server's.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The longest answer, in bytes.
const LONGEST: usize = 256 << 20;

/// One command in a sandbox of its own, from [`Server::run`]. Suits judges and tools: no session is left, and
/// none has to be ended.
///
/// ```no_run
/// # async fn example(server: kennel_client::Server) -> Result<(), kennel_client::Error> {
/// let ran = server.run("python3").arg("main.py").file("main.py", "print(6 * 7)").output().await?;
/// assert_eq!((ran.report.exit_code, &*ran.stdout), (0, &b"42\n"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "it does nothing until `output`"]
pub struct Run {
    server: Server,
    request: Request,
    timeout: Duration,
    limits: Map<String, Value>,
}

impl Run {
    pub(crate) fn new(server: Server, program: String) -> Self {
        Self { server, request: Request::new(vec![program]), timeout: TIMEOUT, limits: Map::new() }
    }

    /// Sets the template. Default: `base`.
    pub fn template(self, name: impl Into<String>) -> Self {
        self.with("template", name.into().into())
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl Into<String>) -> Self {
        self.request.arguments.push(argument.into());
        self
    }

    /// Adds arguments.
    pub fn args<A: Into<String>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.request.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets a variable of the command's environment.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.request.variables.insert(name.into(), value.into());
        self
    }

    /// Sets the working directory. Default: the sandbox's own.
    pub fn current_dir(self, directory: impl Into<String>) -> Self {
        self.with("cwd", directory.into().into())
    }

    /// Sets standard input. Default: none.
    pub fn stdin(self, input: impl AsRef<[u8]>) -> Self {
        self.with("stdin", content(input.as_ref()))
    }

    /// Sets the wall time of the command. Default: a minute.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets a limit, as in a policy file, such as `memory` to `512M` or `pids` to `64`. It can only be
    /// tighter than that of the template.
    pub fn limit(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        let value = value.to_string();
        let value = value.parse::<serde_json::Number>().map_or_else(|_| value.into(), Value::Number);
        self.limits.insert(name.into(), value);
        self
    }

    /// Takes the network away.
    pub fn no_network(self) -> Self {
        self.with("network", json!({ "allow": [] }))
    }

    /// Adds a file that is there before the command starts, with the directories above it.
    pub fn file(mut self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Self {
        self.request.files.push((path.as_ref().to_owned(), contents.as_ref().to_owned()));
        self
    }

    /// Asks for a file that the command writes.
    pub fn output_file(mut self, path: impl AsRef<Path>) -> Self {
        self.request.outputs.push(path.as_ref().to_owned());
        self
    }

    fn with(mut self, name: &str, value: Value) -> Self {
        self.request.more.insert(name.to_owned(), value);
        self
    }

    /// Runs it to its end. If the future is dropped, the server kills it.
    ///
    /// The whole may take the timeout and [`Server::deadline`].
    ///
    /// # Errors
    /// [`Error::Refused`] if there is no room, or for what the template does not allow. A program that cannot
    /// start is no error: see [`Report::failure`].
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time enabled.
    pub async fn output(self) -> Result<RunOutput, Error> {
        let mut body = self.request.body()?;
        body.insert("limits".into(), self.limits.into());
        body.insert("timeout".into(), self.timeout.as_secs_f64().into());
        let longest = self.server.longest().saturating_add(self.timeout);
        let server = self.server.deadline(longest);
        let answer: Answer =
            server.ask(server.call(Method::POST, "/v1/run").json(&body.into()), LONGEST).await?;
        answer.output()
    }
}

/// What a command in a sandbox of its own needs, however it gets there.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) arguments: Vec<String>,
    pub(crate) variables: BTreeMap<String, String>,
    pub(crate) files: Vec<(PathBuf, Vec<u8>)>,
    pub(crate) outputs: Vec<PathBuf>,
    /// What else it says.
    pub(crate) more: Map<String, Value>,
}

impl Request {
    pub(crate) fn new(arguments: Vec<String>) -> Self {
        let (variables, more) = (BTreeMap::new(), Map::new());
        Self { arguments, variables, files: Vec::new(), outputs: Vec::new(), more }
    }

    /// The body of `/v1/run`.
    pub(crate) fn body(self) -> Result<Map<String, Value>, Error> {
        let files = self
            .files
            .iter()
            .map(|(path, contents)| Ok(json!({ "path": text(path)?, "content": content(contents) })));
        let mut body = self.more;
        body.insert("files".into(), files.collect::<Result<Vec<_>, Error>>()?.into());
        let outputs = self.outputs.iter().map(|path| Ok(Value::from(text(path)?)));
        body.insert("outputs".into(), outputs.collect::<Result<Vec<_>, Error>>()?.into());
        body.insert("argv".into(), self.arguments.into());
        body.insert("env".into(), json!(self.variables));
        Ok(body)
    }
}

/// What [`Run::output`] returns.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunOutput {
    /// How the command ended, and what was enforced.
    pub report: Report,
    /// What it wrote to stdout.
    pub stdout: Vec<u8>,
    /// What it wrote to stderr.
    pub stderr: Vec<u8>,
    /// The files that were [asked for](Run::output_file), by path. One that is not there is left out.
    pub files: BTreeMap<PathBuf, Vec<u8>>,
}

#[derive(Deserialize)]
pub(crate) struct Answer {
    report: Report,
    #[serde(default)]
    stdout: Content,
    #[serde(default)]
    stderr: Content,
    #[serde(default)]
    files: Vec<FoundFile>,
}

impl Answer {
    pub(crate) fn output(self) -> Result<RunOutput, Error> {
        let files = self.files.into_iter().map(|file| Ok((file.path, file.content.bytes()?)));
        Ok(RunOutput {
            report: self.report,
            stdout: self.stdout.bytes()?,
            stderr: self.stderr.bytes()?,
            files: files.collect::<Result<_, Error>>()?,
        })
    }
}

#[derive(Deserialize)]
struct FoundFile {
    path: PathBuf,
    content: Content,
}

/// Bytes in JSON.
#[derive(Default, Deserialize)]
struct Content {
    text: Option<String>,
    base64: Option<String>,
}

impl Content {
    fn bytes(self) -> Result<Vec<u8>, Error> {
        match (self.text, self.base64) {
            (Some(text), _) => Ok(text.into_bytes()),
            (None, Some(text)) => {
                STANDARD.decode(text).map_err(|_| Error::protocol("a content that is no base64"))
            }
            (None, None) => Ok(Vec::new()),
        }
    }
}

pub(crate) fn content(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!({ "text": text }),
        Err(_) => json!({ "base64": STANDARD.encode(bytes) }),
    }
}
