//! Interpreters that are killed, stopped, traced or dropped: no command is lost, and nothing of them is left.

use std::{fs, path::PathBuf, time::Duration};

use kennel::{Isolation, Overlay, Session, Start, Stdio, WarmState};
use tokio::task::JoinSet;

use super::{
    ISOLATIONS, SILENT, alone, executed_said, in_time, require_python, settled, text, waiting, warm,
    warm_said,
};
use crate::{
    overlay,
    session::counts::Counts,
    support::{World, children, descendants, eventually, lives, process_state, require, session::shell},
};

/// What an interpreter that waits shows as its command line. It is spelled so that no searching shell finds
/// itself.
const FIND: &str = "for d in /proc/[0-9]*; do
    if grep -qs '(waits for a c[o]mmand)' $d/cmdline; then echo ${d#/proc/}; fi; done";

/// A shell script that sends a signal to the interpreters that wait, and fails if there is none.
fn signal_all(signal: &str) -> String {
    format!("pids=$({FIND}); kill -{signal} $pids")
}

/// The processes below this one that wait for a command, by their numbers on the host.
fn interpreters() -> Vec<u32> {
    let is_one = |pid: &u32| {
        let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.contains("(waits for a command)") && lives(*pid)
    };
    descendants(std::process::id()).into_iter().filter(is_one).collect()
}

#[tokio::test]
async fn an_interpreter_that_another_command_ends_loses_no_command() {
    let python = require_python!();
    let world = World::new();
    let session = waiting(world.policy().isolation(Isolation::Session), python, &["json"]).await;
    for signal in ["KILL", "TERM", "INT", "HUP", "SEGV", "USR1", "ALRM"] {
        in_time(session.interpreters_started()).await;
        shell(&session, &signal_all(signal)).await;
        let (said, reason) = executed_said(&mut text(&session, python, "print('served')")).await;
        assert_eq!((said.as_str(), reason.as_str()), ("served\n", "the interpreter was killed"), "{signal}");
        let said = warm_said(&session, &mut text(&session, python, "import json; print('warm')")).await;
        assert_eq!(said, "warm\n", "{signal}");
    }
}

#[test]
fn an_interpreter_that_another_command_stops_loses_no_command_and_is_ended() {
    let test = "life::an_interpreter_that_another_command_stops_loses_no_command_and_is_ended";
    alone(test, async || {
        let python = require_python!();
        let world = World::new();
        let session = waiting(world.policy().isolation(Isolation::Session), python, &["json"]).await;
        for _ in 0..2 {
            in_time(session.interpreters_started()).await;
            let before = interpreters();
            shell(&session, &signal_all("STOP")).await;
            eventually("it is stopped", || before.iter().all(|&pid| process_state(pid) == Some('T'))).await;
            let (said, reason) = executed_said(&mut text(&session, python, "print('served')")).await;
            assert_eq!((said.as_str(), reason.as_str()), ("served\n", SILENT));
            eventually("it is ended", || before.iter().all(|&pid| !lives(pid))).await;
            let said = warm_said(&session, &mut text(&session, python, "print('warm')")).await;
            assert_eq!(said, "warm\n");
        }
        // Those that go on before somebody asks are as good as before.
        in_time(session.interpreters_started()).await;
        shell(&session, &format!("{}; {}", signal_all("STOP"), signal_all("CONT"))).await;
        warm(&session, &mut text(&session, python, "print('warm')")).await;
    });
}

/// One in the hands of a debugger would run what that wants.
#[tokio::test]
async fn an_interpreter_that_another_command_traces_becomes_none() {
    let python = require_python!();
    let world = World::new();
    let session = waiting(world.with_payload().isolation(Isolation::Session), python, &[]).await;
    let pid = shell(&session, FIND).await;
    // PTRACE_SEIZE
    let calls = format!("call {} {} {} 0 0 + {}", libc::SYS_ptrace, 0x4206, pid.trim(), libc::SYS_pause);
    let mut tracer = session.command("/payload");
    tracer.args(calls.split_whitespace()).stdout(Stdio::null());
    let mut tracer = in_time(tracer.spawn()).await.expect("a command");
    let pid = pid.trim().to_owned();
    let traced = format!("until grep -q 'TracerPid:.*[1-9]' /proc/{pid}/status; do sleep 0.01; done");
    shell(&session, &traced).await;
    let (said, reason) = executed_said(&mut text(&session, python, "print('served')")).await;
    assert_eq!((said.as_str(), reason.as_str()), ("served\n", "another process traced the interpreter"));
    in_time(tracer.kill()).await.expect("an outcome");
    warm(&session, &mut text(&session, python, "print('warm')")).await;
}

/// Somebody outside kills it at any moment, also just as a command comes.
#[test]
fn an_interpreter_that_is_killed_at_any_moment_loses_no_command_before_it_runs() {
    let test = "life::an_interpreter_that_is_killed_at_any_moment_loses_no_command_before_it_runs";
    alone(test, async || {
        let python = require_python!();
        for isolation in ISOLATIONS {
            let world = World::new();
            let session = waiting(world.policy().isolation(isolation), python, &[]).await;
            for round in 0..20u64 {
                in_time(session.interpreters_started()).await;
                let kill = std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_micros(round * 200));
                    for pid in interpreters() {
                        let pid = nix::unistd::Pid::from_raw(pid.try_into().expect("a pid"));
                        let _ = nix::sys::signal::kill(pid, nix::sys::signal::SIGKILL);
                    }
                });
                let mut command = text(&session, python, "open('ran', 'a').write('x'); print('served')");
                let output = in_time(command.output()).await.expect("a command");
                kill.join().expect("a thread");
                // If it had taken the command already, the command was killed; it has not run twice in any
                // case.
                let ran = fs::read(world.at("ran")).map_or(0, |text| text.len());
                let _ = fs::remove_file(world.at("ran"));
                let is_served = output.stdout == b"served\n" && ran == 1;
                let is_killed = output.outcome.start == Start::Warm && output.outcome.exit_code() == 137;
                assert!(is_served || is_killed && ran <= 1, "{isolation:?} {round}: {ran} {output:?}");
            }
            in_time(session.shutdown()).await;
        }
    });
}

