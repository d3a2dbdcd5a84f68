//! Tests of what git obeys, in directories made for them.

use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};

use super::*;
use crate::protect::git::modules::{DEEPEST, MOST};

/// A directory with a `.git` that has these empty files. A name that ends with `/` is a directory.
fn with(names: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for name in names {
        let path = dir.path().join(".git").join(name);
        fs::create_dir_all(path.parent().expect("the repository")).expect("a directory");
        match name.ends_with('/') {
            true => fs::create_dir_all(path).expect("a directory"),
            false => fs::write(path, "").expect("a file"),
        }
    }
    dir
}

/// What git obeys for a directory. Paths inside it are relative to it.
#[derive(Debug)]
struct Below {
    paths: Vec<PathBuf>,
    listed: Vec<PathBuf>,
    incomplete: Vec<PathBuf>,
    /// Those of `incomplete` that are beyond the bound.
    beyond: Vec<PathBuf>,
}

fn obeyed(base: &Path) -> Below {
    obeyed_beside(base, base)
}

/// With a bound for listed entries.
fn obeyed_in_entries(base: &Path, entries: usize) -> Below {
    below(base, base, WalkBudget { entries, ..WalkBudget::default() })
}

/// With another writable directory.
fn obeyed_beside(base: &Path, writable: &Path) -> Below {
    below(base, writable, WalkBudget::default())
}

fn below(base: &Path, writable: &Path, budget: WalkBudget) -> Below {
    let real = |path: &Path| fs::canonicalize(path).expect("its name");
    let (base, writable) = (real(base), real(writable));
    let mut obeyed = Obeyed { budget, ..Obeyed::default() };
    obeyed.add(&base, &Bases::new([writable])).expect("no shortage");
    let below = |path: &Path| {
        let around = path.parent().and_then(|around| fs::canonicalize(around).ok());
        let path = around.map_or(path.to_owned(), |around| around.join(path.file_name().expect("a name")));
        path.strip_prefix(&base).unwrap_or(&path).to_owned()
    };
    let mut paths: Vec<PathBuf> = obeyed.paths.iter().map(|(way, _)| below(&way.path())).collect();
    paths.sort();
    paths.dedup();
    Below {
        paths,
        listed: obeyed.listed.iter().map(|path| below(path)).collect(),
        incomplete: obeyed.incomplete.iter().map(|(path, _)| below(path)).collect(),
        beyond: obeyed
            .incomplete
            .iter()
            .filter(|(_, why)| *why == Incomplete::Beyond)
            .map(|(path, _)| below(path))
            .collect(),
    }
}

fn has(paths: &[PathBuf], path: &str) -> bool {
    paths.contains(&Path::new(".git").join(path))
}

#[test]
fn too_many_directories_are_protected_as_one() {
    for (below, deepest) in [("worktrees", "commondir"), ("modules", "config")] {
        let one = ["0/objects/", "0/refs/", "0/HEAD"].map(|name| format!("{below}/{name}"));
        let dir = with(&one.each_ref().map(String::as_str));
        let deepest = format!("{below}/0/{deepest}");
        let found = obeyed(dir.path());
        assert!(has(&found.paths, &deepest) && !has(&found.paths, below) && found.incomplete.is_empty());
        let add = |number: usize| {
            let at = dir.path().join(".git").join(below).join(number.to_string());
            fs::create_dir(&at).expect("a directory");
            fs::write(at.join("config"), "").expect("a file");
        };
        (1..MOST).for_each(add);
        let found = obeyed(dir.path());
        assert!(has(&found.paths, &deepest) && !has(&found.paths, below) && found.incomplete.is_empty());
        add(MOST);
        assert_is_beyond(&obeyed(dir.path()), &deepest);
    }
}

/// All of `modules` and `worktrees` is protected, and not `part` alone, and the report says so.
fn assert_is_beyond(found: &Below, part: &str) {
    assert!(has(&found.paths, "modules") && has(&found.paths, "worktrees"), "{found:?}");
    assert!(!has(&found.paths, part), "{found:?}");
    assert_eq!((&*found.beyond, &*found.incomplete), (&[".git".into()][..], &[".git".into()][..]));
}

