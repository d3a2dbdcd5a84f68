//! Takes as much of something as possible, to see what bounds it. Each attempt prints how far it came and why
//! it stopped.

use std::{
    fs::{self, File},
    io::{IoSlice, Read, Write},
    os::{fd::AsRawFd, unix::net::UnixDatagram},
    thread,
    time::{Duration, Instant},
};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use crate::{call::raw, errno_name, processes::fork};

const MIB: i64 = 1 << 20;

/// The attempt keeps everything that it makes until its end, which comes within this time.
const STAY: Duration = Duration::from_secs(60);

/// Takes until a call is refused or it has `most`. Prints both.
fn take(most: i64, unit: &str, mut one: impl FnMut(i64) -> Result<i64, i32>) {
    let refused = (0..most).find_map(|number| one(number).err().map(|errno| (number, errno)));
    match refused {
        Some((number, errno)) => println!("{} {number} {unit}", errno_name(errno)),
        None => println!("ok {most} {unit}"),
    }
    let _ = std::io::stdout().flush();
}

fn number(arguments: &[&str], index: usize) -> i64 {
    arguments.get(index).and_then(|text| text.parse().ok()).unwrap_or(i64::MAX)
}

/// `hold KIND MIB`: memory, one MiB at a time, with every page written.
pub(crate) fn hold(arguments: &[&str]) {
    let flags = match arguments.first().copied() {
        Some("private") => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        Some("shared") => libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        Some("growing") => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_GROWSDOWN,
        Some("file") => return hold_in(libc::SYS_memfd_create, number(arguments, 1)),
        Some("segment") => return take(number(arguments, 1), "MiB", |_| segment()),
        Some("queue") => return take(number(arguments, 1), "queues", queue),
        Some("pipe") => return take(number(arguments, 1), "pipes", |_| pipe()),
        _ => return println!("hold private|shared|growing|file|segment|queue|pipe MOST"),
    };
    take(number(arguments, 1), "MiB", |_| map(-1, flags));
}

/// Maps a MiB and writes to each page.
fn map(descriptor: i64, flags: i32) -> Result<i64, i32> {
    let access = i64::from(libc::PROT_READ | libc::PROT_WRITE);
    let at = raw(libc::SYS_mmap, [0, MIB, access, flags.into(), descriptor, 0])?;
    write_all(at);
    Ok(at)
}

fn write_all(at: i64) {
    for page in (0..MIB).step_by(4096) {
        let byte =
            std::ptr::with_exposed_provenance_mut::<u8>(usize::try_from(at + page).unwrap_or_default());
        // SAFETY: a MiB that the kernel has just mapped writable there. No other code refers to it.
        unsafe { byte.write_volatile(1) };
    }
}

/// Writes to a file without a name, one MiB at a time.
fn hold_in(call: i64, most: i64) {
    let name = c"hold".as_ptr().expose_provenance();
    let file = raw(call, [i64::try_from(name).unwrap_or_default(), 0, 0, 0, 0, 0]);
    let block = vec![1u8; 1 << 20];
    let from = i64::try_from(block.as_ptr().expose_provenance()).unwrap_or_default();
    take(most, "MiB", |_| raw(libc::SYS_write, [file?, from, MIB, 0, 0, 0]));
}

/// A segment of System V shared memory.
fn segment() -> Result<i64, i32> {
    let id = raw(libc::SYS_shmget, [0, MIB, 0o1600, 0, 0, 0])?;
    let at = raw(libc::SYS_shmat, [id, 0, 0, 0, 0, 0])?;
    write_all(at);
    Ok(at)
}

/// A POSIX message queue of default size.
fn queue(number: i64) -> Result<i64, i32> {
    let name = std::ffi::CString::new(format!("hold{number}")).unwrap_or_default();
    let at = i64::try_from(name.as_ptr().expose_provenance()).unwrap_or_default();
    raw(libc::SYS_mq_open, [at, i64::from(libc::O_CREAT | libc::O_RDWR), 0o600, 0, 0, 0])
}

