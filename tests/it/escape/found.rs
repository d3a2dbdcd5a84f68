//! Holes that existed once. Each test has the name of the promise that was broken.

use std::{
    fs::{self, File},
    os::unix::{
        fs::{MetadataExt, symlink},
        net::UnixListener,
    },
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::{
    check, command, lines,
    protected::denials,
    secrets::{at_home, home},
};
use crate::support::{kennel_path, only_as_root, patient, payload_path, repository, workspace};

#[test]
fn device_nodes_of_the_host_are_not_changed() {
    let ws = workspace();
    let before = fs::metadata("/dev/null").unwrap();
    for device in ["null", "zero", "full", "random", "urandom", "tty"] {
        check(
            ws.path(),
            &[],
            &[
                (&format!("chmod s:/dev/{device} 0x1b6"), "EROFS"),
                (&format!("chown s:/dev/{device} -1 -1"), "EROFS"),
                (&format!("utimensat -100 s:/dev/{device} 0 0"), "EROFS"),
            ],
        );
    }
    check(ws.path(), &[], &[("open s:/dev/null 1", "ok"), ("write $ s:x 1", "ok")]);
    let after = fs::metadata("/dev/null").unwrap();
    assert_eq!((before.mode(), before.ctime()), (after.mode(), after.ctime()));
}

#[test]
fn an_ancestor_swapped_for_a_link_gives_nothing_away() {
    let (ws, other) = (workspace(), workspace());
    fs::create_dir(ws.path().join(".git")).unwrap();
    symlink(other.path(), ws.path().join("link")).unwrap();
    let names = [".git", "link"].map(|name| ws.path().join(name).display().to_string());
    let mut flipper = Command::new(payload_path())
        .args(["flip", &names[0], &names[1], "4000"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_millis(3500);
    while Instant::now() < end {
        let calls = "call creat s:.git/written 0x1a4 + creat s:link/written 0x1a4";
        command(ws.path(), &["-q"], &calls.split_whitespace().collect::<Vec<_>>()).output().unwrap();
    }
    flipper.wait().unwrap();
    assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0);
}

#[test]
fn what_the_host_mounts_later_does_not_appear() {
    only_as_root!();
    let (ws, other) = (workspace(), workspace());
    let dir = other.path().display();
    let payload = payload_path();
    let script = format!(
        "mount -t tmpfs share {dir} && mount --make-shared {dir} && mkdir {dir}/late || exit 1
         {kennel} run -q --ro {payload}:/payload --ro {dir} -- sh -c \
           'sleep {late}; /payload call creat s:{dir}/late/x 0x1a4; grep -c {dir}/late /proc/self/mountinfo' &
         sleep {then}; mount -t tmpfs late {dir}/late; wait",
        kennel = kennel_path().display(),
        payload = payload.display(),
        late = patient(Duration::from_secs(1)).as_secs_f64(),
        then = patient(Duration::from_millis(500)).as_secs_f64(),
    );
    let output = Command::new("unshare")
        .args(["-m", "--propagation", "shared", "sh", "-c", &script])
        .current_dir(ws.path())
        .output()
        .unwrap();
    assert_eq!(lines(&output), ["EROFS", "0"]);
}

#[test]
fn a_directory_as_standard_input_opens_nothing_protected() {
    let (ws, other) = (workspace(), workspace());
    fs::create_dir_all(ws.path().join(".git")).unwrap();
    fs::write(ws.path().join(".git/config"), "[core]\n").unwrap();
    let path = other.path().join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    let stdin = File::open(ws.path()).unwrap();
    let calls = "call openat 0 s:.git/config 1 + fchdir 0 + stat s:../../etc/passwd buf";
    let mut command = command(ws.path(), &[], &calls.split_whitespace().collect::<Vec<_>>());
    let output = command.stdin(Stdio::from(stdin)).output().unwrap();
    assert_eq!(output.status.code(), Some(125));
}

#[test]
fn secrets_are_covered_wherever_the_home_is_shown() {
    let (home, ws) = (home(), workspace());
    let grant = format!("{}:/data", home.path().display());
    let mut run = command(ws.path(), &["--ro", &grant], &["list", "/data/.ssh", "/data/.config/gh"]);
    assert_eq!(lines(&run.env("HOME", home.path()).output().unwrap()), ["[]", "[]"]);
}

#[test]
fn secrets_of_a_home_named_by_a_link_are_covered() {
    let (home, other) = (home(), workspace());
    let link = other.path().join("me");
    symlink(home.path(), &link).unwrap();
    let keys = home.path().join(".ssh").display().to_string();
    let mut run = command(home.path(), &[], &["list", &keys]);
    assert_eq!(lines(&run.env("HOME", &link).output().unwrap()), ["[]"]);
}

#[test]
fn the_directory_around_a_secret_is_not_renamed() {
    let home = home();
    // Otherwise the next run would find nothing to mask at the old name.
    assert_eq!(at_home(home.path(), &[], &["call", "rename", "s:.config", "s:c"]), ["EBUSY"]);
}

#[test]
fn a_linked_directory_around_a_secret_is_no_obstacle() {
    let home = home();
    fs::rename(home.path().join(".config"), home.path().join("dots")).unwrap();
    symlink("dots", home.path().join(".config")).unwrap();
    let secret = home.path().join("dots/gh").display().to_string();
    assert_eq!(at_home(home.path(), &[], &["list", &secret]), ["[]"]);
}

#[test]
fn the_target_of_a_protected_link_is_protected() {
    let ws = repository();
    fs::rename(ws.path().join(".git/hooks"), ws.path().join("shared")).unwrap();
    symlink("../shared", ws.path().join(".git/hooks")).unwrap();
    check(ws.path(), &[], &[("open s:shared/pre-commit 1", "EROFS"), ("creat s:shared/x 0x1ed", "EROFS")]);
}

#[test]
fn a_commondir_of_a_command_does_not_replace_the_config() {
    let ws = repository();
    let told = denials(ws.path(), &[], "echo ../evil > .git/commondir");
    assert!(told.contains("commondir"), "{told}");
    assert!(!fs::exists(ws.path().join(".git/commondir")).unwrap());
}

#[test]
fn a_hard_link_to_a_protected_file_is_reported() {
    let ws = repository();
    fs::hard_link(ws.path().join(".git/config"), ws.path().join("alias")).unwrap();
    let output = command(ws.path(), &[], &["call", "open", "s:alias", "1"]).output().unwrap();
    let said = crate::support::stderr(&output);
    assert!(said.contains("protected_paths degraded") && said.contains("hard links"), "{said}");
    let output = command(ws.path(), &["--profile", "ci-only"], &["exit"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{output:?}");
}

#[test]
fn hooks_without_write_permission_are_undone_too() {
    let ws = workspace();
    fs::create_dir(ws.path().join(".git")).unwrap();
    let script = "mkdir .git/hooks; echo x > .git/hooks/pre-commit; chmod 555 .git/hooks .git";
    let told = denials(ws.path(), &[], script);
    assert!(told.contains("it was renamed"), "{told}");
    assert!(fs::symlink_metadata(ws.path().join(".git/hooks")).is_err());
}

#[test]
fn limits_of_init_are_not_lowered() {
    let ws = workspace();
    check(ws.path(), &[], &[("prlimit64 1 7 p:0,0 0", "EPERM")]);
}

#[test]
fn statistics_of_the_kernels_memory_are_covered() {
    only_as_root!();
    let ws = workspace();
    for path in ["/proc/slabinfo", "/proc/pagetypeinfo", "/proc/allocinfo"] {
        if fs::exists(path).unwrap() {
            assert_eq!(crate::support::attempt(ws.path(), &[], "read", &[path]), "[]", "{path}");
        }
    }
}

#[test]
fn a_grant_in_a_grant_is_not_moved_with_what_is_around_it() {
    let ws = workspace();
    let inner = ws.path().join("x/repo");
    fs::create_dir_all(inner.join(".git/hooks")).unwrap();
    fs::write(inner.join(".git/config"), "[core]\n").unwrap();
    let outer = ws.path().display();
    let calls = [(&*format!("rename s:{outer}/x s:{outer}/y"), "EBUSY")];
    check(&inner, &["--rw", &outer.to_string()], &calls);
    fs::create_dir_all(ws.path().join("vendor/lib")).unwrap();
    let nested = ws.path().join("vendor/lib").display().to_string();
    check(ws.path(), &["--ro", &nested], &[("rename s:vendor s:v2", "EBUSY"), ("rename s:x s:y", "ok")]);
}

#[test]
fn a_protected_path_is_protected_by_every_name_it_is_shown_by() {
    let ws = workspace();
    let inner = ws.path().join("x/repo");
    fs::create_dir_all(inner.join(".git/hooks")).unwrap();
    fs::write(inner.join(".git/config"), "[core]\n").unwrap();
    let alias = format!("{}:/alias", ws.path().display());
    let calls = [
        ("open s:/alias/x/repo/.git/config 1", "EROFS"),
        ("creat s:/alias/x/repo/.git/hooks/pre-commit 0x1ed", "EROFS"),
        ("rename s:/alias/x/repo/.git s:/alias/x/repo/g", "EBUSY"),
        ("creat s:/alias/x/repo/other 0x1a4", "ok"),
    ];
    check(&inner, &["--rw", &alias], &calls);
}

#[test]
fn a_link_in_another_project_adds_nothing_to_the_path() {
    let (home, ws) = (home(), workspace());
    let project = home.path().join("project");
    fs::create_dir(&project).unwrap();
    symlink("/var", project.join(".venv")).unwrap();
    let (bin, lib) = (project.join(".venv/bin"), project.join(".venv/lib").display().to_string());
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let mut run = command(ws.path(), &[], &["list", &lib]);
    let output = run.env("HOME", home.path()).env("PATH", path).output().unwrap();
    assert_eq!(lines(&output), ["ENOENT"]);
}

#[test]
fn a_tree_that_resists_is_undone_or_moved_aside() {
    let ws = workspace();
    fs::create_dir(ws.path().join(".git")).unwrap();
    let deep =
        "mkdir .git/hooks; cd .git/hooks; i=0; while [ $i -lt 260 ]; do mkdir d && cd d; i=$((i+1)); done";
    let told = denials(ws.path(), &[], deep);
    assert!(told.contains(".refused-by-kennel"), "{told}");
    assert!(fs::symlink_metadata(ws.path().join(".git/hooks")).is_err());
    let flat =
        "mkdir -p .git/hooks/a/b; touch .git/hooks/a/b/c; chmod 0 .git/hooks/a/b .git/hooks/a .git/hooks";
    let told = denials(ws.path(), &[], flat);
    assert!(told.contains("it was renamed"), "{told}");
    assert!(fs::symlink_metadata(ws.path().join(".git/hooks")).is_err());
}

#[test]
fn a_workspace_that_looks_like_a_repository_keeps_its_protection() {
    let ws = repository();
    denials(ws.path(), &[], "echo ref: refs/heads/x > HEAD; mkdir objects refs");
    check(ws.path(), &[], &[("open s:.git/config 1", "EROFS"), ("creat s:.git/hooks/evil 0x1ed", "EROFS")]);
}

#[test]
fn submodules_are_protected_whatever_their_names() {
    let ws = repository();
    let modules = [
        "modules/vendor/lib",
        "modules/plain",
        "modules/plain/modules/nested",
        "modules/plain/worktrees/tree/modules/nested",
        "worktrees/tree/modules/plain",
    ];
    for module in modules {
        let module = ws.path().join(".git").join(module);
        for directory in ["objects", "refs", "hooks"] {
            fs::create_dir_all(module.join(directory)).unwrap();
        }
        fs::write(module.join("HEAD"), "ref: refs/heads/x\n").unwrap();
        fs::write(module.join("config"), "[core]\n").unwrap();
    }
    for module in modules {
        let open = format!("open s:.git/{module}/config 1");
        let hook = format!("creat s:.git/{module}/hooks/x 0x1ed");
        let object = format!("creat s:.git/{module}/objects/x 0x1a4");
        check(ws.path(), &[], &[(&open, "EROFS"), (&hook, "EROFS"), (&object, "ok")]);
        let told = denials(ws.path(), &[], &format!("echo ../evil > .git/{module}/commondir"));
        assert!(told.contains("commondir") && told.contains("it was renamed"), "{told}");
    }
    for tree in ["worktrees/tree", "modules/plain/worktrees/tree"] {
        let told = denials(ws.path(), &[], &format!("echo x > .git/{tree}/config.worktree"));
        assert!(told.contains("config.worktree") && told.contains("it was renamed"), "{told}");
    }
}

#[test]
fn an_old_tree_renamed_into_place_is_moved_aside() {
    let ws = workspace();
    let told = denials(ws.path(), &[], "git init -q e; echo x > e/.git/hooks/pre-commit; mv e/.git ev");
    assert_eq!(told, "[]");
    fs::create_dir_all(ws.path().join("x/b/c")).unwrap();
    let told = denials(ws.path(), &[], "mv ev .git");
    assert!(told.contains(".refused-by-kennel"), "{told}");
    assert!(!ws.path().join(".git/hooks").exists());
    assert!(ws.path().join(".git/hooks.refused-by-kennel.0/pre-commit").exists());
    let told = denials(ws.path(), &["--protect", "a/b"], "mv x a");
    assert!(told.contains(".refused-by-kennel"), "{told}");
    assert!(!ws.path().join("a/b").exists() && ws.path().join("a/b.refused-by-kennel.0").exists());
}

#[test]
fn a_closed_parent_does_not_hide_a_hook() {
    let ws = workspace();
    fs::create_dir(ws.path().join(".git")).unwrap();
    let told = denials(ws.path(), &[], "mkdir .git/hooks; echo x > .git/hooks/pre-commit; chmod 0 .git");
    assert!(told.contains("it was renamed"), "{told}");
    assert!(fs::symlink_metadata(ws.path().join(".git/hooks")).is_err());
}

#[test]
fn every_link_of_a_chain_is_watched_even_if_it_dangles() {
    let ws = repository();
    let git = ws.path().join(".git");
    fs::rename(&git, ws.path().join("real")).unwrap();
    symlink("real", ws.path().join("mid")).unwrap();
    symlink("mid", &git).unwrap();
    let told = denials(ws.path(), &[], "rm mid; mkdir evil; ln -s evil mid");
    assert!(told.contains("mid") && told.contains("led to real"), "{told}");
    symlink("real", ws.path().join("mid")).unwrap();
    check(ws.path(), &[], &[("open s:real/config 1", "EROFS")]);
    let ws = workspace();
    fs::create_dir(ws.path().join(".git")).unwrap();
    symlink("../hk", ws.path().join(".git/hooks")).unwrap();
    let told = denials(ws.path(), &[], "mkdir hk; echo x > hk/pre-commit");
    assert!(told.contains("hk") && told.contains("it was renamed"), "{told}");
}

#[test]
fn a_hook_that_is_a_link_is_protected_where_it_leads() {
    let ws = repository();
    fs::create_dir(ws.path().join("scripts")).unwrap();
    fs::write(ws.path().join("scripts/pc"), "#!/bin/sh\n").unwrap();
    symlink("../../scripts/pc", ws.path().join(".git/hooks/post-commit")).unwrap();
    check(ws.path(), &[], &[("open s:scripts/pc 1", "EROFS"), ("rename s:scripts s:other", "EBUSY")]);
}

#[test]
fn the_null_device_of_the_host_is_not_what_the_command_gets() {
    let ws = workspace();
    let mut run = command(ws.path(), &[], &["call", "fchmod", "0", "0x1b6"]);
    assert_eq!(lines(&run.stdin(Stdio::null()).output().unwrap()), ["EROFS"]);
}

#[test]
fn priorities_of_init_are_not_changed() {
    let ws = workspace();
    let calls =
        [("setpriority 2 0 10", "EPERM"), ("ioprio_set 3 0 16384", "EPERM"), ("setpriority 0 1 5", "EPERM")];
    check(ws.path(), &[], &[calls[0], calls[1], calls[2], ("setpriority 0 0 5", "ok")]);
}
