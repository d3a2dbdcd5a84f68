//! The process that holds a session: its proxy, its temporary directory, and the file that lets commands in.

use std::{
    fs::File,
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use kennel::{
    Error, Session, TmpLife,
    internal::{HeldSession, SessionRecord},
};
use nix::unistd::{dup2_stderr, dup2_stdout, setsid};

use crate::{
    args::session::Start,
    policy::flags,
    process::{self, descriptor::close_inherited, signals},
    report,
};

/// How often the file of the session is marked as used.
const TOUCH: Duration = Duration::from_secs(60 * 60);

/// Holds a session in the background process. Closes the pipes to the starting process once the session takes
/// commands.
pub(super) fn background(start: &Start) -> Result<ExitCode, Error> {
    // Leave the terminal's session, so that the kennel session outlives the terminal. setsid(2) fails only
    // for a group leader, and then no parent waits for this process.
    let _ = setsid();
    hold(start, || {
        let null = File::options().write(true).open("/dev/null")?;
        dup2_stdout(&null)?;
        dup2_stderr(&null)?;
        // Only now: the policy may have come through an inherited descriptor.
        close_inherited()
    })
}

/// Holds a session until a signal interrupts this process.
pub(super) fn foreground(start: &Start) -> Result<ExitCode, Error> {
    hold(start, || Ok(()))
}

fn hold(start: &Start, announced: impl FnOnce() -> io::Result<()>) -> Result<ExitCode, Error> {
    let mut held = HeldSession::reserve(&start.name)?;
    let mut policy = flags::from_flags(&start.policy)?;
    policy.notes.extend(flags::notes(&start.policy));
    // As in a terminal: what one command leaves in its temporary directory, the next one finds.
    if start.policy.tmp.is_none() {
        policy.tmp = TmpLife::Session;
    }
    let runtime = process::runtime(process::IDLE_THREAD)?;
    let code = runtime.block_on(async {
        let session = Session::prepare(&policy).await?;
        held.publish(&SessionRecord::of(&session).await?)?;
        if !start.quiet {
            report::degraded(&session.enforcement());
        }
        // Who reads the announcement may end the session at once, and then nothing of it is left.
        let interrupted = signals::interruption()?;
        let told = announce(&held).and_then(|()| announced());
        told.map_err(|source| Error::Io { what: "announce the session", source })?;
        let code = tokio::select! {
            status = interrupted => status,
            never = stays_used(&held) => never,
        };
        drop(held);
        Ok(code)
    });
    runtime.shutdown_background();
    code.map(ExitCode::from)
}

fn announce(held: &HeldSession) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", held.path().display())?;
    stdout.flush()
}

/// Never returns.
async fn stays_used<T>(held: &HeldSession) -> T {
    loop {
        tokio::time::sleep(TOUCH).await;
        held.touch();
    }
}
