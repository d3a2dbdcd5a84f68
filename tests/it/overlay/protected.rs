//! Protected paths, covers and grants inside a workspace with an overlay.

use std::fs;

use kennel::{Mount, Session};

use super::{
    CONFLICT, changes, commit, overlaid, overlay_of, refusals, require_overlay, shell, with_overlay,
    workspace,
};
use crate::support::{self, TempDir, policy_at};

/// A workspace with a repository that has no hook.
fn repository() -> TempDir {
    let dir = support::repository();
    fs::remove_file(dir.path().join(".git/hooks/pre-commit")).unwrap();
    dir
}

#[tokio::test]
async fn protected_paths_are_read_only_inside_and_stay_in_their_place() {
    require_overlay!();
    let world = overlay_of(repository());
    let session = world.session().await;
    let script = "echo x > .git/hooks/pre-commit; echo x >> .git/config; rm -rf .git; mv .git away; \
                  mv .git/hooks h; ls -A . .git; cat .git/config";
    let out = session.command("sh").args(["-c", script]).output().await.unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(said.matches("Read-only file system").count(), 2, "{said}");
    assert_eq!(said.matches("Device or resource busy").count(), 4, "{said}");
    assert!(String::from_utf8_lossy(&out.stdout).ends_with("[core]\n"));
    assert!(
        changes(&session).await.iter().all(|change| change.starts_with("D .git/") || change == "A h/"),
        "HEAD and the rest; mv copies"
    );
    assert!(world.at(".git/HEAD").exists());
}

#[tokio::test]
async fn paths_that_were_not_there_are_never_committed() {
    require_overlay!();
    let world = overlay_of(repository());
    let mut policy = world.policy();
    policy.protect = vec![".env".into(), "ci/run".into()];
    let session = Session::prepare(&policy).await.unwrap();
    shell(&session, "echo x > .git/commondir; echo x > .env; mkdir ci; echo x > ci/run; echo x > ci/fine")
        .await;
    let refused = refusals(&session).await;
    let protected = [".env", ".git/commondir", "ci/run"].map(|path| format!("A {path}: it is protected"));
    assert_eq!(refused, protected);
    assert!(!world.at(".env").exists() && !world.at(".git/commondir").exists());
    assert!(world.at("ci/fine").exists() && !world.at("ci/run").exists());
}

#[tokio::test]
async fn links_where_git_writes_are_never_committed() {
    require_overlay!();
    let world = overlay_of(repository());
    let session = world.session().await;
    shell(&session, "cd .git; mkdir logs; ln -s ../../x logs/HEAD; echo x > logs/file; ln -s ../x ../kept")
        .await;
    let refused = refusals(&session).await;
    assert_eq!(refused, ["A .git/logs/HEAD: it is protected"]);
    let is_there = |name: &str| fs::symlink_metadata(world.at(name)).is_ok();
    assert!(is_there(".git/logs/file") && is_there("kept") && !is_there(".git/logs/HEAD"));
}

#[tokio::test]
async fn no_link_is_committed_on_the_way_to_a_protected_path() {
    require_overlay!();
    let world = overlaid();
    let mut policy = world.policy();
    policy.protect = vec!["ci/run".into()];
    let session = Session::prepare(&policy).await.unwrap();
    shell(&session, "mkdir evil; echo x > evil/run; ln -s evil ci; echo 'gitdir: evil' > .git").await;
    let refused = refusals(&session).await;
    assert_eq!(refused, ["A .git: it is protected", "A ci: it is protected"]);
    assert!(fs::symlink_metadata(world.at("ci")).is_err());
    assert!(fs::symlink_metadata(world.at(".git")).is_err());
}

#[tokio::test]
async fn a_repository_is_made_without_its_hooks() {
    require_overlay!();
    let world = overlaid();
    let session = world.session().await;
    let script = "mkdir -p .git/hooks .git/objects .git/refs; echo r > .git/HEAD; echo c > .git/config; \
                  echo s > .git/hooks/pre-push.sample; echo x > .git/hooks/pre-push";
    shell(&session, script).await;
    assert_eq!(refusals(&session).await, ["A .git/hooks/pre-push: it is protected"]);
    assert!(world.at(".git/hooks/pre-push.sample").exists() && world.at(".git/config").exists());
    shell(&session, "echo more >> .git/config").await;
    let refused = refusals(&session).await;
    assert_eq!(refused, ["M .git/config: it is protected", "A .git/hooks/pre-push: it is protected"]);
    assert_eq!(fs::read(world.at(".git/config")).unwrap(), b"c\n", "it is the host's by now");
}

