//! Commands that stay: they outlive whoever started them, keep what they wrote last, and end with their
//! session.

use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    os::unix::process::ExitStatusExt,
    time::Duration,
};

use kennel::{
    Detached, Ended, Error, Isolation, Limits, LogPiece, LogReader, Sandbox, Session, Signal, Size,
};
use nix::{
    fcntl::{FcntlArg, SealFlag, fcntl},
    sys::memfd::{MFdFlags, memfd_create},
};
use tokio::runtime::Builder;

use super::{in_time, shell};
use crate::support::{World, eventually, until};

/// A session whose commands share nothing or all.
async fn session_of(world: &World, isolation: Isolation) -> Session {
    Session::prepare(&world.policy().isolation(isolation)).await.expect("a session")
}

/// Starts a script that stays.
async fn detached(session: &Session, script: &str) -> Detached {
    in_time(session.command("sh").args(["-c", script]).detach()).await.expect("a command that stays")
}

/// What a reader returned: stdout, stderr, and how much was dropped.
#[derive(Debug, Default, PartialEq, Eq)]
struct Read3 {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    dropped: u64,
}

impl Read3 {
    fn take(&mut self, piece: LogPiece) {
        match piece {
            LogPiece::Stdout(bytes) => self.stdout.extend(bytes),
            LogPiece::Stderr(bytes) => self.stderr.extend(bytes),
            LogPiece::Dropped(count) => self.dropped += count,
            _ => unreachable!("no other piece"),
        }
    }

    fn len(&self) -> u64 {
        self.dropped + (self.stdout.len() + self.stderr.len()) as u64
    }
}

async fn read(mut reader: LogReader) -> Read3 {
    let mut read = Read3::default();
    while let Some(piece) = in_time(reader.next()).await {
        read.take(piece);
    }
    read
}

#[tokio::test]
async fn a_command_stays_when_whoever_started_it_is_gone() {
    for isolation in Isolation::ALL {
        let world = World::new();
        let session = session_of(&world, isolation).await;
        drop(detached(&session, "until [ -e go ]; do sleep 0.02; done; echo went; exit 3").await);
        let again = session.detached_command(1).expect("it stays");
        assert!(again.try_wait().is_none());
        assert_eq!((again.program(), session.stats().running), ("sh".as_ref(), 1));
        fs::write(world.at("go"), "").unwrap();
        let outcome = in_time(again.wait()).await.unwrap();
        assert_eq!((outcome.status.code(), outcome.ended), (Some(3), Ended::Exited));
        assert_eq!(outcome.stdout_bytes, Some(5));
        assert_eq!(in_time(again.wait()).await.unwrap(), outcome, "a second wait returns the same");
        assert_eq!(read(again.logs()).await.stdout, b"went\n");
        assert_eq!((session.stats().running, shell(&session, "echo well").await.as_str()), (0, "well\n"));
    }
}

#[tokio::test]
async fn the_log_has_both_streams_apart_and_its_last_lines() {
    for isolation in Isolation::ALL {
        let world = World::new();
        let session = session_of(&world, isolation).await;
        // Each waits until the other one has arrived.
        let script = "echo one; sleep 0.2; echo two >&2; sleep 0.2; echo three; cat; exit 0";
        let command = detached(&session, script).await;
        let mut pieces = Vec::new();
        let mut reader = command.follow();
        while let Some(piece) = in_time(reader.next()).await {
            pieces.push(piece);
        }
        let all = Read3 { stdout: b"one\nthree\n".to_vec(), stderr: b"two\n".to_vec(), dropped: 0 };
        assert_eq!(read(command.logs()).await, all, "stdin is empty");
        assert_eq!(read(command.follow()).await, all, "the end is known");
        assert_eq!(pieces.first(), Some(&LogPiece::Stdout(b"one\n".to_vec())));
        assert_eq!(pieces.last(), Some(&LogPiece::Stdout(b"three\n".to_vec())));
        let tail = Read3 { stdout: b"three\n".to_vec(), stderr: b"two\n".to_vec(), dropped: 0 };
        assert_eq!(read(command.logs().tail(2)).await, tail);
        assert_eq!(read(command.logs().tail(100)).await, all);
        assert_eq!(read(command.logs().tail(0)).await, Read3::default());
    }
}

