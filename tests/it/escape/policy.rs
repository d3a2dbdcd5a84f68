//! The file that the policy came from: a command that could write it would decide about the next sandbox.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output},
};

use super::protected::denials;
use crate::{
    overlay::available,
    serve::at,
    support::{
        TempDir, fails, is_without_user_namespace, kennel_path, refused, report, require, runs, runtime,
        stderr, succeeds, workspace,
    },
};

/// A command would write this. The next sandbox would get the host's network.
const EVIL: &str = "printf '%s\\n' 'network.mode = \"host\"'";

/// A workspace that contains its policy under this name.
fn with_policy(name: &str, text: &str) -> TempDir {
    let ws = workspace();
    fs::create_dir_all(ws.path().join(name).parent().unwrap()).unwrap();
    fs::write(ws.path().join(name), text).unwrap();
    ws
}

fn read(ws: &Path, name: &str) -> String {
    fs::read_to_string(ws.join(name)).unwrap()
}

#[test]
fn the_policy_is_not_written() {
    for (name, text) in [("kennel.toml", "workspace = '.'\n"), ("kennel.json", "{\"workspace\": \".\"}\n")] {
        let ws = with_policy(name, text);
        for attempt in [
            format!("{EVIL} > {name}"),
            format!("{EVIL} >> {name}"),
            format!("{EVIL} > x && mv -f x {name}"),
            format!("rm -f {name}"),
            format!("mv {name} y"),
            format!("ln -sfn x {name}"),
            format!("chmod 777 {name}"),
        ] {
            let said = fails(ws.path(), &["--policy", name], &attempt);
            assert!(said.contains("Read-only") || said.contains("busy"), "{attempt}: {said}");
            assert_eq!(read(ws.path(), name), text, "{attempt}");
        }
        succeeds(ws.path(), &["--policy", name], &format!("cat {name}; echo x > other"));
        // Without it there is nothing to protect, and the attempt itself works.
        succeeds(ws.path(), &[], &format!("{EVIL} > {name}"));
    }
}

#[test]
fn the_policy_of_a_profile_that_requires_everything_is_not_written() {
    if !runs("ci-only") {
        return;
    }
    let text = "profile = 'ci-only'\nworkspace = '.'\n";
    let ws = with_policy("kennel.toml", text);
    fails(ws.path(), &["--policy", "kennel.toml"], &format!("{EVIL} > kennel.toml"));
    assert_eq!(read(ws.path(), "kennel.toml"), text);
}

#[test]
fn a_session_does_not_write_its_policy() {
    // Root's other commands may do this if there is no user namespace.
    let text = match is_without_user_namespace() {
        true => "workspace = '.'\non_unavailable = 'degrade'\n",
        false => "workspace = '.'\n",
    };
    let (ws, runtime) = (with_policy("kennel.toml", text), runtime());
    let session =
        |arguments: &[&str]| -> Output { at(runtime.path(), ws.path()).args(arguments).output().unwrap() };
    let started = session(&["session", "start", "--name", "s", "--policy", "kennel.toml"]);
    assert!(started.status.success(), "{started:?}");
    let write = |name: &str| session(&["exec", "s", "--", "sh", "-c", &format!("{EVIL} > {name}")]);
    let (refused, other) = (write("kennel.toml"), write("other"));
    // Editors do this: the mount goes away with the file, and Kennel makes it again.
    fs::write(ws.path().join("new"), text).unwrap();
    fs::rename(ws.path().join("new"), ws.path().join("kennel.toml")).unwrap();
    let again = write("kennel.toml");
    session(&["session", "stop", "s"]);
    for output in [refused, again] {
        assert!(!output.status.success() && stderr(&output).contains("Read-only"), "{output:?}");
    }
    assert!(other.status.success(), "{other:?}");
    assert_eq!(read(ws.path(), "kennel.toml"), text);
}

#[test]
fn directories_above_the_policy_cannot_be_renamed() {
    let text = "workspace = '..'\n";
    let ws = with_policy("ci/kennel.toml", text);
    for attempt in ["mv ci away", "rm -rf ci", &format!("{EVIL} > ci/kennel.toml")] {
        fails(ws.path(), &["--policy", "ci/kennel.toml"], attempt);
        fails(ws.path(), &["--policy", "ci/../ci/kennel.toml"], attempt);
        assert_eq!(read(ws.path(), "ci/kennel.toml"), text, "{attempt}");
    }
    succeeds(ws.path(), &["--policy", "ci/kennel.toml"], "echo x > ci/other");
}