#[tokio::test]
async fn a_hook_that_the_user_makes_meanwhile_stays_and_that_of_a_command_does_not_come() {
    require_overlay!();
    let world = overlaid();
    let session = world.session().await;
    shell(&session, "mkdir -p .git/hooks; echo evil > .git/hooks/a.sample; echo evil > .git/config").await;
    fs::create_dir_all(world.at(".git/hooks")).unwrap();
    fs::write(world.at(".git/config"), "user's").unwrap();
    let refused = refusals(&session).await;
    assert!(refused.iter().any(|line| line.starts_with("M .git/config: it is protected")), "{refused:?}");
    assert!(
        refused.iter().any(|line| line.starts_with("A .git/hooks/a.sample: it is protected")),
        "{refused:?}"
    );
    assert_eq!(fs::read(world.at(".git/config")).unwrap(), b"user's");
}

#[tokio::test]
async fn covers_hold_and_other_grants_are_not_part_of_the_overlay() {
    require_overlay!();
    let (world, other) = (overlaid(), workspace());
    fs::create_dir(world.at("data")).unwrap();
    fs::create_dir(world.at("hidden")).unwrap();
    fs::write(world.at("hidden/key"), "key").unwrap();
    let policy = world
        .policy()
        .mask(world.at("hidden"))
        .mount(Mount::ReadWrite { source: other.path().into(), target: Some(world.at("data")) });
    let session = Session::prepare(&policy).await.unwrap();
    shell(&session, "echo x > data/x; ls hidden; ! cat hidden/key; ! mv hidden h; ! rmdir data; echo y > y")
        .await;
    assert_eq!(fs::read(other.path().join("x")).unwrap(), b"x\n", "a grant of its own is written at once");
    assert_eq!(commit(&session).await, ["A y"]);
    assert_eq!(fs::read(world.at("hidden/key")).unwrap(), b"key");
    assert_eq!(fs::read_dir(world.at("data")).unwrap().count(), 0);
}

#[tokio::test]
async fn the_repository_of_a_linked_worktree_is_read_only() {
    require_overlay!();
    crate::support::require!(crate::support::has("git"), "git");
    let dir = workspace();
    let git = |arguments: &[&str]| {
        let git = std::process::Command::new("git")
            .args(["-c", "user.name=a", "-c", "user.email=a@b"])
            .args(arguments)
            .current_dir(dir.path())
            .output()
            .unwrap();
        assert!(git.status.success(), "{git:?}");
    };
    git(&["init", "-q", "main"]);
    git(&["-C", "main", "commit", "-q", "--allow-empty", "-m", "x"]);
    git(&["-C", "main", "worktree", "add", "-q", "../linked"]);
    let policy = with_overlay(policy_at(dir.path().join("linked")));
    let session = Session::prepare(&policy).await.unwrap();
    shell(&session, "git log -1 --format=%s; ! git commit --allow-empty -m y").await;
    assert!(changes(&session).await.is_empty());
}

#[tokio::test]
async fn two_sessions_that_change_the_same_do_not_overwrite_each_other() {
    require_overlay!();
    let world = overlaid();
    fs::write(world.at("f"), "old").unwrap();
    let (one, other) = (world.session().await, world.session().await);
    shell(&one, "echo one > f; echo one > a").await;
    shell(&other, "echo other > f; echo other > b").await;
    assert_eq!(commit(&one).await, ["A a", "M f"]);
    assert_eq!(refusals(&other).await, [format!("M f: {CONFLICT}")]);
    assert_eq!(fs::read(world.at("f")).unwrap(), b"one\n");
    assert!(world.at("b").exists());
}

#[test]
fn no_process_inside_keeps_the_capability_for_mounting() {
    if !super::available() {
        return super::refused::is_refused_in_memory();
    }
    let dir = workspace();
    let flags = super::flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(["--quiet"]).collect();
    let mut kennel = crate::support::kennel(dir.path(), &flags, &["cat"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(kennel.stdin.as_mut().unwrap(), b"x").unwrap();
    std::io::Read::read_exact(kennel.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let mut inside = vec![kennel.id()];
    let mut sets = Vec::new();
    while let Some(pid) = inside.pop() {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        for child in children.split_whitespace() {
            let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
            let set = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name));
                line.map(|line| u64::from_str_radix(line.trim(), 16).unwrap())
            };
            sets.extend(
                [set("CapEff:"), set("CapPrm:"), set("CapInh:"), set("CapAmb:")].into_iter().flatten(),
            );
            inside.push(child.parse().unwrap());
        }
    }
    assert!(
        sets.iter().any(|set| set & (1 << 21) != 0),
        "the zygote has CAP_SYS_ADMIN in its namespace: {sets:x?}"
    );
    assert!(sets.iter().all(|set| set & 0b10 == 0), "and CAP_DAC_OVERRIDE nowhere: {sets:x?}");
    drop(kennel.stdin.take());
    assert!(kennel.wait().unwrap().success());
}
