//! The user's own configuration of git: commands see a copy without credentials and without files elsewhere.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    process::{Command, Output},
};

use crate::support::{TempDir, has, kennel_path, require, require_ci_only, stderr, stdout, workspace};

/// A directory with a home and a workspace `w`.
fn place() -> TempDir {
    let place = workspace();
    fs::create_dir_all(place.path().join("home/.config/git")).unwrap();
    fs::create_dir(place.path().join("w")).unwrap();
    place
}

fn write(place: &TempDir, path: &str, text: &str) {
    fs::write(place.path().join("home").join(path), text).unwrap();
}

/// Runs a script inside, with more variables of the caller.
fn inside(place: &TempDir, variables: &[(&str, &Path)], flags: &[&str], script: &str) -> Output {
    let mut command = Command::new(kennel_path());
    command.current_dir(place.path().join("w")).env("HOME", place.path().join("home")).env("LC_ALL", "C");
    command.env_remove("XDG_CONFIG_HOME").envs(variables.iter().copied());
    command.arg("run").args(flags).args(["--", "sh", "-c", script]).output().unwrap()
}

/// Runs a script inside, which must say nothing on stderr. Returns its stdout.
fn works(place: &TempDir, flags: &[&str], script: &str) -> String {
    let output = inside(place, &[], flags, script);
    assert!(stderr(&output).is_empty(), "{flags:?} {script}: {output:?}");
    stdout(&output)
}

#[test]
fn name_and_address_are_there_and_credentials_are_not() {
    require!(has("git"), "git");
    let place = place();
    write(
        &place,
        ".gitconfig",
        "[user] name = Me\n[credential \"https://h\"]\nhelper = !secret\\\n[user]\nhelper = secret\n[http \"https://h/\"]\nextraHeader = secret\n\
         # secret\n[url \"https://secret@h/\"]\ninsteadOf = https://h/ ; secret\n",
    );
    write(&place, ".config/git/config", "[user] email = me@x\n[credential] helper = secret\n");
    write(&place, ".config/git/credentials", "https://me:secret@h\n");
    write(&place, ".git-credentials", "https://me:secret@h\n");
    let list =
        works(&place, &[], "git config --list | grep -v -e ^core -e autodetach | sort; grep -rs secret ~");
    assert_eq!(list, "user.email=me@x\nuser.name=Me");
    for flags in [["--git", "workspace"], ["--profile", "ci-only"]] {
        if flags[1] == "ci-only" {
            require_ci_only!();
        }
        assert_eq!(works(&place, &flags, "ls -A ~"), "", "{flags:?}");
    }
}

#[test]
fn the_copy_can_be_changed_and_the_file_cannot() {
    require!(has("git"), "git");
    let place = place();
    write(&place, ".gitconfig", "[user] name = Me\n");
    assert_eq!(works(&place, &[], "git config --global user.name You && git config user.name"), "You");
    assert_eq!(works(&place, &[], "git config user.name"), "Me");
    // A file that the policy shows is the file itself.
    let file = place.path().join("home/.gitconfig");
    fs::write(&file, "[credential] helper = mine\n").unwrap();
    assert_eq!(works(&place, &["--ro", file.to_str().unwrap()], "git config credential.helper"), "mine");
}