#[tokio::test]
async fn the_log_keeps_the_last_mib_and_says_how_much_is_gone() {
    for isolation in Isolation::ALL {
        let world = World::new();
        let session = session_of(&world, isolation).await;
        let command = detached(&session, "seq 1 500000; echo end >&2").await;
        in_time(command.wait()).await.unwrap();
        let written: u64 =
            (1..=500_000u32).map(|number| number.to_string().len() as u64 + 1).sum::<u64>() + 4;
        let log = read(command.logs()).await;
        assert_eq!(log.len(), written);
        let kept = log.stdout.len() + log.stderr.len();
        assert!((900_000..=1 << 20).contains(&kept), "{kept}");
        assert!(log.stdout.ends_with(b"\n499999\n500000\n") && log.stderr == b"end\n");
    }
}

#[tokio::test]
async fn a_reader_that_does_not_read_keeps_nobody_waiting() {
    for isolation in Isolation::ALL {
        let world = World::new();
        let session = session_of(&world, isolation).await;
        let command = detached(&session, "until [ -e go ]; do sleep 0.02; done; seq 1 500000").await;
        let mut stuck = command.follow();
        let reader = tokio::spawn(read(command.follow()));
        fs::write(world.at("go"), "").unwrap();
        let outcome = in_time(command.wait()).await.unwrap();
        assert!(outcome.status.success());
        let written = outcome.stdout_bytes.unwrap();
        assert_eq!(reader.await.unwrap().len(), written);
        // It lags, and gets what is left.
        let Some(LogPiece::Dropped(dropped)) = in_time(stuck.next()).await else { panic!("it lags") };
        assert_eq!(dropped + read(stuck).await.len(), written);
    }
}

#[tokio::test]
async fn a_hundred_commands_stay_and_the_last_that_ended_are_remembered() {
    for isolation in Isolation::ALL {
        let world = World::new();
        let session = session_of(&world, isolation).await;
        for number in 1..=100 {
            let command = detached(&session, &format!("echo {number}; exec sleep 600")).await;
            assert_eq!(command.id(), number);
        }
        let all = session.detached();
        assert_eq!(all.iter().map(Detached::id).collect::<Vec<_>>(), (1..=100).collect::<Vec<_>>());
        assert!(all.iter().all(|command| command.try_wait().is_none()));
        assert_eq!(session.stats().running, 100);
        for command in &all {
            let mut log = command.follow();
            let first = in_time(log.next()).await;
            assert_eq!(first, Some(LogPiece::Stdout(format!("{}\n", command.id()).into_bytes())));
            let outcome = in_time(command.kill()).await.unwrap();
            assert_eq!((outcome.ended, outcome.status.signal()), (Ended::Killed, Some(9)));
        }
        let remembered: Vec<u32> = session.detached().iter().map(Detached::id).collect();
        assert_eq!(remembered, (37..=100).collect::<Vec<_>>());
        assert!(session.detached_command(36).is_none() && session.detached_command(101).is_none());
        // Who has a handle still knows it.
        assert_eq!(read(all[0].logs()).await.stdout, b"1\n");
        assert_eq!(session.stats().running, 0);
    }
}

#[tokio::test]
async fn signals_and_kills_reach_it() {
    for isolation in Isolation::ALL {
        let world = World::new();
        let session = session_of(&world, isolation).await;
        let trapping =
            detached(&session, "trap 'echo got; exit 9' USR1; echo ready; while :; do sleep 0.02; done")
                .await;
        let mut log = trapping.follow();
        assert_eq!(in_time(log.next()).await, Some(LogPiece::Stdout(b"ready\n".to_vec())));
        trapping.signal(Signal::USR1);
        assert_eq!(in_time(trapping.wait()).await.unwrap().status.code(), Some(9));
        // The shell says on stderr which of its children the signal ended, too.
        assert_eq!(read(log).await.stdout, b"got\n");
        // It has ended, which is no error.
        trapping.signal(Signal::USR1);
        let killed = in_time(trapping.kill()).await.expect("as before");
        assert_eq!(killed.status.code(), Some(9));
        let plain = detached(&session, "exec sleep 600").await;
        plain.signal(Signal::TERM);
        let outcome = in_time(plain.wait()).await.unwrap();
        assert_eq!((outcome.status.signal(), outcome.ended), (Some(15), Ended::Signaled));
    }
}

