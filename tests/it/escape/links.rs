//! Links that a command lays where git writes: the user's next `git commit` outside appends a line of the command's choice
//! to the file that one leads to.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use crate::support::{TempDir, has, kennel, report, require, until};

use super::git::place;

/// A repository `w`, and a file of the user's beside it.
fn repository(script: &str) -> (TempDir, PathBuf) {
    place(&format!("git init -q w; git -C w commit -q --allow-empty -m first; echo mine > profile; {script}"))
}

/// What the user has after he committed with that message, and what his next commit says.
fn commit(workspace: &Path, message: &str) -> String {
    let commit = ["-c", "user.name=me", "-c", "user.email=me@example.org", "commit", "-q", "--allow-empty"];
    let git = Command::new("git").current_dir(workspace).args(commit).args(["-m", message]).output().unwrap();
    assert!(git.status.success(), "{git:?}");
    fs::read_to_string(workspace.parent().unwrap().join("profile")).unwrap()
}

/// What was told of links in the outcome of a command.
fn told(workspace: &Path, flags: &[&str], script: &str) -> Vec<(String, String)> {
    let (output, report) = report(workspace, flags, &["sh", "-euc", script]);
    assert!(output.status.success(), "{output:?}");
    let text = |denial: &serde_json::Value, key: &str| denial[key].as_str().unwrap().to_owned();
    let all = report["denials"].as_array().unwrap();
    all.iter().map(|denial| (text(denial, "subject"), text(denial, "reason"))).collect()
}

#[test]
fn git_outside_writes_where_a_link_leads() {
    require!(has("git"), "git");
    let (_dir, ws) = repository("");
    let log = ws.join(".git/logs/HEAD");
    fs::remove_file(&log).unwrap();
    symlink("../../../profile", log).unwrap();
    assert!(commit(&ws, "line of choice").contains("line of choice"), "else this wall is for nothing");
}

#[test]
fn a_link_to_a_file_of_the_users_is_taken_away() {
    require!(has("git"), "git");
    for link in ["logs/HEAD", "logs/refs/heads/$branch", "COMMIT_EDITMSG"] {
        let (_dir, ws) = repository("");
        let script = format!(
            "branch=$(git branch --show-current); cd .git; mkdir -p logs/refs/heads; rm -f {link}
             up=$(dirname {link} | sed 's,[^/.][^/]*,..,g'); ln -s $up/../../profile {link}"
        );
        let told = told(&ws, &[], &script);
        assert_eq!(told.len(), 1, "{link}: {told:?}");
        assert!(told[0].1.contains("where this leads; it was removed; it led to"), "{told:?}");
        assert_eq!(commit(&ws, "line of choice"), "mine\n", "{link}");
    }
}

/// Laid where nobody looks, and moved later, when it is older than the command; under a name of ours, too.
#[test]
fn a_link_that_is_older_than_the_command_is_no_way_in() {
    require!(has("git"), "git");
    for to in ["logs", "logs/refs/heads/b", "worktrees"] {
        for name in ["HEAD", "x.refused-by-kennel.0", ".kabcdef"] {
            let (_dir, ws) = repository("mkdir precious; : > precious/file");
            let link =
                format!("cd .git/objects; mkdir -p ab; ln -s \"$(realpath ../../../precious)\" ab/{name}");
            assert!(told(&ws, &[], &link).is_empty(), "git writes no such name there");
            std::thread::sleep(std::time::Duration::from_millis(20));
            let told = told(&ws, &[], &format!("cd .git; rm -rf {to}; mv objects/ab {to}"));
            assert!(told.len() == 1 && told[0].1.ends_with("/precious"), "{told:?}");
            assert!(fs::read_dir(ws.join(".git").join(to)).unwrap().next().is_none());
        }
    }
}

#[test]
fn collecting_garbage_reaches_nothing_outside() {
    require!(has("git"), "git");
    let (_dir, ws) = repository("mkdir precious; : > precious/file");
    let script = "precious=$(realpath ../precious); profile=$(realpath ../profile); cd .git
         mkdir worktrees; ln -s $precious worktrees/.kabcdef; ln -s $precious worktrees/x
         mkdir -p objects/info; ln -s $profile objects/info/commit-graph; ln -s $profile objects/pack/multi-pack-index";
    assert_eq!(told(&ws, &[], script).len(), 1);
    let gc = Command::new("git").current_dir(&ws).args(["gc", "-q"]).output().unwrap();
    assert!(gc.status.success(), "{gc:?}");
    assert!(ws.parent().unwrap().join("precious/file").exists());
    assert_eq!(commit(&ws, "line of choice"), "mine\n");
}

#[test]
fn what_two_sandboxes_lay_is_nobodys() {
    require!(has("git"), "git");
    let (_dir, ws) = repository("");
    let lay = "ln -sfn ../../profile .git/COMMIT_EDITMSG";
    let mut first =
        kennel(&ws, &["-q"], &["sh", "-c", &format!("{lay}; touch up; while [ -e up ]; do sleep 0.1; done")]);
    let mut first = first.spawn().unwrap();
    until("it laid the link", || ws.join("up").exists());
    let second = "rm up; while [ -h .git/COMMIT_EDITMSG ]; do sleep 0.1; done; ln -s ../../profile .git/COMMIT_EDITMSG";
    assert_eq!(told(&ws, &[], second).len(), 1);
    assert!(first.wait().unwrap().success());
    assert_eq!(commit(&ws, "line of choice"), "mine\n");
}

