//! The relay: stays root, and copies between root's streams and those of the owner's process.

use std::{
    cell::RefCell,
    collections::VecDeque,
    env,
    ffi::OsString,
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            net::UnixStream,
            process::{CommandExt, ExitStatusExt},
        },
    },
    process::{Child, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use kennel::{Error, internal::Parent};
use nix::{
    fcntl::{FcntlArg, FdFlag, OFlag, fcntl, open},
    pty::{grantpt, posix_openpt, ptsname_r, unlockpt},
    sys::{
        signal::{Signal, kill},
        stat::{Mode, fchmod},
        termios::{SetArg, tcsetattr},
    },
    unistd::{Uid, fchown, getpid},
};

use super::{
    leader::{DONE, EXITED, FOREGROUND, KILLED, SIGNAL, STOPPED},
    request::Request,
    streams::Streams,
};
use crate::{
    args::owner::{Identity, Step},
    process::{
        exit_status::{FAILED, end, of_signal},
        runtime, start_thread,
    },
    report,
    terminal::{
        job::Orders,
        relay::{Relay, Woken, unwritten},
        user_terminal::{UserTerminal, copy_size, is_in_foreground},
    },
};

/// Runs Kennel as the owner, and returns its exit status.
pub(super) fn relay(
    identity: Identity,
    variables: Vec<(OsString, OsString)>,
    request: Request<'_>,
) -> Result<ExitCode, Error> {
    let failed = |source| Error::Io { what: "start Kennel as the owner", source };
    let uid = identity.uid;
    let user = UserTerminal::find([false; 3])?.map(|mut user| {
        // In a pipeline, another program may read the keys: then Kennel asks for them when its command does.
        user.is_at_once = is_in_foreground(&user.input) && (request.takes_keys || !user.is_shared);
        user
    });
    let pair = user.as_ref().map(|user| pseudoterminal(user, uid)).transpose().map_err(failed)?;
    let is_terminal = user.as_ref().map_or([false; 3], |user| user.streams);
    let (streams, stdio) = Streams::open(is_terminal, uid).map_err(failed)?;
    let is_in_foreground = user.as_ref().is_some_and(|user| user.is_at_once);
    let mut relay = Relay::prepare(user, None)?;
    if request.ends_with_parent {
        follow_parent().map_err(failed)?;
    }
    let (master, slave) = pair.map_or((None, None), |(master, slave)| (Some(master), Some(slave)));
    let (child, socket) =
        start(identity, is_in_foreground, variables, stdio, slave.as_ref()).map_err(failed)?;
    drop(slave);
    if let Some(master) = master {
        relay.begin_and_read(master)?;
    }
    let leader = Leader { socket, told: RefCell::default() };
    Running { child, leader, relay, streams }.until_end()
}

/// A terminal like the user's, which belongs to the owner: its master side, which never blocks, and the other
/// one.
fn pseudoterminal(user: &UserTerminal, owner: Uid) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let master = posix_openpt(flags | OFlag::O_NONBLOCK)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let slave = open(&*ptsname_r(&master)?, flags, Mode::empty())?;
    fchown(&slave, Some(owner), None)?;
    fchmod(&slave, Mode::S_IRUSR | Mode::S_IWUSR)?;
    copy_size(&user.input, &slave)?;
    // In the background the modes are those with which the shell reads its line.
    if is_in_foreground(&user.input) {
        tcsetattr(&slave, SetArg::TCSANOW, &user.before)?;
    }
    Ok((master.into(), slave))
}

/// Sends this process SIGTERM when the process that started it has ended. The owner's process gets it too.
fn follow_parent() -> io::Result<()> {
    let runtime = runtime(Duration::ZERO).map_err(|error| io::Error::other(error.to_string()))?;
    let parent = {
        let _entered = runtime.enter();
        Parent::open()?
    };
    let own = getpid();
    start_thread(move || {
        runtime.block_on(parent.ended());
        let _ = kill(own, Signal::SIGTERM);
    })?;
    Ok(())
}