#[tokio::test]
async fn limits_and_timeouts_hold() {
    let world = World::new();
    let limits = Limits { output: Some(Size::from_bytes(1000)), output_ends: true, ..Limits::default() };
    let policy = world.policy().limits(limits).timeout(Duration::from_millis(300));
    let session = Session::prepare(&policy).await.unwrap();
    let slow = detached(&session, "sleep 600 & sleep 600").await;
    let outcome = in_time(slow.wait()).await.unwrap();
    assert_eq!((outcome.ended, outcome.exit_code()), (Ended::TimedOut, 124));
    let loud = detached(&session, "yes").await;
    let outcome = in_time(loud.wait()).await.unwrap();
    assert!(outcome.limit.is_some(), "{outcome:?}");
    assert_eq!(outcome.ended, Ended::Signaled);
}

#[tokio::test]
async fn it_ends_with_its_session() {
    for (drops, isolation) in [true, false].into_iter().zip(Isolation::ALL.into_iter().cycle()) {
        let world = World::new();
        let session = session_of(&world, isolation).await;
        let script = "while :; do printf . >> beat; sleep 0.01; done";
        let command = detached(&session, script).await;
        eventually("a beat", || crate::support::beats(world.path()) > 0).await;
        let following = tokio::spawn(read(command.follow()));
        let other = session.clone();
        if drops {
            drop((session, other));
        } else {
            in_time(session.shutdown()).await;
        }
        let error = in_time(command.wait()).await.unwrap_err();
        assert!(matches!(error, Error::SessionEnded), "{error:?}");
        assert!(crate::support::is_silent(world.path()));
        assert_eq!(in_time(following).await.unwrap(), Read3::default());
        assert!(matches!(command.try_wait(), Some(Err(Error::SessionEnded))));
    }
}

#[test]
fn it_ends_with_the_runtime_that_follows_it() {
    let world = World::new();
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let command = first.block_on(async {
        let session = session_of(&world, Isolation::Session).await;
        let command = detached(&session, "while :; do printf . >> beat; sleep 0.01; done").await;
        eventually("a beat", || crate::support::beats(world.path()) > 0).await;
        std::mem::forget(session);
        command
    });
    drop(first);
    until("its end", || crate::support::is_silent(world.path()));
    let error = runtime().block_on(async { in_time(command.wait()).await.unwrap_err() });
    assert!(matches!(error, Error::SessionEnded), "{error:?}");
}

#[tokio::test]
async fn what_cannot_stay_is_refused_and_leaves_nothing() {
    for isolation in Isolation::ALL {
        let world = World::new();
        let session = session_of(&world, isolation).await;
        let error = in_time(session.command("kennel-no-such-program").detach()).await.unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }), "{error:?}");
        let error = in_time(session.command("sh").terminal(24, 80).detach()).await.unwrap_err();
        assert!(error.chain().contains("a detached command has none"), "{error:?}");
        let sandbox = Sandbox::new(&world.policy()).unwrap();
        let error = in_time(sandbox.command("true").detach()).await.unwrap_err();
        assert!(error.chain().contains("only a command of a session can stay"), "{error:?}");
        let (reader, writer) = std::io::pipe().unwrap();
        let read_only = File::open(std::env::current_exe().unwrap()).unwrap();
        let directory = File::open("/").unwrap();
        let device = File::options().write(true).open("/dev/null").unwrap();
        for file in [writer.into(), reader.into(), read_only.into(), directory.into(), device.into()] {
            let file: std::os::fd::OwnedFd = file;
            let error = in_time(session.command("true").log_file(file).detach()).await.unwrap_err();
            assert!(error.chain().contains("is not a regular file that is open for writing"), "{error:?}");
        }
        assert_eq!(session.detached().len(), 0);
        assert_eq!(detached(&session, "true").await.id(), 1);
    }
}