#[test]
fn submodules_and_worktrees_are_counted_together() {
    let dir = with(&["modules/sub/config", "worktrees/w/"]);
    let at = |below: &str, number: usize| dir.path().join(".git").join(below).join(number.to_string());
    for number in 0..MOST / 2 - 1 {
        fs::create_dir(at("worktrees", number)).expect("a directory");
        fs::create_dir(at("modules", number)).expect("a directory");
        fs::write(at("modules", number).join("config"), "").expect("a file");
    }
    let found = obeyed(dir.path());
    assert!(
        found.incomplete.is_empty() && has(&found.paths, "worktrees/w/commondir"),
        "{:?}",
        found.incomplete
    );
    assert!(has(&found.paths, "modules/sub/hooks"));
    fs::create_dir(at("worktrees", MOST)).expect("a directory");
    assert_is_beyond(&obeyed(dir.path()), "modules/sub/hooks");
}

/// Listing them takes time too.
#[test]
fn entries_that_are_no_repositories_are_counted() {
    let dir = with(&["modules/sub/config", "modules/many/"]);
    for number in 0..97 {
        fs::write(dir.path().join(".git/modules/many").join(number.to_string()), "").expect("a file");
    }
    // With `sub`, its config, and `many`.
    let found = obeyed_in_entries(dir.path(), 100);
    assert!(found.incomplete.is_empty() && has(&found.paths, "modules/sub/hooks"), "{:?}", found.incomplete);
    assert_is_beyond(&obeyed_in_entries(dir.path(), 99), "modules/sub/hooks");
}

#[test]
fn what_cannot_be_looked_at_is_protected_as_a_whole() {
    if nix::unistd::geteuid().is_root() {
        return;
    }
    for (below, closed) in [("worktrees", "worktrees"), ("modules", "modules"), ("modules", "modules/sub")] {
        for mode in [0, 0o300, 0o400] {
            let dir = with(&[&format!("{closed}/x/")]);
            let closed = dir.path().join(".git").join(closed);
            let set = |mode| fs::set_permissions(&closed, fs::Permissions::from_mode(mode)).expect("ours");
            set(mode);
            let found = obeyed(dir.path());
            set(0o700);
            assert!(has(&found.incomplete, below) && has(&found.paths, below), "{below} {mode:o}: {found:?}");
        }
    }
}

#[test]
fn a_submodule_without_head_is_still_one() {
    let dir = with(&["modules/sub/objects/", "modules/sub/refs/"]);
    fs::write(dir.path().join(".git/modules/sub/config"), "[core]\n\trepositoryFormatVersion = 0\n")
        .expect("a file");
    assert!(has(&obeyed(dir.path()).paths, "modules/sub/hooks"));
    fs::create_dir_all(dir.path().join("bare/info")).expect("a directory");
    fs::rename(dir.path().join(".git/modules/sub/config"), dir.path().join("bare/config")).expect("renamed");
    assert!(obeyed(&dir.path().join("bare")).paths.contains(&"hooks".into()));
}

#[test]
fn a_directory_of_submodules_cannot_be_made_one() {
    let dir = with(&["modules/tools/sub/objects/", "modules/tools/sub/refs/", "modules/tools/sub/HEAD"]);
    let found = obeyed(dir.path());
    for path in ["modules/tools/config", "modules/tools/HEAD", "modules/tools/sub/config"] {
        assert!(has(&found.paths, path), "{path}: {found:?}");
    }
    assert!(!has(&found.paths, "modules/tools/hooks"));
    let dir =
        with(&["modules/tools/config/objects/", "modules/tools/config/refs/", "modules/tools/config/HEAD"]);
    assert!(!has(&obeyed(dir.path()).paths, "modules/tools/config"), "it is a submodule");
    assert!(!has(&obeyed(with(&["modules/new/"]).path()).paths, "modules/new/config"), "it may become one");
    for path in ["worktrees", "modules", "modules/tools", "modules/tools/sub/modules"] {
        assert!(has(&found.listed, path), "{path}: {found:?}");
    }
}

