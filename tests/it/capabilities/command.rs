//! The answered command behaves like any other: descriptors, environment, directory, signals, status.

use std::{
    fs,
    os::unix::{ffi::OsStrExt, fs::symlink, process::ExitStatusExt},
    process::Stdio,
};

use kennel::{
    Error,
    capabilities::{Capabilities, EnvPolicy},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use super::{Place, offline};
use crate::support::{HEARTBEAT, beats, is_alone, is_silent, until, write_program};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_pass_both_ways_and_the_status_comes_back() {
    let place = Place::new();
    for caps in [offline(), Capabilities::default()] {
        let script = ["-c", "cat; echo apart >&2; exit 7"];
        let (mut command, _) = place.wrapper.wrap("sh", script, place.path(), &caps).await.unwrap();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let bytes: Vec<u8> =
            (0..200_000u32).flat_map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()).collect();
        let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let sent = bytes.clone();
        let writer = tokio::spawn(async move { stdin.write_all(&sent).await.unwrap() });
        let mut came = Vec::new();
        stdout.read_to_end(&mut came).await.unwrap();
        writer.await.unwrap();
        let output = child.wait_with_output().await.unwrap();
        assert!(came == bytes, "{} bytes", came.len());
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(7), &b"apart\n"[..]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signals_reach_the_command() {
    let place = Place::new();
    let script = ["-c", "trap 'echo got; exit 9' TERM; echo ready; while :; do sleep 0.02; done"];
    let (mut command, _) = place.wrapper.wrap("sh", script, place.path(), &offline()).await.unwrap();
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "ready");
    kill(Pid::from_raw(child.id().unwrap().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "got");
    assert_eq!(child.wait().await.unwrap().code(), Some(9));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killing_the_command_kills_the_confined_process() {
    // If a child is dropped, tokio installs a handler of SIGCHLD. Other tests would notice.
    if !is_alone("capabilities::command::killing_the_command_kills_the_confined_process", "exec \"$@\"") {
        return;
    }
    let place = Place::new();
    for by_drop in [false, true] {
        let script = format!("trap '' TERM HUP; ({HEARTBEAT}) & wait");
        let (mut command, _) =
            place.wrapper.wrap("sh", ["-c", &script], place.path(), &offline()).await.unwrap();
        let mut child = command.kill_on_drop(true).spawn().unwrap();
        let before = beats(place.path());
        until("the heart beats", || beats(place.path()) > before + 2);
        if by_drop {
            drop(child);
        } else {
            child.kill().await.unwrap();
            assert_eq!(child.wait().await.unwrap().signal(), Some(libc::SIGKILL));
        }
        until("the heart stands still", || is_silent(place.path()));
    }
    assert_eq!(place.shell(&offline(), "echo well").await, "well");
}

/// Names of the variables that a command gets, sorted.
async fn variables(place: &Place, caps: &Capabilities) -> Vec<String> {
    let (mut command, _) = place.wrapper.wrap("/usr/bin/env", [""; 0], place.path(), caps).await.unwrap();
    let output = command.output().await.unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let mut names: Vec<String> =
        said.lines().map(|line| line.split('=').next().unwrap().to_owned()).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn environment_is_what_the_policy_says_in_every_layer() {
    let test = "capabilities::command::environment_is_what_the_policy_says_in_every_layer";
    let start = "exec env -i KENNEL_ALONE=\"$KENNEL_ALONE\" KENNEL_BIN=\"$KENNEL_BIN\" HOME=/ PATH=/usr/bin:/bin \
                 LANG=C LC_TIME=C TERM=dumb SECRET=s TMPDIR=/tmp TZ=UTC \"$@\"";
    if !is_alone(test, start) {
        return;
    }
    let place = Place::new();
    for (net, layer) in [(true, "the rails"), (false, "namespaces")] {
        let with = |env| Capabilities { net, env, ..Capabilities::default() };
        let scrubbed = variables(&place, &with(EnvPolicy::Scrubbed)).await;
        assert_eq!(scrubbed, ["HOME", "LANG", "LC_TIME", "PATH", "TERM"], "{layer}");
        let vars = EnvPolicy::Vars(vec!["SECRET".into(), "UNSET".into(), "TMPDIR".into()]);
        assert_eq!(variables(&place, &with(vars)).await, ["SECRET", "TMPDIR"], "{layer}");
        assert!(variables(&place, &with(EnvPolicy::Vars(Vec::new()))).await.is_empty(), "{layer}");
        let all = variables(&place, &with(EnvPolicy::Inherit)).await;
        assert!(all.contains(&"SECRET".to_owned()) && all.contains(&"TZ".to_owned()), "{layer}");
        assert_eq!(all.contains(&"TMPDIR".to_owned()), net, "{layer}");
    }
    assert_eq!(place.wrapper.sessions(), 1, "the environment makes no other session");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn environment_can_be_changed_on_the_command() {
    let place = Place::new();
    for caps in [offline(), Capabilities::default()] {
        let args = ["-c", "echo $ADDED; env | grep -c ^PATH="];
        let (mut command, _) = place.wrapper.wrap("/bin/sh", args, place.path(), &caps).await.unwrap();
        let output = command.env("ADDED", "a b").env_remove("LANG").output().await.unwrap();
        assert_eq!(output.stdout, b"a b\n1\n");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directory_is_pinned_wherever_its_links_lead() {
    let place = Place::new();
    let (real, link) = (place.path().join("real"), place.path().join("link"));
    fs::create_dir(&real).unwrap();
    symlink(&real, &link).unwrap();
    for caps in [offline(), Capabilities::default()] {
        let (mut command, _) = place.wrapper.wrap("pwd", ["-P"], &link, &caps).await.unwrap();
        let said = command.output().await.unwrap().stdout;
        assert_eq!(String::from_utf8(said).unwrap().trim_end(), real.to_str().unwrap());
        let absent = place.wrapper.wrap("pwd", [""; 0], place.path().join("absent"), &caps).await;
        let error = absent.unwrap_err();
        assert!(
            matches!(&error, Error::Grant { what: "working directory", source, .. }
            if source.raw_os_error() == Some(libc::ENOENT)),
            "{error:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_and_arguments_arrive_as_they_are() {
    let place = Place::new();
    let huge = "x".repeat(120 << 10);
    for caps in [offline(), Capabilities::default()] {
        let args = ["%s.", "", "-", "--", "-n", "a b", "$HOME", "*", "\u{e4}\n", "'"];
        let (output, _) = place.output(&caps, "printf", &args).await;
        assert_eq!(
            output.stdout,
            args[1..].iter().map(|arg| format!("{arg}.")).collect::<String>().as_bytes()
        );
        let bytes = std::ffi::OsStr::from_bytes(b"\xff\xfe");
        let (mut command, _) =
            place.wrapper.wrap("printf", ["%s".as_ref(), bytes], place.path(), &caps).await.unwrap();
        assert_eq!(command.output().await.unwrap().stdout, b"\xff\xfe");
        let (output, _) = place.output(&caps, "sh", &["-c", "echo ${#1}", "sh", &huge]).await;
        assert_eq!(output.stdout, b"122880\n");
        for (program, args) in [("", &["x"][..]), ("a\0b", &[]), ("true", &["a\0"])] {
            let error = place.wrapper.wrap(program, args, place.path(), &caps).await.unwrap_err();
            assert!(matches!(error, Error::Command { .. }), "{error:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_programs_are_reported() {
    let place = Place::new();
    let long = "x".repeat(4000);
    for program in ["kennel-absent", "-x", "--", "/absent/x", &long] {
        let (output, _) = place.output(&offline(), program, &["x"]).await;
        assert_eq!(output.status.code().map(|code| (125..=127).contains(&code)), Some(true), "{output:?}");
        assert!(!output.stderr.is_empty());
        let (mut command, _) =
            place.wrapper.wrap(program, ["x"], place.path(), &Capabilities::default()).await.unwrap();
        let refused = command.spawn().unwrap_err().raw_os_error();
        if program == long {
            // EACCES if a directory of PATH cannot be entered.
            assert!(matches!(refused, Some(libc::ENAMETOOLONG | libc::EACCES)), "{refused:?}");
        } else {
            assert_eq!(refused, Some(libc::ENOENT), "{program}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_of_the_directory_runs_in_every_layer() {
    let place = Place::new();
    let script = place.path().join("-tool");
    write_program(&script, "#!/bin/sh\necho tool $#\n");
    for caps in [offline(), Capabilities::default()] {
        let (output, _) = place.output(&caps, "./-tool", &["--", "x"]).await;
        assert_eq!(output.stdout, b"tool 2\n", "{output:?}");
    }
}
