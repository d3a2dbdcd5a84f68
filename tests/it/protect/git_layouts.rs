//! Every layout of repositories and work trees that `git init`, `git clone` and `git worktree` make.

use std::fs;

use crate::{
    protect::git::Place,
    support::{has, require, stderr, stdout},
};

/// How git makes each layout beside a repository `r`, with a directory that a person works in.
const LAYOUTS: &[(&str, &str)] = &[
    ("r", ""),
    ("r/sub", ""),
    ("beside", "git -C r worktree add -q ../beside"),
    ("beside/sub", "git -C r worktree add -q ../beside"),
    ("r/within", "git -C r worktree add -q within"),
    ("r/.git/trees/x", "git -C r worktree add -q .git/trees/x"),
    ("b.git/f", "git clone -q --bare r b.git; git -C b.git worktree add -q f; git -C b.git worktree add -q other"),
    ("b.git/f/sub", "git clone -q --bare r b.git; git -C b.git worktree add -q f"),
    ("b.git/feature/x", "git clone -q --bare r b.git; git -C b.git worktree add -q feature/x; git -C b.git worktree add -q feature/y"),
    ("tree", "git clone -q --bare r b.git; git -C b.git worktree add -q ../tree"),
    ("p/main", "git clone -q --bare r p/.bare; echo gitdir: ./.bare > p/.git; git -C p worktree add -q main"),
    ("p/f", "git clone -q --bare r p/.git; git -C p worktree add -q f"),
    ("a", "git clone -q --separate-git-dir a.git r a; git -C a config core.worktree \"$PWD/a\""),
    ("tree", "git clone -q --separate-git-dir a.git r a; git -C a worktree add -q ../tree"),
    ("a", "git clone -q --separate-git-dir a/own.git r a; echo /own.git >> a/own.git/info/exclude"),
    ("s/lib", "git init -q s; git -C s submodule --quiet add ../r lib; git -C s commit -qm s"),
    ("tree", "git init -q s; git -C s submodule --quiet add ../r lib; git -C s/lib worktree add -q ../../tree"),
    (
        "b.git/f/lib",
        "git init -q s; git -C s submodule --quiet add \"$PWD/r\" lib; git -C s commit -qm s; git clone -q --bare s b.git
         git -C b.git worktree add -q f; git -C b.git/f submodule --quiet update --init",
    ),
    // As `extensions.relativeWorktrees` of git 2.48 writes them.
    (
        "b.git/f",
        "git clone -q --bare r b.git; git -C b.git worktree add -q f; echo gitdir: ../worktrees/f > b.git/f/.git
         echo ../../f/.git > b.git/worktrees/f/gitdir",
    ),
    (
        "beside",
        "git -C r worktree add -q ../beside; echo gitdir: ../r/.git/worktrees/beside > beside/.git
         echo ../../../../beside/.git > r/.git/worktrees/beside/gitdir",
    ),
    // A repository that is linked to: git follows the link.
    ("l/f", "git clone -q --bare r b.git; ln -s b.git l; git -C l worktree add -q f"),
    ("worktree", "git -C r config extensions.worktreeConfig true; git -C r worktree add -q ../worktree; git -C worktree config --worktree a.b c"),
];

/// Prints a line for each path of what git obeys here that a command could change.
const ATTEMPTS: &str = r#"
common=$(git rev-parse --path-format=absolute --git-common-dir); own=$(git rev-parse --absolute-git-dir); top=$(git rev-parse --show-toplevel)
for file in "$common/hooks/post-commit" "$common/config" "$own/commondir" "$top/.git"; do
    if [ -d "$file" ] || [ ! -e "$file" ] && [ "${file##*/}" != post-commit ]; then continue; fi
    { echo >> "$file" || mv "$file" "$file.x" || rm "$file"; } 2>/dev/null && echo "$file"
done
for directory in "$common" "$own" "$common/hooks"; do mv "$directory" "$directory.x" 2>/dev/null && echo "$directory"; done
exit 0"#;

#[test]
fn git_works_in_every_layout_and_what_it_obeys_stays() {
    require!(has("git"), "git");
    for (directory, script) in LAYOUTS {
        for flags in [&[][..], &["--workspace", "."]] {
            let place = Place::new();
            place.outside(".", script);
            let before: u32 = place.commits(directory).trim().parse().unwrap();
            let said = place.works(directory, flags, "git status --porcelain; echo 2 > new; git add new; git commit -qm new; git status --porcelain");
            assert_eq!(said, "", "{directory}: {script}");
            assert_eq!(place.commits(directory), (before + 1).to_string(), "{directory}: {script}");
            let changed = place.inside(directory, flags, ATTEMPTS);
            assert_eq!(stdout(&changed), "", "{directory} {flags:?}: {script}: {}", stderr(&changed));
            // What git obeys later is taken away after the command.
            let made = place.inside(
                directory,
                flags,
                "cd \"$(git rev-parse --git-dir)\" && echo x > config.worktree",
            );
            let is_there = place.outside(
                directory,
                "cd \"$(git rev-parse --git-dir)\" && cat config.worktree 2>/dev/null || true",
            );
            assert_ne!(is_there, "x", "{directory} {flags:?}: {script}: {made:?}");
        }
    }
}

