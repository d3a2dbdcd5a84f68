//! Time, streams, signals, limits and denials of a command are the same if an interpreter becomes it.
//! Commands that need a start of their own get it.

use std::{fs, os::unix::process::ExitStatusExt, time::Duration};

use kennel::{
    Audit, Command, Ended, Isolation, Limits, Output, Policy, Profile, Session, Signal, Size, Start, Stdio,
    report::{Limit, Protection},
};
use nix::pty::openpty;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use super::{
    ISOLATIONS, SILENT, executed_said, in_time, require_python, settled, text, waiting, warm, warm_said,
};
use crate::support::{HEARTBEAT, World, beats, eventually, patient, workspace};

/// Runs a warm command with this input.
async fn with_input(session: &Session, command: &mut Command, input: &[u8]) -> Output {
    loop {
        in_time(session.interpreters_started()).await;
        let output = in_time(command.output_with_input(input)).await.expect("a command");
        if output.outcome.start.reason() != Some(SILENT) {
            assert_eq!(output.outcome.start, Start::Warm);
            return output;
        }
    }
}

#[tokio::test]
async fn every_exit_status_and_signal_is_told() {
    let python = require_python!();
    for isolation in ISOLATIONS {
        let world = World::new();
        let session = waiting(world.policy().isolation(isolation), python, &[]).await;
        for code in [0, 1, 2, 77, 127, 255] {
            let output = warm(&session, &mut text(&session, python, &format!("exit({code})"))).await;
            assert_eq!((output.outcome.status.code(), output.outcome.ended), (Some(code), Ended::Exited));
        }
        for signal in [1, 2, 9, 10, 11, 15] {
            let script = format!(
                "import os, signal; signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), {signal})"
            );
            let output = warm(&session, &mut text(&session, python, &script)).await;
            assert_eq!(
                (output.outcome.status.signal(), output.outcome.ended),
                (Some(signal), Ended::Signaled)
            );
        }
    }
}

#[tokio::test]
async fn a_timeout_ends_a_command_and_its_time_begins_when_the_command_does() {
    let python = require_python!();
    for isolation in ISOLATIONS {
        let world = World::new();
        let policy = world.policy().isolation(isolation).timeout(patient(Duration::from_secs(3)));
        let session = waiting(policy, python, &[]).await;
        // The policy's timeout is not that of the interpreter.
        tokio::time::sleep(patient(Duration::from_millis(3200))).await;
        assert_eq!(warm_said(&session, &mut text(&session, python, "print(1)")).await, "1\n");
        let mut command = text(&session, python, "import time; print('begun', flush=True); time.sleep(100)");
        let output = warm(&session, command.timeout(patient(Duration::from_secs(1)))).await;
        assert_eq!((output.outcome.exit_code(), output.outcome.ended), (124, Ended::TimedOut));
        assert_eq!(output.outcome.limit, Some(Limit::WallTime));
        assert_eq!(output.stdout, b"begun\n");
        assert_eq!(warm_said(&session, &mut text(&session, python, "print(2)")).await, "2\n");
    }
}

#[tokio::test]
async fn a_kill_and_a_drop_end_a_command_with_its_children() {
    let python = require_python!();
    for isolation in ISOLATIONS {
        let world = World::new();
        let session = waiting(world.policy().isolation(isolation), python, &[]).await;
        let script = format!("import subprocess; subprocess.run(['sh', '-c', {HEARTBEAT:?}])");
        for is_dropped in [false, true] {
            in_time(session.interpreters_started()).await;
            let mut command = text(&session, python, &script);
            let mut child = in_time(command.stdout(Stdio::null()).spawn()).await.expect("a command");
            let before = beats(world.path());
            eventually("a heartbeat", || beats(world.path()) > before).await;
            if is_dropped {
                drop(child);
            } else {
                let outcome = in_time(child.kill()).await.expect("an outcome");
                assert_eq!((outcome.ended, outcome.start), (Ended::Killed, Start::Warm));
            }
            let said = warm_said(&session, &mut text(&session, python, "print('next')")).await;
            assert_eq!(said, "next\n");
        }
        // What the command left lives on in a session that shares processes, as after any command.
        in_time(session.shutdown()).await;
        let at_end = beats(world.path());
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(beats(world.path()), at_end);
    }
}

