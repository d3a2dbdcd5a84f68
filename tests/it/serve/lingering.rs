//! A descriptor that takes long to close makes nobody wait, however a client gave it: a socket with SO_LINGER
//! and unsent data waits for its peer in close(2).

use std::{
    env,
    fs::File,
    io::{BufRead, BufReader, ErrorKind, Read, Write, stdin},
    net::{TcpListener, TcpStream},
    os::fd::{AsRawFd, OwnedFd, RawFd},
    process::{Command, Stdio},
};

use kennel_helper::client_wire::{Ask, COLLECTS};
use nix::{
    cmsg_space,
    sys::signal::{Signal, kill},
    sys::socket::{
        AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, recvmsg,
        sendmsg, setsockopt, socketpair, sockopt::Linger,
    },
    unistd::{Pid, close},
};

use super::{
    Hosted,
    hostile::{Raw, call, call_with, encoded, inline, question},
};
use crate::support::{ends, has, require};

/// Sockets whose last close waits for an hour, because their peers read nothing.
struct Lingering {
    listener: TcpListener,
    peers: Vec<TcpStream>,
}

impl Lingering {
    fn new() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").unwrap(), peers: Vec::new() }
    }

    fn socket(&mut self) -> OwnedFd {
        let mut socket = TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
        self.peers.push(self.listener.accept().unwrap().0);
        socket.set_nonblocking(true).unwrap();
        let full = loop {
            if let Err(error) = socket.write_all(&[0; 64 << 10]) {
                break error;
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        setsockopt(&socket, Linger, &nix::libc::linger { l_onoff: 1, l_linger: 3600 }).unwrap();
        socket.into()
    }

    /// A Unix socket with one of these in its queue.
    fn within(&mut self) -> OwnedFd {
        let (kept, sent) =
            socketpair(AddressFamily::Unix, SockType::Datagram, None, SockFlag::SOCK_CLOEXEC).unwrap();
        pass(&sent, &self.socket());
        kept
    }
}

fn pass(socket: &OwnedFd, descriptor: &OwnedFd) {
    let rights = [descriptor.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&rights)];
    let vector = [std::io::IoSlice::new(b"x")];
    sendmsg::<UnixAddr>(socket.as_raw_fd(), &vector, &rights, MsgFlags::empty(), None).unwrap();
}

/// Gives descriptors away. The session stands still until the copies here are closed: its own are the last.
fn give(session: &Hosted, raw: &Raw, bytes: &[u8], descriptors: Vec<OwnedFd>) {
    let numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    signal(session, Signal::SIGSTOP);
    raw.send(bytes, &numbers);
    drop(descriptors);
    signal(session, Signal::SIGCONT);
}

fn signal(session: &Hosted, signal: Signal) {
    kill(Pid::from_raw(session.host().try_into().unwrap()), signal).unwrap();
}

/// Fails if the session runs nothing.
fn assert_runs(session: &Hosted, what: &str) {
    let mut child = session.exec(&["true"]).stdin(Stdio::null()).spawn().unwrap();
    assert!(ends(&format!("a command after {what}"), &mut child).success(), "{what}");
}

