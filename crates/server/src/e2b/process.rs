//! `process.Process`: commands and terminals.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::BytesMut;
use futures_util::StreamExt;
use kennel::Signal;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::e2b::STREAMED;
use crate::e2b::call::{Addressed, answer, bytes, check_user, is_json, read};
use crate::e2b::events::{events, failed, keepalive};
use crate::e2b::frames::{self, Frames};
use crate::sandboxes::Sandboxes;
use crate::sandboxes::process::{Process, Start};
use crate::sandboxes::sandbox::Sandbox;
use crate::wire::failure::Failure;
use crate::wire::headers::{TIMEOUT, text};

const UNARY: &str = "application/json";

pub(crate) fn routes() -> Router<Arc<Sandboxes>> {
    Router::new()
        .route("/process.Process/Start", post(start))
        .route("/process.Process/Connect", post(connect))
        .route("/process.Process/List", post(list))
        .route("/process.Process/SendInput", post(send_input))
        .route("/process.Process/StreamInput", post(stream_input))
        .route("/process.Process/CloseStdin", post(close_stdin))
        .route("/process.Process/SendSignal", post(send_signal))
        .route("/process.Process/Update", post(update))
}

#[derive(Debug, Deserialize, Serialize)]
struct Config {
    #[serde(default)]
    cmd: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    envs: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Size {
    #[serde(default)]
    cols: u32,
    #[serde(default)]
    rows: u32,
}

#[derive(Debug, Deserialize)]
struct Pty {
    size: Size,
}

impl Pty {
    /// Rows and columns.
    fn size(&self) -> Result<(u16, u16), Failure> {
        let number = |count: u32, usual: u16| match count {
            0 => Ok(usual),
            count => {
                u16::try_from(count).map_err(|_| Failure::bad("pty.size: at most 65535 rows and columns"))
            }
        };
        Ok((number(self.size.rows, 24)?, number(self.size.cols, 80)?))
    }
}

#[derive(Debug, Deserialize)]
struct StartRequest {
    process: Config,
    pty: Option<Pty>,
    tag: Option<String>,
    stdin: Option<bool>,
}

impl StartRequest {
    fn into_start(self, sandbox: &Sandbox, timeout: Option<Duration>) -> Result<Start, Failure> {
        let Config { cmd, mut args, envs, cwd } = self.process;
        if cmd.is_empty() {
            return Err(Failure::bad("process.cmd: missing"));
        }
        // A login shell reads /etc/profile, and Debian's throws PATH away.
        if cmd == "/bin/bash" && !sandbox.wants_login_shells() {
            let options = args.iter().take_while(|argument| *argument != "-c");
            if let Some(place) = options.into_iter().position(|argument| argument == "-l") {
                args.remove(place);
            }
        }
        Ok(Start {
            program: cmd,
            arguments: args,
            variables: envs,
            directory: cwd,
            tag: self.tag,
            stdin: self.stdin.unwrap_or(true),
            terminal: self.pty.as_ref().map(Pty::size).transpose()?,
            timeout,
        })
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Selector {
    pid: Option<u32>,
    tag: Option<String>,
}

impl Selector {
    fn find(&self, sandbox: &Sandbox) -> Result<Arc<Process>, Failure> {
        let found = match (self.pid, &self.tag) {
            (Some(pid), _) => sandbox.process(pid),
            (None, Some(tag)) => sandbox.tagged(tag),
            (None, None) => return Err(Failure::bad("process: neither pid nor tag")),
        };
        let name = || self.pid.map_or_else(|| format!("{:?}", self.tag), |pid| pid.to_string());
        found.ok_or_else(|| Failure::new(StatusCode::NOT_FOUND, format!("process {} not found", name())))
    }

    /// One that has not ended.
    fn find_running(&self, sandbox: &Sandbox) -> Result<Arc<Process>, Failure> {
        let process = self.find(sandbox)?;
        if process.has_ended() {
            return Err(Failure::new(StatusCode::NOT_FOUND, format!("process {} has ended", process.pid)));
        }
        Ok(process)
    }
}

#[derive(Debug, Deserialize)]
struct Selected {
    #[serde(default)]
    process: Selector,
}

/// The time that the client gives the call.
fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, Failure> {
    let Some(text) = text(headers, TIMEOUT) else { return Ok(None) };
    let milliseconds =
        text.parse().map_err(|_| Failure::bad(format!("Connect-Timeout-Ms {text:?}: no number")))?;
    Ok((milliseconds > 0).then(|| Duration::from_millis(milliseconds)))
}

/// The one message of a call that answers with a stream.
fn only_message(body: &[u8]) -> Result<Bytes, Failure> {
    let mut frames = Frames::default();
    frames.add(body);
    frames.next()?.ok_or_else(|| Failure::bad("the body has no message"))
}

async fn start(
    State(host): State<Arc<Sandboxes>>,
    Addressed(sandbox): Addressed,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if let Err(failure) = is_json(&headers, STREAMED).and_then(|()| check_user(&sandbox, &headers)) {
        return failure.connect();
    }
    let begun = async {
        let time = timeout(&headers)?;
        let request: StartRequest = read(&only_message(&body)?)?;
        let start = request.into_start(&sandbox, time)?;
        Ok::<_, Failure>(host.start(&sandbox, start).await??)
    };
    match begun.await {
        Ok(process) => events(&sandbox, &process, keepalive(&headers), None),
        // Clients tell a sandbox that is gone by the status.
        Err(failure) if failure.status == StatusCode::BAD_GATEWAY => failure.connect(),
        Err(failure) => failed(&failure),
    }
}

async fn connect(Addressed(sandbox): Addressed, headers: HeaderMap, body: Bytes) -> Response {
    if let Err(failure) = is_json(&headers, STREAMED).and_then(|()| check_user(&sandbox, &headers)) {
        return failure.connect();
    }
    let found = || {
        let time = timeout(&headers)?;
        let request: Selected = read(&only_message(&body)?)?;
        Ok((request.process.find(&sandbox)?, time))
    };
    match found() {
        Ok((process, time)) => {
            let deadline = time.map(|time| Instant::now() + time);
            events(&sandbox, &process, keepalive(&headers), deadline)
        }
        Err(failure) => failed(&failure),
    }
}

async fn list(Addressed(sandbox): Addressed, headers: HeaderMap) -> Response {
    answer(is_json(&headers, UNARY).map(|()| {
        let processes = sandbox.running().into_iter().map(|process| {
            let Start { program, arguments, variables, directory, tag, .. } = &process.start;
            let config = Config {
                cmd: program.clone(),
                args: arguments.clone(),
                envs: variables.clone(),
                cwd: directory.clone(),
            };
            let mut found = serde_json::json!({ "config": config, "pid": process.pid });
            if let (Some(tag), Some(found)) = (tag, found.as_object_mut()) {
                found.insert("tag".into(), tag.clone().into());
            }
            found
        });
        serde_json::json!({ "processes": processes.collect::<Vec<_>>() })
    }))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Input {
    stdin: Option<String>,
    pty: Option<String>,
}

impl Input {
    async fn write(&self, process: &Process) -> Result<(), Failure> {
        let input = match (&self.stdin, &self.pty) {
            (None, None) => return Err(Failure::bad("input: neither stdin nor pty")),
            (Some(_), None) if process.has_terminal() => {
                return Err(Failure::bad("input.stdin: it has a terminal: use pty"));
            }
            (None, Some(_)) if !process.has_terminal() => {
                return Err(Failure::bad("input.pty: it has no terminal"));
            }
            (input, pty) => input.as_ref().or(pty.as_ref()).map_or("", |input| input),
        };
        process.write(&bytes(input)?).await.map_err(|error| {
            Failure::bad(format!("process {} reads no input: {error}; start it with stdin", process.pid))
        })
    }
}

#[derive(Debug, Deserialize)]
struct InputRequest {
    #[serde(default)]
    process: Selector,
    #[serde(default)]
    input: Input,
}

async fn send_input(Addressed(sandbox): Addressed, headers: HeaderMap, body: Bytes) -> Response {
    let done = async {
        is_json(&headers, UNARY)?;
        let request: InputRequest = read(&body)?;
        request.input.write(&*request.process.find_running(&sandbox)?).await?;
        Ok(serde_json::json!({}))
    };
    answer(done.await)
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum InputEvent {
    Start(Selected),
    Data {
        #[serde(default)]
        input: Input,
    },
    Keepalive {},
}

async fn stream_input(Addressed(sandbox): Addressed, headers: HeaderMap, body: Body) -> Response {
    if let Err(failure) = is_json(&headers, STREAMED) {
        return failure.connect();
    }
    let done = async {
        let (mut frames, mut process) = (Frames::default(), None);
        let mut pieces = body.into_data_stream();
        while let Some(piece) = pieces.next().await {
            frames.add(&piece.map_err(|error| Failure::bad(format!("the body: {error}")))?);
            while let Some(message) = frames.next()? {
                match read(&message)? {
                    InputEvent::Start(selected) => process = Some(selected.process.find_running(&sandbox)?),
                    InputEvent::Data { input } => {
                        let process = process.as_ref().ok_or_else(|| Failure::bad("data before start"))?;
                        input.write(process).await?;
                    }
                    InputEvent::Keepalive {} => {}
                }
            }
        }
        frames.end()
    };
    let done = done.await;
    let mut chunk = BytesMut::new();
    if done.is_ok() {
        frames::put(&mut chunk, b"{}");
    }
    frames::put_end(&mut chunk, done.as_ref().err());
    ([(CONTENT_TYPE, STREAMED)], chunk.freeze()).into_response()
}

async fn close_stdin(Addressed(sandbox): Addressed, headers: HeaderMap, body: Bytes) -> Response {
    let done = async {
        is_json(&headers, UNARY)?;
        let request: Selected = read(&body)?;
        let process = request.process.find_running(&sandbox)?;
        process.close_input().await.map_err(|error| Failure::bad(format!("stdin: {error}")))?;
        Ok(serde_json::json!({}))
    };
    answer(done.await)
}

#[derive(Debug, Deserialize)]
struct SignalRequest {
    #[serde(default)]
    process: Selector,
    signal: serde_json::Value,
}

async fn send_signal(Addressed(sandbox): Addressed, headers: HeaderMap, body: Bytes) -> Response {
    let done = || {
        is_json(&headers, UNARY)?;
        let request: SignalRequest = read(&body)?;
        let signal = match (request.signal.as_str(), request.signal.as_i64()) {
            (Some("SIGNAL_SIGTERM"), _) | (_, Some(15)) => Signal::TERM,
            (Some("SIGNAL_SIGKILL"), _) | (_, Some(9)) => Signal::KILL,
            _ => return Err(Failure::bad("signal: SIGNAL_SIGTERM or SIGNAL_SIGKILL")),
        };
        request.process.find_running(&sandbox)?.signal(signal);
        Ok(serde_json::json!({}))
    };
    answer(done())
}

#[derive(Debug, Deserialize)]
struct UpdateRequest {
    #[serde(default)]
    process: Selector,
    pty: Option<Pty>,
}

async fn update(Addressed(sandbox): Addressed, headers: HeaderMap, body: Bytes) -> Response {
    let done = || {
        is_json(&headers, UNARY)?;
        let request: UpdateRequest = read(&body)?;
        let process = request.process.find_running(&sandbox)?;
        if let Some(pty) = &request.pty {
            let (rows, columns) = pty.size()?;
            process.resize(rows, columns).map_err(|error| Failure::bad(format!("pty: {error}")))?;
        }
        Ok(serde_json::json!({}))
    };
    answer(done())
}