#[test]
fn only_beside_a_head_do_directories_make_a_repository() {
    let sub = ["modules/tools/sub/objects/", "modules/tools/sub/refs/", "modules/tools/sub/HEAD"];
    let dir = with(&sub);
    for sign in ["objects", "refs"] {
        assert!(
            !has(&obeyed(dir.path()).paths, &format!("modules/tools/{sign}")),
            "a submodule may have this name"
        );
    }
    fs::write(dir.path().join(".git/modules/tools/HEAD"), "").expect("a file");
    for sign in ["objects", "refs"] {
        assert!(has(&obeyed(dir.path()).paths, &format!("modules/tools/{sign}")), "{sign}");
    }
}

#[test]
fn a_config_of_another_program_makes_no_repository() {
    let dir = with(&["../store/config", "../store/objects/", "../store/refs/"]);
    let is_one = |config: &str| {
        fs::write(dir.path().join("store/config"), config).expect("a file");
        obeyed(&dir.path().join("store")).paths.contains(&"hooks".into())
    };
    assert!(
        !is_one("[core]\nrepo_version=1\nmode=bare-user-only\n") && !is_one("[core]\n remote = barebones\n")
    );
    assert!(is_one("[core]\n\tbare = true\n"));
}

/// A command can make it around existing repositories, or while the user adds them.
#[test]
fn a_false_repository_hides_no_submodule() {
    let sub = ["modules/tools/sub/objects/", "modules/tools/sub/refs/", "modules/tools/sub/HEAD"];
    for around in [
        &["modules/tools/config"][..],
        &["modules/tools/objects/", "modules/tools/refs/", "modules/tools/HEAD"],
        &["modules/tools/HEAD/", "modules/tools/config/"],
    ] {
        let names: Vec<&str> = sub.iter().chain(around).copied().collect();
        let found = obeyed(with(&names).path());
        for path in ["modules/tools/sub/config", "modules/tools/HEAD", "modules/tools/config"] {
            assert!(has(&found.paths, path), "{around:?}, {path}: {found:?}");
        }
    }
    let hooks = ["modules/tools/hooks/objects/", "modules/tools/hooks/refs/", "modules/tools/hooks/HEAD"];
    let around = ["modules/tools/objects/", "modules/tools/refs/", "modules/tools/HEAD"];
    let dir = with(&[hooks, around].concat());
    assert!(has(&obeyed(dir.path()).paths, "modules/tools/hooks/config"));
    fs::write(dir.path().join(".git/modules/tools/HEAD"), "ref: refs/heads/x\n").expect("a file");
    assert!(has(&obeyed(dir.path()).paths, "modules/tools/hooks/config"), "a command can write such a HEAD");
    fs::create_dir(dir.path().join("elsewhere")).expect("a directory");
    symlink("../../elsewhere", dir.path().join(".git/modules/link")).expect("a link");
    assert!(has(&obeyed(dir.path()).incomplete, "modules"), "links are not followed");
}

#[test]
fn a_submodule_with_an_empty_config_is_one() {
    let dir = with(&["modules/sub/", "modules/sub/config"]);
    assert!(has(&obeyed(dir.path()).paths, "modules/sub/hooks"));
}

/// As with worktrees beside their repository, or `git init --separate-git-dir`.
#[test]
fn a_repository_that_git_is_pointed_to_is_one() {
    let dir = with(&[]);
    let at = |name: &str| dir.path().join(name);
    for name in ["bare/worktrees/main", "bare/modules/sub/objects", "bare/modules/sub/refs"] {
        fs::create_dir_all(at(name)).expect("a directory");
    }
    fs::write(at("bare/modules/sub/HEAD"), "").expect("a file");
    fs::write(at("bare/worktrees/main/commondir"), "../..\n").expect("a file");
    fs::write(at(".git"), "gitdir: ./bare\n").expect("a file");
    let of_pointer = obeyed(dir.path()).paths;
    for path in ["bare/hooks", "bare/config", "bare/modules/sub/config", "bare/worktrees/main/commondir"] {
        assert!(of_pointer.contains(&path.into()), "{path}: {of_pointer:?}");
    }
    fs::write(at(".git"), format!("gitdir: {}\n", at("bare/worktrees/main").display())).expect("a file");
    let of_worktree = obeyed(dir.path()).paths;
    assert!(of_worktree.contains(&"bare/hooks".into()), "{of_worktree:?}");
    let elsewhere = tempfile::tempdir().expect("a temporary directory");
    assert_eq!(
        obeyed(elsewhere.path()).paths.len(),
        OBEYED.len() + LISTS.len(),
        "the workspace is elsewhere"
    );
}