#[test]
fn included_files_elsewhere_are_left_out_and_told_if_they_apply() {
    require!(has("git"), "git");
    let place = place();
    let here = format!("{}/", place.path().join("w").display());
    let config = format!(
        "[include] path = ~/.config/git/more\n[includeIf \"gitdir:/elsewhere/\"] path = ~/away\n[includeIf \"gitdir:{here}\"] path = ~/work\n"
    );
    write(&place, ".gitconfig", &config);
    write(
        &place,
        ".config/git/more",
        "[a] more = 1\n[credential] helper = secret\n[include] path = ~/away\n",
    );
    write(&place, "away", "[a] away = 1\n");
    write(&place, "work", "[a] work = 1\n");
    fs::create_dir_all(place.path().join("w/.git")).unwrap();
    crate::support::make_repository(&place.path().join("w/.git"));
    let work = place.path().join("home/work");
    let work = work.to_str().unwrap();
    let script = "git config --get-regexp '^a\\.'; git config credential.helper";
    let output = inside(&place, &[], &[], script);
    assert_eq!(stdout(&output), "a.more 1", "{output:?}");
    let said = stderr(&output);
    assert!(
        said.starts_with("kennel: note: git: ") && said.ends_with(&format!("; --ro {work} shows it")),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(works(&place, &["--ro", work], script), "a.more 1\na.work 1");
}

#[test]
fn files_that_the_configuration_names_are_there_unless_a_link_leads_to_them() {
    require!(has("git"), "git");
    let place = place();
    write(
        &place,
        ".gitconfig",
        "[core] excludesFile = ~/ignored\n attributesFile = ~/link\n[commit] template = ~/.ssh/key\n",
    );
    write(&place, "ignored", "*.x\n");
    write(&place, "private", "private\n");
    fs::create_dir(place.path().join("home/.ssh")).unwrap();
    write(&place, ".ssh/key", "private\n");
    symlink("private", place.path().join("home/link")).unwrap();
    assert_eq!(works(&place, &[], "cat ~/ignored; ls ~; grep -rs private ~"), "*.x\nignored");
}

#[test]
fn a_configuration_kept_elsewhere_is_found() {
    require!(has("git"), "git");
    let place = place();
    fs::create_dir_all(place.path().join("home/dot/xdg/git")).unwrap();
    write(&place, "dot/gitconfig", "[user] name = Me\n");
    write(&place, "dot/xdg/git/config", "[user] email = me@x\n");
    symlink("dot/gitconfig", place.path().join("home/.gitconfig")).unwrap();
    assert_eq!(works(&place, &[], "git config user.name"), "Me");
    let xdg = [("XDG_CONFIG_HOME", &*place.path().join("home/dot/xdg"))];
    for flags in [&[][..], &["--pass-env", "XDG_CONFIG_HOME"]] {
        assert_eq!(stdout(&inside(&place, &xdg, flags, "git config user.email")), "me@x", "{flags:?}");
    }
    // A link to a secret shows nothing.
    fs::create_dir(place.path().join("home/.ssh")).unwrap();
    write(&place, ".ssh/config", "[user] name = secret\n");
    fs::remove_file(place.path().join("home/.gitconfig")).unwrap();
    symlink(".ssh/config", place.path().join("home/.gitconfig")).unwrap();
    assert_eq!(works(&place, &[], "git config user.name"), "");
}

#[test]
fn git_maintains_a_repository_before_its_command_ends() {
    require!(has("git"), "git");
    let place = place();
    let read = "for key in gc.autoDetach maintenance.autoDetach user.name; do git config $key; done; true";
    write(&place, ".gitconfig", "[gc]\n\tautoDetach = true\n[user]\n\tname = Me\n");
    assert_eq!(works(&place, &[], read), "false\nfalse\nMe");
    // The caller's own entries count, too.
    let own = ["GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=user.name", "GIT_CONFIG_VALUE_0=You"];
    let flags: Vec<&str> = own.iter().flat_map(|entry| ["--setenv", entry]).collect();
    assert_eq!(works(&place, &flags, read), "false\nfalse\nYou");
    let own = ["GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=gc.autodetach", "GIT_CONFIG_VALUE_0=true"];
    let flags: Vec<&str> = own.iter().flat_map(|entry| ["--setenv", entry]).collect();
    assert_eq!(works(&place, &flags, read), "true\nfalse\nMe");
}

#[test]
fn maintenance_that_git_starts_by_itself_leaves_no_lock() {
    require!(has("git"), "git");
    let place = place();
    write(&place, ".gitconfig", "[user]\n\tname = Me\n\temail = me@example.com\n[gc]\n\tauto = 1\n");
    let fill = "git init -q && i=0; while [ $i -lt 600 ]; do echo $i > $i; i=$((i+1)); done; \
        git add . && git -c gc.auto=0 commit -qm all";
    let output = inside(&place, &[], &[], fill);
    assert!(output.status.success(), "{output:?}");
    let output = inside(&place, &[], &[], "git commit -q --allow-empty -m more");
    assert!(output.status.success(), "{output:?}");
    let git = place.path().join("w/.git");
    assert!(!git.join("gc.pid").exists() && !git.join("objects/maintenance.lock").exists());
    let loose = works(&place, &[], "git count-objects");
    assert!(loose.starts_with("0 objects"), "{loose}");
}
