//! The keeper of a shell, as the outside sees it: a command of the session that started one bash or sh. Also
//! the lines that the shell reads.
//!
//! The shell is interactive, with its input from a pipe: then errors and SIGINT end a snippet and not the
//! shell. It shows no prompt to anybody. Each call brings descriptors of its own, which the shell opens below
//! the keeper's `/proc/PID/fd`. The last of them carries the report: number, status and directory. A snippet
//! can forge a report, and then it has a wrong result.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kennel_helper::control::{LONGEST_SHELL_ORDER, SHELL_FILES, ShellOrder};
use kennel_helper::wire::Field;
use nix::fcntl::OFlag;
use tokio::io::AsyncReadExt;
use tokio::io::Interest;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use crate::command::child::Child;
use crate::command::source::WorkerSource;
use crate::command::{Command, CommandSource};
use crate::launch::control::{ignore_epipe, socket_pair};
use crate::launch::image::Image;
use crate::process::program::candidates;
use crate::process::stdio::Stdio;
use crate::report::error::Error;
use crate::report::outcome::Outcome;
use crate::sys;
use crate::sys::packet;

/// The program of the keeper: descriptor 0 of its command.
const OWN_IMAGE: &str = "/proc/self/fd/0";

/// How long a new shell may take until it reads its input.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// More bytes without the end of a report are none.
const LONGEST_REPORT: usize = 16 << 10;

/// The number of the report, among the descriptors of a call. It is the only one of a start.
const REPORT: u32 = SHELL_FILES;
const SNIPPET: u32 = SHELL_FILES + 1;
const STDOUT: u32 = SHELL_FILES + 2;
const STDERR: u32 = SHELL_FILES + 3;

/// What a new shell reads first: no prompts, no history, no mail. In bash, a failure under `set -e` returns
/// from the snippet and switches `set -e` off, so that it does not end the shell.
const FIRST_LINES: &str = r#"PS1= PS2=; unset HISTFILE PROMPT_COMMAND MAILCHECK TMOUT
[ -z "$BASH_VERSION" ] || eval 'set +o history +o histexpand -o errtrace; history -c; trap '\''case $-:${#BASH_SOURCE[@]} in *e*:[01]) eval "set +e; return $?";; *e*:*) return $?;; esac'\'' ERR'
"#;

/// A running shell.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) child: Child,
    pub(crate) control: OwnedFd,
    /// Its PID in the sandbox.
    pid: u32,
    /// The number of the last report that was asked for.
    number: u64,
    /// `$?` of the last call.
    pub(crate) status: u8,
    pub(crate) directory: PathBuf,
    /// The generation of the session's mounts when it started.
    pub(crate) generation: u64,
}

/// The descriptors of a call, as the shell gets them.
pub(crate) struct CallFiles<'f> {
    pub(crate) snippet: BorrowedFd<'f>,
    pub(crate) stdout: BorrowedFd<'f>,
    pub(crate) stderr: BorrowedFd<'f>,
    pub(crate) report: BorrowedFd<'f>,
}

impl Keeper {
    /// Starts a shell: bash, or sh where the search path has no bash. Returns once it reads its input.
    pub(crate) async fn start(session: &Arc<dyn WorkerSource>, generation: u64) -> Result<Self, Error> {
        let (control, theirs) = socket_pair().map_err(Error::io("make the control socket of a shell"))?;
        let image = Image::sealed().map_err(Error::io("create a memfd for the keeper of a shell"))?;
        let prepared = session.prepared();
        let compiled = &prepared.compiled;
        let path = compiled.commands.environment.0.get(OsStr::new("PATH"));
        let programs = ["bash", "sh"].into_iter().flat_map(|name| {
            candidates(name.as_ref(), path.map(|path| path.as_os_str()), &compiled.commands.directory)
        });
        let mut command = Command::new(CommandSource::Session(Arc::clone(session)), OWN_IMAGE.as_ref());
        command.keeper().arg0("kennel-shell").arg("shell").args(programs);
        // An empty one is not read, and `FIRST_LINES` removes it.
        command.env("HISTFILE", "").stdin(image.into_fd()).stdout(theirs).stderr(Stdio::null());
        let child = command.spawn().await?;
        drop(command);
        let directory = compiled.commands.directory.clone();
        let mut keeper = Self { child, control, pid: 0, number: 0, status: 0, directory, generation };
        match timeout(START_TIMEOUT, keeper.begin()).await {
            Ok(begun) => begun.map(|()| keeper),
            Err(_) => Err(Error::Io { what: "start a shell", source: io::ErrorKind::TimedOut.into() }),
        }
    }

