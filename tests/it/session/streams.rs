//! Standard descriptors and terminals of a session's commands.

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
};

use kennel::{Error, Stdio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{attempt, in_time, said, shell};
use crate::support::{World, workspace};

#[tokio::test]
async fn input_that_another_process_holds_open_is_not_waited_for() {
    let world = World::new();
    let session = world.session().await;
    let mut command = session.command("sh");
    command.args(["-c", "exec 3<&0; sleep 600 <&3 >/dev/null 2>&1 & exit 3"]).background(true);
    let out = in_time(command.output_with_input(&vec![b'x'; 1 << 20])).await.unwrap();
    assert_eq!(out.outcome.status.code(), Some(3));
}

#[tokio::test]
async fn files_and_descriptors_of_the_caller_are_streams() {
    let world = World::new();
    let outside = workspace();
    let path = |name: &str| outside.path().join(name);
    fs::write(path("in"), "from file").unwrap();
    let session = world.session().await;
    let mut command = session.command("sh");
    command.args(["-c", "cat; echo err >&2"]).stdin(File::open(path("in")).unwrap());
    command.stdout(File::create(path("out")).unwrap()).stderr(File::create(path("err")).unwrap());
    assert!(in_time(command.status()).await.unwrap().status.success());
    assert_eq!(fs::read_to_string(path("out")).unwrap(), "from file", "even if no path leads there");
    assert_eq!(fs::read_to_string(path("err")).unwrap(), "err\n");
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut command = session.command("sh");
    command.args(["-c", "read line; echo got $line >&0"]).stdin(OwnedFd::from(theirs));
    ours.write_all(b"it\n").unwrap();
    assert!(in_time(command.stdout(Stdio::null()).status()).await.unwrap().status.success());
    drop(command);
    let mut answer = String::new();
    ours.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "got it\n");
}

#[tokio::test]
async fn null_is_the_sandbox_s_own() {
    let world = World::new();
    let session = world.session().await;
    let mut command = session.command("sh");
    command.args(["-c", "[ \"$(stat -Lc %d:%i /proc/self/fd/0)\" = \"$(stat -c %d:%i /dev/null)\" ] && cat"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    assert!(in_time(command.status()).await.unwrap().status.success());
}

#[tokio::test]
async fn a_command_has_three_descriptors() {
    let world = World::new();
    let session = world.probing().await;
    for _ in 0..4 {
        assert_eq!(said(&mut attempt(&session, "descriptors")).await, "0 1 2\n");
    }
    let mut big = attempt(&session, "descriptors");
    assert_eq!(said(big.arg("x".repeat(100 << 10))).await, "0 1 2\n", "nor the memfd of a long request");
    let mut narrow = attempt(&session, "descriptors");
    assert_eq!(said(narrow.read_only(world.path())).await, "0 1 2\n");
}

#[tokio::test]
async fn directories_and_path_descriptors_cannot_be_streams() {
    let world = World::new();
    let session = world.session().await;
    let file = world.at("file");
    fs::write(&file, "").unwrap();
    let o_path = File::options().read(true).custom_flags(libc::O_PATH).open(&file).unwrap();
    for (fd, errno) in [(File::open(world.path()).unwrap(), libc::EISDIR), (o_path, libc::EBADF)] {
        let kept = fd.as_fd().try_clone_to_owned().unwrap();
        let error = in_time(session.command("true").stdin(fd).output()).await.unwrap_err();
        let Error::Io { source, .. } = &error else { panic!("{error:?}") };
        assert_eq!(source.raw_os_error(), Some(errno));
        drop(kept);
    }
    shell(&session, "true").await;
}

#[tokio::test]
async fn terminal_is_a_controlling_terminal_of_the_command_alone() {
    let world = World::new();
    let session = world.session().await;
    for _ in 0..3 {
        let mut command = session.command("sh");
        command.args(["-c", "stty size; tty; read line; echo got $line >/dev/tty; ls /dev/pts"]);
        let mut child = in_time(command.terminal(11, 22).spawn()).await.unwrap();
        let mut terminal = child.terminal.clone().unwrap();
        terminal.clone().write_all(b"typed\n").await.unwrap();
        let mut seen = String::new();
        in_time(terminal.read_to_string(&mut seen)).await.unwrap();
        for line in ["11 22\r\n", "/dev/pts/0\r\n", "got typed\r\n"] {
            assert!(seen.contains(line), "{seen:?}");
        }
        assert!(seen.ends_with("0  ptmx\r\n") || seen.ends_with("0\r\nptmx\r\n"), "{seen:?}");
        assert!(in_time(child.wait()).await.unwrap().status.success());
    }
    let child = in_time(session.command("true").spawn()).await.unwrap();
    assert!(child.terminal.is_none());
    assert_eq!(shell(&session, "(: </dev/tty) 2>/dev/null || echo none; ls /dev/pts").await, "none\nptmx\n");
}

#[tokio::test]
async fn closing_the_terminal_hangs_the_command_up() {
    let world = World::new();
    let session = world.session().await;
    let mut command = session.command("sleep");
    let mut child = in_time(command.arg("60").terminal(24, 80).spawn()).await.unwrap();
    drop(child.terminal.take());
    assert_eq!(in_time(child.wait()).await.unwrap().exit_code(), 129, "SIGHUP");
    shell(&session, "true").await;
}
