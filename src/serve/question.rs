//! The questions that a client asks a session, and the answers: JSON, in the packet or in a memfd. Both ends
//! use these types.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{error, fs, io};

use nix::fcntl::{FcntlArg, fcntl};
use serde::{Deserialize, Serialize};

use crate::image::Digest;
use crate::report::change::{Change, ChangeKind, Committed, Refusal, Refused};
use crate::report::denial::Denial;
use crate::report::error::Error;
use crate::report::error::listen::ListenError;
use crate::report::failure::Failure;
use crate::report::remedy::Remedy;
use crate::session::files::stream::{FileEntry, FileInfo};
use crate::sys::closing::HeldFd;
use crate::sys::inode::FileKind;
use crate::sys::mode::Mode;
use crate::sys::packet;
use crate::sys::path_text::PathText;
use crate::sys::signal::Signal;

/// What a client asks about a command that stays.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AboutDetached {
    /// `lines`: only the last ones.
    Logs {
        follows: bool,
        lines: Option<u64>,
    },
    Kill {
        signal: Signal,
    },
    Wait {
        wants_report: bool,
        wants_data: bool,
    },
}

/// The longest content of a memfd that a session reads, in bytes: a call may be longer than what execve(2)
/// takes.
const LONGEST: u32 = 8 << 20;

impl Question {
    /// Whether the answer is what the session knows about itself, as lists of sessions ask.
    pub(crate) fn asks_what_is_known(&self) -> bool {
        matches!(self, Self::Describe | Self::Stats | Self::Processes | Self::Detached | Self::Published)
    }
}

/// What a client asks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Question {
    Describe,
    Stats,
    Processes,
    /// The commands that stay.
    Detached,
    /// The published ports.
    Published,
    Publish {
        port: String,
    },
    Connect {
        port: u16,
    },
    Changes,
    Commit(CommitOrder),
    Discard,
    /// What commands changed in the image. No command starts until the connection ends.
    Snapshot,
    EndShell {
        shell: String,
    },
    Stat {
        path: PathText,
    },
    List {
        path: PathText,
    },
    Read {
        path: PathText,
    },
    Write {
        path: PathText,
        /// The permission bits of a new file.
        #[serde(default)]
        mode: Option<u32>,
    },
    Mkdir {
        path: PathText,
    },
    Remove {
        path: PathText,
    },
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply<T> {
    Ok(T),
    Error(Problem),
}

/// Why there is no answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Problem {
    pub(crate) message: String,
    #[serde(default)]
    pub(crate) hint: Option<Remedy>,
    /// If a system call failed.
    #[serde(default)]
    pub(crate) errno: Option<i32>,
    pub(crate) failure: Failure,
}

impl Problem {
    pub(crate) fn new(error: &Error) -> Self {
        Self { message: error.chain(), hint: error.remedy(), errno: errno(error), failure: error.failure() }
    }
}

impl From<Problem> for Error {
    fn from(Problem { message, hint, .. }: Problem) -> Self {
        ListenError::Refused { message, hint }.into()
    }
}

/// The errno of the innermost cause that has one.
fn errno(error: &(dyn error::Error + 'static)) -> Option<i32> {
    let own = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
    error.source().and_then(errno).or(own)
}

/// The JSON of a message: what follows it in the packet, or else a memfd. `None` if it is neither.
pub(crate) fn json_of<'p>(
    rest: &'p [u8],
    memfd: Option<HeldFd>,
    length: u32,
) -> Option<std::borrow::Cow<'p, [u8]>> {
    match memfd {
        Some(memfd) if rest.is_empty() => content(memfd, length).map(Into::into),
        _ => rest.get(..usize::try_from(length).ok()?).map(Into::into),
    }
}

/// Reads a memfd. Any other file is refused, because to read or close it could block.
pub(crate) fn content(memfd: HeldFd, length: u32) -> Option<Vec<u8>> {
    fcntl(&memfd, FcntlArg::F_GET_SEALS).ok()?;
    let file = fs::File::from(memfd.into_own());
    if length > LONGEST || file.metadata().ok()?.len() < length.into() {
        return None;
    }
    packet::content(&file, length).ok()
}

/// What to commit.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CommitOrder {
    /// The directory of the changes, if the client knows it: then nothing is committed in another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) directory: Option<PathText>,
    /// All, if empty.
    #[serde(default)]
    pub(crate) paths: Vec<PathText>,
    #[serde(default)]
    pub(crate) overwrite: bool,
}

