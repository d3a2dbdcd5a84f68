//! The exit status of Kennel is the command's. If it is Kennel's own, a message says so.

use std::{
    fs::{self, Permissions},
    os::unix::{fs::PermissionsExt, process::ExitStatusExt},
    process::Command,
};

use crate::support::{
    has, is_without_user_namespace, kennel, kennel_path, only_as_root, quiet, report, require, run, shell,
    stderr, stdout, workspace, write_program,
};

#[test]
fn every_exit_status_passes_through() {
    let dir = workspace();
    for status in
        (0..=255).filter(|status| status % 17 == 0 || (120..=130).contains(status)).chain([1, 2, 254])
    {
        let output = shell(dir.path(), quiet(), &format!("exit {status}"));
        assert_eq!(output.status.code(), Some(status));
        assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn kennel_dies_of_the_signal_that_ended_the_command() {
    let dir = workspace();
    for (signal, number) in [
        ("HUP", 1),
        ("INT", 2),
        ("QUIT", 3),
        ("ABRT", 6),
        ("KILL", 9),
        ("SEGV", 11),
        ("PIPE", 13),
        ("TERM", 15),
        ("USR1", 10),
        ("XCPU", 24),
    ] {
        let script = format!("kill -{signal} $$");
        let (output, said) = report(dir.path(), &[], &["sh", "-c", &script]);
        assert_eq!((output.status.signal(), output.status.core_dumped()), (Some(number), false), "{signal}");
        assert_eq!((&said["exit_code"], &said["signal"]), (&(128 + number).into(), &number.into()), "{said}");
        let output = shell(dir.path(), &["--exit-code"], &script);
        assert_eq!(output.status.code(), Some(128 + number), "{signal}: {output:?}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "no core file");
    // No program expects to die of a real-time signal.
    assert_eq!(shell(dir.path(), &[], "kill -RTMIN $$").status.code(), Some(128 + 34));
}

/// The kernel sends PID 1 of a namespace no signal that would end it.
#[test]
fn as_pid_1_of_a_container_the_signal_becomes_a_status() {
    only_as_root!();
    require!(has("unshare") && !is_without_user_namespace(), "unshare of util-linux, user namespaces");
    let dir = workspace();
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc"])
        .arg(kennel_path())
        .args(["run", "--", "sh", "-c", "kill -TERM $$"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(128 + 15), "{output:?}");
}

#[test]
fn missing_command_is_127_with_a_remedy() {
    let dir = workspace();
    fs::write(dir.path().join("file"), "").unwrap();
    for program in ["kennel-no-such-program", "./absent", "/absent/program", "file/below", "../absent"] {
        let output = run(dir.path(), &[], &[program]);
        assert_eq!(output.status.code(), Some(127), "{output:?}");
        let said = stderr(&output);
        assert!(said.starts_with(&format!("kennel: {program}: not found in the sandbox")), "{said}");
        assert!(said.contains("kennel: hint: only granted paths exist inside"), "{said}");
    }
}

#[test]
fn program_outside_the_view_is_127() {
    let (dir, beside) = (workspace(), workspace());
    let program = beside.path().join("program");
    write_program(&program, "#!/bin/sh\necho ran\n");
    let path = program.to_str().unwrap();
    assert_eq!(run(dir.path(), &[], &[path]).status.code(), Some(127));
    assert_eq!(stdout(&run(dir.path(), &["--ro", path], &[path])), "ran");
}

#[test]
fn what_cannot_be_executed_is_126() {
    let dir = workspace();
    let make = |name: &str, contents: &[u8], mode| {
        write_program(dir.path().join(name), contents);
        fs::set_permissions(dir.path().join(name), Permissions::from_mode(mode)).unwrap();
    };
    make("plain", b"#!/bin/sh\n", 0o644);
    make("garbage", b"\x7fELF garbage", 0o755);
    make("empty", b"", 0o755);
    make("no-shebang", b"echo hi\n", 0o755);
    fs::create_dir(dir.path().join("dir")).unwrap();
    for (program, cause) in [
        ("./plain", "Permission denied"),
        ("./dir", "Permission denied"),
        ("/tmp", "Permission denied"),
        ("/etc/passwd", "Permission denied"),
        ("./garbage", "Exec format error"),
        ("./empty", "Exec format error"),
        ("./no-shebang", "Exec format error"),
    ] {
        let output = run(dir.path(), &[], &[program]);
        assert_eq!(output.status.code(), Some(126), "{program}: {output:?}");
        assert!(stderr(&output).starts_with(&format!("kennel: {program}: {cause}")), "{output:?}");
    }
}

#[test]
fn script_without_its_interpreter_is_127_and_named() {
    let dir = workspace();
    write_program(dir.path().join("script"), "#!/absent/interpreter\n");
    let output = run(dir.path(), &[], &["./script"]);
    assert_eq!(output.status.code(), Some(127), "as in a shell: {output:?}");
    assert!(stderr(&output).contains("./script: "), "{output:?}");
}

#[test]
fn unexecutable_file_on_path_does_not_hide_a_later_one() {
    let dir = workspace();
    for (place, mode) in [("first", 0o644), ("second", 0o755)] {
        fs::create_dir(dir.path().join(place)).unwrap();
        let tool = dir.path().join(place).join("tool");
        write_program(&tool, format!("#!/bin/sh\necho {place}\n"));
        fs::set_permissions(&tool, Permissions::from_mode(mode)).unwrap();
    }
    let path = |list: &str| format!("PATH={list}").replace('@', dir.path().to_str().unwrap());
    let output = run(dir.path(), &["--setenv", &path("@/absent:@/first:@/second:/usr/bin:/bin")], &["tool"]);
    assert_eq!(stdout(&output), "second", "{output:?}");
    let output = run(dir.path(), &["--setenv", &path("@/first:/usr/bin")], &["tool"]);
    assert_eq!(output.status.code(), Some(126), "{output:?}");
    let output = run(dir.path(), &["--setenv", &path("/usr/bin::relative")], &["tool"]);
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    let output = run(dir.path(), &["--setenv", "PATH=second"], &["tool"]);
    assert_eq!(stdout(&output), "second", "relative entries are the working directory's: {output:?}");
}

#[test]
fn arguments_arrive_as_they_are() {
    let dir = workspace();
    let arguments = ["", " ", "a b", "--", "-x", "$HOME", "*", "\"'\\", "line\nbreak", "ünï"];
    let command: Vec<&str> = ["printf", "%s\\0"].into_iter().chain(arguments).collect();
    let output = run(dir.path(), &[], &command);
    let expected: String = arguments.iter().map(|argument| format!("{argument}\0")).collect();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    assert_eq!(
        stdout(&run(dir.path(), &[], &["sh", "-c", "echo $0"])),
        "sh",
        "argv[0] is the name that was given"
    );
}

#[test]
fn timeout_is_124_with_a_message() {
    let dir = workspace();
    let output = kennel(dir.path(), &["--timeout", "200ms"], &["sleep", "60"]).output().unwrap();
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    assert_eq!(
        stderr(&output).lines().last(),
        Some("kennel: command timed out after 200ms"),
        "as configured"
    );
    let output = kennel(dir.path(), &[&["--timeout", "60s"], quiet()].concat(), &["sh", "-c", "exit 3"])
        .output()
        .unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(3), ""), "in time: {output:?}");
}
