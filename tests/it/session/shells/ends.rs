//! Timeouts, interrupts and drops end a snippet; `exit` ends the shell, and both are told.

use std::{
    fs,
    time::{Duration, Instant},
};

use kennel::{
    Ended, Error, Session, Shell, ShellOutput,
    report::{Limit, ShellOrigin},
};
use tokio::time::{sleep, timeout};

use super::{kind, kinds, run, said, with_each};
use crate::{
    session::{eventually, in_time},
    support::{World, patient},
};

const SHORT: Duration = Duration::from_millis(200);

/// Snippets that only a signal ends.
const ENDLESS: [&str; 6] = [
    "touch begun; while :; do :; done",
    "touch begun; sleep 1000",
    "touch begun; sleep 1000 | cat; echo not",
    "f() { touch begun; while true; do sleep 1000; done; }; f; echo not",
    "touch begun; x=$(sleep 1000); echo not",
    "touch begun; sleep 1000 & wait; echo not",
];

async fn timed(shell: &Shell, snippet: &str) -> ShellOutput {
    in_time(shell.snippet(snippet).timeout(SHORT).output()).await.unwrap()
}

#[tokio::test]
async fn a_timeout_ends_the_snippet_and_the_shell_keeps_its_state() {
    for kind in kinds().await {
        let shell = kind.session.shell();
        said(&shell, "kept=1; mkdir -p d; cd d").await;
        for endless in ENDLESS {
            let begun = Instant::now();
            let out = timed(&shell, &format!("echo before; {endless}")).await;
            let took = begun.elapsed();
            assert_eq!(
                (out.outcome.ended, out.outcome.limit),
                (Ended::TimedOut, Some(Limit::WallTime)),
                "{endless}"
            );
            assert_eq!((out.outcome.exit_code(), out.has_ended), (124, false), "{}: {endless}", kind.name);
            assert_eq!(out.stdout, b"before\n", "{endless}");
            assert!(out.directory.as_ref().is_some_and(|path| path.ends_with("d")), "{out:?}");
            assert!(took < patient(Duration::from_millis(1900)), "SIGINT was enough: {endless}: {took:?}");
            assert_eq!(said(&shell, "echo $kept").await, "1\n", "{}: {endless}", kind.name);
        }
    }
}

#[tokio::test]
async fn the_policy_s_timeout_holds_for_each_snippet_and_not_for_the_shell() {
    let kind = kind("bash", |policy| policy.timeout(Duration::from_millis(400))).await;
    let shell = kind.session.shell();
    said(&shell, "kept=1").await;
    for _ in 0..3 {
        said(&shell, "sleep 0.2").await;
    }
    let out = in_time(shell.snippet("sleep 1000").timeout(Duration::from_secs(3600)).output()).await.unwrap();
    assert_eq!((out.outcome.ended, out.has_ended), (Ended::TimedOut, false));
    assert_eq!(said(&shell, "echo $kept").await, "1\n");
}

#[tokio::test]
async fn an_interrupt_ends_the_snippet_that_runs_and_no_other() {
    for kind in kinds().await {
        let shell = kind.session.shell();
        said(&shell, "kept=1").await;
        shell.interrupt();
        assert_eq!(said(&shell, "echo $kept").await, "1\n", "nothing ran when it was interrupted");
        for endless in ENDLESS {
            let _ = fs::remove_file(kind.path().join("begun"));
            let call = tokio::spawn({
                let shell = shell.clone();
                async move { shell.run(endless).await }
            });
            let waiting = tokio::spawn({
                let shell = shell.clone();
                async move { shell.run("echo waited").await }
            });
            eventually("it began", || kind.path().join("begun").exists()).await;
            shell.interrupt();
            let out = in_time(call).await.unwrap().unwrap();
            assert_eq!(
                (out.outcome.ended, out.has_ended),
                (Ended::Killed, false),
                "{}: {endless}",
                kind.name
            );
            // The signal may come between two commands, and then bash goes on with the next one.
            assert!(
                out.outcome.exit_code() == 130 || endless.ends_with("echo not"),
                "{}: {endless}",
                kind.name
            );
            let out = in_time(waiting).await.unwrap().unwrap();
            assert_eq!(
                (out.outcome.ended, &*out.stdout),
                (Ended::Exited, &b"waited\n"[..]),
                "{}: {endless}",
                kind.name
            );
            assert_eq!(said(&shell, "echo $kept").await, "1\n");
        }
    }
}

#[tokio::test]
async fn a_dropped_call_is_interrupted_and_the_shell_keeps_its_state() {
    with_each(async |kind| {
        let shell = kind.session.shell();
        said(&shell, "kept=1").await;
        let begun = Instant::now();
        for endless in ENDLESS {
            timeout(SHORT, shell.run(endless)).await.unwrap_err();
            assert_eq!(said(&shell, "echo $kept").await, "1\n", "{}: {endless}", kind.name);
        }
        // Dropped before it had its turn: it never runs.
        let long = tokio::spawn({
            let shell = shell.clone();
            async move { shell.run("sleep 0.5").await }
        });
        sleep(Duration::from_millis(50)).await;
        timeout(Duration::from_millis(50), shell.run("touch never")).await.unwrap_err();
        in_time(long).await.unwrap().unwrap();
        said(&shell, "true").await;
        assert!(!kind.path().join("never").exists());
        assert!(begun.elapsed() < patient(Duration::from_secs(9)));
    })
    .await;
}

