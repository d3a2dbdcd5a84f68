//! Links that a command lays where git writes: the user's next `git commit` outside appends a line of the command's choice
//! to the file that one leads to.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use crate::support::{TempDir, has, is_root, report, require};

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
        assert!(told[0].1.contains("where this symbolic link leads; it was removed"), "{told:?}");
        assert_eq!(commit(&ws, "line of choice"), "mine\n", "{link}");
    }
}

#[test]
fn a_prepared_directory_with_a_link_is_no_way_in() {
    require!(has("git"), "git");
    let (_dir, ws) = repository("");
    let objects = "cd .git/objects; mkdir -p ab; ln -s ../../../profile ab/HEAD";
    assert!(told(&ws, &[], objects).is_empty(), "git writes no such name there");
    std::thread::sleep(std::time::Duration::from_millis(20));
    let told = told(&ws, &[], "cd .git; mv logs old; mv objects/ab logs");
    assert!(told.len() == 1 && told[0].1.contains("refused-by-kennel"), "{told:?}");
    assert!(ws.join(".git/logs/HEAD.refused-by-kennel.0").is_symlink(), "it was there before");
    assert_eq!(commit(&ws, "line of choice"), "mine\n");
    assert!(self::told(&ws, &[], ": > .git/logs/x").is_empty(), "it is renamed once");
}

#[test]
fn a_branch_with_the_name_of_what_was_renamed_is_none() {
    require!(has("git"), "git");
    let (_dir, ws) = repository("");
    let name = "x.refused-by-kennel.0";
    let objects = format!("cd .git/objects; mkdir -p ab; ln -s ../../../../../../profile ab/{name}");
    assert!(told(&ws, &[], &objects).is_empty());
    std::thread::sleep(std::time::Duration::from_millis(20));
    let told = told(&ws, &[], "cd .git; mv objects/ab logs/refs/heads/b");
    assert!(told.len() == 1 && told[0].0.ends_with(name), "{told:?}");
    assert!(!ws.join(".git/logs/refs/heads/b").join(name).is_symlink());
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
    let (_dir, ws) = repository("");
    let told = told(&ws, &[], "cd .git/logs; rm HEAD; mkdir x; ln -s ../../../../profile x/HEAD; chmod 0 x");
    // Whoever is not root gets no further than git does.
    assert_eq!(told.len(), usize::from(is_root()), "{told:?}");
    let told = self::told(&ws, &[], "chmod 700 .git/logs/x");
    assert_eq!(told.len(), usize::from(!is_root()), "{told:?}");
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
    let many =
        "cd .git; d=$(printf %0250d 0); d=$d/$d/$d/$d; d=$d/$d; mkdir -p $d; cd $d; seq 4200 | xargs mkdir";
    let (output, report) = report(&ws, &[], &["sh", "-c", many]);
    let reason = report["denials"][0]["reason"].as_str().unwrap();
    assert!(reason.contains("too much in it to look for links"), "{reason}");
    assert_eq!(output.status.code(), Some(125), "{output:?}");
}
