//! Gives stdout to another process over a named socket. That process may keep it open after our end.

use std::{
    fs::File,
    io::{self, IoSlice, IoSliceMut, Read, Write},
    os::{
        fd::AsRawFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    thread,
    time::Duration,
};

use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

use crate::{from_std, say};

/// Gives our stdout to the process at PATH.
pub(crate) fn give_stdout(arguments: &[&str]) {
    arguments.iter().for_each(|path| say(from_std(give(path))));
}

/// Takes a stdout at PATH, and holds it until PATH.end exists.
pub(crate) fn hold_stdout(arguments: &[&str]) {
    arguments.iter().for_each(|path| say(from_std(hold(path, |_| Ok(())))));
}

/// The same, and writes to it all the time.
pub(crate) fn use_stdout(arguments: &[&str]) {
    let write =
        |number| File::options().append(true).open(format!("/proc/self/fd/{number}"))?.write_all(b".");
    arguments.iter().for_each(|path| say(from_std(hold(path, write))));
}

fn give(path: &str) -> io::Result<()> {
    // The socket may be bound and not yet listening.
    let mut socket = loop {
        match UnixStream::connect(path) {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                thread::sleep(Duration::from_millis(10));
            }
            connected => break connected?,
        }
    };
    let stdout = [io::stdout().as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&stdout)];
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(b"x")], &rights, MsgFlags::empty(), None)?;
    // The other process has it.
    socket.read_exact(&mut [0])
}

fn hold(path: &str, each_time: impl Fn(i32) -> io::Result<()>) -> io::Result<()> {
    let (mut socket, _) = UnixListener::bind(path)?.accept()?;
    let mut room = nix::cmsg_space!([i32; 1]);
    // The descriptor in the message is ours from now on, by its number.
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut bytes, Some(&mut room), MsgFlags::empty())?;
    let Some(ControlMessageOwned::ScmRights(taken)) = message.cmsgs()?.next() else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    socket.write_all(b"x")?;
    let end = format!("{path}.end");
    while !Path::new(&end).exists() {
        taken.iter().try_for_each(|number| each_time(*number))?;
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
