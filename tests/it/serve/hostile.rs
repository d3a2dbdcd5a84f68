//! A wrong or hostile client of our own user: no message of it stops the session, leaks into it, or makes
//! others wait.

use std::{
    fs::{self, File},
    io::{IoSlice, Read, Write},
    os::fd::{AsRawFd, OwnedFd, RawFd},
    path::Path,
    time::Instant,
};

use kennel_helper::{
    client_wire::{Ask, COLLECTS, Call, Manner, VERSION},
    wire::{Field, ListBuf},
};
use nix::sys::{
    memfd::{MFdFlags, memfd_create},
    socket::{
        AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, connect,
        recv, recvmsg, sendmsg, setsockopt, socket, sockopt::ReceiveTimeout,
    },
    time::{TimeVal, TimeValLike},
};

use super::Hosted;
use crate::support::{patient, until};

/// A connection that sends what no client of ours would.
pub struct Raw(OwnedFd);

impl Raw {
    pub fn connect(session: &Hosted) -> Self {
        Self::to(&session.socket)
    }

    pub fn to(path: &Path) -> Self {
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        connect(socket.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
        setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(8)).unwrap();
        Self(socket)
    }

    pub fn send(&self, bytes: &[u8], descriptors: &[RawFd]) {
        let rights = [ControlMessage::ScmRights(descriptors)];
        let rights = if descriptors.is_empty() { &rights[..0] } else { &rights[..] };
        let vector = [IoSlice::new(bytes)];
        // The session may have closed its end already.
        let _ = sendmsg::<UnixAddr>(self.0.as_raw_fd(), &vector, rights, MsgFlags::MSG_NOSIGNAL, None);
    }

    /// Reads an answer. It is empty if the session closed its end.
    pub fn answer(&self) -> Vec<u8> {
        let mut bytes = vec![0; 16 << 10];
        let mut receive = || recv(self.0.as_raw_fd(), &mut bytes, MsgFlags::empty());
        let count = match receive() {
            // The session closed it with unread bytes of ours. The kernel reports that once, before the last
            // message.
            Err(nix::errno::Errno::ECONNRESET) => receive(),
            count => count,
        };
        assert_ne!(count, Err(nix::errno::Errno::EAGAIN), "no answer within eight seconds");
        bytes.truncate(count.unwrap_or(0));
        bytes
    }
}

impl Raw {
    /// Reads an answer, and opens the memfd that comes with it.
    pub fn answer_with_memfd(&self) -> (Vec<u8>, Option<File>) {
        let mut bytes = vec![0; 16 << 10];
        let mut control = nix::cmsg_space!(RawFd);
        let (count, descriptor) = {
            let mut vector = [std::io::IoSliceMut::new(&mut bytes)];
            let flags = MsgFlags::MSG_CMSG_CLOEXEC;
            let message =
                recvmsg::<UnixAddr>(self.0.as_raw_fd(), &mut vector, Some(&mut control), flags).unwrap();
            let mut descriptors = message.cmsgs().unwrap().flat_map(|it| match it {
                ControlMessageOwned::ScmRights(numbers) => numbers,
                other => panic!("{other:?}"),
            });
            (message.bytes, descriptors.next())
        };
        bytes.truncate(count);
        let memfd = descriptor.map(|number| {
            let file = File::open(format!("/proc/self/fd/{number}")).unwrap();
            nix::unistd::close(number).unwrap();
            file
        });
        (bytes, memfd)
    }
}

/// The session's answer to a question. It is empty if the session closes its end.
pub fn ask(path: &Path, question: &[u8]) -> Vec<u8> {
    let raw = Raw::to(path);
    raw.send(question, &[]);
    raw.answer()
}

/// The message that asks this question.
pub fn question(json: &str) -> Vec<u8> {
    let length = json.len().try_into().unwrap();
    let mut bytes = encoded(&Ask::Question { version: VERSION, length });
    bytes.extend_from_slice(json.as_bytes());
    bytes
}

pub fn encoded<'w>(value: &impl Field<'w>) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.put(&mut bytes);
    bytes
}

pub fn call(arguments: &[&std::ffi::CStr]) -> Vec<u8> {
    call_with(arguments, 0)
}

pub fn call_with(arguments: &[&std::ffi::CStr], wishes: u32) -> Vec<u8> {
    let arguments: ListBuf = arguments.iter().collect();
    let manner = Manner { cwd: c"", timeout_ms: 0, terminal: 0, window: 0, modes: &[], report: wishes };
    encoded(&Call { manner, arguments: arguments.list(), environment: ListBuf::default().list() })
}

