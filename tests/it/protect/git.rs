//! Git, as people use it: where the repository of a workspace may be, and what each choice of `git` allows.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::support::{
    TempDir, has, has_scopes, kennel_path, only_as_root, protection, quiet, repository, require, stderr,
    stdout, workspace,
};

/// A home with a configuration of git, and a repository `r` with one commit and a directory `sub`.
pub(super) struct Place(TempDir);

impl Place {
    pub(super) fn new() -> Self {
        let place = Self(workspace());
        fs::create_dir(place.at("home")).unwrap();
        fs::write(
            place.at("home/.gitconfig"),
            "[user]\n\tname = Me\n\temail = me@example.com\n[init]\n\tdefaultBranch = main\n[protocol \"file\"]\n\tallow = always\n",
        )
        .unwrap();
        place.outside(
            ".",
            "git init -q r && cd r && mkdir sub && echo 1 > sub/f && echo 1 > top && git add . && git commit -qm one",
        );
        place
    }

    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// A path in it, as text.
    pub(super) fn text(&self, path: &str) -> String {
        self.at(path).to_str().unwrap().to_owned()
    }

    pub(super) fn command(&self, directory: &str, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.at(directory)).env("HOME", self.at("home")).env("LC_ALL", "C");
        command.env("GIT_CONFIG_NOSYSTEM", "1").env_remove("XDG_CONFIG_HOME");
        command
    }

    /// Runs a script outside, which must succeed. Returns its stdout.
    pub(super) fn outside(&self, directory: &str, script: &str) -> String {
        let output = self.command(directory, Path::new("sh")).args(["-ec", script]).output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
        stdout(&output)
    }

    /// Runs a script inside.
    pub(super) fn inside(&self, directory: &str, flags: &[&str], script: &str) -> Output {
        let mut command = self.command(directory, &kennel_path());
        command.arg("run").args(flags).args(["--", "sh", "-ec", script]).output().unwrap()
    }

    /// Runs a script inside, which must succeed and say nothing on stderr. Returns its stdout.
    pub(super) fn works(&self, directory: &str, flags: &[&str], script: &str) -> String {
        let output = self.inside(directory, &[quiet(), flags].concat(), script);
        assert!(
            output.status.success() && stderr(&output).is_empty(),
            "{directory} {flags:?} {script}: {output:?}"
        );
        stdout(&output)
    }

    /// Runs a script inside, which must fail. Returns its stderr.
    pub(super) fn fails(&self, directory: &str, flags: &[&str], script: &str) -> String {
        let output = self.inside(directory, flags, script);
        assert!(!output.status.success(), "{directory} {flags:?} {script}: {output:?}");
        stderr(&output)
    }

    /// How many commits the repository of a directory has.
    pub(super) fn commits(&self, directory: &str) -> String {
        self.outside(directory, "git rev-list --count HEAD")
    }
}

const COMMIT: &str = "echo more >> f && git add f && git commit -qm more";

#[test]
fn a_submodule_is_a_workspace() {
    require!(has("git"), "git");
    let place = Place::new();
    place.outside(
        ".",
        "git init -q super && cd super && git submodule --quiet add ../r lib && git commit -qm lib",
    );
    place
        .outside("super", "git worktree add -q ../tree && cd ../tree && git submodule --quiet update --init");
    for (directory, config) in [
        ("super/lib", "super/.git/modules/lib"),
        ("tree/lib", "super/.git/worktrees/tree/modules/lib"),
        ("super/lib/sub", "super/.git/modules/lib"),
    ] {
        let before = place.commits(directory);
        place.works(directory, &["--workspace", "."], COMMIT);
        assert_ne!(place.commits(directory), before, "{directory}");
        for name in ["hooks/post-commit", "config"] {
            let path = place.text(&format!("{config}/{name}"));
            let said = place.fails(directory, &["--workspace", "."], &format!("echo x >> {path}"));
            assert!(said.contains("Read-only file system"), "{said}");
        }
        // The parent is not shown.
        place.fails(directory, &["--workspace", "."], &format!("ls {}", place.text("super/.gitmodules")));
    }
}

