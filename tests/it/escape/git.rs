//! Ways around the protection of git: the command writes a config or a hook, and the user's next `git status`
//! runs it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::support::{TempDir, has, is_root, require, run, shell, stderr, stdout, workspace};

/// A command appends this to a config of git. A hook begins with it.
pub(super) const EVIL: &str = "[core]\n\tfsmonitor = ./evil\n";

/// A workspace `w`, and beside it the result of `script`.
pub(super) fn place(script: &str) -> (TempDir, PathBuf) {
    let dir = workspace();
    let workspace = dir.path().join("w");
    fs::create_dir(&workspace).unwrap();
    let identity = [("user.name", "me"), ("user.email", "me@example.org"), ("protocol.file.allow", "always")];
    let mut command = Command::new("sh");
    command.args(["-euc", script]).current_dir(dir.path()).env("GIT_CONFIG_COUNT", "3");
    for (number, (key, value)) in identity.into_iter().enumerate() {
        command.env(format!("GIT_CONFIG_KEY_{number}"), key).env(format!("GIT_CONFIG_VALUE_{number}"), value);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    (dir, workspace)
}

/// Whether a command in `workspace` with these flags could append to `path`, a path in the directory around
/// the workspace.
pub(super) fn can_write(workspace: &Path, flags: &[&str], path: &str) -> bool {
    let around = workspace.parent().unwrap();
    let at = around.join(path);
    let before = fs::read(&at).unwrap();
    let output = shell(workspace, flags, &format!("printf '%s' '{EVIL}' >> '{}'", at.display()));
    let was_written = fs::read(&at).unwrap() != before;
    assert_eq!(was_written, output.status.success(), "{output:?}");
    assert!(was_written || stderr(&output).contains("Read-only file system"), "{output:?}");
    was_written
}

#[test]
fn a_link_to_a_repository_in_another_grant_is_followed() {
    require!(has("git"), "git");
    let (_dir, ws) = place("git init -q --bare repos/main; ln -s ../repos/main w/.git");
    assert!(!can_write(&ws, &["--rw", "../repos"], "repos/main/config"));
    assert!(!can_write(&ws, &["--rw", "../repos"], "repos/main/hooks/pre-push.sample"));
    assert!(can_write(&ws, &["--rw", "../repos"], "repos/main/description"), "the grant itself is writable");
}

#[test]
fn a_link_to_a_pointer_in_another_grant_stays() {
    require!(has("git"), "git");
    let (_dir, ws) = place(
        "git init -q --bare repos/main; mkdir b; echo 'gitdir: ../repos/main' > b/pointer; ln -s ../b/pointer w/.git",
    );
    assert!(!can_write(&ws, &["--rw", "../b", "--rw", "../repos"], "b/pointer"));
    assert!(!can_write(&ws, &["--rw", "../b", "--rw", "../repos"], "repos/main/config"));
}

#[test]
fn a_config_that_is_a_link_into_another_grant_stays() {
    require!(has("git"), "git");
    let (_dir, ws) = place(
        "git init -q top/orig; mkdir w/.git; cp -r top/orig/.git/HEAD w/.git
         for part in config refs objects hooks; do ln -s ../../top/orig/.git/$part w/.git/$part; done",
    );
    assert!(!can_write(&ws, &["--rw", "../top"], "top/orig/.git/config"));
}

#[test]
fn a_config_elsewhere_is_found_by_commondir() {
    require!(has("git"), "git");
    let (_dir, ws) = place(
        "git init -q --bare w/main; mkdir w/.git; cp w/main/HEAD w/.git; echo ../main > w/text
         ln -s ../text w/.git/commondir",
    );
    assert!(!can_write(&ws, &[], "w/main/config"));
    assert!(!can_write(&ws, &[], "w/text"));
}

#[test]
fn a_directory_made_around_a_submodule_hides_nothing() {
    require!(has("git"), "git");
    let plants = [
        r#"printf "ref:\frefs/heads/x" > HEAD; mkdir objects refs"#,
        "echo ref: refs/heads/x > HEAD; mkdir objects refs; echo /nonexistent > commondir",
        "echo ref: refs/heads/x > HEAD; mkdir objects refs; chmod 600 objects",
    ];
    // Nothing is closed to root.
    for plant in &plants[..if is_root() { 2 } else { 3 }] {
        let (dir, ws) = place(
            "git init -q s; git -C s commit -q --allow-empty -m s; git init -q w; git -C w commit -q --allow-empty -m w",
        );
        let plant = format!("mkdir -p .git/modules/tools; cd .git/modules/tools; {plant}");
        assert!(shell(&ws, &[], &plant).status.success());
        let add = ["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "--name", "tools/logs"];
        let source = dir.path().join("s");
        let added = Command::new("git").current_dir(&ws).args(add).arg(&source).arg("sub").output().unwrap();
        assert!(added.status.success(), "{plant}: {added:?}");
        assert!(!can_write(&ws, &[], "w/.git/modules/tools/logs/config"), "{plant}");
    }
}

#[test]
fn a_grant_of_a_part_of_a_repository_is_no_way_around_it() {
    require!(has("git"), "git");
    let (_dir, ws) = place(
        "git init -q main; cd main; git commit -q --allow-empty -m x; git worktree add -q ../tree
         git config extensions.worktreeConfig true; : > .git/worktrees/tree/config.worktree
         git init -q ../s; git -C ../s commit -q --allow-empty -m s; git submodule --quiet add ../s sub",
    );
    let grant = ["--profile", "read-only", "--rw", "../main/.git/worktrees/tree"];
    assert!(!can_write(&ws, &grant, "main/.git/worktrees/tree/config.worktree"));
    assert!(!can_write(&ws, &grant, "main/.git/worktrees/tree/commondir"));
    assert!(can_write(&ws, &grant, "main/.git/worktrees/tree/HEAD"), "it is granted");
    let grant = ["--profile", "read-only", "--rw", "../main/.git/modules"];
    assert!(!can_write(&ws, &grant, "main/.git/modules/sub/config"));
    assert!(can_write(&ws, &grant, "main/.git/modules/sub/HEAD"));
}

#[test]
fn a_mask_does_not_weaken_protection_elsewhere() {
    require!(has("git"), "git");
    let (_dir, ws) = place("git init -q w");
    let up = format!("{}:/up", ws.parent().unwrap().display());
    let flags = ["--rw", &up, "--mask", ".git"];
    let output = shell(&ws, &flags, "ls .git; echo x >> /up/w/.git/config");
    assert!(stdout(&output).is_empty() && !output.status.success(), "{output:?}");
    assert!(stderr(&output).contains("Read-only file system"), "{output:?}");
}

#[test]
fn a_mount_of_the_policy_over_a_repository_is_visible() {
    require!(has("git"), "git");
    let (_dir, ws) = place(
        "git init -q w; mkdir other; echo other > other/config; mkdir w/real; echo real > w/real/cfg; ln -s real/cfg w/link",
    );
    let at = |name: &str| ws.join(name).display().to_string();
    let said = |flags: &[&str], path: &str| stdout(&run(&ws, flags, &["cat", path]));
    assert_eq!(said(&["--tmpfs", &at(".git")], ".git/config"), "");
    assert_eq!(stdout(&run(&ws, &["--tmpfs", &at(".git")], &["ls", ".git"])), "");
    for access in ["--ro", "--rw"] {
        assert_eq!(said(&[access, &format!("../other:{}", at(".git"))], ".git/config"), "other");
    }
    assert_eq!(said(&["--protect", "link", "--tmpfs", &at("real")], "real/cfg"), "");
}

#[test]
fn a_repository_that_lost_its_head_stays_protected() {
    require!(has("git"), "git");
    let (dir, ws) =
        place("git init -q --bare bare; printf '[core]\n\tbare = true\n' > cfg; ln -sf ../cfg bare/config");
    assert!(run(&ws, &["--rw", "../bare"], &["mv", "../bare/HEAD", "../bare/H"]).status.success());
    assert!(dir.path().join("bare/H").exists());
    let output = shell(&ws, &["--rw", "../bare"], "rm -f ../bare/config; echo x > ../bare/hooks/post-update");
    assert!(!output.status.success() && stderr(&output).contains("Read-only"), "{output:?}");
    assert!(stderr(&output).contains("bare/config"), "the report says that the link is gone: {output:?}");
}