#[test]
fn git_is_followed_along_links() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| dir.path().join(name);
    for name in ["w", "main/objects", "main/refs", "tree"] {
        fs::create_dir_all(at(name)).expect("a directory");
    }
    symlink("../main", at("w/.git")).expect("a link");
    let real = fs::canonicalize(dir.path()).expect("its name");
    let leads = |to: &str| obeyed_beside(&at("w"), dir.path()).paths.contains(&real.join(to));
    assert!(leads("main/config") && leads("main/hooks"), "a link to a repository");
    // A link to a pointer: its text starts at the directory of the link. `commondir` is a link too.
    fs::remove_file(at("w/.git")).expect("removed");
    fs::write(at("pointer"), "gitdir: ../tree\n").expect("a file");
    symlink("../pointer", at("w/.git")).expect("a link");
    fs::write(at("common"), "../main\n").expect("a file");
    symlink("../common", at("tree/commondir")).expect("a link");
    assert!(leads("tree/config.worktree") && leads("main/config"));
    // A directory can have its config elsewhere too.
    fs::remove_file(at("w/.git")).expect("removed");
    fs::create_dir(at("w/.git")).expect("a directory");
    fs::write(at("w/.git/commondir"), "../../main\r\n").expect("a file");
    assert!(leads("main/config"));
}

#[test]
fn a_pointer_is_read_as_git_reads_it() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for name in ["main", " main", "main ", "main\t"] {
        fs::create_dir(dir.path().join(name)).expect("a directory");
        fs::write(dir.path().join(".git"), format!("gitdir: {name}\r\n")).expect("a file");
        let paths = obeyed(dir.path()).paths;
        assert!(paths.contains(&Path::new(name).join("config")), "{name:?}: {paths:?}");
    }
    for nowhere in ["gitdir: \n", "gitdir: \0main", &format!("gitdir: {}", "x".repeat(300)), "else"] {
        fs::write(dir.path().join(".git"), nowhere).expect("a file");
        assert_eq!(obeyed(dir.path()).paths.len(), OBEYED.len() + LISTS.len(), "{nowhere:?}");
    }
}

#[test]
fn a_pointer_into_a_closed_directory_is_followed_by_its_text() {
    if nix::unistd::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    fs::create_dir_all(dir.path().join("repos/main")).expect("a directory");
    fs::write(dir.path().join(".git"), "gitdir: repos/main\n").expect("a file");
    let set = |mode| fs::set_permissions(dir.path().join("repos"), fs::Permissions::from_mode(mode));
    set(0).expect("ours");
    let found = obeyed(dir.path());
    set(0o700).expect("ours");
    assert!(found.paths.contains(&"repos/main/hooks".into()), "{found:?}");
}

#[test]
fn a_repository_is_one_around_a_part_of_it() {
    let dir =
        with(&["objects/", "refs/", "HEAD", "modules/sub/HEAD", "modules/sub/config", "worktrees/w/HEAD"]);
    let at = |name: &str| dir.path().join(".git").join(name);
    let found = obeyed(&at("modules"));
    assert!(found.paths.contains(&"sub/config".into()), "{found:?}");
    fs::write(at("worktrees/w/commondir"), "../..\n").expect("a file");
    let found = obeyed(&at("worktrees/w"));
    assert!(found.paths.contains(&"config.worktree".into()), "{found:?}");
    assert!(found.paths.contains(&"commondir".into()), "{found:?}");
}

