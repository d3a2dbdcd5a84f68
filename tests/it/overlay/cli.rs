//! `kennel run --overlay`.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

use serde_json::{Value, json};

use super::{available, in_memory};
use crate::support::{
    has, kennel, kennel_path, quiet, refused, report, require, shell, stderr, stdout, workspace,
};

/// The flags of an overlay, the flag that silences remarks, and more flags.
fn flags(others: &[&str]) -> Vec<String> {
    let quiet = quiet().iter().map(|flag| (*flag).to_owned());
    quiet.chain(super::flags()).chain(others.iter().map(|flag| (*flag).to_owned())).collect()
}

/// `kennel run` of a script with an overlay and other flags.
fn overlaid(dir: &Path, others: &[&str], script: &str) -> Output {
    let flags = flags(others);
    shell(dir, &flags.iter().map(String::as_str).collect::<Vec<_>>(), script)
}

/// The same, with its report.
fn reported(dir: &Path, others: &[&str], script: &str) -> (Output, Value) {
    let flags = flags(others);
    report(dir, &flags.iter().map(String::as_str).collect::<Vec<_>>(), &["sh", "-c", script])
}

#[test]
fn changes_are_listed_on_stderr_and_dropped() {
    if !available() {
        return super::refused::is_refused_in_memory();
    }
    let sized = in_memory().then_some(&["--overlay-size", "64M"][..]);
    for choice in [Some(&[][..]), sized].into_iter().flatten() {
        let dir = workspace();
        fs::write(dir.path().join("gone"), "").unwrap();
        let script = "echo out; echo x > new; rm gone; exit 3";
        let output = match choice {
            ["--overlay-size", _] => shell(dir.path(), &[quiet(), choice].concat(), script),
            _ => overlaid(dir.path(), choice, script),
        };
        assert_eq!(output.status.code(), Some(3));
        let said = stderr(&output);
        let said = match choice {
            ["--overlay-size", _] => &said,
            _ => super::without_place(&said),
        };
        assert_eq!((stdout(&output), said), ("out".into(), "D gone\nA new"));
        assert!(dir.path().join("gone").exists() && !dir.path().join("new").exists());
    }
    let dir = workspace();
    let output = overlaid(dir.path(), &["--discard"], "echo x > new");
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    assert!(!dir.path().join("new").exists());
}

#[test]
fn changes_are_committed_if_the_command_succeeds() {
    if !available() {
        return super::refused::is_refused_in_memory();
    }
    let dir = workspace();
    let output = overlaid(dir.path(), &["--commit"], "echo x > new");
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
    assert_eq!(fs::read(dir.path().join("new")).unwrap(), b"x\n");
    let (output, report) = reported(dir.path(), &["--commit"], "echo y > new; exit 7");
    assert_eq!((output.status.code(), &report["changes"]), (Some(7), &json!([])));
    let refused =
        json!([{ "path": "new", "kind": "modified", "file": "file", "reason": "the command failed" }]);
    assert_eq!(report["refused_changes"], refused);
    let said = stderr(&output);
    assert_eq!(
        super::without_place(&said),
        "M new\nkennel: nothing was committed, because the command failed"
    );
    assert_eq!(fs::read(dir.path().join("new")).unwrap(), b"x\n");
}

#[test]
fn refused_changes_are_reported_and_the_status_is_125() {
    if !available() {
        return super::refused::is_refused_in_memory();
    }
    let dir = workspace();
    let flags = ["--commit", "--protect", ".env"];
    let (output, report) = reported(dir.path(), &flags, "echo x > .env; echo x > new; mkdir d");
    assert_eq!((output.status.code(), &report["exit_code"]), (Some(125), &125.into()));
    let said = stderr(&output);
    let note = "kennel: note: .env: nothing is there to protect; what a command makes there is moved aside";
    let refused = "kennel: not committed: A .env: it is protected";
    assert_eq!(super::without_place(&said), format!("{note}\n{refused}"));
    let new = json!([
        { "path": "d", "kind": "added", "file": "directory" },
        { "path": "new", "kind": "added", "file": "file" },
    ]);
    assert_eq!(report["changes"], new);
    let refused = json!([{ "path": ".env", "kind": "added", "file": "file", "reason": "it is protected" }]);
    assert_eq!(report["refused_changes"], refused);
    assert!(dir.path().join("new").exists() && !dir.path().join(".env").exists());
}

#[test]
fn the_configuration_of_a_new_repository_is_committed_and_reported() {
    if !available() {
        return super::refused::is_refused_in_memory();
    }
    let dir = workspace();
    let script = "mkdir -p .git/hooks; echo x >.git/config; echo x >.git/hooks/pre-push.sample";
    let (output, report) = reported(dir.path(), &["--commit"], script);
    assert!(output.status.success() && dir.path().join(".git/config").exists(), "{output:?}");
    let said = stderr(&output);
    let is_told = said.contains("/.git/config: ") && said.contains("look at it before you trust it");
    assert_eq!(is_told, quiet().is_empty(), "{said}");
    let [denial] = &report["denials"].as_array().unwrap()[..] else { panic!("{report}") };
    assert!(denial["reason"].as_str().unwrap().contains("look at it before you trust it"), "{denial}");
    // It belongs to the user from now on.
    let output = overlaid(dir.path(), &["--commit"], "echo x >new; echo y >.git/description");
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
}

