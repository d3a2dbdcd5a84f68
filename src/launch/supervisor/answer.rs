//! The answer to a call that waits, and the words in which a call and its answer are written: arguments and
//! errnos.

use std::io;
use std::os::fd::BorrowedFd;

use nix::errno::Errno;

use crate::sys;

/// The answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The call was made. 0, or the kernel's errno.
    Made(i32),
    /// The call was made, and the caller has the file at this number.
    Opened(i32),
    /// The call was not made, and returns 0: root cannot give the file to that owner.
    Pretended,
    /// The call would leave a set-group-ID file behind.
    Refused,
    /// The kernel makes the call, and checks it as if nobody had been asked.
    LetGo,
}

impl Answer {
    /// What the call returns; 0 if it succeeds.
    pub(crate) fn errno(self) -> i32 {
        match self {
            Self::Made(errno) => errno,
            Self::Opened(_) | Self::Pretended | Self::LetGo => 0,
            Self::Refused => libc::EPERM,
        }
    }

    /// Answers the kernel.
    ///
    /// # Errors
    /// Those of the ioctl.
    pub(crate) fn send(self, listener: BorrowedFd<'_>, id: u64) -> Result<(), Errno> {
        let sent = match (self, self.errno()) {
            (Self::LetGo, _) => sys::continue_notification(listener, id),
            (Self::Opened(number), _) => sys::answer_notification(listener, id, Ok(number)),
            (_, 0) => sys::answer_notification(listener, id, Ok(0)),
            (_, errno) => sys::answer_notification(listener, id, Err(errno)),
        };
        sent.map_err(errno)
    }
}

/// An argument that the kernel cuts to `int`.
pub(crate) fn int(argument: u64) -> i32 {
    word(argument).cast_signed()
}

/// An argument that the kernel cuts to `unsigned int`.
#[expect(clippy::cast_possible_truncation, reason = "the kernel cuts it the same way")]
pub(crate) fn word(argument: u64) -> u32 {
    argument as u32
}

/// The errno of a failed system call.
pub(crate) fn errno(error: io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}
