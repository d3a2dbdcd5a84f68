//! What a command gets, how it ends, what it writes and reads.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use kennel_client::{Ended, Error, Output, Session, Signal, Stdio};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::server::TestServer;

async fn sh(session: &Session, script: &str) -> Output {
    session.command("sh").args(["-c", script]).output().await.unwrap()
}

#[tokio::test]
async fn a_command_has_its_arguments_variables_and_directory() {
    let server = TestServer::start("");
    let session = server.client().sandbox().env("BOTH", "sandbox").env("ONE", "1").create().await.unwrap();
    let mut command = session.command("sh");
    command.args(["-c", "echo \"$0 $1\"; pwd; echo $ONE $BOTH $OWN; echo wrong >&2", "a b", "*"]);
    let out = command.env("BOTH", "command").env("OWN", "ü").current_dir("/tmp").output().await.unwrap();
    assert_eq!(String::from_utf8_lossy(&out.stdout), "a b *\n/tmp\n1 command ü\n");
    assert_eq!(out.stderr, b"wrong\n");
    assert_eq!(sh(&session, "pwd").await.stdout, b"/home/user\n");
}

#[tokio::test]
async fn an_end_is_told_as_it_was() {
    let server = TestServer::start("");
    let session = server.session().await;
    let ended = sh(&session, "exit 3").await.outcome;
    assert_eq!((ended.status.code(), ended.exit_code(), ended.ended), (Some(3), 3, Ended::Exited));
    assert!(sh(&session, "true").await.outcome.status.success());
    for (signal, number) in [("KILL", 9), ("HUP", 1), ("SEGV", 11), ("USR1", 10), ("TERM", 15)] {
        let ended = sh(&session, &format!("kill -{signal} $$")).await.outcome;
        assert_eq!((ended.status.signal(), ended.ended), (Some(number), Ended::Signaled), "{signal}");
        assert_eq!(ended.exit_code(), u8::try_from(128 + number).unwrap());
    }
}

#[tokio::test]
async fn what_cannot_start_is_an_error() {
    let server = TestServer::start("");
    let session = server.session().await;
    let refused = session.command("no-such-program").output().await.unwrap_err();
    assert!(matches!(&refused, Error::Refused { status: 404, .. }), "{refused:?}");
    assert!(refused.to_string().contains("no-such-program"), "{refused}");
    let words = std::ffi::OsStr::from_bytes(b"\xff");
    assert!(matches!(session.command("echo").arg(words).output().await, Err(Error::Invalid { .. })));
    let mut nowhere = session.command("true");
    let refused = nowhere.current_dir("/no/such").status().await.unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "{refused:?}");
    nowhere.current_dir("/");
    assert!(nowhere.status().await.unwrap().status.success());
}

#[tokio::test]
async fn a_time_that_is_over_is_told_and_keeps_the_output() {
    let server = TestServer::start("");
    let session = server.session().await;
    let mut command = session.command("sh");
    command.args(["-c", "echo begun; sleep 60"]).timeout(Duration::from_millis(500));
    let out = command.output().await.unwrap();
    assert_eq!((out.outcome.ended, out.outcome.exit_code()), (Ended::TimedOut, 124));
    assert_eq!(out.outcome.status.signal(), Some(9));
    assert_eq!(out.stdout, b"begun\n");
    let in_time = session.command("true").timeout(Duration::from_secs(30)).status().await.unwrap();
    assert_eq!(in_time.ended, Ended::Exited);
}

