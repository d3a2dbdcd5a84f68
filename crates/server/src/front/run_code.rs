//! `POST /run_code`, as SandboxFusion has it: a piece of code in a language, compiled if it must be, and run
//! in a sandbox of its own.
//!
//! Its clients have no place for a key but the URL: `http://KEY@HOST`.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kennel::Size;
use serde::{Deserialize, Serialize};

use crate::config::tokens::Token;
use crate::front::Front;
use crate::front::control::Longest;
use crate::front::v1::OfRequest;
use crate::http::request::{MOST_RUN, body_of};
use crate::v1::content::{Content, FileContent};
use crate::v1::run::RunRequest;
use crate::wire::failure::{Failure, Reason};

/// The longest answer of a host: its output and its files, in JSON.
pub(crate) const MOST_ANSWER: usize = 512 << 20;

/// Other keys are ignored: clients add some.
#[derive(Deserialize)]
struct CodeRequest {
    code: String,
    language: String,
    #[serde(default = "usual_timeout")]
    compile_timeout: f64,
    #[serde(default = "usual_timeout")]
    run_timeout: f64,
    #[serde(rename = "memory_limit_MB")]
    memory_limit: Option<u64>,
    stdin: Option<String>,
    /// Base64, by path.
    #[serde(default)]
    files: BTreeMap<String, Option<String>>,
    #[serde(default)]
    fetch_files: Vec<String>,
}

/// Seconds.
fn usual_timeout() -> f64 {
    10.0
}

#[derive(Default, Serialize)]
struct CodeAnswer {
    status: Status,
    message: String,
    compile_result: Option<CommandResult>,
    run_result: Option<CommandResult>,
    executor_pod_name: Option<String>,
    /// Base64, by path.
    files: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
enum Status {
    #[default]
    Success,
    Failed,
    /// The code did not run.
    SandboxError,
}

#[derive(Serialize)]
struct CommandResult {
    status: CommandStatus,
    /// Seconds.
    execution_time: f64,
    return_code: Option<i32>,
    stdout: String,
    stderr: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum CommandStatus {
    Finished,
    Error,
    TimeLimitExceeded,
}

/// What a host says of a command, as far as it is needed here.
#[derive(Deserialize)]
struct Ran {
    report: RanReport,
    stdout: Content,
    stderr: Content,
    files: Vec<FileContent>,
}

#[derive(Deserialize)]
struct RanReport {
    ended: String,
    exit_code: i32,
    signal: Option<i32>,
    duration_ms: u32,
    failure: Option<RanFailure>,
}

#[derive(Deserialize)]
struct RanFailure {
    message: String,
}

impl Ran {
    fn has_succeeded(&self) -> bool {
        self.report.ended == "exited" && self.report.exit_code == 0
    }

    /// Why its program could not start.
    fn failure(&self) -> Option<&str> {
        let words = self.report.failure.as_ref().map_or("it could not start", |failure| &failure.message);
        (self.report.ended == "failed").then_some(words)
    }