    /// Waits for the first message of the keeper and for the first report of the shell.
    async fn begin(&mut self) -> Result<(), Error> {
        let control = self.control.try_clone().and_then(|control| sys::watched(control, Interest::READABLE));
        let control = control.map_err(Error::io("watch the control socket of a shell"))?;
        let first = control.async_io(Interest::READABLE, |control| packet::receive(control, 8));
        let first = tokio::select! {
            biased;
            first = first => first.map_err(Error::io("read the control socket of a shell"))?,
            ended = self.child.wait() => return Err(not_started(&ended?)),
        };
        let pid = first.bytes.try_into().map_err(|_| Error::Lost)?;
        self.pid = u32::from_le_bytes(pid);
        let (mut reports, report) = Reports::new()?;
        let lines = self.report_lines();
        self.write(FIRST_LINES, &[report.as_fd()])?;
        self.write(&lines, &[])?;
        drop(report);
        let directory = tokio::select! {
            biased;
            report = reports.next() => report.directory,
            ended = self.child.wait() => return Err(not_started(&ended?)),
        };
        self.directory = directory.unwrap_or_else(|| self.directory.clone());
        self.release()
    }

    /// Whether it has not ended since its last call.
    pub(crate) fn is_there(&self) -> bool {
        let mut bytes = Vec::new();
        ShellOrder::Release {}.put(&mut bytes);
        packet::send(&self.control, &bytes, &[]).is_ok()
    }

    /// Starts a call. Returns the number of its report.
    pub(crate) fn call(&mut self, files: &CallFiles<'_>) -> Result<u64, Error> {
        let file = |number| self.file(number);
        // So that the snippet finds `$?` of the one before.
        let status = if self.status > 0 { format!("(exit {})\n", self.status) } else { String::new() };
        // `command` keeps an error in it from ending sh. The backslash is against aliases, `>|` against
        // noclobber.
        let call =
            format!("\\command . {} </dev/null >|{} 2>|{}\n", file(SNIPPET), file(STDOUT), file(STDERR));
        let lines = status + &call + &self.report_lines();
        self.write(&lines, &[files.report, files.snippet, files.stdout, files.stderr])?;
        Ok(self.number)
    }

    /// Asks for another report. Returns its number.
    pub(crate) fn ask(&mut self) -> Result<u64, Error> {
        let lines = self.report_lines();
        self.write(&lines, &[])?;
        Ok(self.number)
    }

    /// SIGINT to the shell and what runs in its foreground.
    pub(crate) fn interrupt(&self) -> Result<(), Error> {
        self.order(&ShellOrder::Interrupt {}, &[])
    }

    /// SIGKILL to everything that the current call has started. [`left`] answers.
    pub(crate) fn kill_started(&self) -> Result<(), Error> {
        self.order(&ShellOrder::Kill {}, &[])
    }

    /// Asks how many processes of those that the current call has started are left. [`left`] answers.
    pub(crate) fn count_started(&self) -> Result<(), Error> {
        self.order(&ShellOrder::Count {}, &[])
    }

    /// Closes the keeper's copies of the descriptors of the last call.
    pub(crate) fn release(&self) -> Result<(), Error> {
        self.order(&ShellOrder::Release {}, &[])
    }

    /// The lines that make the shell report under the next number.
    fn report_lines(&mut self) -> String {
        self.number += 1;
        let (number, report) = (self.number, self.file(REPORT));
        // A NUL on both sides: whatever else is in the pipe is no part of the report. Three commands: a DEBUG
        // trap then writes to the null device and not into the report.
        format!(
            "\\command printf '\\000%s\\n' \"{number} $?\" >|{report}; \\command pwd >|{report}; \\command printf '\\0' >|{report}\n"
        )
    }

    fn file(&self, number: u32) -> String {
        format!("/proc/{}/fd/{number}", self.pid)
    }

