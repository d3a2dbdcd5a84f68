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

/// Commits, and prints what git says. Then prints a line for each path of what git obeys here that a command
/// could change, and makes what is taken away after the command.
const ATTEMPTS: &str = r#"
{ git status --porcelain; echo "$1" > new; git add new; git commit -qm new; git status --porcelain; } 2>&1
common=$(git rev-parse --path-format=absolute --git-common-dir); own=$(git rev-parse --absolute-git-dir); top=$(git rev-parse --show-toplevel)
for file in "$common/hooks/post-commit" "$common/config" "$own/commondir" "$top/.git"; do
    if [ -d "$file" ] || [ ! -e "$file" ] && [ "${file##*/}" != post-commit ]; then continue; fi
    { echo >> "$file" || mv "$file" "$file.x" || rm "$file"; } 2>/dev/null && echo "$file"
done
for directory in "$common" "$own" "$common/hooks"; do mv "$directory" "$directory.x" 2>/dev/null && echo "$directory"; done
(echo x > "$own/config.worktree") 2>/dev/null || true
exit 0"#;

#[test]
fn git_works_in_every_layout_and_what_it_obeys_stays() {
    require!(has("git"), "git");
    let place = Place::new();
    // Each in a directory of its own, with its own `r`.
    let made = LAYOUTS.iter().zip(0..).map(|((directory, script), number)| {
        format!("mkdir {number}; cp -a r {number}; (cd {number}\n{script}\ncd {directory}; git rev-list --count HEAD)")
    });
    let before = place.outside(".", &made.collect::<Vec<_>>().join("\n"));
    for ((directory, script), number) in LAYOUTS.iter().zip(0..) {
        for flags in [&[][..], &["--workspace", "."]] {
            let script_of_run = ATTEMPTS.replace("$1", &flags.len().to_string());
            let output = place.inside(&format!("{number}/{directory}"), flags, &script_of_run);
            assert!(output.status.success(), "{output:?}");
            assert_eq!(stdout(&output), "", "{directory} {flags:?}: {script}: {}", stderr(&output));
        }
    }
    let looks = LAYOUTS.iter().zip(0..).map(|((directory, _), number)| {
        format!(
            "(cd {number}/{directory}; git rev-list --count HEAD; cd \"$(git rev-parse --git-dir)\"; grep -sx x config.worktree || true)"
        )
    });
    let after = place.outside(".", &looks.collect::<Vec<_>>().join("\n"));
    let expected: Vec<String> =
        before.lines().map(|count| (count.parse::<u32>().unwrap() + 2).to_string()).collect();
    assert_eq!(after.lines().collect::<Vec<_>>(), expected);
}

/// What git does in a worktree: it packs refs and deletes some, and most commands take the lock for that.
const WORK: &str = "
    git commit -q --allow-empty -m work; git branch -q new; git tag tag; git pack-refs --all; git tag -d tag > /dev/null
    git checkout -q new; date +%N > top; git commit -qam new; git checkout -q -; git cherry-pick new > /dev/null
    date +%N > top; git stash -q; git stash pop -q; git reset -q --hard; git branch -D new > /dev/null 2>&1
    git fetch -q $remote main; git gc -q; git status --porcelain";

/// Prints what of the repository `$top` a command could change, beside git's own.
const PLANTS: &str = r#"
cd $top
for name in .envrc package.json Cargo.lock yarn.lock MY_NOTES packed-refs HEAD HEAD.lock config.lock hooks/x branches/x own/x other/x other/top other/.git Makefile; do
    { echo x > $name; } 2>/dev/null && echo $name
    (set -C; echo x > $name) 2>/dev/null && echo new $name
done
mkdir -p .cargo modules node_modules 2>/dev/null && echo mkdir
{ rm current || ln -s /tmp link || mv other o || mkfifo fifo || mv -T $OLDPWD/x other/top || chmod 777 own || rm -r own; } 2>/dev/null && echo changed
git worktree add -q $PWD/added 2>/dev/null && echo added
exit 0"#;

#[test]
fn of_a_repository_with_worktrees_in_it_only_what_git_has_there_is_writable() {
    require!(has("git"), "git");
    let place = Place::new();
    place.outside(
        ".",
        "git clone -q --bare r b.git; cd b.git; for tree in f other deep/x ../trees/beside; do git worktree add -q $tree; done
         mkdir own; ln -s other current; echo 1 > Makefile",
    );
    let list = "ls -A . own other hooks branches | grep -vx logs; cat HEAD config Makefile other/top; readlink current";
    let (before, remote) = (place.outside("b.git", list), place.text("r"));
    for (directory, top) in [("b.git/f", ".."), ("b.git/deep/x", "../.."), ("trees/beside", "../../b.git")] {
        for flags in [&[][..], &["--workspace", "."], &["--explain"]] {
            let flags = [flags, &["--ro", &remote]].concat();
            let said = place.works(directory, &flags, &WORK.replace("$remote", &remote));
            assert_eq!(said, "", "{directory} {flags:?}");
            let planted = place.inside(directory, &flags, &format!("top={top}; {PLANTS}"));
            assert_eq!(stdout(&planted), "", "{directory} {flags:?}");
            assert_eq!(place.outside("b.git", list), before, "{directory} {flags:?}");
        }
    }
    let said = place.fails("b.git/f", &["--explain"], "echo x > ../other/top");
    assert!(
        said.ends_with(&format!(
            "has worktrees in it, or may have some; --rw {} would allow it",
            place.text("b.git")
        )),
        "{said}"
    );
    place.works("b.git/f", &["--git", "read-only"], "git log --oneline > /dev/null; git status --porcelain");
    let said = place.fails("b.git/f", &["--git", "read-only"], "git tag x");
    assert!(said.contains("Read-only file system"), "{said}");
    assert_eq!(
        place.outside("b.git", "git fsck 2>&1 | grep -v dangling || true; ls *.lock 2>/dev/null || true"),
        ""
    );
}

#[test]
fn a_worktree_that_is_added_meanwhile_is_not_writable() {
    require!(has("git"), "git");
    let place = Place::new();
    place.outside(".", "git clone -q --bare r b.git; git -C b.git worktree add -q f");
    let mut command = place.command("b.git/f", &crate::support::kennel_path());
    let script = "touch ready; until [ -e ../new/top ]; do sleep 0.05; done; ! echo evil > ../new/top && ! touch ../new/x";
    let running = command.args(["run", "--timeout", "60s", "--", "sh", "-c", script]).spawn().unwrap();
    place.outside("b.git", "until [ -e f/ready ]; do sleep 0.05; done; git worktree add -q new");
    let output = running.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(place.outside("b.git/new", "cat top; ls -A"), "1\n.git\nsub\ntop");
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
