//! What a command writes into a repository, and git outside takes for its own without a look: names in an index, what a ref
//! stands for, where resolutions of conflicts go.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::support::{TempDir, has, kennel, report, require};

use super::git::place;
use crate::overlay::available;

/// A repository `w` with a file, a file of the user's beside it, and an index with one name more, of that file.
fn repository() -> (TempDir, PathBuf) {
    let (dir, ws) = place(
        "git init -q -b main w; cd w; echo text > a; git add a; git commit -q -m first; echo mine > ../profile",
    );
    let index = fs::read(ws.join(".git/index")).unwrap();
    // One entry, of which the name is the last: `a`. The other is the same, called `../profile`.
    let (header, entry) = (&index[..12], &index[12..12 + 72]);
    let mut forged = [&header[..8], &2_u32.to_be_bytes()].concat();
    let mut other = entry[..60].to_vec();
    other.extend(10_u16.to_be_bytes());
    other.extend(b"../profile");
    other.resize(80, 0);
    forged.extend([&other[..], entry, &[0; 20]].concat());
    fs::write(ws.join("forged"), forged).unwrap();
    (dir, ws)
}

/// What git outside does that the user asks for.
fn git(workspace: &Path, arguments: &str) -> Output {
    let who = ["-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "index.skipHash=true"];
    Command::new("git").current_dir(workspace).args(who).args(arguments.split(' ')).output().unwrap()
}

fn profile(workspace: &Path) -> String {
    fs::read_to_string(workspace.parent().unwrap().join("profile")).unwrap()
}

/// What was told of a command, and what the user has after it and after what he has git do.
fn after(script: &str, arguments: &str) -> (Vec<String>, PathBuf, TempDir, Output) {
    let (dir, ws) = repository();
    let (output, report) = report(&ws, &[], &["sh", "-euc", script]);
    assert!(output.status.success(), "{output:?}");
    let reason = |denial: &serde_json::Value| denial["reason"].as_str().unwrap().to_owned();
    let told = report["denials"].as_array().unwrap().iter().map(reason).collect();
    let said = git(&ws, arguments);
    (told, ws, dir, said)
}

const RESOLUTION: &str = "id=bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb; mkdir -p .git/rr-cache/$id .git/info
     : > .git/rr-cache/$id/preimage; echo evil > .git/rr-cache/$id/postimage
     printf '%s\\t%s\\0' $id.-1 ../profile > .git/MERGE_RR; echo '* merge=union' > .git/info/attributes";

#[test]
fn git_outside_takes_them_for_its_own() {
    require!(has("git"), "git");
    let (_dir, ws) = repository();
    fs::copy(ws.join("forged"), ws.join(".git/index")).unwrap();
    git(&ws, "checkout .");
    assert_eq!(profile(&ws), "text\n", "else this wall is for nothing");

    let (_dir, ws) = repository();
    assert!(Command::new("sh").current_dir(&ws).args(["-euc", RESOLUTION]).status().unwrap().success());
    git(&ws, "commit -q --allow-empty -m next");
    assert!(profile(&ws).contains("evil"), "else this wall is for nothing");

    let (_dir, ws) = repository();
    fs::write(ws.join(".git/refs/heads/main"), "ref: ../../out\n").unwrap();
    git(&ws, "commit -q --allow-empty -m next");
    assert!(ws.parent().unwrap().join("out").exists(), "else this wall is for nothing");
}

#[test]
fn an_index_leads_nowhere() {
    require!(has("git"), "git");
    for forge in [
        "cp forged .git/index",
        "cat forged > .git/index",
        "cp forged .git/sharedindex.ab",
        "mv forged .git/index",
    ] {
        for arguments in ["checkout .", "add -u", "rm -rf ."] {
            let (told, ws, _dir, _) = after(forge, arguments);
            assert_eq!(told.len(), 1, "{told:?}");
            assert!(
                told[0].contains("it was removed; it named ../profile; `git reset` makes another"),
                "{told:?}"
            );
            assert_eq!(profile(&ws), "mine\n", "{forge}, {arguments}");
        }
    }
    let (told, ..) = after("head -c 80 forged > .git/index", "status");
    assert!(told[0].contains("not as git writes one"), "{told:?}");
}

/// Of a linked worktree too, which has an index of its own; moved there from where nobody looks.
#[test]
fn an_index_of_a_worktree_leads_nowhere() {
    require!(has("git"), "git");
    let (_dir, ws) = repository();
    assert!(git(&ws, "worktree add -q linked").status.success());
    let ahead = "cp -r .git/worktrees/linked ahead; cp forged ahead/index";
    let ahead = kennel(&ws, &[], &["sh", "-euc", ahead]).output().unwrap();
    assert!(ahead.status.success(), "{ahead:?}");
    let script =
        "rm -f ahead/commondir; mv ahead .git/worktrees/other; cp forged .git/worktrees/linked/index";
    let (output, report) = report(&ws, &[], &["sh", "-euc", script]);
    assert!(output.status.success(), "{output:?}");
    assert!(report["denials"].to_string().contains("so were 1 others"), "{report}");
    assert!(
        !ws.join(".git/worktrees/linked/index").exists() && !ws.join(".git/worktrees/other/index").exists()
    );
}

#[test]
fn resolutions_of_conflicts_go_nowhere() {
    require!(has("git"), "git");
    let (told, ws, _dir, said) = after(RESOLUTION, "commit -q --allow-empty -m next");
    assert!(
        said.status.success() && told.len() == 1 && told[0].contains("git-rerere(1)"),
        "{told:?} {said:?}"
    );
    assert_eq!(profile(&ws), "mine\n");
}

#[test]
fn a_ref_stands_for_no_file_elsewhere() {
    require!(has("git"), "git");
    for (file, to) in [
        ("refs/heads/main", "../../out"),
        ("refs/heads/main", "commondir"),
        ("refs/heads/main", "refs/../../../out"),
        ("ORIG_HEAD", "../../out"),
    ] {
        let script = format!("echo 'ref: {to}' > .git/{file}");
        let (told, ws, _dir, _) = after(&script, "commit -q --allow-empty -m next");
        assert!(told.len() == 1 && told[0].contains(&format!("it was removed; it led to {to}")), "{told:?}");
        git(&ws, "reset -q --hard");
        assert!(!ws.parent().unwrap().join("out").exists() && !ws.join(".git/commondir").exists());
    }
}

#[test]
fn what_git_writes_stays() {
    require!(has("git"), "git");
    let script = "rm forged; git config user.name >/dev/null || true
        export GIT_AUTHOR_NAME=me GIT_AUTHOR_EMAIL=me@x GIT_COMMITTER_NAME=me GIT_COMMITTER_EMAIL=me@x
        echo more > b; git add b; git commit -q -m 'ref: ../../out'; git checkout -q -b side; git branch third
        git symbolic-ref refs/heads/alias refs/heads/main; git update-index --index-version 4; git stash list
        git worktree add -q linked; git commit -q --amend -m 'ref: x'; echo x >> a; git stash -q; git stash pop -q";
    let (told, ws, _dir, said) = after(script, "status --porcelain");
    assert!(told.is_empty(), "{told:?}");
    assert!(String::from_utf8_lossy(&said.stdout).contains(" M a"), "{said:?}");
    assert!(git(&ws, "rev-parse alias linked third").status.success());
}

/// What a commit of an overlay withheld.
fn withheld(ws: &Path, script: &str) -> Vec<String> {
    let (output, report) = report(ws, &["-q", "--overlay", "--commit"], &["sh", "-euc", script]);
    assert!(output.status.code().is_some_and(|code| [0, 125].contains(&code)), "{output:?}");
    let refused = report["refused_changes"].as_array().unwrap();
    let is_protected = |refused: &&serde_json::Value| refused["reason"] == "it is protected";
    refused.iter().filter(is_protected).map(|refused| refused["path"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn an_overlay_commits_nothing_that_leads_elsewhere() {
    require!(has("git"), "git");
    require!(available(), "overlays in memory");
    for (script, path) in [
        ("cp forged .git/index", ".git/index"),
        ("mv forged .git/index", ".git/index"),
        ("mkdir -p .git/worktrees/x; cp forged .git/worktrees/x/index", ".git/worktrees/x/index"),
        ("echo 'ref: ../../out' > .git/refs/heads/main", ".git/refs/heads/main"),
        ("echo 'ref: ../../out' > .git/ORIG_HEAD", ".git/ORIG_HEAD"),
        (RESOLUTION, ".git/MERGE_RR"),
    ] {
        let (_dir, ws) = repository();
        let withheld = withheld(&ws, script);
        assert!(withheld.contains(&path.to_owned()), "{script}: {withheld:?}");
        for arguments in ["checkout .", "commit -q --allow-empty -m next"] {
            git(&ws, arguments);
        }
        assert_eq!(profile(&ws), "mine\n", "{script}");
        assert!(!ws.parent().unwrap().join("out").exists(), "{script}");
    }
    let (_dir, ws) = repository();
    fs::remove_dir_all(ws.join(".git")).unwrap();
    assert_eq!(withheld(&ws, "git init -q; cp forged .git/index"), [".git/index"], "of a new repository");
    let (_dir, ws) = repository();
    let who = "GIT_AUTHOR_NAME=me GIT_AUTHOR_EMAIL=me@x GIT_COMMITTER_NAME=me GIT_COMMITTER_EMAIL=me@x";
    let script = format!(
        "rm forged; export {who}; echo b > b; git add b; git commit -q -m b; git symbolic-ref refs/heads/c refs/heads/main"
    );
    assert_eq!(withheld(&ws, &script), [""; 0]);
    assert_eq!(String::from_utf8_lossy(&git(&ws, "log --format=%s -1 c").stdout), "b\n");
}
