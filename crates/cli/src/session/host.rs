//! The process that holds a session: it prepares it, serves it, and ends it.

use std::{
    fs::File,
    io::{self, Write},
    process::ExitCode,
};

use kennel::{
    Error, Isolation, Overlay, Policy, Profile, Session, client::Listening, internal::Parent,
    overlay::KeptChanges, report::PolicyError,
};
use nix::unistd::{dup2_stderr, dup2_stdout, setsid};

use crate::{
    args::session::Start,
    image::missing,
    policy::flags,
    process::{self, descriptor::close_inherited, signals},
    report,
};

/// Hosts a session in the background process. Closes the pipes to the starting process once the session takes
/// commands.
pub(super) fn background(start: &Start) -> Result<ExitCode, Error> {
    // Leave the terminal's session, so that the kennel session outlives the terminal. setsid(2) fails only
    // for a group leader, and then no parent waits for this process.
    let _ = setsid();
    host(start, || {
        let null = File::options().write(true).open("/dev/null")?;
        dup2_stdout(&null)?;
        dup2_stderr(&null)?;
        // Only now: the policy may have come through an inherited descriptor.
        close_inherited()
    })
}

/// Hosts a session until somebody stops it or a signal interrupts this process.
pub(super) fn foreground(start: &Start) -> Result<ExitCode, Error> {
    host(start, || Ok(()))
}

fn host(start: &Start, announced: impl FnOnce() -> io::Result<()>) -> Result<ExitCode, Error> {
    let mut policy = flags::from_flags(&start.policy)?;
    start.warm.add_to(&mut policy);
    missing::pull(&policy, &start.pull)?;
    // Clients may set the others only if they are passed, so there is a reason to name them.
    if policy.profile != Profile::CiOnly {
        policy.notes.extend(flags::notes(&start.policy));
    }
    // As in a terminal: what one command starts, the next one finds.
    policy.isolation.get_or_insert(Isolation::Session);
    if !start.with_parent {
        keep_changes(&mut policy, Some(&start.name))?;
    }
    let runtime = process::runtime(process::IDLE_THREAD)?;
    let code = runtime.block_on(async {
        // If it has ended already, nobody reads the path of the socket: then the announcement fails.
        let parent = start.with_parent.then(Parent::open).transpose();
        let parent =
            parent.map_err(|source| Error::Io { what: "watch the process that started this one", source })?;
        let session = Session::prepare(&policy).await?;
        let listening = session.listen(&start.name)?;
        if !start.quiet {
            report::degraded(&session.enforcement());
        }
        report::chosen(&session.published());
        // Who reads the announcement may end the session at once, and then nothing of it is left.
        let interrupted = signals::interruption()?;
        let told = announce(&listening).and_then(|()| announced());
        told.map_err(|source| Error::Io { what: "announce the session", source })?;
        let code = tokio::select! {
            () = listening.stopped() => 0,
            status = interrupted => status,
            () = ended(parent.as_ref()) => 0,
            () = is_idle(&session, start) => 0,
        };
        drop(listening);
        session.shutdown().await;
        Ok(code)
    });
    settle(&policy);
    // As in `kennel run`: leftover threads do not delay the exit.
    std::mem::forget(runtime);
    code.map(ExitCode::from)
}

/// Waits for the end of the process that started this one, if this one is to end with it.
async fn ended(parent: Option<&Parent>) {
    match parent {
        Some(parent) => parent.ended().await,
        None => std::future::pending().await,
    }
}

/// Lets the session keep the changes of an overlay, for `kennel diff NAME`, or `kennel diff` if it has no
/// name.
pub(crate) fn keep_changes(policy: &mut Policy, name: Option<&str>) -> Result<(), Error> {
    let Some(overlay) = &mut policy.overlay else { return Ok(()) };
    if let Some(size) = overlay.size {
        let reason = "changes in memory would be lost: a session keeps them in a directory, without a size";
        let (key, value) = ("overlay.size".to_owned(), size.to_string());
        return Err(PolicyError::Value { key, value, reason: reason.to_owned() }.into());
    }
    let directory = match overlay.upper.take() {
        Some(directory) => directory,
        None => KeptChanges::directory(&policy.workspace, name)?,
    };
    *overlay = Overlay { upper: Some(directory), keeps: true, ..Overlay::default() };
    Ok(())
}

/// Drops what is no change. If that fails, `kennel diff` and `kennel commit` still work. The directory stays:
/// another session may begin in it.
pub(crate) fn settle(policy: &Policy) {
    let directory = policy.overlay.as_ref().and_then(|overlay| overlay.upper.as_deref());
    if let Some(directory) = directory
        && let Ok(Some(kept)) = KeptChanges::at(directory)
    {
        drop(kept.settle());
    }
}

fn announce(listening: &Listening) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", listening.socket().display())?;
    stdout.flush()
}

/// Waits until nobody has used the session for as long as the flag says.
async fn is_idle(session: &Session, start: &Start) {
    let Some(time) = start.idle else { return std::future::pending().await };
    session.idle_for(time.duration()).await;
    report::say(format_args!("kennel: session {}: nobody has used it for {time}: it ends", start.name));
}