#[test]
fn of_a_repository_around_the_workspace_only_what_git_has_there_is_writable() {
    require!(has("git"), "git");
    let place = Place::new();
    place.outside(
        ".",
        "git clone -q --bare r b.git; cd b.git; for tree in f other deep/x; do git worktree add -q $tree; done; echo 1 > Makefile; mkdir own",
    );
    let cannot = |paths: &str| {
        format!("for path in {paths}; do if echo x > $path; then echo $path; fi; done 2>/dev/null")
    };
    for flags in [&[][..], &["--workspace", "."]] {
        place.works(
            "b.git/f",
            flags,
            "git branch -q new; git pack-refs --all; git branch -qD new 2>/dev/null; git gc -q; cat ../other/top > /dev/null",
        );
        let others = cannot(
            "../other/x ../other/.git ../other/top ../deep/x/x ../own/x ../Makefile ../hooks/x ../config",
        );
        assert_eq!(place.works("b.git/f", flags, &others), "");
        place.works("b.git/deep/x", flags, "echo 2 >> top; git commit -qam two");
        assert_eq!(
            place.works("b.git/deep/x", flags, &cannot("../x ../../f/x ../../other/x ../../Makefile")),
            ""
        );
    }
    let said = place.fails("b.git/f", &["--explain"], "echo x > ../other/top");
    assert!(said.contains("is not in the workspace"), "{said}");
    // If there is more than Kennel looks at, it shows none of it and says so.
    place.outside("b.git", "for n in $(seq 80); do mkdir d$n; done");
    let said = place.fails("b.git/f", &[], "git status");
    let advice = format!("; --rw {} shows it", place.text("b.git"));
    assert!(said.contains("not of git") && said.ends_with(&advice), "{said}");
}

#[test]
fn what_names_the_repository_of_a_worktree_in_the_workspace_stays() {
    require!(has("git"), "git");
    let place = Place::new();
    place.outside("r", "git worktree add -q within; git worktree add -q ../beside");
    for attempt in
        ["echo gitdir: ../evil > within/.git", "rm within/.git", "mv within other", "rm -rf within"]
    {
        let said = place.fails("r", &[], attempt);
        assert!(said.contains("Read-only file system") || said.contains("busy"), "{attempt}: {said}");
    }
    assert!(fs::read_to_string(place.at("r/within/.git")).unwrap().contains("worktrees/within"));
}

#[test]
fn a_work_tree_that_the_repository_names_needs_a_flag() {
    require!(has("git"), "git");
    let place = Place::new();
    place.outside(".", "git init -q core; mkdir named; git -C core config core.worktree \"$PWD/named\"");
    let named = place.text("named");
    let said = place.fails("core", &[], "git status");
    assert!(said.ends_with(&format!("; --rw {named} shows it")), "{said}");
    place.works("core", &["--rw", &named], "git status --porcelain");
}

#[test]
fn a_variable_that_names_a_repository_needs_its_directory() {
    require!(has("git"), "git");
    let place = Place::new();
    place.outside(".", "git clone -q --bare r b.git; mkdir w");
    let (repository, tree) = (place.text("b.git"), place.text("w"));
    let run = |flags: &[&str], script: &str| {
        let mut command = place.command("w", &crate::support::kennel_path());
        command.env("GIT_DIR", &repository).env("GIT_WORK_TREE", &tree);
        command.args(["run", "--pass-env", "GIT_DIR", "--pass-env", "GIT_WORK_TREE"]).args(flags);
        command.args(["--", "sh", "-ec", script]).output().unwrap()
    };
    let output = run(&[], "git status");
    assert!(!output.status.success() && stderr(&output).contains("GIT_DIR: it names"), "{output:?}");
    let output = run(
        &["--rw", &repository],
        "git reset -q --hard; git commit -q --allow-empty -m x; if echo x >> $GIT_DIR/config; then exit 9; fi",
    );
    assert!(output.status.success(), "{output:?}");
    assert!(!fs::read_to_string(place.at("b.git/config")).unwrap().ends_with("x\n"));
}
