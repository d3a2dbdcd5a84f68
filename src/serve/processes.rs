//! Serves clients that ask what runs in the session.

use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use kennel_helper::client_wire::Answer;

use crate::serve::connection::{Connection, Wishes};
use crate::serve::detached::unless_left;
use crate::session::Session;
use crate::session::processes::SessionProcess;

/// Sends the list as fast as the client reads it.
pub(crate) async fn list(connection: &Connection, session: &Session) {
    let Some(listed) = unless_left(connection, session.processes()).await else { return };
    let listed = match listed {
        Ok(listed) => listed,
        Err(error) => return connection.ended(&Err(error), &Wishes::default()),
    };
    let sender = match connection.patient() {
        Ok(sender) => sender,
        Err(error) => return connection.refuse_for_shortage("send the list", &error),
    };
    let send_all = async {
        for process in &listed.processes {
            let arguments: Vec<u8> =
                process.arguments.iter().flat_map(|text| [text.as_bytes(), b"\0"].concat()).collect();
            sender.send(&described(process, &arguments)).await?;
        }
        sender.send(&Answer::Unlisted { count: listed.unlisted }).await
    };
    if let Some(Err(error)) = unless_left(connection, send_all).await {
        tracing::debug!(%error, "a client did not receive the list");
    }
}

fn described<'p>(process: &'p SessionProcess, arguments: &'p [u8]) -> Answer<'p> {
    Answer::Process {
        pid: process.pid.unsigned_abs(),
        host_pid: process.host_pid.unsigned_abs(),
        command: process.command.unwrap_or(0),
        state: process.state.letter().into(),
        age_ms: milliseconds(process.age),
        cpu_ms: milliseconds(process.cpu),
        memory: process.memory,
        is_cut: process.is_cut.into(),
        name: process.name.as_bytes(),
        arguments,
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