#[test]
fn links_that_were_there_stay() {
    require!(has("git"), "git");
    // As git-new-workdir lays them.
    let (dir, ws) = place(
        "git init -q main; git -C main commit -q --allow-empty -m x; mkdir w/.git
         for part in refs logs/refs objects info hooks packed-refs config; do
             mkdir -p w/.git/$(dirname $part); ln -s ../../main/.git/$part w/.git/$part
         done
         rm w/.git/logs/refs; rmdir w/.git/logs; ln -s ../../main/.git/logs w/.git/logs; cp main/.git/HEAD w/.git",
    );
    let before: Vec<PathBuf> = links(&ws);
    assert!(before.len() > 4, "{before:?}");
    let flags = ["--rw", dir.path().to_str().unwrap()];
    assert!(told(&ws, &flags, "git status; : > .git/index.lock; rm .git/index.lock").is_empty());
    assert_eq!(links(&ws), before);
}

#[test]
fn links_of_the_users_stay_whatever_changes_around_them() {
    require!(has("git"), "git");
    let (_dir, ws) = repository(
        "cd w/.git; mkdir -p hooks; : > ../../hook; ln -s ../../../hook hooks/pre-commit; rm -f info/exclude
         ln -s ../../../profile info/exclude; mv logs/refs ../../; ln -s ../../../refs logs/refs",
    );
    let told = told(&ws, &[], "touch f .git/x .git/info/y .git/logs/z; git status; git log -1");
    assert!(told.is_empty(), "{told:?}");
    for name in ["hooks/pre-commit", "info/exclude", "logs/refs"] {
        assert!(ws.join(".git").join(name).is_symlink(), "{name}");
    }
}

fn links(workspace: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(workspace.join(".git")).unwrap().map(|entry| entry.unwrap().path());
    let mut links: Vec<PathBuf> = entries.filter(|path| path.is_symlink()).collect();
    links.sort();
    links
}

#[test]
fn a_head_may_be_a_link_to_a_branch() {
    require!(has("git"), "git");
    let (_dir, ws) = repository("");
    assert!(told(&ws, &[], "cd .git; rm HEAD; ln -s refs/heads/main HEAD").is_empty());
    assert!(ws.join(".git/HEAD").is_symlink());
    let told = told(&ws, &[], "cd .git; rm HEAD; ln -s refs/../../../profile HEAD");
    assert_eq!(told.len(), 1, "{told:?}");
}

#[test]
fn what_is_closed_is_no_hiding_place() {
    require!(has("git"), "git");
    for mode in ["0", "300", "600", "100"] {
        let (_dir, ws) = repository("");
        let script = format!(
            "cd .git; rm -r logs; mkdir logs; ln -s ../../../profile logs/HEAD; mkdir none
             chmod {mode} logs none"
        );
        assert_eq!(told(&ws, &[], &script).len(), 1, "{mode}");
        let mode = u32::from_str_radix(mode, 8).unwrap();
        let (logs, none) = (ws.join(".git/logs"), ws.join(".git/none"));
        assert_eq!(fs::metadata(none).unwrap().mode() & 0o777, mode, "it is left as it was");
        fs::set_permissions(&logs, PermissionsExt::from_mode(0o700)).unwrap();
        assert!(fs::read_dir(&logs).unwrap().next().is_none());
    }
    let (_dir, ws) = repository("");
    let script = "cd .git; rm -f COMMIT_EDITMSG; ln -s ../../profile COMMIT_EDITMSG; chmod 300 .";
    assert_eq!(told(&ws, &[], script).len(), 1);
    assert_eq!(commit(&ws, "line of choice"), "mine\n");
}

#[test]
fn repositories_that_are_granted_or_lie_elsewhere_have_none_either() {
    require!(has("git"), "git");
    let (_dir, ws) = place(
        "git init -q main; cd main; git commit -q --allow-empty -m x; git worktree add -q ../w/tree; git init -q --bare ../bare
         git init -q ../s; git -C ../s commit -q --allow-empty -m s; git submodule --quiet add ../s sub",
    );
    let tree = ws.join("tree");
    let told_of = |flags: &[&str], at: &str| {
        let told = told(&tree, flags, &format!("cd ../..; ln -s /etc/hostname {at}/x"));
        assert!(told.len() == 1 && told[0].0.ends_with(&format!("{at}/x")), "{at}: {told:?}");
    };
    for at in ["main/.git", "main/.git/worktrees/tree", "main/.git/modules/sub", "main/.git/modules/sub/logs"]
    {
        told_of(&[], at);
    }
    told_of(&["--rw", "../../bare"], "bare");
    told_of(&["--rw", "../../main/.git/logs"], "main/.git/logs");
}

#[test]
fn many_links_end_in_one_line() {
    let (_dir, ws) = place("mkdir -p w/.git/logs");
    let told = told(&ws, &[], "cd .git; for i in 1 2 3 4 5; do ln -s x logs/$i; done; ln -s y z");
    assert!(told.len() == 1 && told[0].1.contains("so were 5 others"), "{told:?}");
    assert!(links(&ws).is_empty());
    // Each start and end has to look.
    let many = "cd .git; top=$PWD; d=$(printf %0250d 0); d=$d/$d/$d/$d; d=$d/$d; mkdir -p $d; cd $d; seq 9000 | xargs mkdir; ln -s x $top/COMMIT_EDITMSG";
    let (output, report) = report(&ws, &[], &["sh", "-c", many]);
    let reason = report["denials"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("too much in it to look through"), "{reason}");
    assert!(
        reason.contains("it led to x") && links(&ws).is_empty(),
        "what is nearer was looked at: {reason}"
    );
    assert_eq!(output.status.code(), Some(125), "{output:?}");
}