#[test]
fn what_names_the_repository_of_a_submodule_stays() {
    require!(has("git"), "git");
    let place = Place::new();
    place.outside(
        ".",
        "git init -q super && cd super && git submodule --quiet add ../r lib && git commit -qm lib",
    );
    for attempt in ["echo gitdir: ../evil > lib/.git", "rm lib/.git", "mv lib other", "rm -rf lib"] {
        let said = place.fails("super", &[], attempt);
        assert!(said.contains("Read-only file system") || said.contains("busy"), "{attempt}: {said}");
    }
    place.works(
        "super",
        &[],
        "cd lib; echo 2 > top; git commit -qam two; cd ..; git commit -qam lib; git status --short",
    );
    assert_eq!(place.commits("super/lib"), "2");
}

#[test]
fn a_subdirectory_of_a_repository_is_a_workspace() {
    require!(has("git"), "git");
    let place = Place::new();
    place.outside("r", "git worktree add -q ../tree");
    for (directory, top) in [("r/sub", "r"), ("tree/sub", "tree")] {
        let flags = &["--workspace", "."];
        assert_eq!(
            place.works(directory, flags, "git status --short; cat ../top; pwd"),
            format!("1\n{}", place.text(directory))
        );
        place.works(directory, flags, COMMIT);
        assert_eq!(place.outside(top, "git status --short; git rev-list --count HEAD"), "2");
        // The workspace is the only part of the work tree that can be written.
        for attempt in ["echo x > ../top", "mkdir ../new", "rm ../top", "mv ../sub ../other"] {
            let said = place.fails(directory, flags, attempt);
            assert!(said.contains("Read-only file system") || said.contains("busy"), "{attempt}: {said}");
        }
        for path in ["r/.git/config", "r/.git/hooks/post-commit"] {
            let said = place.fails(directory, flags, &format!("echo x > {}", place.text(path)));
            assert!(said.contains("Read-only file system"), "{path}: {said}");
        }
    }
    let said = place.fails("r/sub", &["--workspace", ".", "--git", "workspace"], "ls ../top");
    assert!(said.contains("No such file"), "{said}");
    place.works("r/sub", &["--workspace", ".", "--profile", "full-dev"], COMMIT);
    let said = place.fails("r/sub", &["--workspace", ".", "--profile", "read-only"], COMMIT);
    assert!(said.contains("Read-only file system"), "{said}");
    // What the policy makes there needs a place that is no directory of the host.
    place.works(
        "r/sub",
        &["--workspace", ".", "--tmpfs", &place.text("r/made")],
        "touch ../made/x; ! ls ../top 2>&-",
    );
}

#[test]
fn the_default_workspace_is_the_whole_work_tree() {
    require!(has("git"), "git");
    let place = Place::new();
    let script = "echo 2 > ../top; pwd; git commit -qam two";
    assert_eq!(place.works("r/sub", &[], script), place.text("r/sub"));
    assert_eq!(place.commits("r"), "2");
    // Paths of flags start at the current directory.
    let said = place.fails("r/sub", &["--protect", "f"], "echo x > f");
    assert!(said.contains("Read-only file system"), "{said}");
    assert_eq!(place.works("r/sub", &["--cwd", ".."], "pwd"), place.text("r"));
    // A workspace that is named stays as it is.
    let said = place.fails("r/sub", &["--workspace", "."], "echo x > ../top");
    assert!(said.contains("Read-only file system"), "{said}");
    fs::write(place.at("r/sub/kennel.toml"), "profile = 'repo-write'\n").unwrap();
    let said = place.fails("r/sub", &["--policy", "kennel.toml"], "echo x > ../top");
    assert!(said.contains("Read-only file system"), "{said}");
    let shown =
        place.command("r/sub", &kennel_path()).args(["policy", "show", "--as-file"]).output().unwrap();
    let policy: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(policy["workspace"], place.text("r"));
    assert_eq!(policy["cwd"], place.text("r/sub"));
}

