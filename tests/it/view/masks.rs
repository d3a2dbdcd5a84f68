//! Masks: what they name or match is hidden. A mask that hides nothing is noted.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
};

use kennel::{Mount, Profile, Session};
use serde_json::Value;

use crate::support::{
    TempDir, World, fails, filled, kennel, notes, refused, report, stderr, succeeds, workspace,
};

/// A workspace with these files; each holds `secret`.
fn with_files(files: &[&str]) -> TempDir {
    filled(workspace(), files, |_| "secret")
}

fn subjects(report: &Value) -> Vec<&str> {
    notes(report).into_iter().map(|(subject, _)| subject).collect()
}

#[test]
fn a_mask_over_nothing_is_noted_and_the_command_runs() {
    let dir = workspace();
    for path in ["absent", "absent/deep", "/nowhere", "/srv", "*.none", "**/.none"] {
        let output = kennel(dir.path(), &["--mask", path], &["echo", "ran"]).output().unwrap();
        let said = stderr(&output);
        assert!(output.status.success() && output.stdout == b"ran\n", "{output:?}");
        assert!(said.starts_with("kennel: note: ") && said.contains("hides nothing yet"), "{path}: {said}");
    }
    let (_, report) = report(dir.path(), &["--mask", "/nowhere", "--mask", "*.none"], &["true"]);
    assert_eq!(subjects(&report), ["*.none", "/nowhere"]);
    fs::write(dir.path().join("kennel.toml"), "mounts = [{ type = 'mask', path = 'absent' }]").unwrap();
    let output = kennel(dir.path(), &["--policy", "kennel.toml"], &["true"]).output().unwrap();
    assert!(
        output.status.success() && stderr(&output).contains("/absent: nothing is visible there"),
        "{output:?}"
    );
}

#[test]
fn what_a_pattern_matches_is_hidden_and_the_rest_is_not() {
    let dir = with_files(&["a.key", "d/b.key", "d/plain", "src/.env", ".env", "keys/one", "keys/deep/two"]);
    let script = "cat a.key d/b.key src/.env .env keys/one keys/deep/two d/plain 2> /dev/null; true";
    for (masks, shown) in
        [(&["*.key"][..], 5), (&["**/.env"], 5), (&["keys/**"], 5), (&["*.key", "**/.env", "ke*"], 1)]
    {
        let flags: Vec<&str> = masks.iter().flat_map(|mask| ["--mask", *mask]).collect();
        let said = succeeds(dir.path(), &flags, script);
        assert_eq!(said.matches("secret").count(), shown, "{masks:?}: {said}");
    }
    assert_eq!(succeeds(dir.path(), &["--mask", "keys/**"], "ls -A keys"), "");
    fails(dir.path(), &["--mask", "*.key"], "rm -f a.key || mv d e");
    // As elsewhere, a relative path starts where the caller is, and a name means the whole workspace.
    let here = dir.path().to_str().unwrap();
    let flags = ["--workspace", here, "--mask", "*.key"];
    assert_eq!(succeeds(&dir.path().join("src"), &flags, "cat a.key d/b.key"), "");
    let flags = ["--workspace", here, "--mask", "./*.key", "--quiet"];
    assert_eq!(succeeds(&dir.path().join("d"), &flags, "cat a.key d/b.key"), "secret");
}

#[test]
fn patterns_hide_in_every_grant_that_they_reach() {
    let (dir, data) = (with_files(&["a.key"]), with_files(&["b.key", "d/c.key", "other"]));
    let grant = format!("{}:/data", data.path().display());
    let into = format!("{}:{}/inner", data.path().display(), dir.path().display());
    fs::create_dir(dir.path().join("inner")).unwrap();
    let script = "cat /data/b.key /data/d/c.key /data/other";
    assert_eq!(succeeds(dir.path(), &["--ro", &grant, "--mask", "/data/**/*.key"], script), "secret");
    assert_eq!(succeeds(dir.path(), &["--ro", &grant, "--mask", "/data/*.key"], script), "secretsecret");
    let script = "cat a.key inner/b.key inner/d/c.key inner/other";
    assert_eq!(succeeds(dir.path(), &["--ro", &into, "--mask", "*.key"], script), "secret");
    let flags = ["--profile", "read-only", "--mask", "*.key"];
    assert_eq!(succeeds(dir.path(), &flags, "cat a.key"), "");
    // Files that the sandbox makes itself.
    assert_eq!(succeeds(dir.path(), &["--mask", "/etc/pass*"], "cat /etc/passwd"), "");
}