#[test]
fn a_link_to_the_policy_and_what_it_leads_to_stay() {
    let text = "workspace = '.'\n";
    let ws = with_policy("ci/kennel.toml", text);
    symlink("ci/kennel.toml", ws.path().join("p.toml")).unwrap();
    fails(ws.path(), &["--policy", "p.toml"], &format!("{EVIL} > p.toml"));
    fails(ws.path(), &["--policy", "p.toml"], &format!("{EVIL} > ci/kennel.toml"));
    fails(ws.path(), &["--policy", "p.toml"], "mv ci away");
    assert_eq!(read(ws.path(), "ci/kennel.toml"), text);
    // Kennel watches a link and removes what takes its place.
    let denied = denials(ws.path(), &["--policy", "p.toml"], &format!("rm p.toml; {EVIL} > p.toml"));
    assert!(denied.contains("protected path") && denied.contains("ci/kennel.toml"), "{denied}");
    assert!(fs::symlink_metadata(ws.path().join("p.toml")).is_err());
}

#[test]
fn the_policy_stays_in_every_grant_that_shows_it() {
    let (ws, beside) = (workspace(), with_policy("kennel.toml", ""));
    let policy = beside.path().join("kennel.toml");
    let text = format!("workspace = '{}'\n", ws.path().display());
    fs::write(&policy, &text).unwrap();
    let grant = format!("{}:/beside", beside.path().display());
    let flags = ["--policy", policy.to_str().unwrap(), "--rw", &grant];
    fails(ws.path(), &flags, &format!("{EVIL} > /beside/kennel.toml"));
    fails(ws.path(), &flags, "rm -f /beside/kennel.toml");
    succeeds(ws.path(), &flags, "echo x > /beside/other");
    assert_eq!(fs::read_to_string(&policy).unwrap(), text);
    // A grant of the file itself would be writable.
    let said = refused(ws.path(), &["--policy", flags[1], "--rw", flags[1]]);
    assert!(
        said.contains("policy file") && said.contains("writable grant") && said.contains("hint"),
        "{said}"
    );
}

#[test]
fn an_overlay_never_commits_the_policy() {
    require!(available(), "overlays in memory");
    let text = "workspace = '.'\n";
    let ws = with_policy("kennel.toml", text);
    let flags = ["--policy", "kennel.toml", "--overlay", "--commit"];
    fails(ws.path(), &flags, &format!("{EVIL} > kennel.toml"));
    succeeds(ws.path(), &flags, "echo x > other");
    assert_eq!(
        (read(ws.path(), "kennel.toml"), read(ws.path(), "other")),
        (text.to_owned(), "x\n".to_owned())
    );
}

#[test]
fn a_policy_outside_changes_nothing_and_one_by_a_descriptor_is_nowhere() {
    let (ws, beside) = (workspace(), with_policy("kennel.toml", ""));
    let policy = beside.path().join("kennel.toml");
    fs::write(&policy, format!("workspace = '{}'\n", ws.path().display())).unwrap();
    let detail = |flags: &[&str]| {
        let (output, report) = report(ws.path(), flags, &["true"]);
        assert!(output.status.success(), "{output:?}");
        let entries =
            report["enforcement"]["protections"].as_array().unwrap_or_else(|| panic!("{report}")).clone();
        entries.into_iter().find(|entry| entry["name"] == "protected_paths")
    };
    assert_eq!(detail(&["--policy", policy.to_str().unwrap()]), detail(&[]));
    fs::rename(&policy, ws.path().join("kennel.toml")).unwrap();
    let script =
        format!("exec \"$0\" run --policy /dev/fd/3 -- sh -c '{EVIL_WORD} > kennel.toml' 3< kennel.toml");
    let mut shell = Command::new("sh");
    let output = shell.current_dir(ws.path()).arg("-c").arg(script).arg(kennel_path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// The same without quotes.
const EVIL_WORD: &str = "echo evil";

#[test]
fn a_policy_with_other_hard_links_is_reported() {
    let ws = with_policy("kennel.toml", "workspace = '.'\n");
    fs::hard_link(ws.path().join("kennel.toml"), ws.path().join("other.toml")).unwrap();
    let output = crate::support::shell(ws.path(), &["--policy", "kennel.toml"], "true");
    assert!(stderr(&output).contains("protected_paths degraded"), "{output:?}");
    assert!(stderr(&output).contains("kennel.toml has other hard links"), "{output:?}");
}

#[test]
fn what_policy_show_prints_is_a_policy_as_before() {
    let ws = with_policy("kennel.toml", "workspace = '.'\n");
    let show = |file: &str| {
        let mut kennel = Command::new(kennel_path());
        let output = kennel
            .current_dir(ws.path())
            .args(["policy", "show", "--as-file", "--policy", file])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    let shown = show("kennel.toml");
    assert!(!String::from_utf8_lossy(&shown).contains("kennel.toml"), "{}", String::from_utf8_lossy(&shown));
    fs::write(ws.path().join("shown.json"), &shown).unwrap();
    assert_eq!(show("shown.json"), shown);
}