#[tokio::test]
async fn large_output_arrives_whole_and_beyond_the_limit_the_command_is_killed() {
    let server = TestServer::start("");
    let session = server.session().await;
    let mut command = session.command("sh");
    command.args(["-c", "head -c 20000000 /dev/zero | tr '\\0' x; head -c 3000000 /dev/zero >&2"]);
    let out = command.output().await.unwrap();
    assert_eq!((out.stdout.len(), out.stderr.len()), (20_000_000, 3_000_000));
    assert!(out.stdout.iter().all(|byte| *byte == b'x') && out.stderr.iter().all(|byte| *byte == 0));
    let most = command.max_output(20_000_000).output().await.unwrap();
    assert_eq!(most.stdout.len(), 20_000_000);
    let error = command.max_output(19_999_999).output().await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { most: 19_999_999, .. }), "{error:?}");
    let endless = session.command("yes").max_output(1000).output().await.unwrap_err();
    assert!(matches!(endless, Error::TooLarge { .. }));
    crate::server::wait_until("it is killed", || async {
        !sh(&session, "cat /proc/[0-9]*/comm").await.stdout.starts_with(b"yes")
    })
    .await;
}

#[tokio::test]
async fn input_arrives_whole_and_ends() {
    let server = TestServer::start("");
    let session = server.session().await;
    let input: Vec<u8> = (0..3_000_000_u32).map(|number| number.to_le_bytes()[0]).collect();
    let out = session.command("cat").output_with_input(&input).await.unwrap();
    assert!(out.stdout == input, "{} bytes", out.stdout.len());
    // Whoever reads a part of it is no error.
    let out = session.command("head").args(["-c", "3"]).output_with_input(&input).await.unwrap();
    assert_eq!((out.stdout.len(), out.outcome.exit_code()), (3, 0));
    assert_eq!(session.command("cat").output().await.unwrap().stdout, b"", "there is none by default");
}

#[tokio::test]
async fn a_child_is_talked_to() {
    let server = TestServer::start("");
    let session = server.session().await;
    let mut command = session.command("sh");
    command.args(["-c", "while read -r line; do echo \"got $line\"; done; echo bye >&2; exit 4"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().await.unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for word in ["one", "two"] {
        input.write_all(format!("{word}\n").as_bytes()).await.unwrap();
        assert_eq!(lines.next_line().await.unwrap().unwrap(), format!("got {word}"));
    }
    drop(input);
    assert_eq!(lines.next_line().await.unwrap(), None);
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).await.unwrap();
    assert_eq!(said, "bye\n");
    assert_eq!(child.wait().await.unwrap().exit_code(), 4);
    assert_eq!(child.wait().await.unwrap().exit_code(), 4, "again");
}

#[tokio::test]
async fn a_writer_finds_that_nobody_reads() {
    let server = TestServer::start("");
    let session = server.session().await;
    let mut command = session.command("sh");
    let mut child = command.args(["-c", "exec <&-; sleep 30"]).stdin(Stdio::piped()).spawn().await.unwrap();
    let mut input = child.stdin.take().unwrap();
    let written = async {
        loop {
            if let Err(error) = input.write_all(&[0; 65536]).await {
                return error.kind();
            }
        }
    };
    let kind = tokio::time::timeout(Duration::from_secs(10), written).await.unwrap();
    assert_eq!(kind, std::io::ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn signals_arrive_and_a_kill_waits_for_the_end() {
    let server = TestServer::start("");
    let session = server.session().await;
    let mut command = session.command("sh");
    command.args(["-c", "trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.1; done"]);
    let mut child = command.stdout(Stdio::piped()).spawn().await.unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "ready");
    child.signal(Signal::TERM).await.unwrap();
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "caught");
    assert_eq!(child.wait().await.unwrap().exit_code(), 7);
    child.signal(Signal::TERM).await.unwrap();
    // With output that nobody reads.
    let mut yes = session.command("yes").stdout(Stdio::piped()).spawn().await.unwrap();
    let ended = yes.kill().await.unwrap();
    assert_eq!(ended.status.signal(), Some(9));
}

#[tokio::test]
async fn commands_run_side_by_side() {
    let server = TestServer::start("");
    let session = server.session().await;
    let runs: Vec<_> = (0..20).map(|n| session.command("echo").arg(n.to_string()).output()).collect();
    let runs: Vec<_> = runs.into_iter().map(tokio::spawn).collect();
    for (number, run) in runs.into_iter().enumerate() {
        assert_eq!(run.await.unwrap().unwrap().stdout, format!("{number}\n").into_bytes());
    }
}