    fn write(&self, lines: &str, files: &[BorrowedFd<'_>]) -> Result<(), Error> {
        self.order(&ShellOrder::Write { lines: lines.as_bytes() }, files)
    }

    /// A keeper that is gone is no error: the end of its command tells more.
    fn order(&self, order: &ShellOrder<'_>, files: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let mut bytes = Vec::new();
        order.put(&mut bytes);
        debug_assert!(bytes.len() <= LONGEST_SHELL_ORDER, "the keeper's buffer is shorter");
        ignore_epipe(packet::send(&self.control, &bytes, files))
            .map_err(Error::io("order the keeper of a shell"))
    }
}

/// The next answer of a keeper: how many processes are left. Waits forever if the keeper has gone.
pub(crate) async fn left(control: &OwnedFd) -> u32 {
    let control = control.try_clone().and_then(|control| sys::watched(control, Interest::READABLE));
    if let Ok(control) = control
        && let Ok(answer) = control.async_io(Interest::READABLE, |control| packet::receive(control, 8)).await
        && let Ok(count) = answer.bytes.try_into()
    {
        return u32::from_le_bytes(count);
    }
    std::future::pending().await
}

/// The error of a shell that ended before it read its input. The statuses are those of the keeper.
fn not_started(outcome: &Outcome) -> Error {
    match outcome.status.code() {
        Some(127) => Error::NotFound { program: "bash or sh".to_owned() },
        Some(126) => Error::NotExecutable {
            program: "bash or sh".to_owned(),
            source: io::ErrorKind::PermissionDenied.into(),
        },
        _ => Error::Lost,
    }
}

/// What the shell reports at the end of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CallReport {
    pub(crate) number: u64,
    pub(crate) status: u8,
    /// `None` if the shell cannot tell.
    pub(crate) directory: Option<PathBuf>,
}

/// The reading end of the pipe for reports. Anything may be in it.
#[derive(Debug)]
pub(crate) struct Reports {
    pipe: pipe::Receiver,
    read: Vec<u8>,
    /// How much of that was looked at.
    seen: usize,
}

impl Reports {
    /// A new pipe: its reader, and the end that the shell writes to.
    pub(crate) fn new() -> Result<(Self, OwnedFd), Error> {
        let (reader, writer) = call_pipe()?;
        let pipe = pipe::Receiver::from_owned_fd(reader).map_err(Error::io("read the reports of a shell"))?;
        Ok((Self { pipe, read: Vec::new(), seen: 0 }, writer))
    }

    /// The next report. Waits forever after the last one.
    pub(crate) async fn next(&mut self) -> CallReport {
        loop {
            while let Some(text) = self.next_text() {
                if let Some(report) = parse(text) {
                    return report;
                }
            }
            self.read.drain(..self.seen);
            self.seen = 0;
            if self.read.len() > LONGEST_REPORT {
                self.read.clear();
            }
            let mut piece = [0; 4096];
            match self.pipe.read(&mut piece).await {
                Ok(0) | Err(_) => std::future::pending().await,
                Ok(count) => self.read.extend_from_slice(piece.get(..count).unwrap_or_default()),
            }
        }
    }
}

impl Reports {
    /// The next bytes up to a NUL.
    fn next_text(&mut self) -> Option<&[u8]> {
        let unread = self.read.get(self.seen..)?;
        let end = unread.iter().position(|&byte| byte == 0)?;
        self.seen += end + 1;
        unread.get(..=end)
    }
}

/// A report: number and status, a line with the directory, and NUL.
fn parse(text: &[u8]) -> Option<CallReport> {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let text = text.strip_suffix(b"\0")?;
    let end = text.iter().position(|&byte| byte == b'\n')?;
    let (head, directory) = text.split_at_checked(end)?;
    let (number, status) = std::str::from_utf8(head).ok()?.split_once(' ')?;
    let directory = directory.strip_prefix(b"\n")?.strip_suffix(b"\n");
    let directory =
        directory.filter(|path| path.starts_with(b"/")).map(|path| OsStr::from_bytes(path).into());
    Some(CallReport { number: number.parse().ok()?, status: status.parse().ok()?, directory })
}

/// A pipe for one call, both ends closed on execve(2).
pub(crate) fn call_pipe() -> Result<(OwnedFd, OwnedFd), Error> {
    nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(|errno| Error::io("make a pipe for a shell")(errno.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_number_status_and_directory() {
        let of = |text: &str| parse(text.as_bytes());
        let report = |number, status, directory: Option<&str>| {
            Some(CallReport { number, status, directory: directory.map(PathBuf::from) })
        };
        assert_eq!(of("7 0\n/work\n\0"), report(7, 0, Some("/work")));
        assert_eq!(of("7 130\n/a\nb\n\0"), report(7, 130, Some("/a\nb")), "a name with a line break");
        assert_eq!(of("7 1\n\n\0"), report(7, 1, None));
        for forged in ["", "\0", "7\0", "7 0\0", "7 0\n/work\n", "x 0\n/\n\0", "7 256\n/\n\0", "7 -1\n/\n\0"]
        {
            assert_eq!(of(forged), None, "{forged:?}");
        }
    }
}
