//! Mistakes in flags and policies get a plain answer: the value, its place, and a correct form.

use std::{
    ffi::OsStr,
    fs::{self, File},
    os::unix::ffi::OsStrExt,
    path::Path,
    process::{Command, Output},
};

use super::cli;
use crate::{
    serve::Hosted,
    support::{has, kennel, kennel_path, refused, require, require_ci_only, stderr, stdout, workspace},
};

fn is_refused(output: &Output, words: &str) {
    assert!(output.status.code() == Some(125) && output.stdout.is_empty(), "{output:?}");
    assert!(stderr(output).starts_with("kennel: ") && stderr(output).contains(words), "{words}: {output:?}");
}

#[test]
fn a_policy_that_cannot_be_shown_is_an_error() {
    let dir = workspace();
    let odd = OsStr::from_bytes(b"/tmp/\xff");
    for flag in ["--mask", "--workspace", "--cwd", "--audit", "--overlay-upper", "--proxy-socket"] {
        let mut show = Command::new(kennel_path());
        show.current_dir(dir.path()).args(["policy", "show", "--as-file", flag]).arg(odd);
        is_refused(&show.output().unwrap(), "is not UTF-8, so a policy file cannot contain it");
    }
}

#[test]
fn full_paths_can_be_shown_where_the_current_directory_is_gone() {
    let (dir, gone) = (workspace(), workspace());
    let script = "rmdir \"$0\" && exec \"$@\"";
    let show = |flags: &[&str]| {
        let here = gone.path().join("here");
        fs::create_dir(&here).unwrap();
        let mut show = Command::new("sh");
        show.current_dir(&here).args(["-c", script]).arg(&here).arg(kennel_path());
        show.args(["policy", "show", "--as-file"]).args(flags).output().unwrap()
    };
    let workspace = dir.path().to_str().unwrap();
    let shown = show(&["--workspace", workspace, "--ro", "/usr/share", "--protect", ".env"]);
    assert!(shown.status.success() && stdout(&shown).contains(workspace), "{shown:?}");
    is_refused(&show(&["--workspace", workspace, "--ro", "sub"]), "find the current directory");
    is_refused(&show(&[]), "find the current directory");
}

#[test]
fn a_workspace_is_named_without_a_dot() {
    let mut run = Command::new(kennel_path());
    let output = run.current_dir("/").args(["run", "--", "true"]).output().unwrap();
    is_refused(&output, "workspace /: a directory of the system cannot be a workspace");
    let dir = workspace();
    let real = fs::canonicalize(dir.path()).unwrap();
    let output = kennel(&real, &["--workspace", "./absent/."], &["true"]).output().unwrap();
    is_refused(&output, &format!("workspace {}/absent: No such file", real.display()));
}

#[test]
fn text_that_is_not_utf8_is_named() {
    let dir = workspace();
    for (flag, value) in [("--ro", &b"/tmp/\xff"[..]), ("--setenv", b"A=\xff"), ("--profile", b"\xff")] {
        let mut run = Command::new(kennel_path());
        run.current_dir(dir.path()).args(["run", flag]).arg(OsStr::from_bytes(value)).args(["--", "true"]);
        is_refused(&run.output().unwrap(), "is not UTF-8");
    }
    // Everything after the dashes belongs to the command.
    let mut run = kennel(dir.path(), &[], &["printf", "%s"]);
    assert_eq!(run.arg(OsStr::from_bytes(b"\xff")).output().unwrap().stdout, b"\xff");
}

#[test]
fn paths_are_shown_without_steps_up() {
    let dir = workspace();
    fs::create_dir(dir.path().join("sub")).unwrap();
    let real = fs::canonicalize(dir.path()).unwrap();
    let output = cli(
        &dir.path().join("sub"),
        &["policy", "show", "--as-file", "--workspace", "..", "--ro", "../absent"],
    );
    let policy: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(policy["workspace"].as_str().map(Path::new), Some(&*real));
    assert_eq!(policy["mounts"][0]["source"].as_str().map(Path::new), Some(&*real.join("absent")));
}

