//! With `--caches keep`, caches keep what commands write, and the host's files never change.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::caches::require_layers;
use crate::serve::Hosted;
use crate::support::{TempDir, kennel, kennel_path, stderr, stdout, workspace};

const KEEP: &[&str] = &["--caches", "keep"];

/// A home directory with a cache and a toolchain.
fn home() -> TempDir {
    let home = workspace();
    for directory in [".npm/_cacache", ".cargo/bin"] {
        fs::create_dir_all(home.path().join(directory)).expect("a directory");
        fs::write(home.path().join(directory).join("old"), "of the host").expect("a file");
    }
    home
}

fn kept(home: &Path) -> PathBuf {
    home.join(".cache/kennel/caches").join(home.display().to_string().replace('/', "%2F"))
}

fn with_home(mut command: Command, home: &Path) -> Output {
    for name in ["CARGO_HOME", "XDG_CACHE_HOME", "npm_config_cache"] {
        command.env_remove(name);
    }
    command.env("HOME", home).output().expect("kennel runs")
}

fn run(home: &Path, flags: &[&str], script: &str) -> Output {
    let dir = workspace();
    with_home(kennel(dir.path(), flags, &["sh", "-c", script]), home)
}

fn cache(home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(kennel_path());
    command.arg("cache").args(arguments);
    with_home(command, home)
}

/// The paths of `kennel cache list --json`, and whether one is in use.
fn listed(home: &Path) -> (Vec<String>, bool) {
    let output = cache(home, &["list", "--json"]);
    let found: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    let path = |found: &serde_json::Value| found["path"].as_str().expect("a path").to_owned();
    (found.iter().map(path).collect(), found.iter().any(|found| found["in_use"] == true))
}

#[test]
fn kept_changes_are_for_later_sandboxes_that_keep_theirs() {
    require_layers!();
    let home = home();
    let script = "echo x > ~/.npm/_cacache/new; rm ~/.npm/_cacache/old; echo y > ~/.cache/uv/new; touch ~/.cargo/bin/new";
    let output = run(home.path(), KEEP, script);
    assert!(output.status.success() && stderr(&output).is_empty(), "{output:?}");
    let output = run(home.path(), KEEP, "cat ~/.npm/_cacache/* ~/.cache/uv/new; ls ~/.cargo/bin");
    assert_eq!(stdout(&output), "x\ny\nold", "toolchains are not kept: {output:?}");
    let output = run(home.path(), &[], "cat ~/.npm/_cacache/*; ls ~/.cache/uv");
    assert_eq!(stdout(&output), "of the host", "{output:?}");
    assert!(!home.path().join(".npm/_cacache/new").exists() && !home.path().join(".cache/uv").exists());
    let (paths, in_use) = listed(home.path());
    let at = |name: &str| home.path().join(name).display().to_string();
    assert_eq!((paths, in_use), (vec![at(".cache/uv"), at(".npm/_cacache")], false));
}

#[test]
fn kept_changes_are_cleared_one_by_one_and_all_at_once() {
    require_layers!();
    let home = home();
    let script =
        "rm ~/.npm/_cacache/old; mkdir -p ~/.cache/uv/a/b; touch ~/.cache/uv/a/b/c; chmod 0 ~/.cache/uv/a/b";
    run(home.path(), KEEP, script);
    let output = cache(home.path(), &["clear", home.path().join(".npm/_cacache").to_str().expect("text")]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(stdout(&run(home.path(), KEEP, "ls ~/.npm/_cacache; ls ~/.cache/uv")), "old\na");
    let output = cache(home.path(), &["clear"]);
    assert!(output.status.success() && !kept(home.path()).exists(), "{output:?}");
    let output = cache(home.path(), &["clear", "/nowhere"]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert_eq!(listed(home.path()).0, Vec::<String>::new());
}

#[test]
fn kept_changes_have_one_user_at_a_time() {
    require_layers!();
    let home = home();
    let session = Hosted::start_for(home.path(), KEEP);
    assert_eq!(stdout(&session.shell("echo x > ~/.npm/_cacache/new; cat ~/.npm/_cacache/new")), "x");
    assert_eq!(stdout(&session.shell("cat ~/.npm/_cacache/new")), "x");
    assert!(listed(home.path()).1);
    let output = cache(home.path(), &["clear"]);
    assert!(output.status.code() == Some(125) && stderr(&output).contains("a sandbox uses it"));
    let output = run(home.path(), KEEP, "ls ~/.npm/_cacache; touch ~/.npm/_cacache/own");
    assert_eq!(stdout(&output), "old", "{output:?}");
    assert!(stderr(&output).contains("another sandbox uses them"), "{output:?}");
    drop(session);
    crate::support::until("the session lets go", || !listed(home.path()).1);
    assert_eq!(stdout(&run(home.path(), KEEP, "ls ~/.npm/_cacache")), "new\nold");
}

#[test]
fn kept_changes_are_out_of_reach_except_through_the_caches() {
    require_layers!();
    let home = home();
    run(home.path(), KEEP, "echo x > ~/.npm/_cacache/new");
    let path = home.path().to_str().expect("text");
    for flags in [&["--ro", path][..], &["--rw", path], &["--rw", path, "--caches", "keep"], KEEP] {
        let script = "ls -A ~/.cache/kennel; echo x > ~/.cache/kennel/new; mv ~/.cache/kennel ~/moved; mv ~/.cache ~/moved";
        let output = run(home.path(), flags, script);
        assert_eq!(stdout(&output), "", "{flags:?}: {output:?}");
        assert!(kept(home.path()).join("upper/.npm/_cacache/new").exists(), "{flags:?}");
    }
}

#[test]
fn directory_that_is_not_the_caller_s_alone_keeps_nothing() {
    require_layers!();
    let home = home();
    run(home.path(), KEEP, "true");
    fs::set_permissions(kept(home.path()), fs::Permissions::from_mode(0o755)).expect("a mode");
    let output = run(home.path(), KEEP, "echo x > ~/.npm/_cacache/new");
    assert!(stderr(&output).contains("not yours alone"), "{output:?}");
    assert!(!kept(home.path()).join("upper/.npm/_cacache/new").exists());
    let elsewhere = workspace();
    fs::rename(home.path().join(".cache/kennel"), home.path().join("old")).expect("moved");
    symlink(elsewhere.path(), home.path().join(".cache/kennel")).expect("a link");
    let output = run(home.path(), KEEP, "echo x > ~/.npm/_cacache/new");
    assert!(stderr(&output).contains("not kept"), "{output:?}");
    assert_eq!(fs::read_dir(elsewhere.path()).expect("a directory").count(), 0);
}

#[test]
fn directory_that_commands_can_replace_keeps_nothing() {
    require_layers!();
    let (home, dir) = (home(), workspace());
    let mut command = kennel(dir.path(), KEEP, &["sh", "-c", "echo x > ~/.npm/_cacache/new; ls -A"]);
    command.env("HOME", home.path()).env("XDG_CACHE_HOME", dir.path());
    let output = command.output().expect("kennel runs");
    assert!(stderr(&output).contains("in a writable grant") && output.status.success(), "{output:?}");
    assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 0);
}
