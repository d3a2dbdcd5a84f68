//! The process that a session belongs to: prepares it, says where it listens, and waits for its end.

use std::{
    fs::{self, File},
    io::{self, Write},
    process::ExitCode,
};

use kennel::{Error, Listening, PolicyError, Session, inherited_descriptor};
use nix::unistd::{close, dup2_stderr, dup2_stdout, setsid};

use crate::{args::Start, policy, report, run, signals::interrupted};

/// Hosts a session for whoever started this process with pipes as stdout and stderr, and lets go of them once the session
/// takes commands.
pub(crate) fn background(start: &Start) -> Result<ExitCode, Error> {
    // The session outlives the terminal it was started from. It fails for a group leader only, which has no parent
    // that waits for it.
    let _ = setsid();
    host(start, || {
        let null = File::options().write(true).open("/dev/null")?;
        dup2_stdout(&null)?;
        dup2_stderr(&null)?;
        // Not before: the policy may have come by one of them.
        close_others();
        Ok(())
    })
}

/// Hosts a session until it is stopped, or this process interrupted.
pub(crate) fn foreground(start: &Start) -> Result<ExitCode, Error> {
    host(start, || Ok(()))
}

fn host(start: &Start, announced: impl FnOnce() -> io::Result<()>) -> Result<ExitCode, Error> {
    let policy = policy::from_flags(&start.policy)?;
    if policy.overlay.is_some() {
        let reason = "the changes of a named session could not be committed: use kennel run, or the library";
        let (key, value) = ("overlay".to_owned(), String::new());
        return Err(PolicyError::Value { key, value, reason: reason.to_owned() }.into());
    }
    let runtime = run::runtime(run::IDLE)?;
    let code = runtime.block_on(async {
        let session = Session::prepare(&policy).await?;
        let listening = session.listen(&start.name)?;
        if !start.quiet {
            report::weak(&session.enforcement());
        }
        let told = announce(&listening).and_then(|()| announced());
        told.map_err(|source| Error::Io { what: "report that the session takes commands", source })?;
        let code = tokio::select! {
            () = listening.stopped() => 0,
            status = interrupted() => status?,
        };
        drop(listening);
        session.shutdown().await;
        Ok(code)
    });
    // As with `kennel run`: nothing that is left may hold up the exit.
    std::mem::forget(runtime);
    code.map(ExitCode::from)
}

fn announce(listening: &Listening) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", listening.socket().display())?;
    stdout.flush()
}

/// Closes what was inherited besides the standard descriptors: whoever waits for the end of a pipe would wait for the
/// session. What we opened ourselves is closed on execve(2), and stays.
fn close_others() {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return };
    let names = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let numbers: Vec<i32> = names.filter(|&number| number > 2).collect();
    for number in numbers {
        if inherited_descriptor(format!("/dev/fd/{number}")).is_some_and(|given| given.is_ok()) {
            let _ = close(number);
        }
    }
}