/// Starts the leader. It inherits its socket and its streams, and an environment of its own.
fn start(
    identity: Identity,
    is_in_foreground: bool,
    variables: Vec<(OsString, OsString)>,
    stdio: [Option<Stdio>; 3],
    terminal: Option<&OwnedFd>,
) -> io::Result<(Child, UnixStream)> {
    let (own, socket) = UnixStream::pair()?;
    fcntl(&socket, FcntlArg::F_SETFD(FdFlag::empty()))?;
    let parent = getpid().as_raw();
    let step = Step { socket: Some(socket.as_raw_fd()), parent, is_in_foreground, identity };
    let stream = |piped: Option<Stdio>| match (piped, terminal) {
        (Some(piped), _) => Ok(piped),
        (None, Some(terminal)) => terminal.try_clone().map(Stdio::from),
        (None, None) => Ok(Stdio::null()),
    };
    let [stdin, stdout, stderr] = stdio;
    let mut command = Command::new("/proc/self/exe");
    command.arg0(env::args_os().next().unwrap_or_else(|| "kennel".into())).args(step.words());
    command.env_clear().envs(variables);
    command.stdin(stream(stdin)?).stdout(stream(stdout)?).stderr(stream(stderr)?);
    Ok((command.spawn()?, own))
}

/// The leader, by the socket to it.
struct Leader {
    socket: UnixStream,
    /// What it has told before it obeyed an order.
    told: RefCell<VecDeque<[u8; 2]>>,
}

impl Leader {
    /// Gives an order, and waits until the leader has obeyed.
    fn send(&self, order: [u8; 2]) -> Result<(), Error> {
        match (&self.socket).write_all(&order) {
            // It has ended, and has told how.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            sent => sent.map_err(|source| Error::Io { what: "pass a signal on", source })?,
        }
        while let Some(told) = self.read().filter(|[what, _]| *what != DONE) {
            self.told.borrow_mut().push_back(told);
        }
        Ok(())
    }

    fn next(&self) -> Option<[u8; 2]> {
        let earlier = self.told.borrow_mut().pop_front();
        earlier.or_else(|| self.read())
    }

    /// `None` once the leader has ended.
    fn read(&self) -> Option<[u8; 2]> {
        let mut told = [0; 2];
        (&self.socket).read_exact(&mut told).ok().map(|()| told)
    }
}

impl Orders for Leader {
    fn signal(&self, number: i32) -> Result<(), Error> {
        u8::try_from(number).map_or(Ok(()), |number| self.send([SIGNAL, number]))
    }

    fn foreground(&self, has: bool) -> Result<(), Error> {
        self.send([FOREGROUND, u8::from(has)])
    }
}

/// The owner's process, and everything that is copied and passed on until it has ended.
struct Running {
    child: Child,
    leader: Leader,
    relay: Relay,
    streams: Streams,
}

impl Running {
    fn until_end(mut self) -> Result<ExitCode, Error> {
        loop {
            let at_once = (!self.leader.told.borrow().is_empty()).then(Instant::now);
            let woken = self.relay.wait(&self.leader.socket, at_once);
            let Woken { by_command, by_signal, by_keys } =
                woken.map_err(|source| Error::Io { what: "wait for the owner's process", source })?;
            if by_command || at_once.is_some() {
                match self.leader.next() {
                    Some([STOPPED, number]) => self.relay.stopped(number.into(), &self.leader)?,
                    Some([EXITED, code]) => return self.end(code, None),
                    Some([KILLED, number]) => {
                        return self.end(of_signal(number.into()), Some(number.into()));
                    }
                    _ => return self.end_without_status(),
                }
            }
            if by_keys {
                self.relay.take_keys();
            }
            if by_signal {
                self.relay.pass_on(&self.leader, true)?;
            }
        }
    }

    /// Shows what is left of the output, and ends as the owner's process did.
    fn end(mut self, code: u8, signal: Option<i32>) -> Result<ExitCode, Error> {
        // Nothing of it is left when this process ends.
        let _ = self.child.wait();
        let shown = self.relay.show_rest(signal, false);
        let signals = &mut self.relay.signals;
        let is_over = signal.is_some_and(|number| signals.has(number));
        let copied = self.streams.finish(signals.patience(is_over));
        self.relay.end(signal);
        match unwritten(shown.and(copied), signal.is_some()) {
            Some(error) => {
                report::error(&error);
                Ok(FAILED.into())
            }
            None => Ok(end(code, signal)),
        }
    }

    /// The leader has ended without a word on the owner's process: it has printed why, or was killed.
    fn end_without_status(mut self) -> Result<ExitCode, Error> {
        let status = self.child.wait().map_err(|source| Error::Io { what: "wait for a process", source })?;
        if let Some(number) = status.signal() {
            let source = io::Error::other(format!("signal {number} has ended the process between"));
            report::error(&Error::Io { what: "run Kennel as the owner", source });
        }
        self.end(FAILED, None)
    }
}