#[test]
fn an_empty_policy_is_no_policy() {
    let (dir, beside) = (workspace(), workspace());
    for (name, text, is_one) in [
        ("a.toml", "", false),
        ("a.json", " ", false),
        ("b.toml", "# all as usual", true),
        ("b.json", "{}", true),
    ] {
        let file = beside.path().join(name);
        fs::write(&file, text).unwrap();
        let output = cli(dir.path(), &["policy", "show", "--as-file", "--policy", file.to_str().unwrap()]);
        assert_eq!(output.status.success(), is_one, "{name}: {output:?}");
        assert!(
            is_one || stderr(&output).contains("the policy is empty; say at least which profile"),
            "{output:?}"
        );
    }
}

#[test]
fn an_invalid_mount_is_named_by_number_and_field() {
    let (dir, beside) = (workspace(), workspace());
    for (name, text, words) in [
        (
            "a.toml",
            "[[mounts]]\ntype = 'mask'\npath = '/mnt'\n\n[[mounts]]\ntype = 'ro'\ntarget = '/x'\n",
            "a.toml:5:1: mounts[1]: missing field `source`: type ro has source",
        ),
        (
            "b.json",
            "{\"mounts\": [{\"type\": \"file\", \"target\": \"/x\"}]}",
            "mounts[0]: missing field `contents`: type file has target, contents",
        ),
        ("c.json", "{\"mounts\": [{\"path\": \"/x\"}]}", "mounts[0]: missing field `type`: ro, rw,"),
        (
            "d.toml",
            "mounts = [{ type = 'tmpfs', target = '/a', path = '/b' }]",
            "mounts[0]: field `path` does not belong to this type: type tmpfs has target",
        ),
    ] {
        let file = beside.path().join(name);
        fs::write(&file, text).unwrap();
        is_refused(
            &cli(dir.path(), &["policy", "show", "--as-file", "--policy", file.to_str().unwrap()]),
            words,
        );
    }
}

#[test]
fn ci_only_refuses_settings_that_it_would_ignore() {
    let (dir, beside) = (workspace(), workspace());
    let said = refused(dir.path(), &["--profile", "ci-only", "--env", "inherit"]);
    assert!(said.contains("env.base `inherit`: profile ci-only has a fixed environment"), "{said}");
    let file = beside.path().join("p.toml");
    fs::write(&file, "profile = 'ci-only'\nrequire.keyring = 'if_available'").unwrap();
    is_refused(
        &cli(dir.path(), &["policy", "check", "--policy", file.to_str().unwrap()]),
        "require.keyring `if_available`: profile ci-only requires everything",
    );
    require_ci_only!();
    // The hints of these refusals work.
    let said = refused(dir.path(), &["--profile", "ci-only", "--cpu-time", "1s"]);
    assert!(said.contains("do without the limit, or choose another profile"), "{said}");
    assert!(!said.contains("if_available"), "{said}");
    let said = refused(dir.path(), &["--profile", "ci-only", "--cgroup", "off", "--cpus", "1"]);
    assert!(said.contains("leave out cgroup = \"off\"") && !said.contains("if_available"), "{said}");
}

#[test]
fn the_workspace_is_made_writable_by_its_profile() {
    let dir = workspace();
    let said = refused(dir.path(), &["--profile", "read-only", "--rw", "."]);
    assert!(said.contains("the profile says whether the workspace is writable (--profile)"), "{said}");
}

/// `kennel ARGUMENTS…` run by a shell, in the workspace.
fn bash(workspace: &Path, script: &str) -> Output {
    let mut bash = Command::new("bash");
    bash.env("LC_ALL", "C")
        .env("K", kennel_path())
        .current_dir(workspace)
        .args(["-c", script])
        .output()
        .unwrap()
}

