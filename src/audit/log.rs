//! A log that is open: which file it is in, and what has been lost.

use std::{
    ffi::OsString,
    io,
    os::fd::OwnedFd,
    path::Path,
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use nix::{
    fcntl::{OFlag, open},
    sys::stat::Mode,
};

use super::{file::LogFile, line::Line, place};
use crate::policy::Audit;

/// The log of a policy, for all sandboxes made of it.
#[derive(Debug)]
pub(crate) struct Log {
    audit: Audit,
    directory: OwnedFd,
    name: OsString,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// None where a file could not be opened anew.
    file: Option<LogFile>,
    /// Records that could not be written since the last that could.
    lost: u64,
}

impl Log {
    /// Opens or makes the log; its path is absolute. Its directory is held from here on: names in it may come and go.
    pub(crate) fn open(audit: &Audit) -> io::Result<Self> {
        place::make(&audit.path)?;
        let parent = audit.path.parent().unwrap_or(Path::new("/"));
        let name = audit.path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        let directory = open(parent, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        let file = LogFile::open(&directory, &name, &today())?;
        let state = Mutex::new(State { file: Some(file), lost: 0 });
        Ok(Self { audit: audit.clone(), directory, name, state })
    }

    /// What the policy says of it.
    pub(crate) fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Appends a line.
    ///
    /// # Errors
    /// It is not written. What is lost is counted, and told once here and in the next line that is written.
    pub(super) fn write(&self, mut line: Line<'_>) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        line.lost = state.lost;
        let written = self.append(&mut state, line);
        match &written {
            Ok(()) => state.lost = 0,
            Err(error) => {
                if state.lost == 0 {
                    let path = self.audit.path.display();
                    tracing::error!(%path, %error, "the audit log cannot be written");
                }
                state.lost += 1;
            }
        }
        written
    }

    fn append(&self, state: &mut State, mut line: Line<'_>) -> io::Result<()> {
        let today = today();
        let file = match state.file.take().filter(|file| file.is_current(&today)) {
            Some(file) => state.file.insert(file),
            None => state.file.insert(LogFile::open(&self.directory, &self.name, &today)?),
        };
        if self.audit.chain {
            return file.append_chained(|prev| {
                line.prev = Some(prev);
                Ok(serde_json::to_vec(&line)?)
            });
        }
        file.append(serde_json::to_vec(&line)?)
    }
}

fn today() -> String {
    place::day(SystemTime::now())
}
