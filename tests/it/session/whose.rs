//! A file at a protected path counts as the user's only if no command can have made it.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::symlink,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use kennel::{Error, Session, report::Wording};
use nix::sys::signal::Signal::SIGKILL;

use super::{
    alone, eventually, in_time, shell,
    tree::{children, signal, workers, zygote},
};
use crate::support::{TempDir, World, has, payload_path, policy_at, require, workspace};

const MAKE: &str = "echo x > .git/commondir; until [ -e stop ]; do sleep 0.01; done";

/// A workspace with a repository that has no `commondir`.
fn repository() -> TempDir {
    let dir = workspace();
    fs::create_dir_all(dir.path().join(".git/hooks")).unwrap();
    fs::write(dir.path().join(".git/config"), "[a]\n").unwrap();
    dir
}

/// When git outside adds one, it changes nothing else in the repository.
#[tokio::test]
async fn a_worktree_or_submodule_that_the_user_adds_is_protected_from_the_next_command_on() {
    let world = World::of(repository());
    fs::create_dir_all(world.at(".git/modules/tools")).unwrap();
    let session = world.session().await;
    in_time(session.command("true").output()).await.unwrap();
    let at = |name: &str| world.at(".git").join(name);
    for repository in ["modules/tools/sub", "modules/other"] {
        for part in ["objects", "refs", "hooks"] {
            fs::create_dir_all(at(repository).join(part)).unwrap();
        }
        for file in ["HEAD", "config"] {
            fs::write(at(repository).join(file), "").unwrap();
        }
    }
    fs::create_dir_all(at("worktrees/tree")).unwrap();
    fs::write(at("worktrees/tree/commondir"), "../..\n").unwrap();
    for file in ["worktrees/tree/commondir", "modules/tools/sub/config", "modules/other/hooks/x"] {
        let script = format!("echo evil > .git/{file}");
        let output = in_time(session.command("sh").args(["-c", &script]).output()).await.unwrap();
        assert!(!output.outcome.status.success(), "{file}: {output:?}");
    }
    fs::create_dir_all(at("modules/other/worktrees/tree")).unwrap();
    let script = "echo evil > .git/modules/other/worktrees/tree/commondir";
    let output = in_time(session.command("sh").args(["-c", script]).output()).await.unwrap();
    assert_eq!(output.outcome.denials.len(), 1, "it was not there: {output:?}");
    assert!(!at("modules/other/worktrees/tree/commondir").exists());
}

/// The first command makes it and is dropped. The second waits until it was removed, and makes it again.
#[tokio::test]
async fn files_of_a_dropped_command_are_removed_by_the_next() {
    let world = World::of(repository());
    let session = world.session().await;
    let made = world.at(".git/commondir");
    for round in 0..15 {
        let mut first = session.command("sh");
        let child = in_time(first.args(["-c", MAKE]).spawn()).await.unwrap();
        while !made.exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(child);
        let again = "for i in $(seq 60); do [ -e .git/commondir ] || { echo y > .git/commondir; break; }; sleep 0.005; done";
        let mut second = session.command("sh");
        in_time(second.args(["-c", again]).output()).await.unwrap();
        in_time(session.command("true").output()).await.unwrap();
        assert!(!made.exists(), "{round}");
    }
}

