//! With `--caches keep`, caches keep what commands write, and the host's files never change.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;

use super::caches::require_layers;
use crate::serve::Hosted;
use crate::support::{World, filled, stderr, stdout, workspace};

const KEEP: &[&str] = &["--caches", "keep"];

/// A world whose home has a cache and a toolchain.
fn world() -> World {
    World::at_home(filled(workspace(), &[".npm/_cacache/old", ".cargo/bin/old"], |_| "of the host"))
}

fn kept(home: &Path) -> PathBuf {
    home.join(".cache/kennel/caches").join(home.display().to_string().replace('/', "%2F"))
}

fn cache(world: &World, arguments: &[&str]) -> Output {
    world.kennel(&[&["cache"], arguments].concat()).output().expect("kennel runs")
}

/// The paths of `kennel cache list --json`, and whether one is in use.
fn listed(world: &World) -> (Vec<String>, bool) {
    let output = cache(world, &["list", "--json"]);
    let found: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    let path = |found: &serde_json::Value| found["path"].as_str().expect("a path").to_owned();
    (found.iter().map(path).collect(), found.iter().any(|found| found["in_use"] == true))
}

#[test]
fn kept_changes_are_for_later_sandboxes_that_keep_theirs() {
    require_layers!();
    let world = world();
    let script = "echo x > ~/.npm/_cacache/new; rm ~/.npm/_cacache/old; echo y > ~/.cache/uv/new; touch ~/.cargo/bin/new";
    let output = world.run(KEEP, script);
    assert!(output.status.success() && stderr(&output).is_empty(), "{output:?}");
    let output = world.run(KEEP, "cat ~/.npm/_cacache/* ~/.cache/uv/new; ls ~/.cargo/bin");
    assert_eq!(stdout(&output), "x\ny\nold", "toolchains are not kept: {output:?}");
    let output = world.run(&[], "cat ~/.npm/_cacache/*; ls ~/.cache/uv");
    assert_eq!(stdout(&output), "of the host", "{output:?}");
    assert!(!world.in_home(".npm/_cacache/new").exists() && !world.in_home(".cache/uv").exists());
    let (paths, in_use) = listed(&world);
    let at = |name: &str| world.in_home(name).display().to_string();
    assert_eq!((paths, in_use), (vec![at(".cache/uv"), at(".npm/_cacache")], false));
}

#[test]
fn kept_changes_are_cleared_one_by_one_and_all_at_once() {
    require_layers!();
    let world = world();
    let script =
        "rm ~/.npm/_cacache/old; mkdir -p ~/.cache/uv/a/b; touch ~/.cache/uv/a/b/c; chmod 0 ~/.cache/uv/a/b";
    world.run(KEEP, script);
    let output = cache(&world, &["clear", world.in_home(".npm/_cacache").to_str().expect("text")]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(stdout(&world.run(KEEP, "ls ~/.npm/_cacache; ls ~/.cache/uv")), "old\na");
    let output = cache(&world, &["clear"]);
    assert!(output.status.success() && !kept(world.home()).exists(), "{output:?}");
    let output = cache(&world, &["clear", "/nowhere"]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert_eq!(listed(&world).0, Vec::<String>::new());
}

#[test]
fn kept_changes_have_one_user_at_a_time() {
    require_layers!();
    let world = world();
    let session = Hosted::start_for(world.home(), KEEP);
    assert_eq!(stdout(&session.shell("echo x > ~/.npm/_cacache/new; cat ~/.npm/_cacache/new")), "x");
    assert_eq!(stdout(&session.shell("cat ~/.npm/_cacache/new")), "x");
    assert!(listed(&world).1);
    let output = cache(&world, &["clear"]);
    assert!(output.status.code() == Some(125) && stderr(&output).contains("a sandbox uses it"));
    let output = world.run(KEEP, "ls ~/.npm/_cacache; touch ~/.npm/_cacache/own");
    assert_eq!(stdout(&output), "old", "{output:?}");
    assert!(stderr(&output).contains("another sandbox uses them"), "{output:?}");
    drop(session);
    crate::support::until("the session lets go", || !listed(&world).1);
    assert_eq!(stdout(&world.run(KEEP, "ls ~/.npm/_cacache")), "new\nold");
}

#[test]
fn kept_changes_are_out_of_reach_except_through_the_caches() {
    require_layers!();
    let world = world();
    world.run(KEEP, "echo x > ~/.npm/_cacache/new");
    let path = world.home().to_str().expect("text");
    for flags in [&["--ro", path][..], &["--rw", path], &["--rw", path, "--caches", "keep"], KEEP] {
        let script = "ls -A ~/.cache/kennel; echo x > ~/.cache/kennel/new; mv ~/.cache/kennel ~/moved; mv ~/.cache ~/moved";
        let output = world.run(flags, script);
        assert_eq!(stdout(&output), "", "{flags:?}: {output:?}");
        assert!(kept(world.home()).join("upper/.npm/_cacache/new").exists(), "{flags:?}");
    }
}

#[test]
fn directory_that_is_not_the_caller_s_alone_keeps_nothing() {
    require_layers!();
    let world = world();
    world.run(KEEP, "true");
    fs::set_permissions(kept(world.home()), fs::Permissions::from_mode(0o755)).expect("a mode");
    let output = world.run(KEEP, "echo x > ~/.npm/_cacache/new");
    assert!(stderr(&output).contains("not yours alone"), "{output:?}");
    assert!(!kept(world.home()).join("upper/.npm/_cacache/new").exists());
    let elsewhere = workspace();
    fs::rename(world.in_home(".cache/kennel"), world.in_home("old")).expect("moved");
    symlink(elsewhere.path(), world.in_home(".cache/kennel")).expect("a link");
    let output = world.run(KEEP, "echo x > ~/.npm/_cacache/new");
    assert!(stderr(&output).contains("not kept"), "{output:?}");
    assert_eq!(fs::read_dir(elsewhere.path()).expect("a directory").count(), 0);
}

#[test]
fn directory_that_commands_can_replace_keeps_nothing() {
    require_layers!();
    let world = world();
    let mut command = world.script(KEEP, "echo x > ~/.npm/_cacache/new; ls -A");
    let output = command.env("XDG_CACHE_HOME", world.path()).output().expect("kennel runs");
    assert!(stderr(&output).contains("in a writable grant") && output.status.success(), "{output:?}");
    assert_eq!(fs::read_dir(world.path()).expect("a directory").count(), 0);
}