#[test]
fn a_repository_in_home_shows_nothing_of_home() {
    require!(has("git"), "git");
    let place = Place::new();
    for (top, below) in [("home", "home/a"), ("home", "home/.config/b")] {
        place.outside(top, "git init -q");
        fs::create_dir_all(place.at(below)).unwrap();
        fs::write(place.at("home/private"), "private").unwrap();
        for flags in [&[][..], &["--workspace", "."]] {
            let private = place.text("home/private");
            assert_eq!(
                place.works(below, flags, &format!("pwd; ! cat {private} 2>&-; touch x")),
                place.text(below)
            );
        }
    }
    // A directory for settings becomes visible as a whole work tree, but not writable.
    fs::remove_dir_all(place.at("home/.git")).unwrap();
    place.outside("home/.config", "git init -q; echo x > other");
    assert_eq!(place.works("home/.config/b", &[], "cat ../other; ! touch ../new 2>&-"), "x");
}

#[test]
fn a_work_tree_of_another_user_is_not_shown() {
    only_as_root!();
    require!(has("git"), "git");
    let place = Place::new();
    fs::create_dir_all(place.at("r/mine")).unwrap();
    for theirs in ["r", "r/.git"] {
        std::os::unix::fs::chown(place.at(theirs), Some(1000), None).unwrap();
        for flags in [&[][..], &["--workspace", "."]] {
            place.works("r/mine", flags, "! ls ../top 2>&-; touch x");
        }
        std::os::unix::fs::chown(place.at(theirs), Some(0), None).unwrap();
    }
    place.works("r/mine", &[], "ls ../top");
}

/// Git works, and says what to do first.
fn is_shown_with(place: &Place, directory: &str, flag: [&str; 2]) {
    let output = place.inside(directory, &[], "git log --oneline");
    let advice = format!("; {} {} shows it", flag[0], flag[1]);
    assert!(!output.status.success() && stderr(&output).ends_with(&advice), "{advice}: {output:?}");
    assert_eq!(place.works(directory, &flag, "git log --oneline | wc -l"), "1");
}

#[test]
fn a_repository_that_does_not_name_the_work_tree_needs_a_flag() {
    require!(has("git"), "git");
    let place = Place::new();
    place.outside(".", "git clone -q --separate-git-dir apart.git r apart");
    let apart = place.text("apart.git");
    is_shown_with(&place, "apart", ["--rw", &apart]);
    place.works("apart", &["--rw", &apart], "echo 2 > top; git commit -qam two");
    let said = place.fails("apart", &["--rw", &apart], &format!("echo x > {apart}/hooks/x"));
    assert!(said.contains("Read-only file system"), "{said}");
    // If it names the work tree, no flag is needed.
    place.outside("apart", "git config core.worktree \"$PWD\"");
    place.works("apart", &[], "echo 3 > top; git commit -qam three");
    assert_eq!(place.commits("apart"), "3");

    fs::create_dir(place.at("link")).unwrap();
    symlink("../r/.git", place.at("link/.git")).unwrap();
    is_shown_with(&place, "link", ["--rw", &place.text("r/.git")]);
}

#[test]
fn borrowed_objects_need_a_flag() {
    require!(has("git"), "git");
    let place = Place::new();
    place.outside(".", "git clone -q --shared r shared");
    is_shown_with(&place, "shared", ["--ro", &place.text("r/.git/objects")]);
    // Not if they are visible.
    place.outside(".", "git clone -q --shared r r/inner");
    place.works("r", &[], "cd inner && git log --oneline");
}

