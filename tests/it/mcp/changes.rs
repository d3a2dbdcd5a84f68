//! `changes` and `commit`: the workspace stays as it is until somebody may and does apply changes.

use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::PathBuf,
    process::{Command, Output},
};

use serde_json::json;

use super::Client;
use crate::support::{TempDir, kennel_path, stdout, workspace};

/// Ends a test that needs an overlay in a directory of /var/tmp.
macro_rules! require_kept_overlay {
    () => {
        crate::support::require!(
            crate::overlay::available() && !crate::support::is_emulated() && keeps(),
            "an overlay with kept changes"
        );
    };
}

/// Whether changes can be kept here.
fn keeps() -> bool {
    let (workspace, upper) = (workspace(), upper());
    let upper = directory(&upper);
    let flags = ["--overlay-upper", upper.to_str().unwrap()];
    crate::support::kennel(workspace.path(), &flags, &["true"]).output().unwrap().status.success()
}

fn upper() -> TempDir {
    crate::support::workspace_in(std::path::Path::new("/var/tmp"))
}

/// The directory of the changes, which only its owner may enter.
fn directory(upper: &TempDir) -> PathBuf {
    let directory = upper.path().join("u");
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).unwrap();
    directory
}

fn start(upper: &TempDir, more: &[&str]) -> Client {
    let directory = directory(upper);
    let flags = [&["--overlay-upper", directory.to_str().unwrap()][..], more].concat();
    Client::start_in(workspace(), &flags)
}

fn diff(client: &Client, upper: &TempDir) -> Output {
    let mut diff = Command::new(kennel_path());
    diff.current_dir(client.path()).args(["diff", "--stat", "--overlay-upper"]).arg(upper.path().join("u"));
    diff.output().unwrap()
}

#[test]
fn only_a_person_applies_changes_by_default() {
    require_kept_overlay!();
    let upper = upper();
    let mut client = start(&upper, &[]);
    let names: Vec<_> = client.tools().iter().map(|tool| tool["name"].clone()).collect();
    assert!(names.contains(&json!("changes")) && !names.contains(&json!("commit")), "{names:?}");
    assert_eq!(client.call("changes", json!({})).text(), "[no changes]");
    client.succeeds("echo x > new; mkdir d; echo y > d/inner");
    client.call("write_file", json!({"path": "written", "content": "z"}));
    let changes = client.call("changes", json!({}));
    assert_eq!(changes.text(), "A d/\nA d/inner\nA new\nA written");
    assert_eq!(changes.data("changes")[2], json!({"path": "new", "kind": "added"}));
    let refused = client.call("commit", json!({}));
    assert!(refused.refusal().contains("kennel commit"), "{}", refused.0);
    assert!(fs::read_dir(client.path()).unwrap().next().is_none(), "the workspace is as it was");
    assert_eq!(client.end().0, Some(0));
    let stat = diff(&client, &upper);
    assert!(stdout(&stat).contains("new"), "a person sees them afterwards: {stat:?}");
}

#[test]
fn an_agent_applies_what_it_may() {
    require_kept_overlay!();
    let upper = upper();
    let mut client = start(&upper, &["--allow-commit"]);
    let commit = client.tools().into_iter().find(|tool| tool["name"] == "commit").unwrap();
    assert_eq!(commit["annotations"]["destructiveHint"], true);
    client.succeeds("echo a > a; echo b > b; echo c > c");
    let some = client.call("commit", json!({"paths": ["a"]}));
    assert_eq!(some.text(), "applied 1 changes:\nA a\n2 other changes were not asked for");
    assert_eq!(fs::read_to_string(client.path().join("a")).unwrap(), "a\n");
    assert!(!client.path().join("b").exists());
    // Somebody else was here.
    fs::write(client.path().join("b"), "theirs").unwrap();
    let rest = client.call("commit", json!({}));
    assert!(
        rest.text().contains("not applied:\nM b: the workspace changed there meanwhile"),
        "{}",
        rest.text()
    );
    assert_eq!(fs::read_to_string(client.path().join("b")).unwrap(), "theirs");
    assert!(client.path().join("c").exists() && !rest.is_error(), "{}", rest.0);
    let again = client.call("commit", json!({}));
    assert!(again.is_error() && again.data("refused")[0]["path"] == "b", "{}", again.0);
    for path in ["/etc", "../x", "nowhere"] {
        let none = client.call("commit", json!({"paths": [path]}));
        assert!(none.data("applied").as_array().is_none_or(Vec::is_empty), "{path}: {}", none.0);
    }
    client.call("shell", json!({"snippet": "echo d > d"}));
    let busy = client.call("commit", json!({"paths": ["d"]}));
    assert!(busy.refusal().contains("a shell by the snippet `exit`"), "{}", busy.0);
    client.call("shell", json!({"snippet": "exit"}));
    let done = client.call("commit", json!({"paths": ["d"]}));
    assert!(!done.is_error() && client.path().join("d").exists(), "{}", done.0);
}

#[test]
fn the_flag_needs_an_overlay() {
    let mut client = Client::without_handshake(workspace(), &["--allow-commit"]);
    let (status, said) = client.ended();
    assert_eq!(
        (status, said.trim_end()),
        (Some(125), "kennel: policy: overlay: --allow-commit needs --overlay")
    );
}