#[test]
fn a_matching_link_hides_what_it_leads_to() {
    let (dir, outside) = (with_files(&["real", "deep/.env"]), with_files(&["elsewhere"]));
    symlink("real", dir.path().join(".env")).unwrap();
    assert_eq!(succeeds(dir.path(), &["--mask", "**/.env"], "cat .env real deep/.env"), "");
    symlink("nowhere", dir.path().join("dangling.env")).unwrap();
    succeeds(dir.path(), &["--mask", "*.env"], "true");
    symlink(outside.path().join("elsewhere"), dir.path().join("out.env")).unwrap();
    succeeds(dir.path(), &["--mask", "*.env"], "true");
    let grant = outside.path().to_str().unwrap();
    let said = refused(dir.path(), &["--mask", "*.env", "--ro", grant]);
    assert!(said.contains("out.env: the way to it passes a symbolic link"), "{said}");
    let target = outside.path().join("elsewhere").display().to_string();
    let flags = ["--mask", "*.env", "--ro", grant, "--mask", &target];
    assert_eq!(succeeds(dir.path(), &flags, "cat out.env"), "");
}

#[test]
fn what_cannot_be_searched_is_hidden_as_a_whole_and_noted() {
    let dir = workspace();
    succeeds(dir.path(), &[], "mkdir closed; echo s > closed/a.key; chmod 0 closed");
    let (_, found) = report(dir.path(), &["--mask", "*.key"], &["true"]);
    assert_eq!(subjects(&found), [dir.path().join("closed").to_str().unwrap()]);
    fails(dir.path(), &["--mask", "*.key"], "chmod 700 closed || cat closed/a.key");
    fs::set_permissions(dir.path().join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_directory_with_wildcards_in_its_name_is_no_pattern() {
    let dir = with_files(&["[id]/a.key", "[id]/secret", "i/a.key", "i/secret"]);
    let here = dir.path().join("[id]");
    let flags = ["--workspace", dir.path().to_str().unwrap(), "--mask", "./*.key"];
    assert_eq!(succeeds(&here, &flags, "cat '[id]/a.key' i/a.key"), "secret");
    let flags = ["--workspace", dir.path().to_str().unwrap(), "--mask", "secret"];
    assert_eq!(succeeds(&here, &flags, "cat '[id]/secret'"), "");
}

#[test]
fn what_is_no_pattern_is_refused() {
    let dir = workspace();
    for (mask, words) in [
        ("[a", "is no pattern"),
        ("a/{b/c}", "in the same part"),
        ("../*", "`..`"),
        ("**", "names everything"),
    ] {
        let said = refused(dir.path(), &["--mask", mask]);
        assert!(said.contains("--mask `") && said.contains(words), "{mask}: {said}");
    }
}

async fn reads(session: &Session, path: &str) -> String {
    let out = session.command("cat").arg(path).output().await.unwrap();
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[tokio::test]
async fn what_appears_in_a_session_is_hidden_from_the_next_command_on() {
    let world = World::of(with_files(&["d/other"]));
    let masked = world.policy_of(Profile::RepoWrite).mount(Mount::Mask { path: "*.key".into() });
    let session = Session::prepare(&masked.mask(world.at("absent/file"))).await.unwrap();
    assert_eq!(session.enforcement().notes().len(), 2);
    assert_eq!(reads(&session, "d/other").await, "secret");
    crate::support::past_the_tick();
    fs::write(world.at("d/new.key"), "secret").unwrap();
    fs::create_dir(world.at("absent")).unwrap();
    fs::write(world.at("absent/file"), "secret").unwrap();
    for path in ["d/new.key", "absent/file"] {
        assert_eq!(reads(&session, path).await, "", "{path}");
        session.read(path).await.unwrap_err();
        assert_eq!(fs::read_to_string(world.at(path)).unwrap(), "secret");
    }
    assert_eq!(reads(&session, "d/other").await, "secret");
    assert!(session.enforcement().notes().is_empty(), "both hide something now");
}