pub fn inline(call: &[u8]) -> Vec<u8> {
    let mut bytes = encoded(&Ask::Inline { length: call.len().try_into().unwrap() });
    bytes.extend_from_slice(call);
    bytes
}

pub fn memfd(bytes: &[u8]) -> File {
    let mut file = File::from(memfd_create(c"call", MFdFlags::MFD_CLOEXEC).unwrap());
    file.write_all(bytes).unwrap();
    file
}

pub fn descriptors(session: &Hosted) -> usize {
    fs::read_dir(format!("/proc/{}/fd", session.host())).unwrap().count()
}

#[test]
fn malformed_messages_are_refused_and_leave_nothing() {
    // Workers of shared commands come back, and then have more descriptors than new ones.
    let session = Hosted::start(&["--isolation", "command"]);
    assert!(session.is_well());
    let before = descriptors(&session);
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    let fd = null.as_raw_fd();
    let good = call(&[c"true"]);
    let whole = inline(&good);
    let mut lying = whole.clone();
    lying[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    let mut foreign = whole.clone();
    foreign[8] ^= 0xff;
    let short = memfd(&good[..10]);
    let full = memfd(&good);
    let (reader, _writer) = nix::unistd::pipe().unwrap();
    let regular = File::open("/proc/self/exe").unwrap();
    let asked = |length: u32| encoded(&Ask::Question { version: VERSION, length });
    let mut old = question(r#"{"do":"stats"}"#);
    old[4] ^= 1;
    let collected = inline(&call_with(&[c"true"], COLLECTS));
    let length = |length: usize| encoded(&Ask::Memfd { length: length.try_into().unwrap() });
    let stdio = [fd; 3];
    let with = |fourth: RawFd| [fd, fd, fd, fourth];
    let cases: Vec<(&str, Vec<u8>, Vec<RawFd>)> = vec![
        ("nothing", vec![], vec![]),
        ("one byte", vec![1], vec![]),
        ("unknown", 99u32.to_le_bytes().to_vec(), vec![]),
        ("noise", (0..200u8).map(|at| at.wrapping_mul(37)).collect(), stdio.to_vec()),
        ("a signal first", encoded(&Ask::Signal { number: 9 }), vec![]),
        ("no descriptors", whole.clone(), vec![]),
        ("two descriptors", whole.clone(), vec![fd; 2]),
        ("four descriptors", whole.clone(), vec![fd; 4]),
        ("253 descriptors", whole.clone(), vec![fd; 253]),
        ("253 descriptors with a question", question(r#"{"do":"nothing"}"#), vec![fd; 253]),
        ("cut short", whole[..whole.len() - 3].to_vec(), stdio.to_vec()),
        ("a length that lies", lying, stdio.to_vec()),
        ("another magic number", foreign, stdio.to_vec()),
        ("no arguments", inline(&call(&[])), stdio.to_vec()),
        ("longer than a packet", vec![1; 64 << 10], stdio.to_vec()),
        ("a memfd that is missing", length(good.len()), stdio.to_vec()),
        ("a memfd that is too short", length(good.len()), with(short.as_raw_fd()).to_vec()),
        ("a length beyond all memfds", length(u32::MAX as usize), with(full.as_raw_fd()).to_vec()),
        ("a pipe for a memfd", length(good.len()), with(reader.as_raw_fd()).to_vec()),
        ("a file for a memfd", length(good.len()), with(regular.as_raw_fd()).to_vec()),
        ("half a call in a memfd", length(10), with(full.as_raw_fd()).to_vec()),
        ("a question without JSON", asked(2), vec![]),
        ("a question in a file", asked(2), vec![regular.as_raw_fd()]),
        ("a question in a pipe", asked(2), vec![reader.as_raw_fd()]),
        ("a call for a question", asked(10), vec![full.as_raw_fd()]),
        ("a question of another version", old, vec![]),
        ("an unknown question", question(r#"{"do":"format the disk"}"#), vec![]),
        ("an unknown key", question(r#"{"do":"stat","path":".","follow":true}"#), vec![]),
        ("a missing key", question(r#"{"do":"stat"}"#), vec![]),
        ("a port that is none", question(r#"{"do":"connect","port":65536}"#), vec![]),
        ("half an escape", question(r#"{"do":"stat","path":"a%f"}"#), vec![]),
        ("a deep question", question(&"[".repeat(20_000)), vec![]),
        ("a file without a question before", encoded(&Ask::Keep {}), vec![]),
        ("collected output with three descriptors", collected.clone(), stdio.to_vec()),
    ];
    for (what, bytes, descriptors) in &cases {
        let raw = Raw::connect(&session);
        raw.send(bytes, descriptors);
        let answer = raw.answer();
        let is_answer = matches!(answer.first(), None | Some(2));
        assert!(is_answer, "{what}: {answer:?}");
        assert!(!answer.starts_with(&[2, 0, 0, 0, 0, 0, 0, 0]), "{what} ran");
    }
    // The same message, complete, runs.
    for (bytes, descriptors) in
        [(whole, stdio.to_vec()), (length(good.len()), with(full.as_raw_fd()).to_vec())]
    {
        let raw = Raw::connect(&session);
        raw.send(&bytes, &descriptors);
        assert!(raw.answer().starts_with(&[2, 0, 0, 0, 0, 0, 0, 0]));
    }
    assert!(session.is_well());
    until("the session holds no more descriptors than before", || descriptors(&session) <= before);
}

#[test]
fn list_with_a_wrong_count_is_refused() {
    let session = Hosted::start(&[]);
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    let mut bytes = call(&[c"true"]);
    // The count of the arguments follows magic, empty path (5 bytes), no modes (4 bytes), and 20 bytes of
    // numbers.
    let at = 4 + 5 + 4 + 20;
    assert_eq!(bytes[at..at + 4], 1u32.to_le_bytes());
    bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    let raw = Raw::connect(&session);
    raw.send(&inline(&bytes), &[null.as_raw_fd(); 3]);
    let answer = raw.answer();
    assert!(String::from_utf8_lossy(&answer).contains("malformed"), "{answer:?}");
}

#[test]
fn silent_clients_keep_nobody_waiting() {
    let session = Hosted::start(&[]);
    let silent: Vec<Raw> = (0..700).map(|_| Raw::connect(&session)).collect();
    let start = Instant::now();
    assert!(session.is_well());
    // It had to wait for their end, five seconds for 128 of them each.
    assert!(start.elapsed() < patient(std::time::Duration::from_secs(4)), "{:?}", start.elapsed());
    until("only some keep a place", || descriptors(&session) < 300);
    let [first, last] = [&silent[0], &silent[699]].map(Raw::answer);
    assert!(String::from_utf8_lossy(&first).contains("sent nothing while many other clients came"));
    assert!(last.is_empty(), "the newest had the usual time");
}

/// More clients than may wait come at once, and each has sent its request.
#[test]
fn a_client_that_speaks_keeps_its_place() {
    let session = Hosted::start(&[]);
    let asked = question(r#"{"do":"stats"}"#);
    let clients = || (0..400).map(|_| Raw::connect(&session));
    let clients: Vec<Raw> = clients().inspect(|raw| raw.send(&asked, &[])).collect();
    assert!(clients.iter().all(|raw| raw.answer().first() == Some(&50)));
}

#[test]
fn second_command_on_a_connection_ends_the_first() {
    let session = Hosted::start(&[]);
    let (reader, writer) = nix::unistd::pipe().unwrap();
    let null = File::open("/dev/null").unwrap();
    let raw = Raw::connect(&session);
    let long = inline(&call(&[c"sleep", c"60"]));
    raw.send(&long, &[null.as_raw_fd(), writer.as_raw_fd(), writer.as_raw_fd()]);
    raw.send(&long, &[null.as_raw_fd(); 3]);
    drop(writer);
    // The pipe ends when no process of the command is left.
    let mut rest = Vec::new();
    File::from(reader).read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty() && session.is_well());
}

#[test]
fn invalid_signals_are_not_passed_on() {
    let session = Hosted::start(&[]);
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    let clients = [0, 65, 1000, u32::MAX].map(|number| {
        let raw = Raw::connect(&session);
        raw.send(&inline(&call(&[c"sleep", c"60"])), &[null.as_raw_fd(); 3]);
        raw.send(&encoded(&Ask::Signal { number }), &[]);
        (number, raw)
    });
    for (number, raw) in clients {
        assert!(raw.answer().is_empty(), "{number}: the connection is closed, and the command killed");
    }
    assert!(session.is_well());
}

#[test]
fn directory_as_a_standard_descriptor_is_refused() {
    let session = Hosted::start(&[]);
    let root = File::open("/").unwrap();
    let output = session.exec(&["true"]).stdin(root).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(crate::support::stderr(&output).contains("Is a directory"), "{output:?}");
}
