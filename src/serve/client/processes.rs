//! What a client asks about the processes of a session.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use kennel_helper::client_wire::{Answer, Ask, LONGEST_ANSWER};
use kennel_helper::wire::{Cursor, Field};

use crate::report::error::Error;
use crate::serve::client::{Client, refused};
use crate::session::processes::{ProcessState, SessionProcess, SessionProcesses};
use crate::sys::packet;

impl Client {
    /// What runs in the session: see [`Session::processes`](crate::session::Session::processes).
    ///
    /// # Errors
    /// The session ends, does not answer, or cannot list them, or it is of a version of Kennel that does not know the
    /// question.
    pub fn processes(self) -> Result<SessionProcesses, Error> {
        self.limit_waits()?;
        self.ask(&Ask::Processes {}, &[])?;
        let mut listed = SessionProcesses::default();
        loop {
            let packet = packet::receive(&self.socket, LONGEST_ANSWER).map_err(|error| self.failed(error))?;
            match Answer::take(&mut Cursor::new(&packet.bytes)) {
                Some(Answer::Process {
                    pid,
                    host_pid,
                    command,
                    state,
                    age_ms,
                    cpu_ms,
                    memory,
                    is_cut,
                    name,
                    arguments,
                }) => listed.processes.push(SessionProcess {
                    pid: pid.cast_signed(),
                    host_pid: host_pid.cast_signed(),
                    command: (command != 0).then_some(command),
                    state: ProcessState::of_letter(char::from_u32(state).unwrap_or('S')),
                    age: Duration::from_millis(age_ms),
                    cpu: Duration::from_millis(cpu_ms),
                    memory,
                    name: String::from_utf8_lossy(name).into_owned(),
                    arguments: arguments
                        .split_inclusive(|&byte| byte == 0)
                        .map(|text| OsStr::from_bytes(text.strip_suffix(b"\0").unwrap_or(text)).to_owned())
                        .collect(),
                    is_cut: is_cut != 0,
                }),
                Some(Answer::Unlisted { count }) => {
                    listed.unlisted = count;
                    return Ok(listed);
                }
                Some(Answer::Ended { message, .. }) => return Err(refused(message)),
                _ => return Err(self.gone()),
            }
        }
    }
}