/// A change by the user meanwhile is no reason to take the command's file for the user's.
#[tokio::test]
async fn files_of_a_running_command_stay_its_own_when_the_user_changes_something() {
    let world = World::of(repository());
    let session = world.session().await;
    let made = world.at(".git/commondir");
    let mut first = session.command("sh");
    let mut first = in_time(first.args(["-c", MAKE]).spawn()).await.unwrap();
    while !made.exists() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    fs::write(world.at("new"), "[b]\n").unwrap();
    fs::rename(world.at("new"), world.at(".git/config")).unwrap();
    let again =
        "until [ ! -e .git/commondir ]; do sleep 0.01; done; echo y > .git/commondir; echo x >> .git/config";
    let mut second = session.command("sh");
    let second = tokio::spawn(async move { second.args(["-c", again]).output().await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    fs::write(world.at("stop"), "").unwrap();
    assert_eq!(in_time(first.wait()).await.unwrap().denials.len(), 1);
    let second = in_time(second).await.unwrap().unwrap();
    assert!(!second.outcome.status.success() && second.outcome.denials.len() == 1, "{second:?}");
    assert!(!made.exists());
    assert_eq!(fs::read_to_string(world.at(".git/config")).unwrap(), "[b]\n");
}

/// Kennel removes a file that a command puts in the place of a link, after commands that started meanwhile
/// too. Nobody restores the link.
#[tokio::test]
async fn a_file_in_the_place_of_a_link_is_removed_whichever_command_ends() {
    let world = World::of(repository());
    fs::create_dir(world.at("real")).unwrap();
    fs::remove_dir(world.at(".git/hooks")).unwrap();
    symlink("../real", world.at(".git/hooks")).unwrap();
    let session = world.session().await;
    let link = || fs::read_link(world.at(".git/hooks")).ok();
    let exchange = "mkdir -p evil; ln -sfn ../evil .git/hooks; until [ -e stop ]; do sleep 0.01; done";
    let mut first = session.command("sh");
    let mut first = in_time(first.args(["-c", exchange]).spawn()).await.unwrap();
    while link().is_none_or(|link| link != *"../evil") {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for _ in 0..3 {
        in_time(session.command("true").output()).await.unwrap();
        assert_eq!(link(), None);
    }
    fs::write(world.at("stop"), "").unwrap();
    let denials = in_time(first.wait()).await.unwrap().denials;
    assert!(denials.iter().any(|denial| {
        let line = denial.line(Wording::default());
        line.contains("it is gone; the link that was there led to ../real; git trust")
    }));
    in_time(session.shutdown()).await;
    assert_eq!(link(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn commands_that_start_together_all_find_the_current_files() {
    let world = World::of(repository());
    let file = world.at(".env");
    fs::write(&file, "SECRET").unwrap();
    let session = Session::prepare(&world.policy().mask(&file)).await.unwrap();
    for round in 0..30 {
        fs::write(world.at("new"), "SECRET").unwrap();
        fs::rename(world.at("new"), &file).unwrap();
        fs::write(world.at("new"), "[a]\n").unwrap();
        fs::rename(world.at("new"), world.at(".git/config")).unwrap();
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..5 {
            let mut command = session.command("sh");
            command.args(["-c", "cat .env; echo x >> .git/config"]);
            all.spawn(async move { command.output().await });
        }
        while let Some(ended) = in_time(all.join_next()).await {
            let out = ended.unwrap().unwrap();
            assert!(out.stdout.is_empty() && !out.outcome.status.success(), "{round}: {out:?}");
        }
        assert_eq!(fs::read_to_string(world.at(".git/config")).unwrap(), "[a]\n", "{round}");
    }
}

/// rename(2) takes mounts on a directory along.
#[tokio::test]
async fn a_wall_holds_after_a_rename_brought_one_of_our_mounts() {
    require!(has("mv"), "mv");
    let world = World::new();
    for name in ["ci/old", "ci/new", "conf", "secrets"] {
        fs::create_dir_all(world.at(name)).unwrap();
    }
    fs::write(world.at("ci/old/Makefile"), "").unwrap();
    fs::write(world.at("conf/.env"), "SECRET=1").unwrap();
    fs::write(world.at("conf/plain"), "SECRET=2").unwrap();
    let policy = world
        .policy()
        .protect("ci/old/Makefile")
        .protect("ci/new")
        .mask(world.at("conf/.env"))
        .mask(world.at("secrets"));
    let session = Session::prepare(&policy).await.unwrap();
    shell(&session, "true").await;
    let script = "mv ci/new ci/gone && mv ci/old ci/new && mv secrets empty && mv conf secrets && mkdir -p ci/old conf && touch ci/old/Makefile conf/.env";
    let moved = Command::new("sh").args(["-c", script]).current_dir(world.path()).status().unwrap();
    assert!(moved.success());
    let mut command = session.command("sh");
    command.args(["-c", "echo x > ci/new/x; cat secrets/plain secrets/.env"]);
    let out = in_time(command.output()).await.unwrap();
    assert!(out.stdout.is_empty(), "{}", String::from_utf8_lossy(&out.stdout));
    assert!(!world.at("ci/new/x").exists());
}

#[tokio::test]
async fn a_writable_grant_that_was_replaced_is_an_error() {
    let dir = workspace();
    let workspace = dir.path().join("ws");
    fs::create_dir(&workspace).unwrap();
    let session = Session::prepare(&policy_at(&workspace)).await.unwrap();
    shell(&session, "true").await;
    fs::rename(&workspace, dir.path().join("old")).unwrap();
    fs::create_dir(&workspace).unwrap();
    let error = in_time(session.command("true").output()).await.unwrap_err();
    assert!(matches!(&error, Error::Grant { what: "workspace", .. }), "{error:?}");
    assert!(error.remedy().is_some_and(|remedy| remedy.to_string().contains("prepare a new session")));
}

/// A second name keeps inode and birth time, so only the time of the change shows it. The next command gets
/// the lost mount again.
#[tokio::test]
async fn a_wall_that_a_second_name_removed_is_restored() {
    let world = World::of(repository());
    let (made, link) = (world.at(".git/commondir"), world.at(".git/x"));
    fs::write(&made, "..\n").unwrap();
    let session = world.session().await;
    let refused = |said: &str| assert!(said.contains("Read-only file system"), "{said}");
    refused(&shell(&session, "(echo y > .git/commondir) 2>&1 || true").await);
    fs::hard_link(&made, &link).unwrap();
    fs::remove_file(&made).unwrap();
    fs::hard_link(&link, &made).unwrap();
    fs::remove_file(&link).unwrap();
    refused(&shell(&session, "(echo y > .git/commondir) 2>&1 || true").await);
    assert_eq!(fs::read_to_string(&made).unwrap(), "..\n");
}

/// A workspace with a protected link and no repository.
fn linked() -> TempDir {
    let dir = workspace();
    symlink("one", dir.path().join("link")).unwrap();
    dir
}

/// Files that `git init`, `git sparse-checkout` and a user make.
fn make_as_the_user(dir: &Path) {
    fs::create_dir_all(dir.join(".git/hooks")).unwrap();
    fs::write(dir.join(".git/config"), "[core]\n").unwrap();
    fs::write(dir.join(".git/hooks/pre-commit"), "#!/bin/sh\n").unwrap();
    fs::write(dir.join(".git/config.worktree"), "[core]\n").unwrap();
    fs::remove_file(dir.join("link")).unwrap();
    symlink("two", dir.join("link")).unwrap();
}

fn is_as_the_user_made_it(dir: &Path) -> bool {
    let is_there = |name: &str| dir.join(name).exists();
    is_there(".git/hooks/pre-commit")
        && is_there(".git/config.worktree")
        && fs::read_link(dir.join("link")).is_ok_and(|to| to == *"two")
}

/// A command may have run before and after it. The session ends by order or by drop.
#[test]
fn files_that_the_user_made_while_no_command_ran_outlive_the_session() {
    alone("whose::files_that_the_user_made_while_no_command_ran_outlive_the_session", async || {
        for (before, after, ordered) in
            [(false, false, true), (true, false, true), (true, true, true), (true, true, false)]
        {
            let world = World::of(linked());
            let session = Session::prepare(&world.policy().protect("link")).await.unwrap();
            if before {
                shell(&session, "true").await;
            }
            make_as_the_user(world.path());
            if after {
                shell(&session, "true").await;
            }
            if ordered {
                in_time(session.shutdown()).await;
            }
            drop(session);
            eventually("it is gone", || children(std::process::id()).is_empty()).await;
            assert!(is_as_the_user_made_it(world.path()), "{before} {after} {ordered}");
        }
    });
}

/// The next command finds that it has ended.
#[test]
fn files_that_the_user_made_after_a_background_command_outlive_the_session() {
    alone("whose::files_that_the_user_made_after_a_background_command_outlive_the_session", async || {
        let world = World::of(linked());
        let session = Session::prepare(&world.policy().protect("link")).await.unwrap();
        in_time(session.command("true").background(true).status()).await.unwrap();
        eventually("its init is gone", || workers().len() == 2).await;
        shell(&session, "true").await;
        make_as_the_user(world.path());
        in_time(session.shutdown()).await;
        assert!(is_as_the_user_made_it(world.path()));
    });
}

#[tokio::test]
async fn outdated_workers_remove_nothing_of_the_user() {
    let world = World::of(linked());
    let session = Session::prepare(&world.policy().protect("link")).await.unwrap();
    shell(&session, "true").await;
    // The session reads their messages, so that it holds them.
    eventually("they wait", || session.stats().ready == 2).await;
    make_as_the_user(world.path());
    let refused = "(echo x >>.git/hooks/pre-commit) 2>&1 || true";
    assert!(shell(&session, refused).await.contains("Read-only file system"));
    assert!(is_as_the_user_made_it(world.path()));
}

/// However the session ends. When its end is reported, the files may be used.
#[test]
fn files_of_a_running_command_do_not_outlive_the_session() {
    alone("whose::files_of_a_running_command_do_not_outlive_the_session", async || {
        for end in ["shutdown", "drop", "kill"] {
            eventually("nothing is left", || children(std::process::id()).is_empty()).await;
            let world = World::of(repository());
            let session = world.session().await;
            let made = world.at(".git/commondir");
            let mut command = session.command("sh");
            let mut child = in_time(command.args(["-c", MAKE]).spawn()).await.unwrap();
            eventually("it is made", || made.exists()).await;
            match end {
                "shutdown" => {
                    in_time(session.shutdown()).await;
                    assert!(!made.exists(), "{end}");
                }
                "drop" => drop(session),
                _ => signal(zygote(), SIGKILL),
            }
            in_time(child.wait()).await.unwrap_err();
            assert!(!made.exists(), "{end}");
        }
    });
}

/// A process that traces another one until its stdin closes, and the result of ptrace(2).
fn tracer(pid: u32) -> (Child, String) {
    let (mut command, pid) = (Command::new(payload_path()), pid.to_string());
    // PTRACE_SEIZE
    command.args(["call", "ptrace", "0x4206", &pid, "0", "0", "+", "read", "0", "buf", "1"]);
    let mut tracer = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(tracer.stdout.take().unwrap()).read_line(&mut said).unwrap();
    (tracer, said.trim_end().to_owned())
}

/// A process that is traced from outside is not gone before its tracer has seen the end, as if it were stuck
/// in the kernel. A file that appears until then counts as its doing.
#[test]
fn files_of_a_killed_but_stuck_command_are_reported_and_removed_when_it_is_gone() {
    alone(
        "whose::files_of_a_killed_but_stuck_command_are_reported_and_removed_when_it_is_gone",
        async || {
            for end in ["gone", "shutdown"] {
                eventually("nothing is left", || children(std::process::id()).is_empty()).await;
                let world = World::of(repository());
                let made = world.at(".git/commondir");
                let session = Session::builder(&world.policy()).ready_workers(0).prepare().await.unwrap();
                let mut command = session.command("sh");
                let mut child =
                    in_time(command.args(["-c", "touch runs; exec sleep 60"]).spawn()).await.unwrap();
                eventually("it runs", || world.at("runs").exists()).await;
                let (mut tracer, said) = tracer(children(workers()[0])[0]);
                require!(said == "ok", "ptrace(2) of the processes of a sandbox");
                let outcome = in_time(child.kill()).await.unwrap();
                assert!(outcome.is_left && outcome.denials.len() == 1, "{outcome:?}");
                assert!(outcome.denials[0].reason.contains("is stuck in a system call"), "{outcome:?}");
                fs::write(&made, "..\n").unwrap();
                if end == "shutdown" {
                    in_time(session.shutdown()).await;
                    assert!(!made.exists(), "what is there at the end may be its doing");
                }
                drop(tracer.stdin.take());
                tracer.wait().unwrap();
                eventually("it is undone", || !made.exists()).await;
            }
        },
    );
}