/// What comes with the changes of an image.
#[derive(Debug, Deserialize)]
pub(crate) struct SentSnapshot {
    pub(crate) image: Digest,
}

/// What the session was prepared with.
#[derive(Debug, Deserialize)]
pub(crate) struct SentDescription {
    pub(crate) profile: String,
    pub(crate) workspace: PathText,
}

/// A command that stays.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SentDetached {
    pub(crate) id: u32,
    /// As the caller named it.
    pub(crate) program: PathText,
    pub(crate) started_ms: u64,
    pub(crate) state: SentState,
    /// The exit status, and the signal if it stands for one.
    pub(crate) code: u32,
    pub(crate) signal: u32,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SentState {
    Running,
    Ended,
    /// Its sandbox was killed from outside.
    Lost,
}

/// A [`Change`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SentChange {
    path: PathText,
    kind: ChangeKind,
    file: FileKind,
}

/// A [`Committed`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SentCommit {
    applied: Vec<SentChange>,
    refused: Vec<SentRefused>,
    left: Vec<SentChange>,
    denials: Vec<Denial>,
}

#[derive(Debug, Serialize, Deserialize)]
struct SentRefused {
    #[serde(flatten)]
    change: SentChange,
    #[serde(with = "RefusalDef")]
    refusal: Refusal,
    /// The same in words.
    reason: String,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Refusal", rename_all = "snake_case")]
enum RefusalDef {
    Conflict,
    Protected,
    Unsupported,
    Withheld,
    Unsuccessful,
    Failed(i32),
}

/// A [`FileInfo`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SentInfo {
    kind: FileKind,
    size: u64,
    mode: u32,
    modified_ns: i64,
}

/// A [`FileEntry`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SentEntry {
    name: PathText,
    kind: FileKind,
    size: u64,
}

impl From<Change> for SentChange {
    fn from(Change { path, kind, file }: Change) -> Self {
        Self { path: PathText(path), kind, file }
    }
}

impl From<SentChange> for Change {
    fn from(SentChange { path: PathText(path), kind, file }: SentChange) -> Self {
        Self { path, kind, file }
    }
}

fn all<T, U: From<T>>(these: Vec<T>) -> Vec<U> {
    these.into_iter().map(U::from).collect()
}

impl From<Committed> for SentCommit {
    fn from(Committed { applied, refused, left, denials }: Committed) -> Self {
        Self { applied: all(applied), refused: all(refused), left: all(left), denials }
    }
}

impl From<SentCommit> for Committed {
    fn from(SentCommit { applied, refused, left, denials }: SentCommit) -> Self {
        Self { applied: all(applied), refused: all(refused), left: all(left), denials }
    }
}

impl From<Refused> for SentRefused {
    fn from(Refused { change, refusal }: Refused) -> Self {
        Self { change: change.into(), refusal, reason: refusal.to_string() }
    }
}

impl From<SentRefused> for Refused {
    fn from(SentRefused { change, refusal, .. }: SentRefused) -> Self {
        Self { change: change.into(), refusal }
    }
}

impl From<FileInfo> for SentInfo {
    fn from(FileInfo { kind, size, mode, modified }: FileInfo) -> Self {
        let nanoseconds = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
        let modified_ns = match modified.duration_since(UNIX_EPOCH) {
            Ok(since) => nanoseconds(since),
            Err(before) => -nanoseconds(before.duration()),
        };
        Self { kind, size, mode: mode.bits(), modified_ns }
    }
}

impl From<SentInfo> for FileInfo {
    fn from(SentInfo { kind, size, mode, modified_ns }: SentInfo) -> Self {
        let span = Duration::from_nanos(modified_ns.unsigned_abs());
        let modified =
            if modified_ns < 0 { UNIX_EPOCH.checked_sub(span) } else { UNIX_EPOCH.checked_add(span) };
        Self { kind, size, mode: Mode::new(mode), modified: modified.unwrap_or(SystemTime::UNIX_EPOCH) }
    }
}

impl From<FileEntry> for SentEntry {
    fn from(FileEntry { name, kind, size }: FileEntry) -> Self {
        Self { name: PathText(PathBuf::from(name)), kind, size }
    }
}

impl From<SentEntry> for FileEntry {
    fn from(SentEntry { name: PathText(name), kind, size }: SentEntry) -> Self {
        Self { name: OsString::from(name), kind, size }
    }
}