#[test]
fn a_policy_may_come_by_a_descriptor() {
    require!(has("bash"), "bash");
    let dir = workspace();
    for text in ["hostname = \"given\"", "{ \"hostname\": \"given\" }"] {
        let output = bash(dir.path(), &format!("$K run --policy <(echo '{text}') -- sh -c 'uname -n; pwd'"));
        let real = fs::canonicalize(dir.path()).unwrap();
        assert_eq!(stdout(&output), format!("given\n{}", real.display()), "{output:?}");
    }
    let close = "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-;";
    let script = format!("{close} $K run --policy /dev/fd/9 -- true");
    is_refused(&bash(dir.path(), &script), "read /dev/fd/9: Bad file descriptor");
    // Nor are descriptors that kennel has opened itself.
    for number in 3..=9 {
        let script = format!("{close} $K op /absent x --json /dev/fd/{number}");
        is_refused(&bash(dir.path(), &script), &format!("report /dev/fd/{number}: Bad file descriptor"));
    }
}

#[test]
fn a_log_may_come_by_a_descriptor_of_a_file() {
    require!(has("bash"), "bash");
    let (dir, beside) = (workspace(), workspace());
    let log = beside.path().join("log");
    let with = |rest: &str| bash(dir.path(), &format!("$K run --audit /dev/fd/3 -- true {rest}"));
    let output = with(&format!("3>>{}", log.display()));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(fs::read_to_string(&log).unwrap().contains("\"event\":\"exit\""));
    is_refused(&with("3>>log"), "it is reached through a writable grant");
    is_refused(&with("3> >(cat)"), "the descriptor does not refer to a regular file with a name");
    is_refused(&with("3>&-"), "audit log /dev/fd/3: Bad file descriptor");
}

#[test]
fn a_session_reads_its_policy_from_a_descriptor_and_closes_it() {
    require!(has("bash"), "bash");
    let (dir, runtime) = (workspace(), crate::support::runtime());
    let script = "export XDG_RUNTIME_DIR=$0; $K session start --name d --policy <(echo 'hostname = \"given\"') && \
                  $K exec d -- uname -n; $K session stop d";
    let mut bash = Command::new("bash");
    bash.env("K", kennel_path()).current_dir(dir.path()).args(["-c", script]).arg(runtime.path());
    let output = bash.output().unwrap();
    assert!(stdout(&output).ends_with("/d.sock\ngiven"), "{output:?}");
}

#[test]
fn a_directory_cannot_be_a_stream() {
    let (dir, session) = (workspace(), Hosted::start(&[]));
    let directory = || File::open("/usr").unwrap();
    for flags in [&["-q"][..], &["--max-output", "1M", "--explain"], &["--json", "/dev/null"]] {
        let touch = || kennel(dir.path(), flags, &["touch", "ran"]);
        for (stream, output) in [
            ("stdin", touch().stdin(directory()).output()),
            ("stdout", touch().stdout(directory()).stderr(std::process::Stdio::piped()).output()),
        ] {
            is_refused(
                &output.unwrap(),
                &format!("{stream} of the command: Is a directory\nkennel: hint: give it a file"),
            );
        }
        // There is no place for a message.
        let code = touch().stderr(directory()).output().unwrap().status.code();
        assert_eq!(code, Some(125), "{flags:?}");
    }
    is_refused(
        &session.kennel(&["exec", "s", "--", "touch", "ran"]).stdin(directory()).output().unwrap(),
        "stdin of the command: Is a directory",
    );
    assert!(!dir.path().join("ran").exists() && !session.workspace.path().join("ran").exists());
}

#[test]
fn an_audit_log_may_lie_beside_the_workspace() {
    let above = workspace();
    let dir = above.path().join("w");
    fs::create_dir_all(dir.join("sub")).unwrap();
    let run = |log: &str| kennel(&dir, &["--audit", log], &["true"]).output().unwrap();
    assert_eq!(run("../log").status.code(), Some(0), "{:?}", run("../log"));
    assert!(above.path().join("log").exists());
    // Commands could put a link in the place of these.
    for log in ["log", "sub/../log", "sub/../../log", "../w/log"] {
        is_refused(&run(log), "it is reached through a writable grant");
    }
}