/// A command can make it before the user adds the submodule.
#[test]
fn a_submodule_is_found_whatever_lies_around_it() {
    let sub = ["modules/tools/logs/objects/", "modules/tools/logs/refs/", "modules/tools/logs/HEAD"];
    let around = ["modules/tools/objects/", "modules/tools/refs/", "modules/tools/HEAD"];
    let dir = with(&[&sub[..], &around[..]].concat());
    let at = |name: &str| dir.path().join(".git").join(name);
    let is_found = || has(&obeyed(dir.path()).paths, "modules/tools/logs/config");
    let write = |head: &str| fs::write(at("modules/tools/HEAD"), head).expect("a file");
    write("ref: refs/heads/x\n");
    assert!(is_found(), "in a complete repository");
    fs::write(at("modules/tools/commondir"), "/nonexistent").expect("a file");
    assert!(is_found(), "its objects are elsewhere");
    fs::remove_file(at("modules/tools/commondir")).expect("removed");
    write("ref:\x0crefs/heads/x\n");
    assert!(is_found(), "a form feed is no white space to git");
    for sign in ["objects", "refs", "config", "HEAD"] {
        assert!(has(&obeyed(dir.path()).paths, &format!("modules/tools/{sign}")), "{sign}");
    }
    fs::rename(at("modules/tools"), at("modules/elsewhere")).expect("renamed");
    symlink("elsewhere", at("modules/tools")).expect("a link");
    let found = obeyed(dir.path());
    assert!(has(&found.incomplete, "modules") && found.beyond.is_empty(), "links are not followed");
    assert!(has(&found.paths, "modules") && !has(&found.paths, "worktrees"), "{found:?}");
}

/// The own directories of a repository are not searched.
#[test]
fn a_repository_may_have_many_objects() {
    let dir = with(&["modules/sub/objects/", "modules/sub/refs/"]);
    let sub = dir.path().join(".git/modules/sub");
    fs::write(sub.join("HEAD"), "ref: refs/heads/main\n").expect("a file");
    for number in 0..10 {
        fs::write(sub.join("objects").join(number.to_string()), "").expect("a file");
    }
    // `sub` and its three entries.
    let found = obeyed_in_entries(dir.path(), 4);
    assert!(found.incomplete.is_empty() && has(&found.paths, "modules/sub/config"), "{:?}", found.incomplete);
}

#[test]
fn a_repository_without_head_is_still_one() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| dir.path().join(name);
    fs::write(at("cfg"), "[Core]\n\tbare = true\n").expect("a file");
    symlink("cfg", at("config")).expect("a link");
    assert!(obeyed(dir.path()).paths.contains(&"hooks".into()));
    fs::write(at("cfg"), "[core]\n\tremote = storage\n").expect("a file");
    assert!(
        !obeyed(dir.path()).paths.contains(&"hooks".into()),
        "other programs have files named config too"
    );
    for name in ["objects", "refs"] {
        fs::create_dir(at(name)).expect("a directory");
    }
    assert!(!obeyed(dir.path()).paths.contains(&"hooks".into()), "and directories with these names");
    fs::write(at("HEAD"), "").expect("a file");
    assert!(obeyed(dir.path()).paths.contains(&"hooks".into()));
}

/// Git follows one `commondir` only.
#[test]
fn one_commondir_is_followed_and_no_chain() {
    let dir = with(&[]);
    let at = |name: &str| dir.path().join(name);
    for (name, to) in [(".git", "../a"), ("a", "../b"), ("b", "../a")] {
        fs::create_dir_all(at(name)).expect("a directory");
        fs::write(at(name).join("commondir"), to).expect("a file");
    }
    let paths = obeyed(dir.path()).paths;
    assert!(paths.contains(&"a/config".into()) && !paths.contains(&"b/config".into()), "{paths:?}");
}

#[test]
fn a_repository_above_is_followed_into_a_grant() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    fs::create_dir_all(dir.path().join("top/sub")).expect("a directory");
    fs::create_dir_all(dir.path().join("repos/main")).expect("a directory");
    symlink("../repos/main", dir.path().join("top/.git")).expect("a link");
    let found = obeyed_beside(&dir.path().join("top/sub"), &dir.path().join("repos"));
    let config = fs::canonicalize(dir.path()).expect("its name").join("repos/main/config");
    assert!(found.paths.contains(&config), "{found:?}");
}