    fn into_result(self) -> CommandResult {
        let status = match self.report.ended.as_str() {
            "timed_out" => CommandStatus::TimeLimitExceeded,
            "failed" => CommandStatus::Error,
            _ => CommandStatus::Finished,
        };
        let code = self.report.signal.map_or(self.report.exit_code, |signal| -signal);
        CommandResult {
            status,
            execution_time: f64::from(self.report.duration_ms) / 1000.0,
            return_code: (status == CommandStatus::Finished).then_some(code),
            stdout: text(self.stdout),
            stderr: text(self.stderr),
        }
    }
}

/// Output as text. What is not UTF-8 is replaced.
fn text(content: Content) -> String {
    match content {
        Content::Text(text) => text,
        Content::Base64(text) => {
            String::from_utf8_lossy(&STANDARD.decode(text).unwrap_or_default()).into_owned()
        }
        Content::Sha256(_) => String::new(),
    }
}

/// A file in base64.
fn encoded(content: Content) -> String {
    match content {
        Content::Text(text) => STANDARD.encode(text),
        Content::Base64(text) => text,
        Content::Sha256(_) => String::new(),
    }
}

/// Compiles and runs a piece of code.
pub(crate) async fn run_code(
    front: &Front,
    token: &Token,
    request: Request<Body>,
) -> Result<Response<Body>, Failure> {
    let body = body_of(request.into_body(), MOST_RUN).await?;
    let asked: CodeRequest =
        serde_json::from_slice(&body).map_err(|error| Failure::bad(format!("the body: {error}")))?;
    let language = front.config.languages.get(&asked.language).ok_or_else(|| {
        let names: Vec<_> = front.config.languages.keys().map(String::as_str).collect();
        let message = format!("language: {:?} is not served; there are {}", asked.language, names.join(", "));
        Failure::bad(message)
    })?;
    let name = &language.template;
    let template = front.template(token, name)?;
    let mut compile = language.compile.clone().map(|argv| RunRequest::new(argv, asked.compile_timeout));
    let mut run = RunRequest::new(language.run.clone(), asked.run_timeout);
    let code = FileContent { path: language.file.clone(), content: Content::Text(asked.code) };
    let given = asked.files.into_iter().filter_map(|(path, content)| {
        content.map(|content| FileContent { path, content: Content::Base64(content) })
    });
    let files = given.chain([code]).collect();
    compile.as_mut().unwrap_or(&mut run).files = files;
    run.stdin = asked.stdin.map(Content::Text);
    run.outputs = asked.fetch_files;
    let compile_time = compile.as_ref().map_or(Ok(Duration::ZERO), RunRequest::time)?;
    let time = compile_time.saturating_add(run.time()?);
    Longest::of(token, name, template).check(time)?;
    let mut policy = template.policy.clone();
    if let Some(wanted) = asked.memory_limit.map(|limit| Size::from_bytes(limit.saturating_mul(1 << 20))) {
        // Clients always send a number, whatever the template has.
        policy.limits.memory = Some(policy.limits.memory.map_or(wanted, |most| most.min(wanted)));
        policy.validate().map_err(|error| Failure::bad(kennel::Error::from(error).chain()))?;
    }
    let sandbox = OfRequest::make(front, token, template.making(name, policy), time).await?;
    let mut answer = CodeAnswer::default();
    if let Some(compile) = compile {
        let ran = read(sandbox.run(front, token, &compile).await?).await?;
        answer.note(&ran);
        answer.compile_result = Some(ran.into_result());
    }
    if answer.status == Status::Success {
        let mut ran = read(sandbox.run(front, token, &run).await?).await?;
        answer.note(&ran);
        let files = std::mem::take(&mut ran.files);
        answer.files = files.into_iter().map(|file| (file.path, encoded(file.content))).collect();
        answer.run_result = Some(ran.into_result());
    }
    Ok(axum::Json(answer).into_response())
}

impl CodeAnswer {
    /// Notes what became of a command.
    fn note(&mut self, ran: &Ran) {
        if let Some(words) = ran.failure() {
            self.status = Status::SandboxError;
            self.message = words.to_owned();
        } else if !ran.has_succeeded() {
            self.status = Status::Failed;
        }
    }
}

/// Reads what a host says of a command.
async fn read(response: Response<Body>) -> Result<Ran, Failure> {
    let status = response.status();
    let body = to_bytes(response.into_body(), MOST_ANSWER).await;
    let body = body.map_err(|_| Failure::gone(Some(Reason::SessionLost)))?;
    if status != StatusCode::OK {
        return Err(Failure::of_answer(status, &body));
    }
    serde_json::from_slice(&body).map_err(|_| Failure::gone(Some(Reason::SessionLost)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(report: &str) -> (Status, CommandStatus, Option<i32>) {
        let text = format!(
            r#"{{"report": {report}, "stdout": {{"text": ""}}, "stderr": {{"base64": "/w=="}}, "files": []}}"#
        );
        let ran: Ran = serde_json::from_str(&text).expect(report);
        let mut answer = CodeAnswer::default();
        answer.note(&ran);
        let result = ran.into_result();
        assert_eq!(result.stderr, "\u{fffd}");
        (answer.status, result.status, result.return_code)
    }

    #[test]
    fn ends_are_told_in_the_words_of_the_protocol() {
        use CommandStatus::{Error, Finished, TimeLimitExceeded};
        let with = |ended: &str, code: u8, signal: &str| {
            result(&format!(
                r#"{{"ended": "{ended}", "exit_code": {code}, "signal": {signal}, "duration_ms": 5, "failure": null}}"#
            ))
        };
        assert_eq!(with("exited", 0, "null"), (Status::Success, Finished, Some(0)));
        assert_eq!(with("exited", 3, "null"), (Status::Failed, Finished, Some(3)));
        assert_eq!(with("signaled", 139, "11"), (Status::Failed, Finished, Some(-11)));
        assert_eq!(with("timed_out", 124, "9"), (Status::Failed, TimeLimitExceeded, None));
        assert_eq!(with("failed", 127, "null"), (Status::SandboxError, Error, None));
    }
}
