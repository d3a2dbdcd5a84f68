//! Commands that cannot run as the caller asked.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
};

use crate::serve::Hosted;
use crate::support::{
    kennel, only_as_root, refused, run, shell, stderr, stdout, succeeds, workspace, write_program,
};

#[test]
fn working_directory_must_be_visible() {
    let (dir, beside) = (workspace(), workspace());
    fs::write(dir.path().join("file"), "").unwrap();
    let outside = beside.path().to_str().unwrap();
    for (cwd, cause) in [
        ("/absent", "No such file or directory"),
        (outside, "No such file or directory"),
        ("absent", "No such file or directory"),
        ("/srv", "No such file or directory"),
        ("file", "Not a directory"),
    ] {
        let said = refused(dir.path(), &["--cwd", cwd]);
        assert!(said.contains("working directory") && said.contains(cause), "{cwd}: {said}");
    }
    fs::create_dir(dir.path().join("sub")).unwrap();
    let own = dir.path().to_str().unwrap();
    for (cwd, expected) in [("sub", format!("{own}/sub")), ("/tmp", "/tmp".to_owned()), ("/", "/".to_owned())]
    {
        assert_eq!(succeeds(dir.path(), &["--cwd", cwd], "pwd"), expected);
    }
    assert_eq!(succeeds(dir.path(), &["--ro", outside, "--cwd", outside], "pwd"), outside, "granted");
}

#[test]
fn working_directory_that_is_refused_is_named() {
    let dir = workspace();
    assert!(refused(dir.path(), &["--cwd", "/absent/place"]).contains("/absent/place"));
}

/// Root's commands cannot ignore permissions: another grant of the workspace would not help.
#[test]
fn a_workspace_closed_to_its_caller_names_its_owner_in_the_hint() {
    only_as_root!();
    let dir = workspace();
    chown(dir.path(), Some(1234), Some(1234)).unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let said = refused(dir.path(), &[]);
    assert!(said.contains("Permission denied"), "{said}");
    assert!(said.contains("hint: run as its owner: --as-owner"), "{said}");
}

#[test]
fn no_line_has_the_number_of_an_errno() {
    let (dir, file) = (workspace(), tempfile::NamedTempFile::new().unwrap());
    let file = file.path().to_str().unwrap();
    for (flags, command) in [
        (&["--cwd", "/absent/place"][..], "true"),
        (&["--cwd", file, "--ro", file], "true"),
        (&["--ro", "/absent"], "true"),
        (&["--policy", "/absent"], "true"),
        (&["--workspace", file], "true"),
        (&["--audit", "/absent/log"], "true"),
        (&["--overlay=/absent/place"], "true"),
        (&["--upstream", "/absent"], "true"),
        (&["--ro", file], file),
        (&["--ro", "/proc/self/mem:/m"], "/m"),
    ] {
        let said = stderr(&run(dir.path(), flags, &[command]));
        assert!(!said.is_empty() && !said.contains("(os error"), "{flags:?} {command}: {said}");
    }
}

#[test]
fn what_cannot_be_executed_comes_with_a_hint() {
    let dir = workspace();
    let program = |name: &str, text: &str, mode| {
        write_program(dir.path().join(name), text);
        fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    program("plain", "#!/bin/sh\n", 0o644);
    program("text", "echo hi\n", 0o755);
    program("script", "#!/absent/interpreter\n", 0o755);
    fs::create_dir(dir.path().join("directory")).unwrap();
    for (name, status, hint) in [
        ("./plain", 126, "executable (chmod +x)"),
        ("./directory", 126, "name a file"),
        ("./text", 126, "begin a script with a line such as #!/bin/sh"),
        ("./script", 127, "correct the first line of a script"),
        ("./absent", 127, "grant it with --ro"),
    ] {
        let output = run(dir.path(), &[], &[name]);
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        let said = stderr(&output);
        assert!(said.starts_with(&format!("kennel: {name}: ")) && said.contains(hint), "{output:?}");
    }
    let said = refused(dir.path(), &["--cwd", "/absent"]);
    assert!(said.contains("hint: name a directory that is visible inside"), "{said}");
}

#[test]
fn a_workspace_that_is_gone_is_named() {
    for profile in ["repo-write", "read-only"] {
        workspace_is_named(&Hosted::start(&["--profile", profile]));
    }
}

fn workspace_is_named(session: &Hosted) {
    let place = session.workspace.path();
    let real = fs::canonicalize(place).unwrap();
    fs::rename(place, place.with_extension("away")).unwrap();
    let exec = || session.kennel(&["exec", "s", "--", "true"]).current_dir("/").output().unwrap();
    let starts = |cause: &str| format!("kennel: workspace {}: {cause}\nkennel: hint: ", real.display());
    let output = exec();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr(&output).starts_with(&starts("No such file or directory")), "{output:?}");
    fs::create_dir(place).unwrap();
    let output = exec();
    assert!(stderr(&output).starts_with(&starts("Stale file handle")), "{output:?}");
    assert!(
        stderr(&output).contains("another directory is in its place: prepare a new session"),
        "{output:?}"
    );
    fs::remove_dir(place).unwrap();
    fs::rename(place.with_extension("away"), place).unwrap();
    assert_eq!(exec().status.code(), Some(0), "{:?}", exec());
}