#[test]
fn what_lingers_blocks_nobody_however_it_came() {
    let session = Hosted::start(&[]);
    let mut lingering = Lingering::new();
    let null = || OwnedFd::from(File::options().read(true).write(true).open("/dev/null").unwrap());
    let whole = inline(&call(&[c"true"]));
    let with_memfd = encoded(&Ask::Memfd { length: 100 });
    let cases: Vec<(&str, Vec<u8>, usize, usize)> = vec![
        ("stdio", whole.clone(), 3, 0),
        ("stdin whose output is collected", inline(&call_with(&[c"true"], COLLECTS)), 1, 0),
        ("a Unix socket as stdin", inline(&call_with(&[c"true"], COLLECTS)), 0, 1),
        ("a message that is no request", vec![1], 2, 1),
        ("a request with too many", whole.clone(), 20, 0),
        ("a socket for a memfd", with_memfd, 4, 0),
        ("a socket for a log file", encoded(&Ask::Detach { length: 1 }), 2, 0),
        ("a question", question(r#"{"do":"stats"}"#), 1, 0),
        ("a program that is missing", inline(&call(&[c"no-such-program"])), 3, 0),
    ];
    for (what, bytes, sockets, nested) in cases {
        let raw = Raw::connect(&session);
        let mut given: Vec<OwnedFd> = (0..sockets).map(|_| lingering.socket()).collect();
        given.extend((0..nested).map(|_| lingering.within()));
        give(&session, &raw, &bytes, given);
        raw.answer();
        drop(raw);
        assert_runs(&session, what);
    }
    // With a signal, and in a message that nobody reads any more.
    for what in ["a signal", "a message after the end"] {
        let raw = Raw::connect(&session);
        let program: &[_] = if what == "a signal" { &[c"sleep", c"60"] } else { &[c"true"] };
        give(&session, &raw, &inline(&call(program)), vec![null(), null(), null()]);
        if what != "a signal" {
            raw.answer();
        }
        for number in [28, 28, 0] {
            give(&session, &raw, &encoded(&Ask::Signal { number }), vec![lingering.socket()]);
        }
        drop(raw);
        assert_runs(&session, what);
    }
    assert!(session.is_well());
}

/// The socket reaches such a client if its directory is granted. The session reads its request only to turn
/// it away.
#[test]
fn what_lingers_blocks_nobody_if_the_client_is_refused() {
    if let Ok(socket) = env::var("KENNEL_LINGER_AT") {
        let raw = Raw::to(socket.as_ref());
        let given: Vec<RawFd> = (0..4).map(|_| received_from_stdin()).collect();
        raw.send(&inline(&call(&[c"true"])), &given);
        given.into_iter().for_each(|number| close(number).unwrap());
        eprintln!("sent");
        eprintln!("{}", String::from_utf8_lossy(&raw.answer()));
        return;
    }
    require!(has("unshare"), "unshare of util-linux");
    let session = Hosted::start(&[]);
    let mut lingering = Lingering::new();
    let (ours, theirs) =
        socketpair(AddressFamily::Unix, SockType::Datagram, None, SockFlag::SOCK_CLOEXEC).unwrap();
    (0..3).for_each(|_| pass(&ours, &lingering.socket()));
    pass(&ours, &lingering.within());
    let mut client = Command::new("unshare");
    client.args(["--user", "--map-root-user"]).arg(env::current_exe().unwrap());
    client.args(["--exact", "serve::lingering::what_lingers_blocks_nobody_if_the_client_is_refused"]);
    client.arg("--nocapture").env("KENNEL_LINGER_AT", &session.socket).stdin(theirs);
    signal(&session, Signal::SIGSTOP);
    let mut client = client.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(client.stderr.take().unwrap());
    let mut line = String::new();
    while line != "sent\n" {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it sent nothing");
    }
    drop(ours);
    signal(&session, Signal::SIGCONT);
    let mut answer = String::new();
    said.read_to_string(&mut answer).unwrap();
    assert!(ends("the refused client", &mut client).success());
    assert!(answer.contains("no process in a sandbox"), "{answer}");
    assert_runs(&session, "a refused client");
}

fn received_from_stdin() -> RawFd {
    let mut bytes = [0; 8];
    let mut control = cmsg_space!(RawFd);
    let mut vector = [std::io::IoSliceMut::new(&mut bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<UnixAddr>(stdin().as_raw_fd(), &mut vector, Some(&mut control), flags).unwrap();
    let mut numbers = message.cmsgs().unwrap().flat_map(|it| match it {
        ControlMessageOwned::ScmRights(numbers) => numbers,
        other => panic!("{other:?}"),
    });
    numbers.next().unwrap()
}
