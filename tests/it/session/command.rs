//! Arguments, directory, and commands that cannot run: the session goes on.

use std::{
    ffi::OsStr,
    os::unix::{ffi::OsStrExt, process::ExitStatusExt},
};

use kennel::{Ended, Error, Session};

use super::{in_time, said, shell};
use crate::support::{World, workspace, write_program};

/// Asserts that the session still runs commands, and that none is left running.
async fn goes_on(session: &Session) {
    assert_eq!(shell(session, "echo on").await, "on\n");
    assert_eq!(session.stats().running, 0);
}

#[tokio::test]
async fn arguments_arrive_as_they_are() {
    let world = World::new();
    let session = world.session().await;
    let mut command = session.command("printf");
    command.args(["%s|", "", " a  b", "*", "$HOME", "-n", "ü\n"]).arg(OsStr::from_bytes(b"\xff"));
    let out = in_time(command.output()).await.unwrap();
    assert_eq!(out.stdout, b"| a  b|*|$HOME|-n|\xc3\xbc\n|\xff|");
}

#[tokio::test]
async fn path_of_the_command_is_searched() {
    let world = World::new();
    let tool = world.at("bin/tool");
    std::fs::create_dir(world.at("bin")).unwrap();
    write_program(&tool, "#!/bin/sh\necho mine\n");
    let session = world.session().await;
    let path = format!("/absent:{}", world.at("bin").display());
    assert_eq!(said(session.command("tool").env("PATH", path)).await, "mine\n");
    assert_eq!(said(&mut session.command("bin/tool")).await, "mine\n", "relative to the workspace");
    let error = in_time(session.command("tool").output()).await.unwrap_err();
    assert!(matches!(&error, Error::NotFound { program } if program == "tool"), "{error:?}");
}

#[tokio::test]
async fn directory_of_a_command_is_its_own() {
    let world = World::new();
    std::fs::create_dir(world.at("sub")).unwrap();
    let session = world.session().await;
    let here = format!("{}\n", world.path().display());
    for _ in 0..3 {
        assert_eq!(said(session.command("pwd").current_dir("/tmp")).await, "/tmp\n");
        assert_eq!(
            said(session.command("pwd").current_dir("sub")).await,
            format!("{}/sub\n", world.path().display())
        );
        assert_eq!(said(&mut session.command("pwd")).await, here);
    }
}

#[tokio::test]
async fn a_mebibyte_of_arguments_arrives_whole() {
    let world = World::new();
    let session = world.session().await;
    for _ in 0..2 {
        let mut command = session.command("printf");
        command.arg("%s\n").args((0..1024).map(|number| format!("{number:01016}")));
        let text = said(&mut command).await;
        assert_eq!(text.len(), 1024 * 1017);
        let numbers = text.lines().map(|line| line.parse::<usize>().unwrap());
        assert!(numbers.eq(0..1024), "in order");
    }
    // Around the longest request that fits in a message: 32 KiB, and 8 KiB of pointers.
    for count in [29, 30, 31, 32, 33, 34, 35] {
        let mut command = session.command("printf");
        let text = said(command.arg("%s").args((0..count).map(|_| "x".repeat(1000)))).await;
        assert_eq!(text.len(), count * 1000);
    }
    for count in [900, 1000, 1020, 1023, 1024, 1025, 1100] {
        let mut command = session.command("printf");
        assert_eq!(said(command.arg("%s").args((0..count).map(|_| "x"))).await.len(), count);
    }
    let mut command = session.command("sh");
    command.args(["-c", "printf %s \"$BIG\" | wc -c"]).env("BIG", "x".repeat(100 << 10));
    assert_eq!(said(&mut command).await.trim(), (100 << 10).to_string());
    goes_on(&session).await;
}

#[tokio::test]
async fn failed_executions_are_named_and_the_session_goes_on() {
    let world = World::new();
    std::fs::write(world.at("text"), "no program").unwrap();
    let text = world.at("garbage");
    write_program(&text, "\0\0\0\0");
    let session = world.session().await;
    for (program, errno) in [("/tmp", libc::EACCES), ("./text", libc::EACCES), ("./garbage", libc::ENOEXEC)] {
        let error = in_time(session.command(program).output()).await.unwrap_err();
        let Error::NotExecutable { program: named, source } = &error else { panic!("{error:?}") };
        assert_eq!((&**named, source.raw_os_error()), (program, Some(errno)));
        goes_on(&session).await;
    }
    for program in ["absent-program", "/absent/program", "./absent"] {
        let error = in_time(session.command(program).spawn()).await.unwrap_err();
        assert!(matches!(&error, Error::NotFound { program: named } if named == program), "{error:?}");
        goes_on(&session).await;
    }
}

#[tokio::test]
async fn directories_that_cannot_be_entered_are_named_and_the_session_goes_on() {
    let world = World::new();
    std::fs::write(world.at("file"), "").unwrap();
    let outside = workspace();
    let session = world.session().await;
    let file = world.at("file");
    const ABSENT: &str = "No such file or directory";
    for (path, cause) in [(outside.path(), ABSENT), ("/absent".as_ref(), ABSENT), (&file, "Not a directory")]
    {
        let error = in_time(session.command("true").current_dir(path).output()).await.unwrap_err();
        let Error::Command { what, value, reason } = &error else { panic!("{error:?}") };
        assert_eq!((*what, &**value), ("working directory", path.to_str().unwrap()));
        assert_eq!(reason, &format!("cannot be entered in the sandbox: {cause}"));
        goes_on(&session).await;
    }
}

#[tokio::test]
async fn a_failing_command_is_no_error_and_the_session_goes_on() {
    let world = World::new();
    let session = world.session().await;
    let endings = [("exit 3", 3, Ended::Exited), ("kill -9 $$", 137, Ended::Signaled)];
    for (script, code, ended) in endings.into_iter().chain([("kill -SEGV $$", 139, Ended::Signaled)]) {
        let out = in_time(session.command("sh").args(["-c", script]).output()).await.unwrap();
        assert_eq!(
            (out.outcome.exit_code(), out.outcome.ended, out.outcome.limit),
            (code, ended, None),
            "{script}"
        );
        assert_eq!(out.outcome.status.signal(), (code > 128).then(|| i32::from(code) - 128));
        assert!(out.outcome.failure().is_none() && out.outcome.denials.is_empty());
        goes_on(&session).await;
    }
}
