//! The log file of a detached command: a regular file of the caller that takes all of the output. A thread of
//! its own writes to it, so that a slow disk holds up only this command.

use std::future::pending;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::time::timeout;

use crate::command::outlet::Outlet;
use crate::report::failure;
use crate::sys::closing::HeldFd;
use crate::sys::inode::{FileKind, kind};
use crate::sys::known_stat;

/// How long the file may take for the rest of the output, once the command has ended.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether a descriptor can be a log file. One of any other kind could block its thread for ever.
pub(crate) fn is_log_file(fd: &impl AsFd) -> bool {
    let flags = fcntl(fd, FcntlArg::F_GETFL).map(OFlag::from_bits_retain);
    let is_writable = flags.is_ok_and(|flags| {
        !flags.contains(OFlag::O_PATH) && matches!(flags & OFlag::O_ACCMODE, OFlag::O_WRONLY | OFlag::O_RDWR)
    });
    is_writable && known_stat(fd).is_ok_and(|stat| kind(&stat) == FileKind::File)
}

/// Copies the output to the log file, if there is one.
#[derive(Debug)]
pub(crate) struct LogCopy {
    outlet: Option<Outlet>,
    /// What its thread has not taken yet.
    pending: Vec<u8>,
}

impl LogCopy {
    /// Starts the thread that writes to the file.
    ///
    /// # Errors
    /// The kernel refuses a thread.
    pub(crate) fn open(file: Option<HeldFd>) -> io::Result<Self> {
        Ok(Self { outlet: file.map(Outlet::open).transpose()?, pending: Vec::new() })
    }

    /// Adds bytes for the file. The caller reads no more as long as some are pending.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        if self.outlet.is_some() {
            self.pending.extend_from_slice(bytes);
        }
    }

    pub(crate) fn is_free(&self) -> bool {
        self.pending.is_empty()
    }

    /// Hands pending bytes to the thread, or waits until it fails; forever without a file. Returns why it
    /// failed.
    pub(crate) async fn advance(&mut self) -> Option<String> {
        let Some(outlet) = &mut self.outlet else { return pending().await };
        if !self.pending.is_empty()
            && let Ok(room) = outlet.pieces.reserve().await
        {
            room.send(std::mem::take(&mut self.pending));
            return None;
        }
        // As long as there may be more to write, the thread ends only after an error.
        let written = (&mut outlet.written).await.unwrap_or(Ok(()));
        *self = Self { outlet: None, pending: Vec::new() };
        written.err().map(|error| failure::words(&error))
    }

    /// Waits a moment until all is written. Returns why some is not.
    pub(crate) async fn finish(&mut self) -> Option<String> {
        let all = async {
            while !self.is_free() {
                if let Some(why) = self.advance().await {
                    return Some(why);
                }
            }
            let Outlet { pieces, written } = self.outlet.take()?;
            drop(pieces);
            written.await.unwrap_or(Ok(())).err().map(|error| failure::words(&error))
        };
        let late = "it did not take the rest of the output in time".to_owned();
        timeout(PATIENCE, all).await.unwrap_or(Some(late))
    }
}