#[test]
fn nothing_is_left_of_a_session_that_is_shut_down_or_dropped() {
    alone("life::nothing_is_left_of_a_session_that_is_shut_down_or_dropped", async || {
        let python = require_python!();
        let own = std::process::id();
        for isolation in ISOLATIONS {
            for (is_dropped, is_settled) in [(false, true), (true, true), (false, false), (true, false)] {
                let world = World::new();
                let policy = world.policy().isolation(isolation).warm(python, ["asyncio", "unittest"]);
                let session = Session::prepare(&policy).await.expect("a session");
                if is_settled {
                    assert_eq!(settled(&session).await.state, WarmState::Waiting);
                    assert_eq!(interpreters().len(), 1);
                } else {
                    eventually("it starts", || children(own).iter().any(|&pid| descendants(pid).len() > 3))
                        .await;
                }
                let below = descendants(own);
                if is_dropped {
                    drop(session);
                } else {
                    in_time(session.shutdown()).await;
                    let left: Vec<u32> = below.iter().copied().filter(|&pid| lives(pid)).collect();
                    assert!(left.is_empty(), "{left:?}");
                    assert_eq!(session.interpreters()[0].state, WarmState::Absent);
                }
                eventually("all are gone", || below.iter().all(|&pid| !lives(pid))).await;
                eventually("no zombie is left", || children(own).is_empty()).await;
            }
        }
    });
}

/// An interpreter is a command of its session, and no reason for the session to go on.
#[test]
fn an_interpreter_does_not_keep_its_session_alive_or_busy() {
    alone("life::an_interpreter_does_not_keep_its_session_alive_or_busy", async || {
        let python = require_python!();
        for isolation in ISOLATIONS {
            let world = World::new();
            let session = waiting(world.policy().isolation(isolation), python, &[]).await;
            let stats = session.stats();
            assert_eq!((stats.running, stats.served, stats.background), (0, 0, 0));
            assert!(session.idle().is_some(), "nobody uses it");
            warm(&session, &mut text(&session, python, "pass")).await;
            in_time(session.interpreters_started()).await;
            let stats = session.stats();
            assert_eq!((stats.running, stats.served, stats.background), (0, 1, 0), "{isolation:?}");
        }
    });
}

#[tokio::test]
async fn changes_are_committed_while_an_interpreter_waits() {
    let python = require_python!();
    require!(overlay::in_memory(), "changes in memory");
    for isolation in ISOLATIONS {
        let world = World::new();
        fs::write(world.at("lib.py"), "VALUE = 1\n").unwrap();
        let policy = world.policy().isolation(isolation).overlay(Overlay::default());
        let policy = policy.set_env("PYTHONPATH", world.path().to_str().unwrap());
        let session = waiting(policy, python, &["lib"]).await;
        for round in 0..3 {
            let script = format!("import lib; open('new{round}', 'w').write('x')");
            warm_said(&session, &mut text(&session, python, &script)).await;
            in_time(session.interpreters_started()).await;
            let committed = in_time(session.commit()).await.expect("a commit");
            assert!(committed.refused.is_empty(), "{committed:?}");
            assert_eq!(fs::read(world.at(format!("new{round}"))).unwrap(), b"x");
            let output =
                in_time(text(&session, python, "import lib; print(lib.VALUE)").output()).await.unwrap();
            assert_eq!(output.stdout, b"1\n", "{output:?}");
        }
    }
}