/// Jobs that write what git obeys, each with what it must have done.
const JOBS: &[(&str, &str, &str)] = &[
    ("r", "git config a.b c", "git config a.b"),
    ("r", "git remote add other ../other", "git config remote.other.url"),
    ("r", "git branch new; git branch -m new newer", "git rev-parse newer"),
    ("r", "git push -q -u ./bare HEAD:main", "git config branch.main.merge"),
    ("r", "git worktree remove tree", "! ls .git/worktrees/tree 2>&-"),
    ("r", "echo 'exit 0' > .git/hooks/post-commit", "cat .git/hooks/post-commit"),
    ("super", "git submodule --quiet update --init", "cat lib/top"),
];

fn place_for_jobs() -> Place {
    let place = Place::new();
    place.outside(
        "r",
        "git clone -q --bare . bare; git worktree add -q tree; printf 'bare\\ntree\\n' > .git/info/exclude",
    );
    place.outside(
        ".",
        "git init -q first && cd first && git submodule --quiet add ../r lib && git commit -qm lib",
    );
    place.outside(".", "git clone -q first super; git -C super config submodule.lib.url ../r/bare; git -C super config --unset submodule.lib.url");
    place
}

#[test]
fn without_trust_a_message_names_the_flag() {
    require!(has("git"), "git");
    let place = place_for_jobs();
    for (directory, job, _) in JOBS {
        let more = place.text("r");
        let more = if *directory == "super" { &["--ro", &*more][..] } else { &[] };
        let output = place.inside(directory, &[&["--explain"], more].concat(), job);
        assert!(stderr(&output).ends_with("; --git trust would allow it"), "{job}: {output:?}");
    }
    // In a subdirectory, git names files from the top.
    let said = place.fails("r/sub", &["--explain"], "git config a.b c");
    assert!(said.ends_with("; --git trust would allow it"), "{said}");
    let said = place.fails("r/sub", &["--explain", "--git", "read-only"], "git commit -qm x --allow-empty");
    assert!(said.ends_with("; --git protect would allow it"), "{said}");
    let said = place.fails("r/sub", &["--explain", "--workspace", "."], "echo x > ../top");
    assert!(said.ends_with(&format!("; --workspace {} would allow it", place.text("r"))), "{said}");
    // What appeared at a protected path is told in any case.
    let said = stderr(&place.inside("r", &[], "echo ../x > .git/commondir"));
    assert!(said.ends_with("; --git trust would allow it"), "{said}");
    // The flag does not allow these.
    for (directory, job) in [("r", "echo x > sub/f"), ("home", "echo x > .gitconfig")] {
        let said = place.fails(directory, &["--explain", "--workspace", ".", "--protect", "sub"], job);
        assert!(said.contains("kennel: ") && !said.contains("--git"), "{said}");
    }
}

#[test]
fn with_trust_commands_change_what_git_obeys() {
    require!(has("git"), "git");
    let place = place_for_jobs();
    for (directory, job, check) in JOBS {
        let more = place.text("r");
        let more = if *directory == "super" { &["--ro", &*more][..] } else { &[] };
        place.works(directory, &[&["--git", "trust"], more].concat(), job);
        place.outside(directory, check);
    }
    let file = place.text("report.json");
    place.works("r", &["--git", "trust", "--json", &file], "true");
    let report = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let (state, detail) = protection(&report, "protected_paths");
    assert!(state == "off" && detail.starts_with("off for git"), "{detail}");
    let level = if has_scopes() { "full" } else { "partial" };
    assert_eq!(report["enforcement"]["level"], level, "{report}");
    // What else is protected stays so.
    let said = place.fails("r", &["--git", "trust", "--protect", "top"], "echo x > top");
    assert!(said.contains("Read-only file system"), "{said}");
    let said = place.fails("home", &["--git", "trust", "--workspace", "."], "echo x >> .gitconfig");
    assert!(said.contains("Read-only file system"), "{said}");
    let said = place.fails("r", &["--git", "trust", "--profile", "ci-only"], "true");
    assert!(said.contains("git `trust`: profile ci-only requires"), "{said}");
}