/// A command must not make Kennel open files that the command itself may not open.
#[test]
fn a_link_to_what_is_no_file_is_not_opened() {
    let dir = with(&["objects/", "refs/", "HEAD"]);
    nix::unistd::mkfifo(&dir.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    let write =
        || fs::File::options().write(true).custom_flags(libc::O_NONBLOCK).open(dir.path().join("fifo"));
    for to in ["../fifo", "/proc/self/mem", "/proc/kmsg", "/dev/tty"] {
        for name in ["commondir", "config"] {
            let link = dir.path().join(".git").join(name);
            let _ = fs::remove_file(&link);
            symlink(to, link).expect("a link");
        }
        let found = obeyed(dir.path());
        assert!(has(&found.paths, "commondir") && found.incomplete.is_empty(), "{to}: {found:?}");
    }
    assert_eq!(write().expect_err("nobody reads").raw_os_error(), Some(libc::ENXIO));
}

/// Commands can make any number of repositories, and each later start looks at them.
#[test]
fn the_walk_has_a_bound() {
    let repository = |at: &Path| {
        fs::create_dir_all(at).expect("a directory");
        fs::write(at.join("config"), "").expect("a file");
    };
    // As many submodules as large projects have, and as deep.
    let dir = with(&[]);
    for number in 0..600 {
        repository(&dir.path().join(format!(".git/modules/libs/{}/x/{number}", number % 10)));
    }
    let found = obeyed(dir.path());
    assert!(
        found.incomplete.is_empty() && has(&found.paths, "modules/libs/9/x/599/config"),
        "{:?}",
        found.incomplete
    );
    // Two repositories; together they are beyond the bound.
    let dir = with(&["HEAD", "../c/HEAD"]);
    fs::write(dir.path().join(".git/commondir"), "../c").expect("a file");
    for number in 0..MOST / 2 + 1 {
        repository(&dir.path().join(format!(".git/modules/{number}")));
        repository(&dir.path().join(format!("c/modules/{number}")));
    }
    let found = obeyed(dir.path());
    assert_eq!((&*found.beyond, &*found.incomplete), (&["c".into()][..], &["c".into()][..]));
    assert!(has(&found.paths, "modules/7/config"));
    assert!(found.paths.contains(&"c/modules".into()) && found.paths.contains(&"c/worktrees".into()));
    // `modules` counts as one directory, and the `modules` of the submodule as another.
    for (name, deepest) in [("a", DEEPEST - 2), (&*"a".repeat(200), 5)] {
        let nest = |levels: usize| with(&[&format!("modules/{}/config", vec![name; levels].join("/"))]);
        assert!(obeyed(nest(deepest).path()).incomplete.is_empty(), "{name}");
        let config = format!("modules/{}/config", vec![name; deepest + 1].join("/"));
        assert_is_beyond(&obeyed(nest(deepest + 1).path()), &config);
    }
}

#[test]
fn worktrees_of_a_submodule_are_found() {
    let dir = with(&["modules/sub/objects/", "modules/sub/refs/", "modules/sub/HEAD"]);
    for number in 0..100 {
        let modules = dir.path().join(format!(".git/modules/sub/worktrees/{number}/modules"));
        fs::create_dir_all(modules).expect("a directory");
    }
    let found = obeyed(dir.path());
    assert!(found.incomplete.is_empty() && has(&found.paths, "modules/sub/worktrees/99/commondir"));
}

/// The part that is not read may be a section of git.
#[test]
fn a_config_that_is_too_long_may_be_a_repositorys() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let is_one = |length: usize| {
        fs::write(dir.path().join("config"), vec![b'\n'; length]).expect("a file");
        obeyed(dir.path()).paths.contains(&"hooks".into())
    };
    assert!(is_one((1 << 20) + 1) && !is_one(1 << 20));
}

#[test]
fn a_config_of_git_has_its_keys() {
    for config in ["[core]\n\tbare = true\n", "[user]\n[CORE] RepositoryFormatVersion=0", "[core]\nbare"] {
        assert!(is_git_config(config.as_bytes()), "{config}");
    }
    for config in [
        "",
        "[core]\n remote = barebones\n",
        "[core]\nrepo_version=1\nmode=bare-user\n",
        "bare = true\n[core]\n[x]\nbare = true",
        "# [core]\n#bare\n[core]\n;bare\nbarely = true",
    ] {
        assert!(!is_git_config(config.as_bytes()), "{config}");
    }
}
