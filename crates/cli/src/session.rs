//! `kennel session`: starts sessions in a process of their own, lists them, and stops one.

use std::{
    env,
    ffi::OsString,
    fmt,
    fs::{self, File},
    io::{self, Read, Write},
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
};

use kennel::{
    Error, Isolation, Overlay, Policy, Profile, Session, Stats,
    client::{Client, Listening},
    internal::Parent,
    overlay::KeptChanges,
    report::{ListenError, PolicyError, PublishedPort},
};
use nix::unistd::{dup2_stderr, dup2_stdout, setsid};
use serde::Serialize;

use crate::{
    FAILED,
    args::{SessionAction, Start},
    cache::age,
    descriptor::{close_inherited, write_all},
    detached,
    escape::harmless,
    flags, owner, process, progress, ps, report,
    style::{self, Paint},
};

/// Runs `kennel session`.
pub(crate) fn session(action: &SessionAction) -> Result<ExitCode, Error> {
    if let SessionAction::Start(start) = action {
        let asked =
            owner::Request { ends_with_parent: start.with_parent, ..owner::Request::of(&start.policy) };
        if let Some(code) = owner::choose(&start.owner, asked)? {
            return Ok(code);
        }
    }
    match action {
        SessionAction::Start(start) if !start.foreground => start_in_background(start),
        SessionAction::Start(start) => foreground(start),
        SessionAction::Host(start) => background(start),
        SessionAction::Logs(logs) => detached::logs(logs),
        SessionAction::Kill { which, signal } => detached::kill(which, *signal),
        SessionAction::Wait { which, exit_code, json } => detached::wait(which, *exit_code, json.as_deref()),
        SessionAction::Ps { name, all, json } => ps::ps(name, *all, *json),
        SessionAction::List { json } => list(*json),
        SessionAction::Publish { name, ports } => publish(name, ports),
        SessionAction::Stop { name } => stop(name),
    }
}