#[tokio::test]
async fn signals_reach_the_command() {
    let python = require_python!();
    let script = "import os, signal, sys\nsignal.signal(signal.SIGUSR1, lambda *_: (os.write(1, b'got it\\n'), sys.exit(7)))\n\
                  print('ready', flush=True)\nwhile True: signal.pause()";
    for isolation in ISOLATIONS {
        let world = World::new();
        let session = waiting(world.policy().isolation(isolation), python, &[]).await;
        let mut child = in_time(text(&session, python, script).stdout(Stdio::piped()).spawn()).await.unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(in_time(lines.next_line()).await.unwrap().as_deref(), Some("ready"));
        child.signal(Signal::USR1).unwrap();
        assert_eq!(in_time(lines.next_line()).await.unwrap().as_deref(), Some("got it"));
        assert_eq!(in_time(child.wait()).await.unwrap().exit_code(), 7);
    }
}

#[tokio::test]
async fn pipes_are_those_of_the_caller() {
    let python = require_python!();
    for isolation in ISOLATIONS {
        let world = World::new();
        let session = waiting(world.policy().isolation(isolation), python, &[]).await;
        let mut command = text(
            &session,
            python,
            "import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)",
        );
        let mut child = in_time(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()).await.unwrap();
        let (mut input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut lines = BufReader::new(output).lines();
        for number in 0..20 {
            in_time(input.write_all(format!("line {number}\n").as_bytes())).await.unwrap();
            let line = in_time(lines.next_line()).await.unwrap();
            assert_eq!(line, Some(format!("LINE {number}")));
        }
        drop(input);
        assert_eq!(in_time(lines.next_line()).await.unwrap(), None);
        assert!(in_time(child.wait()).await.unwrap().status.success());
    }
}

#[tokio::test]
async fn a_megabyte_in_each_direction_arrives() {
    let python = require_python!();
    for isolation in ISOLATIONS {
        let world = World::new();
        let session = waiting(world.policy().isolation(isolation), python, &[]).await;
        let input: Vec<u8> = (0..1 << 20).map(|at: u32| at.to_le_bytes()[usize::from(at % 2 == 1)]).collect();
        let script = "import sys; t = sys.stdin.buffer.read(); sys.stderr.buffer.write(t[::-1]); sys.stdout.buffer.write(t)";
        let output = with_input(&session, &mut text(&session, python, script), &input).await;
        assert!(output.stdout == input, "{}", output.stdout.len());
        assert!(output.stderr.iter().rev().eq(&input), "{}", output.stderr.len());
        // Arguments and variables come in a file, so a long one is as good as a short one.
        let mut command =
            text(&session, python, "import os, sys; print(len(sys.argv[1]), len(os.environ['LONG']))");
        command.arg("a".repeat(100_000)).env("LONG", "b".repeat(100_000));
        assert_eq!(warm_said(&session, &mut command).await, "100000 100000\n");
    }
}

#[tokio::test]
async fn output_beyond_the_limit_is_discarded_or_ends_the_command() {
    let python = require_python!();
    let world = World::new();
    for output_ends in [false, true] {
        let limits = Limits { output: Some(Size::from_bytes(1000)), output_ends, ..Limits::default() };
        let session = waiting(world.policy().limits(limits), python, &[]).await;
        let script = match output_ends {
            false => "print('x' * 100_000); exit(3)",
            true => "while True: print('x' * 1000)",
        };
        let output = warm(&session, &mut text(&session, python, script)).await;
        // A line that Kennel adds says how much there was.
        assert!((1000..1200).contains(&output.stdout.len()), "{}", output.stdout.len());
        match output_ends {
            false => assert_eq!((output.outcome.exit_code(), output.outcome.truncated), (3, true)),
            true => assert_eq!(output.outcome.limit, Some(Limit::Output)),
        }
    }
    // Kennel keeps these limits, so a command may have its own.
    let session = waiting(world.policy(), python, &[]).await;
    let limits = Limits { output: Some(Size::from_bytes(10)), ..Limits::default() };
    let output = warm(&session, text(&session, python, "print('x' * 1000)").limits(limits)).await;
    assert!(output.outcome.truncated && output.stdout.len() < 100, "{output:?}");
}

#[tokio::test]
async fn what_a_command_leaves_lives_on_if_processes_are_shared_and_not_otherwise() {
    let python = require_python!();
    let script = "import subprocess; n = subprocess.DEVNULL; \
                  print(subprocess.Popen(['sleep', '1000'], stdin=n, stdout=n, stderr=n).pid)";
    let look = "import os, sys; print(os.path.exists('/proc/' + sys.argv[1]))";
    let world = World::new();
    let session = waiting(world.policy().isolation(Isolation::Session), python, &[]).await;
    let pid = warm_said(&session, &mut text(&session, python, script)).await;
    let mut command = text(&session, python, look);
    assert_eq!(warm_said(&session, command.arg(pid.trim())).await, "True\n");
    let session = waiting(world.policy().isolation(Isolation::Command), python, &[]).await;
    let output = warm(&session, &mut text(&session, python, script)).await;
    assert_eq!((output.outcome.usage.killed, output.outcome.exit_code()), (1, 0));
}

#[tokio::test]
async fn denials_are_explained() {
    let python = require_python!();
    for isolation in ISOLATIONS {
        let world = World::new();
        let policy = world.policy_of(Profile::RepoWrite).isolation(isolation).explain(true);
        let session = waiting(policy, python, &[]).await;
        let script = "import ctypes, os, sys
try: open('/etc/x', 'w')
except OSError as error: print(error.strerror)
ctypes.CDLL(None).unshare(0x10000000)
exit(1)";
        let executed = in_time(text(&session, python, script).warm(false).output()).await.unwrap();
        let warm = warm(&session, &mut text(&session, python, script)).await;
        let subjects = |output: &Output| -> Vec<(Protection, String)> {
            output.outcome.denials.iter().map(|denial| (denial.protection, denial.subject.clone())).collect()
        };
        assert_eq!(warm.stdout, executed.stdout);
        assert_eq!(subjects(&warm), subjects(&executed));
        assert!(subjects(&warm).iter().any(|(_, subject)| subject == "unshare(CLONE_NEWUSER)"), "{warm:?}");
        let said = warm_said(&session, &mut text(&session, python, "print(1)")).await;
        assert_eq!(said, "1\n", "none of it counts for the next one");
    }
}

#[tokio::test]
async fn while_kennel_learns_nothing_waits() {
    let python = require_python!();
    let world = World::new();
    let mut policy = world.policy().warm(python, ["json"]);
    policy.learn = true;
    let session = Session::prepare(&policy).await.expect("a session");
    let interpreter = settled(&session).await;
    assert_eq!(interpreter.state, kennel::WarmState::Failed, "{interpreter:?}");
    let (said, reason) = executed_said(&mut text(&session, python, "print(1)")).await;
    assert_eq!((said.as_str(), Some(reason)), ("1\n", interpreter.reason));
}

#[tokio::test]
async fn what_needs_a_start_of_its_own_is_executed_and_an_interpreter_goes_on_waiting() {
    let python = require_python!();
    let world = World::new();
    fs::create_dir(world.at("grant")).unwrap();
    let session = waiting(world.policy(), python, &[]).await;
    type Change = fn(&mut Command) -> &mut Command;
    let cases: [(Change, &str); 11] = [
        (|command| command.terminal(9, 9), "it has a terminal of its own"),
        (
            |command| command.limits(Limits { open_files: Some(50), ..Limits::default() }),
            "it has limits of its own",
        ),
        (|command| command.no_network(), "it sees less than the policy grants"),
        (|command| command.background(true), "it may leave processes behind"),
        (|command| command.env("PYTHONHASHSEED", "0"), "PYTHONHASHSEED acts at the start of Python"),
        (|command| command.env("LC_ALL", "C.UTF-8"), "LC_ALL acts at the start of Python"),
        (|command| command.env_remove("HOME"), "HOME acts at the start of Python"),
        (|command| command.env("LD_LIBRARY_PATH", "/x"), "LD_LIBRARY_PATH acts at the start of Python"),
        (|command| command.env("OMP_NUM_THREADS", "1"), "OMP_NUM_THREADS acts at the start of Python"),
        (
            |command| command.current_dir("grant").env("PYTHONPATH", "."),
            "PYTHONPATH acts at the start of Python",
        ),
        (|command| command.env_clear(), ""),
    ];
    for (change, reason) in cases {
        let output = in_time(change(&mut text(&session, python, "print(1)")).output()).await.unwrap();
        let start = &output.outcome.start;
        assert!(output.outcome.status.success(), "{reason}: {output:?}");
        assert!(
            start.reason().is_some_and(|given| given == reason || reason.is_empty()),
            "{reason}: {start:?}"
        );
        in_time(session.interpreters_started()).await;
    }
    let options = [
        (&["-O", "-c", "print(1)"][..], "an option of Python acts at its start"),
        (&["-I", "-m", "this"], "an option of Python acts at its start"),
        (&["-c"], "an option has no value"),
        (&["absent.py"], "the script: No such file or directory"),
        (&["grant"], "the script is no file"),
    ];
    for (arguments, reason) in options {
        let output = in_time(session.command(python).args(arguments).output()).await.unwrap();
        assert_eq!(output.outcome.start.reason(), Some(reason), "{arguments:?}");
        in_time(session.interpreters_started()).await;
    }
    // The caller may ask for it, and other programs are none of these.
    let output = in_time(text(&session, python, "print(1)").warm(false).output()).await.unwrap();
    assert_eq!(output.outcome.start, Start::Executed { reason: None });
    let output = in_time(session.command("true").output()).await.unwrap();
    assert_eq!(output.outcome.start, Start::Executed { reason: None });
    assert_eq!(warm_said(&session, &mut text(&session, python, "print(2)")).await, "2\n");
}

#[tokio::test]
async fn a_command_that_cannot_run_fails_with_the_same_error() {
    let python = require_python!();
    let world = World::new();
    let session = waiting(world.policy(), python, &[]).await;
    for is_warm in [false, true] {
        let mut command = text(&session, python, "print(1)");
        let error = in_time(command.current_dir("/absent").warm(is_warm).output()).await.unwrap_err();
        assert!(error.to_string().contains("/absent"), "{error}");
    }
    // A link to it is another name, and tells Python where its libraries are.
    std::os::unix::fs::symlink(python, world.at("python3")).unwrap();
    let (_, reason) =
        executed_said(&mut text(&session, world.at("python3").to_str().unwrap(), "print(1)")).await;
    assert!(reason.contains("it names another interpreter"), "{reason}");
    assert_eq!(warm_said(&session, &mut text(&session, python, "print(2)")).await, "2\n");
}

/// An output that nobody reads on.
#[tokio::test]
async fn a_closed_pipe_is_noticed() {
    let python = require_python!();
    let world = World::new();
    let session = waiting(world.policy(), python, &[]).await;
    let script = "import sys\nfor n in range(10 ** 9): print(n)";
    let mut child =
        in_time(text(&session, python, script).stdout(Stdio::piped()).stderr(Stdio::null()).spawn())
            .await
            .unwrap();
    let mut pipe = child.stdout.take().unwrap();
    let mut bytes = [0; 4];
    in_time(pipe.read_exact(&mut bytes)).await.unwrap();
    assert_eq!(&bytes, b"0\n1\n");
    drop(pipe);
    let outcome = in_time(child.wait()).await.unwrap();
    assert_eq!((outcome.exit_code(), outcome.start), (1, Start::Warm));
}

/// A shell gives a script as a pipe, which the interpreter must not have opened before.
#[tokio::test]
async fn a_script_in_a_pipe_is_read_once() {
    let python = require_python!();
    for isolation in ISOLATIONS {
        let world = World::new();
        let session = waiting(world.policy().isolation(isolation), python, &[]).await;
        nix::unistd::mkfifo(&world.at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut write = session.command("sh");
        let mut write = in_time(write.args(["-c", "echo 'print(42)' > pipe"]).spawn()).await.unwrap();
        let (said, reason) = executed_said(session.command(python).arg("pipe")).await;
        assert_eq!((said.as_str(), reason.as_str()), ("42\n", "the script is no file"));
        assert!(in_time(write.wait()).await.unwrap().status.success());
    }
}

/// Python becomes interactive on a terminal, which is decided at its start.
#[tokio::test]
async fn a_command_whose_input_is_a_terminal_is_executed() {
    let python = require_python!();
    let world = World::new();
    let session = waiting(world.policy(), python, &[]).await;
    let pty = openpty(None, None).unwrap();
    let mut command = text(&session, python, "import sys; print(sys.stdin.isatty())");
    let (said, reason) = executed_said(command.stdin(Stdio::from(pty.slave))).await;
    assert_eq!((&*said, &*reason), ("True\n", "its input is a terminal"));
}

#[tokio::test]
async fn the_log_has_the_interpreter_and_the_command_that_it_became() {
    let python = require_python!();
    let (world, place) = (World::new(), workspace());
    let log = place.path().join("log");
    let policy = Policy { audit: Some(Audit::new(&log)), ..world.policy() };
    let session = waiting(policy, python, &[]).await;
    warm(&session, &mut text(&session, python, "raise SystemExit(3)")).await;
    in_time(session.shutdown()).await;
    let lines = fs::read_to_string(&log).unwrap();
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |event: &str, arguments: Option<u64>| {
        let is = |line: &&serde_json::Value| {
            line["event"] == event && arguments.is_none_or(|count| line["arguments"] == count)
        };
        lines.iter().filter(is).collect::<Vec<_>>()
    };
    let [waited, ..] = &of("exec", Some(0))[..] else { panic!("{lines:?}") };
    let [command] = &of("exec", Some(2))[..] else { panic!("{lines:?}") };
    assert_eq!((&waited["program"], &command["program"]), (&python.into(), &python.into()));
    let end =
        |begin: &serde_json::Value| of("exit", None).into_iter().find(|end| end["exec"] == begin["exec"]);
    assert_eq!(end(waited).unwrap()["ended"], "handed_over");
    let end = end(command).unwrap();
    assert_eq!((&end["ended"], &end["exit_code"]), (&"exited".into(), &3.into()));
}