#[test]
fn read_only_repositories_take_nothing() {
    require!(has("git"), "git");
    let place = place_for_jobs();
    let script = "find .git -type f | sort | xargs cksum";
    let before = place.outside("r", script);
    for attempt in [
        "git commit -qm x --allow-empty",
        "git tag x",
        "git gc -q",
        "touch .git/x",
        "mv .git x",
        "rm -rf .git",
        "git fetch ./bare",
    ] {
        place.fails("r", &["--git", "read-only"], attempt);
    }
    for (directory, job, _) in JOBS {
        let said = stderr(&place.inside(directory, &["--git", "read-only"], job));
        assert!(said.contains("Read-only") || said.contains("busy"), "{job}: {said}");
    }
    place.fails("r/sub", &["--git", "read-only", "--workspace", "."], COMMIT);
    assert_eq!(place.outside("r", script), before);
    place.works(
        "r",
        &["--git", "read-only"],
        "git status --short; git log --oneline; echo 2 > top; git diff --stat",
    );
    place.works(
        "home",
        &["--git", "read-only"],
        "mkdir new; cd new; git init -q; git commit -q --allow-empty -m x",
    );
}

// What an earlier command prepared.

#[test]
fn a_forged_link_to_a_repository_shows_nothing() {
    let place = Place(workspace());
    let victim = repository();
    fs::write(victim.path().join(".git/private"), "private").unwrap();
    let private = victim.path().join(".git/private").to_str().unwrap().to_owned();
    let pointer = format!("gitdir: {}\n", victim.path().join(".git").display());
    fs::create_dir_all(place.at("home")).unwrap();
    fs::create_dir_all(place.at("w/sub")).unwrap();
    for directory in ["w", "w/sub"] {
        fs::write(place.at("w/.git"), &pointer).unwrap();
        place.fails(directory, &["--workspace", "."], &format!("cat {private}"));
        fs::remove_file(place.at("w/.git")).unwrap();
        symlink(victim.path().join(".git"), place.at("w/.git")).unwrap();
        place.fails(directory, &["--workspace", "."], &format!("cat {private}"));
        fs::remove_file(place.at("w/.git")).unwrap();
    }
    // A repository that names another work tree.
    let config = format!("[core]\n\tworktree = {}\n", victim.path().display());
    fs::write(victim.path().join(".git/config"), config).unwrap();
    fs::write(place.at("w/.git"), &pointer).unwrap();
    place.fails("w", &[], &format!("cat {private}"));
    // The directory around the work tree, made to look like a repository of it.
    fs::remove_file(place.at("w/.git")).unwrap();
    crate::support::make_repository(&place.at("w"));
    fs::write(place.at("w/config"), "[core]\n\tworktree = sub\n").unwrap();
    fs::write(place.at("w/private"), "private").unwrap();
    fs::write(place.at("w/sub/.git"), "gitdir: ..\n").unwrap();
    place.fails("w/sub", &[], "cat ../private");
}

#[test]
fn a_forged_list_of_objects_shows_nothing() {
    let place = Place(workspace());
    fs::create_dir_all(place.at("home")).unwrap();
    let victim = workspace();
    fs::write(victim.path().join("private"), "private").unwrap();
    crate::support::make_repository(&place.at("w/.git"));
    fs::create_dir_all(place.at("w/.git/objects/info")).unwrap();
    let list = format!("# x\n{}\n/proc/self/environ\n/etc/shadow\n", victim.path().display());
    fs::write(place.at("w/.git/objects/info/alternates"), list).unwrap();
    place.fails("w", &[], &format!("cat {}/private", victim.path().display()));
}

#[test]
fn secrets_of_a_work_tree_around_the_workspace_stay_covered() {
    require!(has("git"), "git");
    let place = Place::new();
    // HOME is a directory of the work tree.
    fs::create_dir_all(place.at("r/sub/in")).unwrap();
    let home = place.at("r/sub");
    fs::write(home.join(".netrc"), "private").unwrap();
    let mut command = place.command("r/sub/in", &kennel_path());
    let script = "! cat ../.netrc ../../top";
    let output = command.env("HOME", &home).args(["run", "--", "sh", "-c", script]).output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
}
