//! Many commands of one session that share their processes. Some leave processes behind, some time out, some
//! are dropped, and some kill their own worker.

use std::time::Duration;

use kennel::{Ended, Error, Isolation, Session, Stdio};
use tokio::runtime::Runtime;

use crate::{each, policy};

/// One of so many leaves a process that lives until the session ends.
const LEAVES: u32 = 500;

/// Prints how many processes there are besides Kennel's own and this shell.
const OTHERS: &str = "n=0; for d in /proc/[0-9]*; do
    case $(tr -d '\\0' < $d/cmdline) in kennel | sh-c* | '') ;; *) n=$((n + 1));; esac; done 2> /dev/null; echo $n";

pub(crate) fn commands(runtime: &Runtime, count: u32) {
    let workspace = tempfile::tempdir().expect("a temporary directory");
    runtime.block_on(async {
        let policy = policy(workspace.path()).isolation(Isolation::Session);
        let session = Session::prepare(&policy).await.expect("a session");
        each(count, |number| one(session.clone(), number)).await;
        let living = count.div_ceil(LEAVES);
        settles("processes", &session, living).await;
        let stats = session.stats();
        assert_eq!(stats.running, 0);
        assert_eq!(stats.background, living as usize, "no worker without a process");
        session.shutdown().await;
    });
}

/// Runs one command and checks its end.
async fn one(session: Session, number: u32) {
    let mut command = session.command("sh");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let brief = Duration::from_millis(50);
    match number % 20 {
        _ if number.is_multiple_of(LEAVES) => {
            let outcome = command.args(["-c", "setsid sleep 100000 &"]).status().await.expect("a command");
            assert!(outcome.status.success());
        }
        3 => {
            let script = "(setsid sleep 100000 &); sleep 100000 & sleep 100000";
            let outcome = command.args(["-c", script]).timeout(brief).status().await.expect("a command");
            assert_eq!(outcome.ended, Ended::TimedOut);
        }
        7 => {
            let script = "(setsid sleep 100000 &); sleep 100000 & sleep 100000";
            drop(command.args(["-c", script]).spawn().await.expect("a command"));
        }
        11 => {
            let lost = command.args(["-c", "(setsid sleep 100000 &); kill -9 $PPID; sleep 9"]).status().await;
            assert!(matches!(lost, Err(Error::Lost)), "{lost:?}");
        }
        15 => {
            let outcome = command.args(["-c", "(sleep 0.05 &)"]).status().await.expect("a command");
            assert!(outcome.status.success());
        }
        _ => {
            command.args(["-c", &format!("echo {number}")]).stdout(Stdio::piped());
            let out = command.output().await.expect("a command");
            assert_eq!(String::from_utf8_lossy(&out.stdout), format!("{number}\n"));
        }
    }
}

/// Waits until so many processes of commands are left.
async fn settles(what: &str, session: &Session, wanted: u32) {
    let mut left = String::new();
    for _ in 0..200 {
        let out = session.command("sh").args(["-c", OTHERS]).output().await.expect("a command");
        left = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        if left == wanted.to_string() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what}: {left} are left, not {wanted}");
}