#[test]
fn empty_program_is_refused() {
    let dir = workspace();
    let output = run(dir.path(), &[], &[""]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(stderr(&output).starts_with("kennel: program ``: is empty"), "{output:?}");
}

#[test]
fn many_large_arguments_pass() {
    let dir = workspace();
    let argument = "x".repeat(10 << 10);
    let script = "echo $# $(printf %s \"$@\" | wc -c)";
    let command: Vec<&str> =
        ["sh", "-c", script, "sh"].into_iter().chain((0..180).map(|_| argument.as_str())).collect();
    let output = run(dir.path(), &[], &command);
    assert_eq!(stdout(&output), format!("180 {}", 180 * (10 << 10)), "{:?}", stderr(&output));
}

#[test]
fn environment_that_is_too_large_is_126() {
    let (dir, beside) = (workspace(), workspace());
    let file = beside.path().join("p.toml");
    for (length, status) in [(100 << 10, 0), (200 << 10, 126)] {
        let text = format!("workspace = '{}'\nenv.set.BIG = '{}'", dir.path().display(), "x".repeat(length));
        fs::write(&file, text).unwrap();
        let output = shell(dir.path(), &["--policy", file.to_str().unwrap()], "test ${#BIG} -gt 1000");
        assert_eq!(output.status.code(), Some(status), "{output:?}");
        assert!(
            status == 0 || stderr(&output).starts_with("kennel: sh: Argument list too long"),
            "{output:?}"
        );
    }
}

#[test]
fn report_that_cannot_be_written_is_refused_before_anything_runs() {
    let dir = workspace();
    for path in ["/absent/report", ".", "/proc/report"] {
        let output = kennel(dir.path(), &["--json", path], &["touch", "ran"]).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{path}: {output:?}");
        assert!(stderr(&output).starts_with(&format!("kennel: report {path}: ")), "{output:?}");
        assert!(!Path::new(&dir.path().join("ran")).exists(), "{path}");
    }
}

#[test]
fn report_that_cannot_be_written_is_named() {
    let dir = workspace();
    let output = kennel(dir.path(), &["--json", "/absent/report"], &["true"]).output().unwrap();
    assert!(stderr(&output).contains("/absent/report"), "{output:?}");
}

#[test]
fn full_disk_under_the_report_is_reported() {
    let dir = workspace();
    let output = kennel(dir.path(), &["--json", "/dev/full"], &["echo", "ran"]).output().unwrap();
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(125), "ran"), "{output:?}");
    assert!(stderr(&output).contains("kennel: report /dev/full: No space left on device"), "{output:?}");
}

#[test]
fn network_that_makes_no_sense_is_refused_with_a_remedy() {
    let dir = workspace();
    for (flags, words) in [
        (
            &["--allow", "crates.io"][..],
            "network.allow `crates.io`: the port is missing; write `crates.io:443`",
        ),
        (&["--allow", "https://crates.io"], "not a URL; write `crates.io:443`"),
        (&["--net", "none", "--deny", "a.example:1"], "network.deny `a.example:1`: network.mode is none"),
        (&["--net", "host", "--allow", "a.example:1"], "by port only, as in `*:443`"),
        (&["--allow", "a.example:1", "--proxy-socket", "/p"], "network.proxy alone decides"),
        (&["--proxy-socket", "/absent"], "/absent: No such file or directory"),
        (&["--allow", "a.example:1", "--upstream", "proxy:3128"], "expected http://host:port"),
        (&["--allow", "a.example:1", "--name-server", "dns"], "network.name_servers `dns`"),
        (&["--allow", "a.example:1", "--allow-address", "10.0.0.1/8"], "10.0.0.0/8"),
        (&["--allow", "a.example:1", "--audit", "/absent/log"], "audit log /absent/log: No such file"),
        (&["--allow", "a.example:1", "--audit", "/dev/null"], "audit log /dev/null: is not a regular file"),
    ] {
        let said = refused(dir.path(), flags);
        assert!(said.contains(words), "{flags:?}: {said}");
    }
}

#[test]
fn flags_that_contradict_each_other_are_refused() {
    let dir = workspace();
    for (flags, words) in [
        (&["--profile", "no-network", "--allow", "a:1"][..], "profile no-network has no network"),
        (&["--profile", "no-network", "--net", "host"], "profile no-network has no network"),
        (&["--profile", "ci-only", "--net", "host"], "profile ci-only reaches only what is allowed"),
        (&["--net", "none", "--allow", "a:1"], "network.mode is none"),
        (&["--protect", ".."], "must not contain `..`"),
        (&["--protect", "/etc"], "below the workspace"),
        (&["--protect", "."], "is the workspace itself"),
        (&["--setenv", "A=\n", "--setenv", "=x"], "env.set"),
        (&["--pass-env", "A=B"], "env.pass"),
    ] {
        let said = refused(dir.path(), flags);
        assert!(said.contains(words), "{flags:?}: {said}");
    }
}

#[test]
fn unknown_words_are_refused_with_the_known_ones() {
    let dir = workspace();
    for (flags, words) in [
        (
            &["--profile", "everything"][..],
            "[possible values: read-only, repo-write, no-network, full-dev, ci-only]",
        ),
        (&["--net", "all"], "[possible values: none, proxy, host]"),
        (&["--env", "all"], "[possible values: scrubbed, inherit]"),
        (&["--toolchains", "all"], "[possible values: auto, none]"),
        (&["--on-unavailable", "ask"], "[possible values: refuse, degrade]"),
        (&["--memory", "1.5G"], "size `1.5G`: expected"),
        (&["--timeout", "soon"], "time `soon`: expected"),
        (&["--setenv", "NOVALUE"], "write NAME=VALUE"),
        (&["--bogus"], "--bogus"),
        (&["--pids", "many"], "many"),
    ] {
        let output = kennel(dir.path(), flags, &["touch", "ran"]).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{flags:?}: {output:?}");
        assert!(stderr(&output).contains(words), "{flags:?}: {output:?}");
        assert!(output.stdout.is_empty() && !dir.path().join("ran").exists());
    }
}