fn text(file: &mut File) -> Vec<u8> {
    let mut text = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut text).unwrap();
    text
}

fn memfd() -> File {
    memfd_create(c"log", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap().into()
}

#[tokio::test]
async fn a_log_file_has_all_of_the_output() {
    for isolation in Isolation::ALL {
        let world = World::new();
        let session = session_of(&world, isolation).await;
        let mut file = memfd();
        let mut command = session.command("sh");
        command
            .args(["-c", "seq 1 500000; echo end >&2; ls /proc/self/fd"])
            .log_file(file.try_clone().unwrap());
        let command = in_time(command.detach()).await.unwrap();
        let outcome = in_time(command.wait()).await.unwrap();
        assert_eq!(command.unwritten(), None);
        let text = text(&mut file);
        let written = outcome.stdout_bytes.unwrap() + outcome.stderr_bytes.unwrap();
        assert_eq!(text.len() as u64, written);
        assert!(text.starts_with(b"1\n2\n3\n"));
        // The command has the three standard descriptors, and the one that ls(1) opens.
        assert!(read(command.logs()).await.stdout.ends_with(b"\n0\n1\n2\n3\n"));
    }
}

/// A file that takes no more: a full disk says the same with another errno.
#[tokio::test]
async fn a_log_file_that_takes_no_more_is_told_and_the_command_goes_on() {
    for isolation in Isolation::ALL {
        let world = World::new();
        let session = session_of(&world, isolation).await;
        let file = memfd();
        file.set_len(0).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_GROW)).unwrap();
        let mut command = session.command("sh");
        command.args(["-c", "echo one; until [ -e go ]; do sleep 0.02; done; seq 1 100000; exit 4"]);
        let command = in_time(command.log_file(file).detach()).await.unwrap();
        eventually("the failure is known while it runs", || command.unwritten().is_some()).await;
        fs::write(world.at("go"), "").unwrap();
        let outcome = in_time(command.wait()).await.unwrap();
        assert_eq!(outcome.exit_code(), 4, "its own status");
        assert!(
            command.unwritten().unwrap().contains("Operation not permitted"),
            "{:?}",
            command.unwritten()
        );
        let note = outcome.enforcement.notes().iter().any(|note| note.text.contains("it lacks output"));
        assert!(note, "{:?}", outcome.enforcement.notes());
        assert!(read(command.logs()).await.stdout.ends_with(b"\n100000\n"));
    }
}

#[tokio::test]
async fn a_dropped_start_leaves_nothing() {
    for isolation in Isolation::ALL {
        let world = World::new();
        let session = session_of(&world, isolation).await;
        let mut command = session.command("sleep");
        command.arg("600");
        for polls in 0..6 {
            let mut start = Box::pin(command.detach());
            let mut left = polls;
            // Polls it some times and drops it.
            std::future::poll_fn(|cx| {
                left -= 1;
                match start.as_mut().poll(cx) {
                    std::task::Poll::Pending if left > 0 => std::task::Poll::Pending,
                    _ => std::task::Poll::Ready(()),
                }
            })
            .await;
        }
        let started = session.detached().len();
        eventually("what did not start has ended", || session.stats().running == started).await;
    }
}

/// A server that a script starts with `&` and leaves.
#[tokio::test]
async fn what_it_leaves_writes_on_to_its_log() {
    let world = World::new();
    let session = session_of(&world, Isolation::Session).await;
    let script =
        "echo begun; (until [ -e go ]; do sleep 0.02; done; echo late; echo later >&2; touch done) & exit 3";
    let command = detached(&session, script).await;
    assert_eq!(in_time(command.wait()).await.unwrap().status.code(), Some(3));
    assert_eq!(read(command.follow()).await.stdout, b"begun\n", "it ends with the command");
    fs::write(world.at("go"), "").unwrap();
    eventually("it writes without SIGPIPE", || world.at("done").exists()).await;
    let all = Read3 { stdout: b"begun\nlate\n".to_vec(), stderr: b"later\n".to_vec(), dropped: 0 };
    let begun = std::time::Instant::now();
    while read(command.logs()).await != all {
        assert!(begun.elapsed() < crate::support::patient(Duration::from_secs(10)), "the log lacks it");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