/// Runs this program again with the same arguments, and waits until the session takes commands or reports why
/// not.
fn start_in_background(start: &Start) -> Result<ExitCode, Error> {
    // Do not prepare a session whose name is taken.
    match Client::connect(&start.name) {
        Ok(_) => return Err(ListenError::Running { name: start.name.clone() }.into()),
        Err(Error::Listen(ListenError::NotRunning { .. })) => {}
        Err(error) => return Err(error),
    }
    let mut arguments: Vec<OsString> = env::args_os().skip(1).collect();
    // No word before the verb can be `start`.
    if let Some(verb) = arguments.iter_mut().find(|word| *word == "start") {
        *verb = "host".into();
    }
    let mut host = Command::new("/proc/self/exe")
        .args(arguments)
        // If the host lacks /dev/null, the sandbox reports that.
        .stdin(if Path::new("/dev/null").exists() { Stdio::null() } else { Stdio::piped() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| Error::Io { what: "start a process for the session", source })?;
    drop(host.stdin.take());
    host.stdout.iter().for_each(|pipe| progress::until_readable("preparing the session", pipe));
    let (socket, said) = (read_all(host.stdout.take()), read_all(host.stderr.take()));
    report::relay(&said, socket.is_empty());
    if let Err(source) = write_all(io::stdout(), &socket) {
        end(&start.name, host);
        return Err(Error::Io { what: "the session was ended: print the path of its socket", source });
    }
    // The new process closed both pipes. With a socket path it takes commands; without one it is about to
    // end.
    if socket.is_empty() {
        let status = host.wait().map_err(|source| Error::Io { what: "wait for the session", source })?;
        if said.is_empty() {
            report::say(format_args!("kennel: session {}: it ended during the start: {status}", start.name));
        }
        return Ok(FAILED.into());
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends the session if its socket path could not be printed, and waits until it is gone.
fn end(name: &str, mut host: Child) {
    let ours = Client::connect(name).ok().filter(|client| u32::try_from(client.process()) == Ok(host.id()));
    if ours.is_none_or(|session| session.stop().is_err()) {
        let _ = host.kill();
    }
    let _ = host.wait();
}

fn read_all(stream: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        // Keep what arrived before the error.
        let _ = stream.read_to_end(&mut bytes);
    }
    bytes
}

/// Hosts a session in the background process. Closes the pipes to the starting process once the session takes
/// commands.
fn background(start: &Start) -> Result<ExitCode, Error> {
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
fn foreground(start: &Start) -> Result<ExitCode, Error> {
    host(start, || Ok(()))
}

fn host(start: &Start, announced: impl FnOnce() -> io::Result<()>) -> Result<ExitCode, Error> {
    let mut policy = flags::from_flags(&start.policy)?;
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
        let interrupted = process::interruption()?;
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

/// A line of `kennel session list`. A session that does not answer has no numbers.
#[derive(Serialize)]
struct Line {
    name: String,
    profile: Option<String>,
    workspace: Option<String>,
    /// Seconds since it takes commands.
    age_s: Option<u64>,
    /// Seconds since somebody used it; none while somebody does.
    idle_s: Option<u64>,
    pid: i32,
    ready: Option<u64>,
    running: Option<u64>,
    served: Option<u64>,
    published: Vec<PublishedPort>,
    socket: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = |text: Option<String>| text.map_or_else(|| "-".to_owned(), |text| harmless(&text));
        let running = known(self.running.map(|count| count.to_string()));
        let [made, used] = [self.age_s, self.idle_s].map(|seconds| known(seconds.map(age)));
        let [profile, workspace] = [&self.profile, &self.workspace].map(|text| known(text.clone()));
        let Self { name, pid, .. } = self;
        write!(f, "{name:<16} {profile:<10} {made:>5} {used:>5} {running:>7} {pid:>7}  {workspace}")?;
        self.published.iter().try_for_each(|port| write!(f, "  {port}"))
    }
}

fn list(json: bool) -> Result<ExitCode, Error> {
    let mut lines = Vec::new();
    let mut code = ExitCode::SUCCESS;
    for name in Client::sessions()? {
        match line(&name) {
            Ok(line) => lines.push(line),
            // Skip a session that has ended.
            Err(Error::Listen(ListenError::NotRunning { .. } | ListenError::Gone { .. })) => {}
            // Report the error and list the other sessions.
            Err(error) => {
                report::error(&error);
                code = FAILED.into();
            }
        }
    }
    let text = if json {
        report::json(&lines)?
    } else {
        let header = format!(
            "{:<16} {:<10} {:>5} {:>5} {:>7} {:>7}  WORKSPACE",
            "NAME", "PROFILE", "AGE", "IDLE", "RUNNING", "PID"
        );
        let header = Paint::stdout().paint(style::TITLE, &header);
        let lines = lines.iter().map(Line::to_string);
        std::iter::once(header).chain(lines).collect::<Vec<_>>().join("\n")
    };
    report::print(format!("{text}\n").as_bytes()).map(|()| code)
}

fn line(name: &str) -> Result<Line, Error> {
    let client = Client::connect(name)?;
    let (pid, socket) = (client.process(), client.path().display().to_string());
    let stats = match client.stats() {
        Err(error @ Error::Listen(ListenError::NotRunning { .. } | ListenError::Gone { .. })) => {
            return Err(error);
        }
        // List a session that does not answer: the user needs its PID to end it.
        stats => stats.inspect_err(report::error).ok(),
    };
    // A session of another build may not know the question.
    let described = Client::connect(name).and_then(Client::describe).ok();
    let published = Client::connect(name).and_then(Client::published).unwrap_or_default();
    let made = fs::metadata(&socket).and_then(|socket| socket.modified()).ok();
    let number = |of: fn(&Stats) -> u64| stats.as_ref().map(of);
    Ok(Line {
        name: name.to_owned(),
        profile: described.as_ref().map(|described| described.profile.clone()),
        workspace: described.map(|described| described.workspace.display().to_string()),
        age_s: made.and_then(|made| made.elapsed().ok()).map(|age| age.as_secs()),
        idle_s: stats.as_ref().and_then(|stats| stats.idle).map(|idle| idle.as_secs()),
        pid,
        ready: number(|stats| stats.ready as u64),
        running: number(|stats| stats.running as u64),
        served: number(|stats| stats.served),
        published,
        socket,
    })
}

/// Publishes ports of a running session, and prints where they are.
fn publish(name: &str, ports: &[String]) -> Result<ExitCode, Error> {
    for port in ports {
        let published = Client::connect(name)?.publish(port)?;
        published.note().iter().for_each(report::note);
        report::print(format!("{published}\n").as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until nobody has used the session for as long as the flag says.
async fn is_idle(session: &Session, start: &Start) {
    let Some(time) = start.idle else { return std::future::pending().await };
    session.idle_for(time.duration()).await;
    report::say(format_args!("kennel: session {}: nobody has used it for {time}: it ends", start.name));
}

fn stop(name: &str) -> Result<ExitCode, Error> {
    match Client::connect(name).and_then(Client::stop) {
        Err(Error::Listen(ListenError::NotRunning { .. })) => {
            report::say(format_args!("kennel: session {name}: no session of that name is running"));
            Ok(ExitCode::SUCCESS)
        }
        stopped => stopped.map(|()| ExitCode::SUCCESS),
    }
}
