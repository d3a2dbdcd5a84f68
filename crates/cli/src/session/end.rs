//! How a command of a session ended, as the session reports it: for `--json`, for people, for the exit
//! status.

use std::{fs::File, io, path::Path, process::ExitCode};

use kennel::{
    Error,
    report::{ListenError, Report},
};

use crate::{
    process::exit_status::{self, FAILED, TIMED_OUT},
    report,
    terminal::relay::unwritten,
};

/// How a command ended.
pub(super) struct End {
    pub(super) code: u8,
    /// The signal that `code` stands for.
    pub(super) signal: Option<i32>,
    pub(super) message: Vec<u8>,
    pub(super) report: Option<Vec<u8>>,
    /// Why some output on the command's own terminal was not shown.
    pub(super) unwritten: Option<Error>,
}

impl End {
    /// The end as the session reports it.
    pub(super) fn reported(code: u8, signal: Option<i32>, message: Vec<u8>, report: Option<Vec<u8>>) -> Self {
        Self { code, signal, message, report, unwritten: None }
    }

    /// Adds what the session cannot know: whether all output on the command's terminal was shown.
    pub(super) fn with_output(mut self, shown: io::Result<()>) -> Self {
        if shown.is_ok() {
            return self;
        }
        let was_killed = self.code == TIMED_OUT || self.signal.is_some();
        self.unwritten = unwritten(shown, was_killed);
        if !was_killed {
            self.code = FAILED;
        }
        let error = self.unwritten.as_ref();
        self.report = self.report.map(|text| report::correct_unshown(&text, self.code, error));
        self
    }
}

/// The file of `--json`, and its path.
pub(super) struct Json<'p>(File, &'p Path);

impl<'p> Json<'p> {
    /// Creates it before anything runs.
    ///
    /// # Errors
    /// Those of [`report::create`].
    pub(super) fn create(path: Option<&'p Path>) -> Result<Option<Self>, Error> {
        path.map(|path| Ok(Self(report::create(path)?, path))).transpose()
    }
}

/// Writes the report, prints what the session says, and ends as the command ended: by its signal, unless that
/// is to become an `exit_code`.
///
/// # Errors
/// The command did not run, or the report cannot be written.
pub(super) fn finish(
    json: Option<&Json<'_>>,
    end: Result<End, Error>,
    exit_code: bool,
) -> Result<ExitCode, Error> {
    let mut written = Ok(());
    if let Some(Json(file, path)) = json {
        let text = match &end {
            Ok(End { report: Some(text), .. }) => text.clone(),
            Ok(End { message, .. }) => report::object(&Report::failed(&refused_call(message))),
            Err(error) => report::object(&Report::failed(error)),
        };
        written = report::write(file, path, &text);
    }
    // Report an error of the command even if the JSON report could not be written.
    let End { code, signal, message, unwritten, .. } = end?;
    report::relay(&message, exit_status::is_error(code));
    if let Some(error) = &unwritten {
        report::error(error);
    }
    written?;
    Ok(exit_status::end(code, signal.filter(|_| !exit_code)))
}

/// The error for a call that the session refused without a report.
fn refused_call(message: &[u8]) -> Error {
    let text = String::from_utf8_lossy(message);
    let line = text.lines().next().unwrap_or_default();
    let message = line.strip_prefix("kennel: ").unwrap_or(line).to_owned();
    ListenError::Refused { message, hint: None }.into()
}