/// A future that is dropped while the command is on its way to an interpreter.
#[test]
fn calls_that_are_dropped_at_any_moment_lose_and_leak_nothing() {
    alone("life::calls_that_are_dropped_at_any_moment_lose_and_leak_nothing", async || {
        let python = require_python!();
        for isolation in ISOLATIONS {
            let world = World::new();
            let session = waiting(world.policy().isolation(isolation), python, &[]).await;
            let script = "print('served')";
            warm_said(&session, &mut text(&session, python, script)).await;
            in_time(session.interpreters_started()).await;
            eventually("ready workers", || session.stats().ready == 2).await;
            let before = Counts::now();
            for round in 0..150 {
                if round % 3 == 0 {
                    in_time(session.interpreters_started()).await;
                }
                let mut call = Box::pin(text(&session, python, script).output());
                let mut is_done = false;
                for _ in 0..round % 10 {
                    is_done = is_done || poll_once(&mut call).await;
                }
                if round % 7 == 0 && !is_done {
                    let _ = tokio::time::timeout(Duration::from_micros(round * 30), &mut call).await;
                }
                drop(call);
            }
            let said = warm_said(&session, &mut text(&session, python, script)).await;
            assert_eq!(said, "served\n");
            in_time(session.interpreters_started()).await;
            Counts::back_to(&before, || {}).await;
            assert_eq!(interpreters().len(), 1);
        }
    });
}

/// Polls a future once, and lets the runtime work.
async fn poll_once<F: Future + Unpin>(future: &mut F) -> bool {
    let is_ready = std::future::poll_fn(|context| {
        std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(context).is_ready())
    });
    let is_ready = is_ready.await;
    tokio::task::yield_now().await;
    is_ready
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_side_by_side_are_all_served() {
    let python = require_python!();
    for isolation in ISOLATIONS {
        let world = World::new();
        let session = waiting(world.policy().isolation(isolation), python, &["json"]).await;
        let mut all = JoinSet::new();
        for number in 0..40 {
            let mut command = text(
                &session,
                python,
                "import json, sys; print(json.dumps(sys.argv)); exit(int(sys.argv[1]))",
            );
            command.arg(number.to_string());
            all.spawn(async move { (number, command.output().await) });
        }
        let mut reasons = Vec::new();
        while let Some(ended) = in_time(all.join_next()).await {
            let (number, output) = ended.unwrap();
            let output = output.unwrap_or_else(|error| panic!("{number}: {}", error.chain()));
            let said = format!("[\"-c\", \"{number}\"]\n").into_bytes();
            assert_eq!((output.stdout, output.outcome.exit_code()), (said, number));
            reasons.push(output.outcome.start.reason().unwrap_or("warm").to_owned());
        }
        let known = ["warm", "no interpreter waits", "the interpreter is getting ready", SILENT];
        assert!(reasons.iter().all(|reason| known.contains(&&**reason)), "{reasons:?}");
        let stats = session.stats();
        assert_eq!((stats.running, stats.served), (0, 40));
    }
}

/// The workspace is replaced while an interpreter waits in the old one.
#[tokio::test]
async fn a_workspace_that_was_replaced_is_refused_as_before() {
    let python = require_python!();
    for isolation in ISOLATIONS {
        let world = World::new();
        let inner: PathBuf = world.at("inner");
        fs::create_dir(&inner).unwrap();
        let policy = kennel::Policy { workspace: inner.clone(), ..world.policy() };
        let session = waiting(policy.isolation(isolation), python, &[]).await;
        fs::rename(&inner, world.at("old")).unwrap();
        fs::create_dir(&inner).unwrap();
        for is_warm in [true, false] {
            let mut command = text(&session, python, "open('here', 'w')");
            let error = in_time(command.warm(is_warm).output()).await.unwrap_err();
            assert!(error.to_string().contains("inner"), "{error}");
        }
        assert!(!inner.join("here").exists() && !world.at("old/here").exists());
    }
}