/// SIGINT, then SIGKILL for what it has started, then the end of the shell.
#[tokio::test]
async fn what_ignores_the_interrupt_is_killed() {
    with_each(async |kind| {
        let shell = kind.session.shell();
        said(&shell, "kept=1; sleep 1000 & old=$!").await;
        let stubborn = "sh -c \"trap '' INT; while :; do sleep 1000; done\"; echo not";
        let out = timed(&shell, stubborn).await;
        assert_eq!((out.outcome.exit_code(), out.has_ended), (124, false), "{}: {out:?}", kind.name);
        assert_eq!(said(&shell, "echo $kept; kill -0 $old && echo old").await, "1\nold\n", "{}", kind.name);
        // On a busy machine, a trap of the same snippet may come after the interrupt.
        said(&shell, "trap '' INT").await;
        let out = timed(&shell, "while :; do :; done").await;
        assert_eq!(
            (out.outcome.exit_code(), out.outcome.ended, out.has_ended),
            (124, Ended::TimedOut, true),
            "{out:?}"
        );
        let next = run(&shell, "echo \"<$kept>\"").await;
        assert_eq!((&*next.stdout, next.origin), (&b"<>\n"[..], ShellOrigin::Replacement));
    })
    .await;
}

#[tokio::test]
async fn a_shell_that_ends_says_so_and_the_next_call_has_a_new_one() {
    with_each(async |kind| {
        for (snippet, status) in [
            ("echo last; exit 3", 3),
            ("echo last; exit", 0),
            ("echo last; exec sh -c 'exit 4'", 4),
            ("echo last; exec true", 0),
            ("echo last; kill -9 $$", 137),
            ("echo last; kill -9 $PPID; sleep 1000", 137),
            ("(sleep 1000; echo never) & echo last; exit 5", 5),
        ] {
            let shell = kind.session.shell();
            said(&shell, "kept=1").await;
            let out = run(&shell, snippet).await;
            assert!(out.has_ended && out.directory.is_none(), "{}: {snippet}: {out:?}", kind.name);
            assert_eq!(out.outcome.exit_code(), status, "{}: {snippet}", kind.name);
            assert_eq!(String::from_utf8_lossy(&out.stdout), "last\n", "{}: {snippet}", kind.name);
            let next = run(&shell, "echo \"<$kept>\"").await;
            assert_eq!((&*next.stdout, next.origin), (&b"<>\n"[..], ShellOrigin::Replacement), "{snippet}");
            assert_eq!(run(&shell, "true").await.origin, ShellOrigin::Earlier);
        }
    })
    .await;
}

/// Killed between two calls, by itself in the background.
#[tokio::test]
async fn a_shell_that_died_meanwhile_is_replaced() {
    with_each(async |kind| {
        let shell = kind.session.shell();
        said(&shell, "(sleep 0.1; kill -9 $$; sleep 0.1; touch dead) & :").await;
        sleep(patient(Duration::from_millis(500))).await;
        let out = run(&shell, "echo new").await;
        assert_eq!((&*out.stdout, out.origin), (&b"new\n"[..], ShellOrigin::Replacement), "{}", kind.name);
    })
    .await;
}

#[tokio::test]
async fn a_snippet_that_stops_the_shell_or_its_parent_hangs_nobody() {
    let [kind, ..] = kinds().await;
    let hangs_nobody = async |stop| {
        let shell = kind.session.shell();
        let out = timed(&shell, stop).await;
        assert_eq!(out.outcome.exit_code(), 124, "{stop}");
        assert_eq!(said(&shell, "echo on").await, "on\n", "{stop}");
    };
    tokio::join!(
        hangs_nobody("kill -STOP $$; sleep 1000"),
        hangs_nobody("kill -STOP $PPID; sleep 1000"),
        hangs_nobody("cat <&10 >/dev/null; cat /proc/self/fd/0"),
    );
}

#[tokio::test]
async fn dropping_the_last_handle_ends_everything_in_the_shell() {
    let [kind, ..] = kinds().await;
    let shell = kind.session.shell();
    said(&shell, "(while :; do echo x >>beats; sleep 0.01; done) & :").await;
    let beats = || fs::read_to_string(kind.path().join("beats")).unwrap_or_default().len();
    eventually("a beat", || beats() > 0).await;
    drop(shell);
    eventually("silence", || {
        let before = beats();
        std::thread::sleep(Duration::from_millis(100));
        before == beats()
    })
    .await;
    eventually("no command runs", || kind.session.stats().running == 0).await;
}

#[tokio::test]
async fn the_end_of_the_session_ends_its_shells() {
    let [kind, ..] = kinds().await;
    let shell = kind.session.shell_with_id("kept");
    said(&shell, "true").await;
    let call = tokio::spawn({
        let shell = shell.clone();
        async move { shell.run("sleep 1000").await }
    });
    eventually("it runs", || kind.session.stats().running == 1).await;
    in_time(kind.session.shutdown()).await;
    let ended = in_time(call).await.unwrap();
    assert!(matches!(ended, Err(Error::SessionEnded)), "{ended:?}");
    let refused = in_time(shell.run("true")).await;
    assert!(matches!(refused, Err(Error::SessionEnded)), "{refused:?}");
}

#[tokio::test]
async fn without_bash_and_sh_there_is_no_shell() {
    let world = World::new();
    let session = Session::prepare(&world.policy().set_env("PATH", "/no/such")).await.unwrap();
    let refused = in_time(session.shell().run("true")).await.unwrap_err();
    assert!(matches!(&refused, Error::NotFound { program } if program == "bash or sh"), "{refused:?}");
}