/// A pipe of the largest size that the host allows, filled.
fn pipe() -> Result<i64, i32> {
    let mut ends = [0i32; 2];
    let at = i64::try_from(ends.as_mut_ptr().expose_provenance()).unwrap_or_default();
    raw(libc::SYS_pipe2, [at, libc::O_NONBLOCK.into(), 0, 0, 0, 0])?;
    raw(libc::SYS_fcntl, [ends[1].into(), libc::F_SETPIPE_SZ.into(), MIB, 0, 0, 0])
}

/// Descriptors.
pub(crate) fn open_all(arguments: &[&str]) {
    let mut open = Vec::new();
    take(number(arguments, 0), "descriptors", |_| match File::open("/dev/null") {
        Ok(file) => {
            open.push(file);
            Ok(0)
        }
        Err(error) => Err(error.raw_os_error().unwrap_or_default()),
    });
}

/// Descriptors in messages that nobody receives, as many in each message as it takes. They stay until this
/// process is killed or its standard input ends.
pub(crate) fn in_flight(arguments: &[&str]) {
    let mut pairs = Vec::new();
    take(number(arguments, 0), "messages", |_| {
        if pairs.last().is_none_or(|pair| send_descriptors(pair).is_err()) {
            pairs.push(UnixDatagram::pair().map_err(|error| error.raw_os_error().unwrap_or_default())?);
        }
        pairs.last().map_or(Ok(()), send_descriptors).map(|()| 0).map_err(|errno| errno as i32)
    });
    let _ = std::io::stdin().read(&mut [0]);
}

fn send_descriptors((one, other): &(UnixDatagram, UnixDatagram)) -> nix::Result<()> {
    let descriptors = [other.as_raw_fd(); 253];
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let flags = MsgFlags::MSG_DONTWAIT;
    sendmsg::<()>(one.as_raw_fd(), &[IoSlice::new(b"x")], &rights, flags, None).map(drop)
}

/// `files DIR MOST`: empty files.
pub(crate) fn files(arguments: &[&str]) {
    let dir = arguments.first().copied().unwrap_or("/tmp").to_owned();
    take(number(arguments, 1), "files", |number| {
        let made = File::create(format!("{dir}/f{number}"));
        made.map(|_| 0).map_err(|error| error.raw_os_error().unwrap_or_default())
    });
    fail();
}

/// A program that failed to get what it wanted.
fn fail() {
    let _ = raw(libc::SYS_exit_group, [1, 0, 0, 0, 0, 0]);
}

/// Threads that sleep.
pub(crate) fn threads(arguments: &[&str]) {
    take(number(arguments, 0), "threads", |_| {
        let thread = thread::Builder::new().stack_size(16 << 10).spawn(|| thread::sleep(STAY));
        thread.map(|_| 0).map_err(|error| error.raw_os_error().unwrap_or_default())
    });
}

/// Children that ended and are not reaped.
pub(crate) fn zombies(arguments: &[&str]) {
    take(number(arguments, 0), "zombies", |_| match fork() {
        Ok(0) => std::process::abort(),
        answer => answer,
    });
}

/// A fork bomb that goes on: every process forks as often as it may, and none ends by itself.
pub(crate) fn fork_tree(_: &[&str]) {
    let end = Instant::now() + STAY;
    while Instant::now() < end {
        let _ = fork();
    }
}

/// A tree of stopped processes, and its root.
pub(crate) fn stopped_tree(arguments: &[&str]) {
    for _ in 0..number(arguments, 0).min(10) {
        let _ = fork();
    }
    let pid = i64::from(std::process::id());
    let _ = raw(libc::SYS_kill, [pid, libc::SIGSTOP.into(), 0, 0, 0, 0]);
    thread::sleep(STAY);
}

/// Directories as deep as possible.
pub(crate) fn depth(arguments: &[&str]) {
    let dir = arguments.first().copied().unwrap_or("/tmp").to_owned();
    let enter = |_| fs::create_dir("d").and_then(|()| std::env::set_current_dir("d"));
    if std::env::set_current_dir(dir).is_ok() {
        take(number(arguments, 1), "levels", |number| {
            enter(number).map(|()| 0).map_err(|error| error.raw_os_error().unwrap_or_default())
        });
    }
    fail();
}