#[test]
fn a_report_has_changes_only_with_an_overlay() {
    let dir = workspace();
    let (_, plain) = report(dir.path(), &[], &["touch", "x"]);
    assert_eq!((plain.get("changes"), plain.get("refused_changes")), (None, None));
    if available() {
        let (_, overlaid) = reported(dir.path(), &["--discard"], "rm x");
        assert_eq!(overlaid["changes"], json!([{ "path": "x", "kind": "deleted", "file": "file" }]));
        assert_eq!(overlaid.get("refused_changes"), None::<&Value>);
    }
}

#[test]
fn choices_need_an_overlay_and_exclude_each_other() {
    let dir = workspace();
    for choice in ["--diff", "--commit", "--discard"] {
        let said = refused(dir.path(), &[choice]);
        assert!(said.contains("need --overlay"), "{said}");
    }
    let output = shell(dir.path(), &["--overlay", "--discard", "--commit"], "touch ran");
    assert_eq!(output.status.code(), Some(125));
    assert!(!dir.path().join("ran").exists());
}

/// The thread that commits exists before there are changes.
#[test]
fn without_threads_nothing_runs() {
    require!(has("prlimit"), "prlimit of util-linux");
    let dir = workspace();
    // Enough for the data of a debug build of the program, and less than the stack of a thread.
    for room in [2_000_000, 2_200_000] {
        let mut command = Command::new("prlimit");
        command.arg(format!("--data={room}")).arg(kennel_path()).args(["run", "--workspace"]).arg(dir.path());
        command.args(flags(&["--commit"])).args(["--", "touch", "ran"]);
        let output = command.output().unwrap();
        let ran = dir.path().join("ran").exists();
        assert_eq!((output.status.code(), ran), (Some(125), false), "{room}: {output:?}");
    }
}

/// A Go module cache has thousands of such directories.
#[test]
fn directories_that_nobody_may_enter_take_no_descriptors() {
    if !available() {
        return super::refused::is_refused_in_memory();
    }
    require!(has("prlimit"), "prlimit of util-linux");
    for closed in [0o555, 0o600] {
        let dir = workspace();
        let at = |number: u32| dir.path().join(format!("d{number}"));
        let close = |mode: u32| {
            (0..300)
                .for_each(|number| fs::set_permissions(at(number), PermissionsExt::from_mode(mode)).unwrap());
        };
        for number in 0..300 {
            fs::create_dir(at(number)).unwrap();
            ["edited", "gone"].iter().for_each(|name| fs::write(at(number).join(name), "old").unwrap());
        }
        close(0o555);
        let script = format!(
            "chmod 755 d*; for d in d*; do echo new > $d/edited; done; rm d*/gone; chmod {closed:o} d*"
        );
        let mut command = Command::new("prlimit");
        command.arg("--nofile=256:256").arg(kennel_path()).args(["run", "--workspace"]).arg(dir.path());
        let output = command.args(flags(&["--commit"])).args(["--", "sh", "-c", &script]).output().unwrap();
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
        let mode = |number: u32| fs::metadata(at(number)).unwrap().permissions().mode() & 0o777;
        assert!((0..300).all(|number| mode(number) == closed), "{closed:o}");
        close(0o755);
        let is_done = |number: u32| {
            fs::read(at(number).join("edited")).unwrap() == b"new\n" && !at(number).join("gone").exists()
        };
        assert!((0..300).all(is_done), "{closed:o}");
    }
}

#[test]
fn a_policy_file_can_ask_for_an_overlay() {
    if !in_memory() {
        return super::refused::is_refused_in_memory();
    }
    let (dir, policy) = (workspace(), workspace());
    let file = policy.path().join("p.toml");
    fs::write(&file, "overlay.size = '64M'").unwrap();
    let path = (file.to_str().unwrap(), dir.path().to_str().unwrap());
    let output = shell(
        dir.path(),
        &[quiet(), &["--policy", path.0, "--workspace", path.1, "--diff"]].concat(),
        "touch x",
    );
    assert_eq!(stderr(&output), "A x");
    assert!(!dir.path().join("x").exists());
}

#[test]
fn changes_are_committed_even_if_the_output_is_lost() {
    if !available() {
        return super::refused::is_refused_in_memory();
    }
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    for (choice, is_there) in [("--commit", true), ("--diff", false)] {
        let (dir, file) = (workspace(), tempfile::NamedTempFile::new_in("/tmp").unwrap());
        let json = ["--json", file.path().to_str().unwrap(), choice];
        let flags = flags(&json);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let mut command = kennel(dir.path(), &flags, &["sh", "-c", "echo work > result; echo hello"]);
        let output = command.stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        let said = stderr(&output);
        assert!(said.contains("write to stdout what the command wrote: No space left on device"), "{said}");
        assert!(is_there || said.contains("A result"), "{said}");
        assert_eq!(dir.path().join("result").exists(), is_there);
        let report: Value = serde_json::from_slice(&fs::read(file.path()).unwrap()).unwrap();
        assert_eq!(report["changes"][0]["path"], "result", "{report}");
    }
}
